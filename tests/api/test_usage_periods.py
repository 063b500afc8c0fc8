"""In which period of the calendar a day of usage is, and on which days usage may wait in the store."""

from datetime import UTC, date, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from django_quota.features.usage import rollup
from django_quota.features.usage.days import PeriodsOfSubject, recent_days
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
