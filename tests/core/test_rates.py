"""Rates and durations: which texts are read, and which errors the others get."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import Rule, acquire, ban, concurrency, counter, once, slot
from django_quota.conf import current
from django_quota.core.rates import MAX_COUNT, MAX_PERIOD, UNITS, Rate, parse_duration, parse_rate, parse_rates
from django_quota.exceptions import RateError, RuleError
from django_quota.testing import freeze
from tests.support.steps import START

rates = st.sampled_from(sorted(UNITS)).flatmap(
    lambda unit: st.builds(Rate, st.integers(0, MAX_COUNT), st.just(unit), st.integers(1, MAX_PERIOD // UNITS[unit]))
)


@given(rates, st.lists(rates, min_size=1, max_size=4))
def test_a_rate_is_read_back_from_its_text_and_its_words(rate: Rate, several: list[Rate]) -> None:
    assert parse_rate(str(rate)) == parse_rate(rate.in_words().replace(",", "")) == rate
    assert parse_rates("; ".join(map(str, several)), None, rate) == (*several, rate)


@given(st.text() | st.text("0123456789 /;smhdwperkontya\n٣", max_size=12))
@example("10/m\n")
@example("\ud800/m")
@example("1/" + "a" * 100_000)
@example("1" * 100_000)
@example(";" * 1_000)
def test_any_text_is_a_rate_or_a_short_error_with_a_position_in_the_text(text: str) -> None:
    for parse in (parse_rate, parse_rates):
        try:
            parse(text)
        except RateError as raised:
            error = raised
        else:
            continue
        assert error.text == text
        assert error.position is not None
        assert 0 <= error.position <= len(text)
        assert error.hint in str(error)
        assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("texts", "count", "unit", "multiple"),
    [
        ("10/m|10/min|10/minute|10 per minutes|  010 / 01m  ", 10, "minute", 1),
        ("5/30s|5/30 sec|5 per 30 seconds", 5, "second", 30),
        ("1000 per day|1000/d|1000/days", 1000, "day", 1), ("0/month", 0, "month", 1),
    ],
)  # fmt: skip
def test_a_rate_is_read_with_its_count_unit_and_multiple(texts: str, count: int, unit: str, multiple: int) -> None:
    assert {parse_rate(text) for text in texts.split("|")} == {Rate(count, unit, multiple)}
    assert Rate(5000, "second", 30).in_words() == "5,000 per 30 seconds"


@pytest.mark.parametrize(
    ("value", "position", "problem"),
    [
        ("-1/m", 0, "not a whole number"), ("\u0661\u0660/m", 0, "not a whole number"), ("1e3/m", 1, "a slash"),
        ("10per m", 2, "a slash"), ("10/60", 3, "unit is missing"), ("10/\uff15m", 3, "unit is missing"),
        ("10/m\n", 4, "unexpected"), ("10/s, 5/m", 4, "several: '10/s; 500/h'"), ("10/M", 3, "in lower case"),
        ("10/mo", 3, "'mo' is not a unit"), ("10/0s", 3, "a window is 1 to"), ("10/367d", 3, "is 1 to 366 days"),
        (f"{MAX_COUNT + 1}/m", 0, f"above {MAX_COUNT}"), ("10/s; 5/mx", 8, "'mx' is not a unit"),
        ("10/s;;1/m", 5, "not a whole"), (5, None, "it is int, not a text"), ((10, 60), None, "it is tuple"),
    ],
)  # fmt: skip
def test_a_wrong_rate_is_refused_with_the_place_and_the_problem(value: Any, position: int, problem: str) -> None:
    with pytest.raises(RateError) as caught:
        parse_rates(value)
    assert (caught.value.text, caught.value.position) == (value, position)
    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["10/month", "10 per year"])
def test_a_month_is_never_read_as_a_minute(text: str) -> None:
    """Only the calendar algorithm takes months and years."""
    for algorithm in ("sliding_window", "fixed_window", "token_bucket", "leaky_bucket"):
        with pytest.raises(RateError, match="calendar") as caught:
            Rule.make("r", text, algorithm=algorithm)
        assert str(parse_rate(text)) in str(caught.value)


def test_a_duration_is_seconds_a_timedelta_or_a_text_above_0_and_up_to_366_days() -> None:
    for value in (600, timedelta(minutes=10), "10m", " 600 seconds "):
        assert parse_duration("wait", value) == 600_000_000
    assert [parse_duration("wait", value) for value in (0.25, 1e-9, "366 days")] == [250_000, 1, 366 * 86_400_000_000]
    assert {parse_duration("wait", value, least=0) for value in (0, "0s", timedelta(0))} == {0}


@pytest.mark.parametrize(
    "value",
    [
        0, -1, True, None, "", "60", "m", "0s", "-1m", "1.5h", "1h30m", "1month", "10M", "367d", "9" * 10_000 + "s",
        366 * 86_400 + 1, 10**400, float("nan"), float("inf"), timedelta(0), timedelta(days=367),
    ],
)  # fmt: skip
def test_any_other_value_is_no_duration_and_the_error_shows_all_three_forms(value: object) -> None:
    says = r"^wait=.{1,99} is not a duration above 0 and up to 366 days\. Use, .* 30 \(seconds\), '10m' or timedelta"
    with pytest.raises(RuleError, match=says):
        parse_duration("wait", value)


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("duration", [30, "30s", timedelta(seconds=30)])
def test_every_function_and_option_takes_a_duration_in_each_form(duration: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": duration}
    held = slot("s", 1, lease=duration, wait=duration)
    rule = Rule.make("r", "1/m", ban={"after": "2/m", "for": [duration]}, cache_refusals=duration)
    with freeze(START):
        banned = ban("user:1", Rule.make("b", "1/m", ban={"after": "2/m", "for": "1h"}), duration)
        once("event", "1", ttl=duration)
        with slot("renewed", 1, lease=3) as lease:
            lease.renew(duration)
            renewed = slot("renewed", 1).holders()[0][1]
        acquire("1/m", "user:2", timeout=duration)
    with freeze(START + 29_999_999):
        known = once("event", "1")
    concurrency(1, lease=duration, wait=duration)
    spans = [current().cache_refusals, held.lease, held.timeout, rule.cache_refusals, banned.retry_after, renewed]
    assert spans == [30.0] * 6
    assert (rule.ban.durations, known, counter("c", ttl=duration).ttl) == ((30_000_000,), False, timedelta(seconds=30))
