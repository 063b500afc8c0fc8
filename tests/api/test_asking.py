"""What a request asks for: under which rules, for which subject, at which cost and value."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from django.contrib.auth.models import AnonymousUser
from django.test import RequestFactory

from django_quota import Rule
from django_quota.conf import current
from django_quota.core.flow import run_sync
from django_quota.engine.asks import Ask
from django_quota.exceptions import RateError, RuleError
from django_quota.limiting import asking
from django_quota.limiting.asking import asked_by_flow, asked_flow, value_digest
from django_quota.subjects.subject import digest

ADDRESS = "ip:203.0.113.9"

pytestmark = pytest.mark.usefixtures("memory_store")


def request(view: str | None = None, user: Any = None, **values: Any) -> Any:
    made = RequestFactory().post("/", {"phone": "1", "device": "7"}, REMOTE_ADDR="203.0.113.9", **values)
    made.user = AnonymousUser() if user is None else user
    made.resolver_match = None if view is None else SimpleNamespace(view_name=view)  # type: ignore[assignment]
    return made


def user(**values: Any) -> Any:
    return SimpleNamespace(pk=7, is_authenticated=True, **{"is_active": True, "is_staff": False, **values})


def asked(*rules: Rule, of: Any = None, counted: Any = None, is_peek: bool = False) -> list[tuple[Any, ...]]:
    """Return the rule's name, the subject, the cost and the value of each ask."""
    asks = run_sync(asked_flow(rules, of or request(), counted, is_peek=is_peek))
    return [(ask.rule.name, *ask[1:4]) for ask in asks]


PLAIN = Rule.make("plain", "9/m", key="ip", cost=3)
PLAIN_ASK = ("plain", ADDRESS, 3, "")


def test_a_request_asks_for_the_cost_of_a_rule() -> None:
    assert asked(PLAIN) == [PLAIN_ASK]


def test_each_rule_is_asked_for_the_subject_of_its_own_key() -> None:
    rules = [PLAIN, Rule.make("all", "9/m", key="global"), Rule.make("phone", "9/m", key="post:phone"), PLAIN]

    subjects = [subject for _, subject, *_ in asked(*rules)]

    assert subjects == [ADDRESS, "global", f"post.phone:{digest('1')}", ADDRESS]


def test_a_look_asks_for_one_unit_and_reads_no_body() -> None:
    rules = [PLAIN, Rule.make("work", "9/m", key="ip", cost=lambda _: pytest.fail("it was called"))]
    by_body = [
        Rule.make("phone", "9/m", key="post:phone"),
        Rule.make("devices", "9/m", key="ip", distinct="post:device"),
    ]

    assert asked(*by_body, *rules, *by_body, is_peek=True) == [("plain", ADDRESS, 1, ""), ("work", ADDRESS, 1, "")]


def test_a_look_asks_for_no_value_even_if_a_header_has_it() -> None:
    rule = Rule.make("devices", "9/m", key="ip", distinct="header:X-Device")

    assert asked(rule, of=request(HTTP_X_DEVICE="7"), is_peek=True) == [("devices", ADDRESS, 1, "")]


def test_a_request_from_an_exempt_network_asks_for_nothing(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EXEMPT": ["203.0.113.0/24"]}

    assert asked(PLAIN) == []


@pytest.mark.parametrize(
    ("options", "of", "applies"),
    [
        pytest.param({"methods": ["POST"]}, request(), True, id="the method"),
        pytest.param({"methods": ["GET"]}, request(), False, id="another method"),
        pytest.param({"skip": lambda _: False}, request(), True, id="not skipped"),
        pytest.param({"skip": lambda _: True}, request(), False, id="skipped"),
        pytest.param({"exempt": "198.51.100.0/24"}, request(), True, id="another network"),
        pytest.param({"exempt": "203.0.113.0/24"}, request(), False, id="an exempt network"),
        pytest.param({"exempt": "staff"}, request(user=user()), True, id="a user"),
        pytest.param({"exempt": "staff"}, request(user=user(is_staff=True)), False, id="the staff"),
        pytest.param(
            {"exempt": "staff"},
            request(user=user(is_staff=True, is_active=False)),
            True,
            id="staff whose account is inactive",
        ),
        pytest.param({"exempt": "staff"}, request(), True, id="no user"),
        pytest.param({"exempt": lambda _: True}, request(), False, id="an exempting function"),
        pytest.param(
            {"skip": lambda _: False, "exempt": [lambda _: False, lambda _: True]},
            request(),
            False,
            id="one of several",
        ),
        pytest.param({"skip": lambda _: True, "exempt": lambda _: False}, request(), False, id="skipped, not exempt"),
        pytest.param({"skip": lambda _: True, "exempt": "staff"}, request(), False, id="skipped, not of the staff"),
        pytest.param({"skip": lambda _: False, "exempt": lambda _: False}, request(), True, id="none of several"),
    ],
)
def test_a_rule_applies_to_a_request_unless_its_options_exclude_it(options: Any, of: Any, applies: bool) -> None:
    rule = Rule.make("some", "9/m", key="ip", **options)

    assert [name for name, *_ in asked(rule, PLAIN, of=of)] == (["some", "plain"] if applies else ["plain"])


class TestARuleWithAMatch:
    @pytest.fixture
    def rule(self, memory_store: None, settings: Any) -> Rule:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "9/m", "key": "ip", "match": "/"}}}
        return current().rule("api")

    def test_counts_once_for_a_request(self, rule: Rule) -> None:
        counted: Any = set()

        found = [asked(rule, PLAIN, counted=counted) for _ in range(2)]

        assert found == [[("api", ADDRESS, 1, ""), PLAIN_ASK], [PLAIN_ASK]]

    def test_counts_for_each_subject(self, rule: Rule) -> None:
        counted: Any = set()
        other = request()
        other.META["REMOTE_ADDR"] = "203.0.113.10"

        found = [asked(rule, of=of, counted=counted) for of in (request(), other)]

        assert [len(asks) for asks in found] == [1, 1]

    def test_is_not_counted_by_a_look(self, rule: Rule) -> None:
        counted: Any = set()

        asked(rule, counted=counted, is_peek=True)

        assert [len(asked(rule, counted=counted, is_peek=each)) for each in (True, False, True)] == [1, 1, 1]

    def test_counts_each_time_if_no_set_collects_what_was_counted(self, rule: Rule) -> None:
        assert [len(asked(rule)) for _ in range(2)] == [1, 1]


@pytest.mark.parametrize(
    ("options", "view", "cost"),
    [
        pytest.param({"cost": 2}, "export", 2, id="its own"),
        pytest.param({"costs": {"export": 5}}, "export", 5, id="that of the view"),
        pytest.param({"costs": {"export": 5}, "cost": 2}, "search", 2, id="its own on another view"),
        pytest.param({"costs": {"export": 5}, "cost": 2}, None, 2, id="its own without a view"),
        pytest.param({"costs": {"export": 5}, "cost": lambda _: 4}, "search", 4, id="that of a function"),
        pytest.param({"cost": lambda _: 0}, None, 0, id="none"),
    ],
)
def test_a_rule_asks_for(options: Any, view: str | None, cost: int) -> None:
    assert asked(Rule.make("work", "9/m", key="ip", **options), of=request(view)) == [("work", ADDRESS, cost, "")]


def test_a_wrong_cost_of_a_function_is_an_error() -> None:
    with pytest.raises(RuleError, match="work"):
        asked(Rule.make("work", "9/m", key="ip", cost=lambda _: -1))


def test_a_rule_of_different_values_asks_for_the_digest_of_one() -> None:
    rule = Rule.make("devices", "9/m", key="ip", distinct="post:device")

    [(*_, value)] = asked(rule)

    assert value
    assert value != asked(rule, of=RequestFactory().post("/", {"device": "8"}, REMOTE_ADDR="203.0.113.9"))[0][3]


def test_a_rule_that_does_not_say_which_values_it_counts_is_an_error() -> None:
    with pytest.raises(RuleError) as caught:
        asked(Rule.make("devices", "9/m", key="ip", distinct=True))

    assert str(caught.value) == (
        "Rule 'devices' counts different values, but does not say which. "
        "Use, for example, distinct='header:X-Device', or check(..., value=)."
    )


class TestABodyThatCannotBeRead:
    def rule(self, **options: Any) -> Rule:
        return Rule.make("phone", "9/m", key="post:phone", **options)

    def broken(self, error: Exception) -> Any:
        class Broken:
            @property
            def POST(self) -> Any:  # noqa: N802 — as Django names it
                raise error

        made = request()
        made.__class__ = type("Request", (Broken, type(made)), {})
        return made

    def test_is_an_error_of_the_request(self) -> None:
        with pytest.raises(UnicodeError):
            asked(self.rule(), of=self.broken(UnicodeError("a byte")))

    def test_is_no_error_of_a_shadow(self) -> None:
        assert asked(self.rule(shadow=True), PLAIN, of=self.broken(UnicodeError("a byte"))) == [PLAIN_ASK]

    def test_is_no_error_of_a_shadow_that_counts_different_values(self) -> None:
        devices = Rule.make("devices", "9/m", key="ip", distinct="post:device", shadow=True)

        assert asked(devices, PLAIN, of=self.broken(UnicodeError("a byte"))) == [PLAIN_ASK]

    def test_is_an_error_of_the_request_beside_a_shadow_with_the_same_key(self) -> None:
        with pytest.raises(UnicodeError):
            asked(self.rule(shadow=True), self.rule(), of=self.broken(UnicodeError("a byte")))

    def test_is_an_error_of_a_shadow_too_if_the_rule_is_wrong(self) -> None:
        with pytest.raises(RuleError, match="of the rule"):
            asked(self.rule(shadow=True), of=self.broken(RuleError("of the rule")))


def asks_of_rates(*rates: Any, **options: Any) -> list[str]:
    [ask] = run_sync(asked_flow([Rule.make("rates", *rates, key="ip", **options)], request()))
    return [str(rate) for rate in cast("Rule", ask.rule).rates]


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        pytest.param([lambda _: "5/m"], ["5/m"], id="of a function"),
        pytest.param([lambda _: ["5/m", "9/h"]], ["5/m", "9/h"], id="several of a function"),
        pytest.param([lambda _: ("5/m",), "9/h"], ["5/m", "9/h"], id="of a function and of the rule"),
    ],
)
def test_the_rates_of_a_request_are(rates: Any, found: list[str]) -> None:
    assert asks_of_rates(*rates) == found


def wrong_rate(_: Any) -> str:
    return "5/fortnight"


def test_a_wrong_rate_of_a_function_is_an_error_that_names_it() -> None:
    with pytest.raises(RateError) as caught:
        asks_of_rates(wrong_rate, "9/h")

    with pytest.raises(RateError) as of_rule:
        Rule.make("rates", "5/fortnight")
    assert str(caught.value) == f"{of_rule.value} It came from {__name__}.wrong_rate, for rule 'rates'."
    assert (caught.value.text, caught.value.position) == (of_rule.value.text, of_rule.value.position)


def right_rate(_: Any) -> str:
    return "5/m"


def test_a_wrong_rate_of_one_of_several_functions_is_an_error_that_names_them_all() -> None:
    with pytest.raises(RateError) as caught:
        asks_of_rates(right_rate, wrong_rate)

    assert str(caught.value).endswith(f" It came from {__name__}.right_rate, {__name__}.wrong_rate, for rule 'rates'.")


# --- calls with a request: the options of the rule do not exclude it --------------------------------------------------


def ask_by(rule: Rule, cost: int | None = None, value: object = None) -> Ask:
    return run_sync(asked_by_flow(rule, request("export"), cost, value))


@pytest.mark.parametrize(
    ("given", "cost"), [(None, 5), (2, 2), (0, 0)], ids=["the cost of the view", "a given cost", "no cost"]
)
def test_a_call_with_a_request_asks_for(given: int | None, cost: int) -> None:
    rule = Rule.make("work", "9/m", key="ip", costs={"export": 5}, skip=lambda _: True, methods=["GET"])

    ask = ask_by(rule, given)

    assert (ask.rule.name, *ask[1:]) == ("work", ADDRESS, cost, "", False)


@pytest.mark.parametrize("cost", [-1, "1", True])
def test_a_wrong_cost_of_a_call_with_a_request_is_an_error(cost: Any) -> None:
    with pytest.raises(RuleError):
        ask_by(PLAIN, cost)


def test_a_call_with_a_request_counts_the_value_that_is_given() -> None:
    rule = Rule.make("devices", "9/m", key="ip", distinct="post:device")

    assert ask_by(rule, value="x").value == digest("x")


def test_a_call_with_a_request_counts_the_value_of_the_request_if_none_is_given() -> None:
    rule = Rule.make("devices", "9/m", key="ip", distinct="post:device")

    assert ask_by(rule).value == asked(rule)[0][3]


@pytest.mark.parametrize(
    ("value", "found"), [(None, ""), ("a", digest("a")), (7, digest("7")), (b"\xff", digest(b"\xff"))], ids=repr
)
def test_the_value_of_a_call_is_kept_as_a_digest(value: Any, found: str) -> None:
    assert value_digest(Rule.make("values", "9/m", distinct=True), value) == found


@pytest.mark.parametrize(
    ("rule", "value", "says"),
    [
        (PLAIN, "a", "value= is given, but rule 'plain' counts hits, not values. Use distinct=True."),
        (
            Rule.make("values", "9/m", distinct=True),
            1.5,
            "value= is float. Use a string, bytes or a whole number.",
        ),
    ],
    ids=["a rule without values", "a float"],
)
def test_a_wrong_value_is_an_error(rule: Rule, value: Any, says: str) -> None:
    with pytest.raises(RuleError) as caught:
        value_digest(rule, value)

    assert str(caught.value) == says


@pytest.fixture
def log_unknown_tiers_again() -> None:
    """Each is logged once in a process."""
    asking._log_unknown_tier.cache_clear()


@pytest.mark.usefixtures("log_unknown_tiers_again")
def test_an_unknown_tier_is_logged_as_an_error_of_the_site(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule.make("tiers", {"free": "5/m"}, key="ip", tier=lambda _: "x" * 99)

    [ask] = run_sync(asked_flow([rule], request()))

    assert [str(rate) for rate in cast("Rule", ask.rule).rates] == ["0/d"]
    [record] = caplog.records
    assert (record.name, record.levelname) == ("django_quota.web", "ERROR")
    assert record.getMessage() == (
        "Rule 'tiers' has no tier 'xxxxxxxxxxxx...xxxxxxxxxxxxx' and no tier 'default'. Such requests are refused, or "
        "have the smallest share."
    )


@pytest.mark.usefixtures("log_unknown_tiers_again")
def test_an_unknown_tier_with_a_default_is_logged_with_the_tier_that_it_gets(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule.make("tiers", {"anonymous": "5/m", "pro": "9/m"}, key="ip", tier=lambda _: "prp")

    [ask] = run_sync(asked_flow([rule], request()))

    assert [str(rate) for rate in cast("Rule", ask.rule).rates] == ["5/m"]
    assert caplog.record_tuples == [
        ("django_quota.web", logging.ERROR, "Rule 'tiers' has no tier 'prp'. It is treated as 'anonymous'.")
    ]


@pytest.mark.usefixtures("log_unknown_tiers_again")
def test_a_tier_that_is_not_a_string_is_an_unknown_one(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule.make("tiers", {"anonymous": "5/m", "pro": "9/m"}, key="ip", tier=lambda _: ["pro"])

    [ask] = run_sync(asked_flow([rule], request()))

    assert [str(rate) for rate in cast("Rule", ask.rule).rates] == ["5/m"]
    assert caplog.messages == ["Rule 'tiers' has no tier ['pro']. It is treated as 'anonymous'."]


@pytest.mark.usefixtures("log_unknown_tiers_again")
def test_a_tier_of_nobody_is_logged_with_the_default_tier_that_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule.make("tiers", {"free": "5/m"}, key="ip", tier=lambda _: None)

    run_sync(asked_flow([rule], request()))

    [line] = caplog.messages
    assert line.startswith("Rule 'tiers' has no tier 'anonymous' and no tier 'default'. ")
