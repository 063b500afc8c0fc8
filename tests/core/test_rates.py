"""Rates: which texts are read, and which errors the others get."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import RateError, Rule
from django_quota.core.algorithms.concurrency import AtOnce
from django_quota.core.rates import MAX_COUNT, MAX_PERIOD, UNITS, Rate, parse_rate, parse_rates

rates = st.sampled_from(sorted(UNITS)).flatmap(
    lambda unit: st.builds(Rate, st.integers(0, MAX_COUNT), st.just(unit), st.integers(1, MAX_PERIOD // UNITS[unit]))
)


@given(rates)
def test_str_of_a_rate_parses_to_the_same_rate(rate: Rate) -> None:
    assert parse_rate(str(rate)) == rate


@given(rates)
def test_a_rate_in_words_parses_to_the_same_rate(rate: Rate) -> None:
    assert parse_rate(rate.in_words()) == rate


@given(st.lists(rates, min_size=1, max_size=4))
def test_rates_joined_by_semicolons_parse_to_the_same_rates(several: list[Rate]) -> None:
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
    with pytest.raises(RateError, match=r"not a text\. Write a count") as caught:
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
        ("1_000/m", 1, "a slash"),
        ("1,000/m", 1, "a slash"),
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
        ("10/hour|100/day", "Put a semicolon between rates: '10/s; 500/h'."),
        ("10/m 100/h", "Put a semicolon between rates: '10/s; 500/h'."),
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


def test_the_error_for_a_comma_between_rates_names_the_semicolon() -> None:
    with pytest.raises(RateError, match="Put a semicolon between rates: '10/s; 500/h'"):
        parse_rate("10/m, 5/s")


@pytest.mark.parametrize("typo", ["mx", "xm", "ds", "Mm", "hh", "z", "ws"])
def test_a_misspelt_unit_never_becomes_a_unit_of_one_letter(typo: str) -> None:
    with pytest.raises(RateError) as caught:
        parse_rate(f"10/{typo}")
    assert not re.search(r"Did you mean '.'\?", str(caught.value))


@pytest.mark.parametrize(("typo", "meant"), [("mnth", "month"), ("hourss", "hours"), ("Minute", "minute")])
def test_the_hint_for_a_misspelt_unit_is_the_nearest_one(typo: str, meant: str) -> None:
    with pytest.raises(RateError, match=f"Did you mean '{meant}'"):
        parse_rate(f"10/{typo}")


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


def test_the_calendar_takes_a_month() -> None:
    assert Rule.make("r", "10/month", algorithm="calendar").limits[0].rate == Rate(10, "month")


def test_none_means_unlimited_and_adds_no_rate() -> None:
    assert parse_rates(None) == ()
    assert parse_rates(None, "1/s", None) == (Rate(1, "second"),)
    assert parse_rates() == ()


def test_a_rate_object_passes_through_unchanged() -> None:
    rate = Rate(3, "hour", 2)
    assert parse_rate(rate) is rate
    assert parse_rates(rate, "1/s") == (rate, Rate(1, "second"))


@pytest.mark.parametrize(
    ("text", "position"), [("10/s; 5/mx", 8), ("10/s;", 5), (";", 0), ("10/s;;1/m", 5), ("1/s; 2/m;x", 9)]
)
def test_the_position_in_a_list_of_rates_counts_from_the_start_of_the_text(text: str, position: int) -> None:
    with pytest.raises(RateError) as caught:
        parse_rates(text)
    assert (caught.value.text, caught.value.position) == (text, position)


def test_the_error_for_a_list_says_that_it_is_a_list() -> None:
    with pytest.raises(RateError, match="it is a list, not a text"):
        parse_rates(["10/m"])
    with pytest.raises(RateError, match="it is an int, not a text"):
        parse_rate(10)


def test_the_window_is_abbreviated_and_the_words_are_not() -> None:
    rate = Rate(5, "second", 30)
    assert (str(rate), rate.window, rate.in_words(), rate.period) == ("5/30s", "30s", "5 per 30 seconds", 30_000_000)
    assert Rate(10, "month").in_words() == "10 per month"


def test_the_rate_of_a_slot_reads_as_people_say_it() -> None:
    assert str(AtOnce(10)) == AtOnce(10).in_words() == "10 at once"
