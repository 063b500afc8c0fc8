"""In which period of the calendar a day of usage is, what the store has counted on it, and when it waits there."""

from datetime import UTC, date, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from django_quota.features.usage import rollup
from django_quota.features.usage.days import (
    Count,
    DayCounts,
    PeriodsOfSubject,
    RowKey,
    SubjectDay,
    add_unmoved,
    recent_days,
    row_name,
    row_part,
)
from django_quota.features.usage.lines import move_waiting
from django_quota.testing import freeze

pytestmark = pytest.mark.usefixtures("memory_store")


def middle_of_month(_: str) -> date:
    return date(2026, 1, 15)


PERIODS: dict[str, dict[str, Any]] = {
    "monthly": {"rate": "100/month", "algorithm": "calendar", "starts": "tests.api.test_usage_periods.middle_of_month"},
    "east": {"rate": "100/month", "algorithm": "calendar", "tz": "Pacific/Kiritimati"},
    "west": {"rate": "100/month", "algorithm": "calendar", "tz": "Pacific/Pago_Pago"},
    "both": {"rate": "9/d; 100/month", "algorithm": "calendar"},
    "weekly": {"rate": "100/week", "algorithm": "calendar"},
    "tiers": {"rate": {"free": "9/d", "pro": "100/month"}, "tier": lambda _: "pro", "algorithm": "calendar"},
    "window": {"rate": "100/30d"},
}


@pytest.mark.parametrize(
    ("rule", "day", "first"),
    [
        pytest.param("monthly", "2026-11-14", "2026-10-15", id="the last day of a customer's month"),
        pytest.param("monthly", "2026-11-15", "2026-11-15", id="the first day of a customer's month"),
        pytest.param("east", "2026-10-31", "2026-10-01", id="the last day of a month far in the east"),
        pytest.param("east", "2026-11-01", "2026-11-01", id="the first day of a month far in the east"),
        pytest.param("west", "2026-10-31", "2026-10-01", id="the last day of a month far in the west"),
        pytest.param("west", "2026-11-01", "2026-11-01", id="the first day of a month far in the west"),
        pytest.param("both", "2026-10-20", "2026-10-01", id="the longest of two periods"),
        pytest.param("tiers", "2026-10-20", "2026-10-01", id="the longest period of all tiers"),
        pytest.param("weekly", "2026-10-20", "2026-10-19", id="a week"),
        pytest.param("window", "2026-10-20", "2026-10-20", id="no period of the calendar"),
        pytest.param("gone", "2026-10-20", "2026-10-20", id="a rule that is gone"),
    ],
)
def test_a_day_is_in_the_period_of_the_rule_that_has_it(rule: str, day: str, first: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": PERIODS}

    assert PeriodsOfSubject("org:1").first_day(rule, date.fromisoformat(day)) == date.fromisoformat(first)


def test_usage_may_wait_in_the_store_on_these_days() -> None:
    """A day counts for eight days, and the clock of a server may be a day off."""
    with freeze(datetime(2026, 11, 20, 12, tzinfo=UTC)):
        days = recent_days("user:1")

    assert [each.day.isoformat() for each in days] == [f"2026-11-{day}" for day in range(11, 22)]
    assert days[0].key.endswith("{user:1}:day:2026-11-11")


@pytest.mark.parametrize(
    ("by", "now", "is_moved"),
    [
        pytest.param("month", datetime(2026, 11, 10, tzinfo=UTC), True, id="the last day on which a day may wait"),
        pytest.param("month", datetime(2026, 11, 11, tzinfo=UTC), False, id="the day after it"),
        pytest.param("period", datetime(2027, 11, 11, tzinfo=UTC), True, id="a period may end a year later"),
        pytest.param("period", datetime(2027, 11, 12, tzinfo=UTC), False, id="no period ends later"),
    ],
)
def test_what_waits_is_moved_before_lines_until_november_are_read(
    by: Any, now: datetime, is_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollup, "roll_up", roll_up := Mock(return_value=()))

    with freeze(now):
        move_waiting(date(2026, 11, 1), by)

    assert [each.kwargs for each in roll_up.call_args_list] == [{"prefix": "quota"}] * is_moved


SEARCHES = SubjectDay("quota:1:{user:1}:day:2026-11-20", "user:1", date(2026, 11, 20))


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        pytest.param(["search:a", "3"], Count(3, 0, 3), id="allowed checks"),
        pytest.param(
            ["search:a", b"3", "search:r", "2", "search:u", "7"],
            Count(3, 2, 10),
            id="allowed and refused checks, and units",
        ),
        pytest.param(["search:r", "2"], Count(0, 2, 0), id="refused checks"),
        pytest.param(["search:a", "-1", "search:u", "-2"], Count(-1, 0, -3), id="a refund of what was moved"),
        pytest.param(["search:a", "x"], Count(), id="a value that is not a number"),
    ],
)
def test_the_fields_of_a_day_are_read_as_counts(fields: list[str | bytes], count: Count) -> None:
    found = DayCounts.read(SEARCHES, fields)

    assert (found.token, found.counts, found.tiers) == (0, {RowKey("user:1", SEARCHES.day, "search"): count}, {})


def test_a_day_that_was_set_aside_has_a_token() -> None:
    found = DayCounts.read(SEARCHES, ["#", "1763700000000000"])

    assert (found.token, found.counts, found.tiers) == (1_763_700_000_000_000, {}, {})


def test_a_day_has_the_first_hundred_characters_of_a_tier() -> None:
    found = DayCounts.read(SEARCHES, ["search:t", "x" * 101])

    assert (found.counts, found.tiers) == ({}, {RowKey("user:1", SEARCHES.day, "search"): "x" * 100})


@pytest.mark.parametrize("field", ["search:q", "search", ":a", ":t", "a"])
def test_a_field_of_another_program_counts_nothing(field: str) -> None:
    found = DayCounts.read(SEARCHES, [field, "7"])

    assert (found.token, found.counts, found.tiers) == (0, {}, {})


@pytest.mark.parametrize(
    ("token", "of_row", "is_added"),
    [
        pytest.param(0, 9, True, id="it was not set aside"),
        pytest.param(9, 8, True, id="its token is larger"),
        pytest.param(9, 9, False, id="the row has it"),
        pytest.param(8, 9, False, id="the row has a later one"),
        pytest.param(9, None, True, id="there is no row"),
    ],
)
def test_a_count_is_added_to_a_row_that_does_not_have_it_yet(token: int, of_row: int | None, is_added: bool) -> None:
    place = RowKey("user:1", SEARCHES.day, "search")
    counts = {place: Count(1, 1, 1)}

    add_unmoved(counts, [DayCounts(SEARCHES, token, {place: Count(2, 0, 4)}, {})], {place: of_row} if of_row else {})

    assert counts == {place: Count(3, 1, 5) if is_added else Count(1, 1, 1)}


SAME_BOTH_WAYS = [
    pytest.param("user:1", "user:1", id="a plain name"),
    pytest.param("user:a b", "user:a%20b", id="a name that is escaped"),
    pytest.param(f"~{'0' * 64}", f"~{'0' * 64}", id="a digest"),
    pytest.param("~a%00b", "a%00b", id="a null character, which no database can hold"),
    pytest.param("~%7Ea", "%7Ea", id="a name that begins with a tilde"),
    pytest.param("~a%ED%A0%80", "a%ED%A0%80", id="half a character, which no database can hold"),
]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *SAME_BOTH_WAYS,
        pytest.param("~user:a", "%7Euser:a", id="a tilde that no row begins with"),
        pytest.param("~", "%7E", id="a tilde alone"),
    ],
)
def test_the_name_of_a_row_stands_for_a_part_of_a_key(name: str, part: str) -> None:
    assert row_part(name) == part


@pytest.mark.parametrize(("name", "part"), SAME_BOTH_WAYS)
def test_a_part_of_a_key_has_a_name_in_rows(name: str, part: str) -> None:
    assert row_name(part) == name
