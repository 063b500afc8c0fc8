"""What errors say: the nearest known word, the place of a wrong rate, and one line without secrets."""

import copy
import pickle
from collections.abc import Callable

import pytest

from django_quota.core import errors
from django_quota.core.errors import StoreFull, Translatable, did_you_mean, nearest, without_secrets
from django_quota.exceptions import (
    ConfigurationError,
    CounterError,
    LeaseLost,
    QuotaError,
    QuotaExceeded,
    RateError,
    RuleError,
    StoreUnavailable,
)


@pytest.mark.parametrize(
    ("word", "known", "says"),
    [
        pytest.param("serch", ["search", "sea"], " Did you mean 'search'?", id="the most similar one"),
        pytest.param("rules", ["RULES", "CACHE"], " Did you mean 'RULES'?", id="in other letters"),
        pytest.param("SEARCH", ["search"], " Did you mean 'search'?", id="in capitals"),
        pytest.param("search", ["shop.views.search", "a"], " Did you mean 'shop.views.search'?", id="its last part"),
        pytest.param("arch", ["shop.views.search"], " Known: shop.views.search.", id="a part of its last part"),
        pytest.param("x", ["two", "one"], " Known: one, two.", id="nothing similar"),
        pytest.param("x", [], "", id="nothing known"),
        pytest.param("search", ["sear", "searche", "seat"], " Did you mean 'searche'?", id="the best of several"),
    ],
)
def test_an_unknown_word_gets_the_nearest_known_one(word: str, known: list[str], says: str) -> None:
    assert did_you_mean(word, iter(known)) == says


@pytest.mark.parametrize(
    ("error", "says"),
    [
        pytest.param(ConfigurationError("It is wrong."), "It is wrong.", id="no hint"),
        pytest.param(ConfigurationError("It is wrong.", " Use 5."), "It is wrong. Use 5.", id="a hint after a space"),
        pytest.param(RateError("5/x", 2, "no", "Use s."), "'5/x' is not a rate: no (at position 2). Use s.", id="rate"),
        pytest.param(RateError("5/x", 0, "no", ""), "'5/x' is not a rate: no (at position 0).", id="its first letter"),
        pytest.param(RateError(5, None, "no", ""), "5 is not a rate: no.", id="no position"),
        pytest.param(RateError(5, None, "no", "", "ban"), "ban=5 is not a rate: no.", id="the rate of an option"),
        pytest.param(StoreUnavailable("time-out"), "The quota store is unavailable: time-out", id="a store"),
        pytest.param(
            StoreFull(),
            "The quota store is unavailable: the memory of this process holds its maximum of keys",
            id="a full store",
        ),
        pytest.param(
            CounterError("clicks", "user:1", "it is full."), "Counter 'clicks' of user:1: it is full.", id="a counter"
        ),
        pytest.param(
            LeaseLost("export", "user:1"),
            "The lease of slot 'export' for user:1 was lost: it expired, or was removed, before it was released. "
            "Use a longer lease=, or renew=True.",
            id="a lease",
        ),
    ],
)
def test_an_error_is_one_or_two_sentences(error: Exception, says: str) -> None:
    assert str(error) == says


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (errors.ConfigurationError, [QuotaError]), (errors.RuleError, [ConfigurationError, ValueError]),
        (errors.AlgorithmError, [RuleError]), (errors.SubjectKeyError, [RuleError]), (errors.RateError, [RuleError]),
        (errors.CounterError, [QuotaError]), (errors.LeaseLost, [QuotaError]), (QuotaExceeded, [QuotaError]),
        (errors.StoreUnavailable, [QuotaError]), (errors.StoreRefusesWrites, [StoreUnavailable]),
        (errors.StoreOutOfMemory, [errors.StoreRefusesWrites]), (errors.StorePermissionDenied, [StoreUnavailable]),
        (errors.StoreCommandDenied, [errors.StorePermissionDenied]), (errors.StoreDataError, [StoreUnavailable]),
        (errors.StoreConnectionLost, [StoreUnavailable]), (errors.StoreFull, [StoreUnavailable]),
        (errors.StoreBusy, [StoreUnavailable]), (QuotaError, [Exception]),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)  # fmt: skip
def test_who_catches_a_kind_of_error_catches_the_narrower_ones(error: type[Exception], kinds: list[type]) -> None:
    assert list(error.__bases__) == kinds


def test_the_error_of_a_store_is_one_of_redis_unless_it_says_otherwise() -> None:
    assert StoreUnavailable("gone").is_of_database is False


def test_the_reason_of_an_unavailable_store_has_no_secret() -> None:
    error = StoreUnavailable("no answer of redis://joe:s3cret@host")

    shown = "no answer of redis://***@host"
    assert (error.reason, error.args) == (shown, (shown,))


def test_the_error_of_a_counter_has_its_parts() -> None:
    error = CounterError("clicks", "user:1", "it is full.")

    assert (error.counter, error.subject, error.problem) == ("clicks", "user:1", "it is full.")


def test_the_error_of_a_rate_has_its_place() -> None:
    error = RateError("5/x", 2, "no", "Use s.", "ban")

    assert (error.place, error.text, error.position, error.problem, error.hint) == ("ban", "5/x", 2, "no", "Use s.")
    assert RateError("5/x", 2, "no", "Use s.").place == ""


def test_a_lost_lease_says_which_one_it_was() -> None:
    lost = LeaseLost("export", "user:1")

    assert (lost.slot, lost.subject) == ("export", "user:1")


@pytest.mark.parametrize("known", [["RULES", "rules"], ["rules", "RULES"]], ids=["capitals first", "capitals last"])
def test_the_nearest_word_does_not_depend_on_the_order_of_the_known_ones(known: list[str]) -> None:
    assert nearest("rule", known) == "rules"


def test_without_values_a_template_may_have_a_percent_sign() -> None:
    assert Translatable("100 % of it") == "100 % of it"


def test_a_translatable_string_knows_what_it_was_made_from() -> None:
    made = Translatable("%(count)d of %(what)s", count=5, what="hits")

    assert (made, made.template, made.values) == ("5 of hits", "%(count)d of %(what)s", {"count": 5, "what": "hits"})


@pytest.mark.parametrize(
    ("second", "template"), [("Use 5.", "%(first)s %(second)s"), ("", "%(first)s")], ids=["two", "one"]
)
def test_sentences_are_translated_each_by_itself(second: str, template: str) -> None:
    made = Translatable.sentences("Wrong.", second)

    assert (str(made), made.template) == (f"Wrong. {second}".strip(), template)


@pytest.mark.parametrize(
    "copied", [lambda made: pickle.loads(pickle.dumps(made)), copy.copy], ids=["pickled", "copied"]
)
def test_a_copy_of_a_translatable_string_is_a_plain_one(copied: Callable[[str], str]) -> None:
    found = copied(Translatable("%(count)d hits", count=5))

    assert (found, type(found)) == ("5 hits", str)


def test_a_hint_stays_translatable() -> None:
    hint = Translatable("Use %(count)d.", count=5)

    assert ConfigurationError("It is wrong.", hint).hint is hint


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("redis://joe:s3cret@host:6379/0", "redis://***@host:6379/0"),
        ("to joe:s3cret@host", "to ***@host"),
        ("redis://host/0?password=s3cret&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host/0?PASSWORD=s3cret", "redis://host/0?PASSWORD=***"),
        ("redis://host/0?username=joe", "redis://host/0?username=***"),
        ("unknown command, with args beginning with: s3\ncret", "unknown command, with args beginning with ..."),
        ("no connection of <redis.Redis(host=a, password=s3>\ncret)>", "no connection of <redis..."),
        ("two\nlines\u2028here", r"two\nlines\u2028here"),
        ("an error\x1b[2J", r"an error\x1b[2J"),
        ("nothing is wrong", "nothing is wrong"),
    ],
)
def test_what_a_server_said_is_shown_on_one_line_without_secrets(said: str, shown: str) -> None:
    assert without_secrets(said) == shown
