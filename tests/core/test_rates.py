"""Rates: which texts are read, and which errors the others get."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import Rule, acquire, ban, concurrency, counter, once, slot
from django_quota.conf import current
from django_quota.core.algorithms.concurrency import AtOnce
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
    assert parse_rates("; ".join(map(str, several))) == tuple(several)


@given(st.text() | st.text("0123456789 /;smhdwperkontya\n٣", max_size=12))
@example("10/m\n")
@example("\x00")
@example("\ud800/m")
def test_any_text_is_a_rate_or_an_error_with_a_position_in_the_text(text: str) -> None:
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


@given(st.none() | st.integers() | st.binary() | st.booleans() | st.floats() | st.lists(st.text()) | st.tuples())
def test_a_value_that_is_no_text_is_refused_with_a_hint(value: object) -> None:
    kind = type(value).__name__
    noun = f"{'an' if kind == 'int' else 'a'} {kind}"
    with pytest.raises(RateError, match=rf"it is {noun}, not a text\. Write a count") as caught:
        parse_rate(value)
    assert caught.value.position is None
    assert caught.value.text == value or value != value  # noqa: PLR0124 — NaN


@pytest.mark.parametrize(
    ("text", "count", "unit", "multiple"),
    [
        ("10/m", 10, "minute", 1),
        ("5/30s", 5, "second", 30),
        ("1000 per day", 1000, "day", 1),
        ("1000/day", 1000, "day", 1),
        ("3 per 2 weeks", 3, "week", 2),
        ("7 / 5 min", 7, "minute", 5),
        ("  1/h  ", 1, "hour", 1),
        ("0/m", 0, "minute", 1),
        ("007/05s", 7, "second", 5),
        ("10/month", 10, "month", 1),
        ("10/1years", 10, "year", 1),
        (str(MAX_COUNT) + "/366d", MAX_COUNT, "day", 366),
        *((f"1/{spelling}", 1, "second", 1) for spelling in ("s", "sec", "second", "seconds")),
        *((f"1/{spelling}", 1, "minute", 1) for spelling in ("m", "min", "minute", "minutes")),
        *((f"1/{spelling}", 1, "hour", 1) for spelling in ("h", "hr", "hour", "hours")),
        *((f"1/{spelling}", 1, "day", 1) for spelling in ("d", "day", "days")),
        *((f"1/{spelling}", 1, "week", 1) for spelling in ("w", "week", "weeks")),
    ],
)
def test_a_rate_is_read_with_its_count_unit_and_multiple(text: str, count: int, unit: str, multiple: int) -> None:
    assert parse_rate(text) == Rate(count, unit, multiple)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "it is empty"),
        ("   ", 3, "it is empty"),
        ("10/w x", 5, "unexpected 'x'"),
        ("5/mx", 2, "'mx' is not a unit"),
        ("-1/m", 0, "not a whole number"),
        ("+1/m", 0, "not a whole number"),
        ("1e3/m", 1, "a slash"),
        ("1.5/m", 1, "a slash"),
        ("1_000/m", 1, "only digits"),
        ("1,000/m", 1, "only digits"),
        ("10", 2, "a slash"),
        ("10per m", 2, "a slash"),
        ("10\t/m", 2, "a slash"),
        ("10/", 3, "unit is missing"),
        ("10/5", 3, "unit is missing"),
        ("10/-5s", 3, "unit is missing"),
        ("/m", 0, "not a whole number"),
        ("10/m\n", 4, "unexpected"),
        ("10/m/s", 4, "unexpected"),
        ("10/m 5/s", 5, "unexpected"),
        ("\u0661\u0660/m", 0, "not a whole number"),
        ("\uff11\uff10/m", 0, "not a whole number"),
        ("10/\uff15m", 3, "unit is missing"),
        ("10/ms", 3, "'ms' is not a unit"),
        ("10/M", 3, "'M' is not a unit"),
        ("10/0s", 3, "a window is 1 to"),
        ("10/367d", 3, "a window is 1 to 366 days"),
        ("10/2years", 3, "a window is 1 to 1 years"),
        (f"{MAX_COUNT + 1}/m", 0, f"above {MAX_COUNT}"),
        ("9" * 10_000 + "/m", 0, f"above {MAX_COUNT}"),
        ("1/" + "9" * 10_000 + "s", 2, "a window is 1 to"),
    ],
)
def test_a_wrong_rate_is_refused_with_the_place_and_the_problem(text: str, position: int, problem: str) -> None:
    with pytest.raises(RateError) as caught:
        parse_rate(text)
    assert caught.value.position == position
    assert problem in caught.value.problem
    assert f"(at position {position}). {caught.value.hint}" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("10 per hour, 100 per day", "Put a semicolon between rates: '10/s; 500/h'."),  # limits and flask-limiter
        ("10/m, 5/s", "Put a semicolon between rates: '10/s; 500/h'."),
        ("10/hour|100/day", "Put a semicolon between rates: '10/s; 500/h'."),
        ("10/m 100/h", "Put a semicolon between rates: '10/s; 500/h'."),
        *((text, "Write '1000/h'.") for text in ("1,000/h", "1_000/h", "1.000/h", "1 000/h", "1k/h", "1K/h")),
        ("12,000,000 per day", "Write '12000000 per day'."),
        ("2M / day", "Write '2000000 / day'."),
        ("10/60", "For seconds, write '10/60s'."),  # django-ratelimit
        ((10, 60), "Write '10/60s'."),
        ("10/5m/ip", "Write '10/5m', and say who is limited by key=, such as key='ip'."),  # django-allauth
        ("10/M", "Units: s, m, h, d, w (or in full), month, year, in lower case."),
        ("60/1m30s", "Write a count, a slash and a window, such as '10/m', '5/30s' or '1000 per day'."),
    ],
)
def test_the_error_for_a_rate_of_another_package_says_what_to_write(value: object, hint: str) -> None:
    with pytest.raises(RateError) as caught:
        parse_rate(value)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("mnth", "month"), ("hourss", "hours"), ("Minute", "minute"), ("mo", "month"), ("mx", ""), ("Mm", ""), ("z", "")],
)
def test_the_hint_for_a_misspelt_unit_is_the_nearest_one_and_never_a_letter(typo: str, meant: str) -> None:
    with pytest.raises(RateError) as caught:
        parse_rate(f"10/{typo}")
    assert re.findall(r"Did you mean '(.*)'\?", str(caught.value)) == ([meant] if meant else [])


@pytest.mark.parametrize("text", ["1/" + "a" * 1_000_000, "1" * 1_000_000, " " * 1_000_000, ";" * 1_000])
def test_a_huge_text_is_refused_and_not_repeated_in_full(text: str) -> None:
    with pytest.raises(RateError) as caught:
        parse_rates(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("algorithm", ["sliding_window", "fixed_window", "token_bucket", "leaky_bucket"])
@pytest.mark.parametrize("text", ["10/month", "10 per year"])
def test_a_month_is_never_read_as_a_minute(text: str, algorithm: str) -> None:
    """Only the calendar algorithm takes months and years."""
    with pytest.raises(RateError, match="calendar") as caught:
        Rule.make("r", text, algorithm=algorithm)
    assert str(parse_rate(text)) in str(caught.value)


def test_a_rate_stays_as_it_is_and_none_adds_no_rate() -> None:
    rate = Rate(3, "hour", 2)
    assert parse_rate(rate) is rate
    assert parse_rates(rate, None, "1/s") == (rate, Rate(1, "second"))
    assert parse_rates(None) == parse_rates() == ()


@pytest.mark.parametrize(
    ("text", "position"), [("10/s; 5/mx", 8), ("10/s;", 5), (";", 0), ("10/s;;1/m", 5), ("1/s; 2/m;x", 9)]
)
def test_the_position_in_a_list_of_rates_counts_from_the_start_of_the_text(text: str, position: int) -> None:
    with pytest.raises(RateError) as caught:
        parse_rates(text)
    assert (caught.value.text, caught.value.position) == (text, position)


def test_the_window_is_abbreviated_and_the_words_are_not() -> None:
    rate = Rate(5, "second", 30)
    assert (str(rate), rate.window, rate.in_words(), rate.period) == ("5/30s", "30s", "5 per 30 seconds", 30_000_000)
    assert str(AtOnce(10)) == AtOnce(10).in_words() == "10 at once"
    assert Rate(10, "month").in_words() == "10 per month"


# --- durations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (30, 30), (0.25, 0.25), (timedelta(minutes=10), 600), (timedelta(milliseconds=5), 0.005), ("10m", 600),
        ("2 hours", 7_200), (" 1d ", 86_400), ("90s", 90), ("52w", 52 * 7 * 86_400), ("366 days", 366 * 86_400),
        (1e-9, 1e-6),
    ],
)  # fmt: skip
def test_a_duration_is_seconds_a_timedelta_or_a_text(value: object, seconds: float) -> None:
    assert parse_duration("wait", value) == round(seconds * 1_000_000)


@pytest.mark.parametrize(
    "value",
    [
        0, -1, True, None, "", "60", "m", "0s", "-1m", "1.5h", "1h30m", "1 fortnight", "1month", "1year", "10M", "367d",
        "9" * 10_000 + "s", 366 * 86_400 + 1, 10**400, float("nan"), float("inf"), timedelta(0), timedelta(days=-1),
        timedelta(days=367), [60], object(),
    ],
)  # fmt: skip
def test_any_other_value_is_no_duration_and_the_error_shows_all_three_forms(value: object) -> None:
    with pytest.raises(RuleError, match=r"^wait=.* is not a duration above 0 and up to 366 days\. Use, for") as caught:
        parse_duration("wait", value)
    assert caught.value.hint == "Use, for example, 30 (seconds), '10m' or timedelta(days=1)."
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [0, 0.0, "0s", timedelta(0)])
def test_no_time_is_a_duration_only_where_it_makes_sense(value: object) -> None:
    assert parse_duration("wait", value, least=0) == 0


def _spans_of(duration: Any) -> list[object]:
    """Return what the public functions and options make of a duration."""
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
    return [
        held.lease, held.timeout, rule.ban.durations, rule.cache_refusals, banned.retry_after, renewed, known,
        counter("c", ttl=duration).ttl,
    ]  # fmt: skip


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("duration", [30, 30.0, "30s", timedelta(seconds=30)])
def test_every_function_and_option_takes_a_duration_in_each_form(duration: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": duration}
    assert current().cache_refusals == 30.0
    assert _spans_of(duration) == [30.0, 30.0, (30_000_000,), 30.0, 30.0, 30.0, False, timedelta(seconds=30)]
