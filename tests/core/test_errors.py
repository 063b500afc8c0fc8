"""What errors say: the nearest known word, the place of a wrong rate, and one line without secrets."""

import pytest

from django_quota.core.errors import StoreFull, did_you_mean, without_secrets
from django_quota.exceptions import ConfigurationError, RateError, StoreUnavailable


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
    ],
)
def test_an_error_is_one_or_two_sentences(error: Exception, says: str) -> None:
    assert str(error) == says


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
