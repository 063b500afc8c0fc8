"""Days begin in the time zone of the settings, wherever they are counted and read, and never in that of a visitor."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_quota import Rule, check, counter, peek, raise_limit, reserve
from django_quota.models import QuotaOverride
from django_quota.operating.access_log import read_time
from django_quota.testing import freeze
from tests.support.counts import checks_of_today, count_what_waits, days_of, refused_today
from tests.support.overridden import override

ZONES = [("Asia/Tokyo", 9), ("America/Los_Angeles", -8)]
"""Each zone, and its hours before UTC in January."""

NEW_YEAR = datetime(2026, 1, 15, tzinfo=UTC)
USER = "user:1"

pytestmark = pytest.mark.parametrize("named", ["QUOTA", "Django"])


@pytest.fixture(params=ZONES, ids=[zone for zone, _ in ZONES])
def midnight(request: pytest.FixtureRequest, settings: Any, named: str) -> Iterator[datetime]:
    """When a day begins where the site is. The visitor of the running request is elsewhere."""
    zone, hours = request.param
    if named == "QUOTA":
        settings.QUOTA = {**settings.QUOTA, "TIME_ZONE": zone}
    else:
        settings.TIME_ZONE = zone
    with timezone.override("Pacific/Honolulu"):
        yield NEW_YEAR - timedelta(hours=hours)


SECOND = timedelta(seconds=1)
TODAY, YESTERDAY = date(2026, 1, 15), date(2026, 1, 14)


def hit(**options: Any) -> None:
    check("1/h", USER, name="a", **options)


def settle() -> None:
    with reserve("5/h", USER, 2, name="a") as reservation:
        reservation.settle(1)


def count_unasked() -> None:
    override("x 0 0 ", "a", USER)
    hit()
    count_what_waits()


@pytest.mark.usefixtures("either_store")
class TestDays:
    @pytest.mark.parametrize("count", [hit, settle, count_unasked], ids=["hit", "settled", "exempt"])
    def test_a_hit_counts_for_its_day(self, midnight: datetime, count: Callable[[], None]) -> None:
        for at in (midnight - SECOND, midnight, midnight + timedelta(hours=23)):
            with freeze(at):
                count()
        with freeze(midnight + timedelta(hours=23, minutes=59)):
            assert {day: sum(rules["a"]) for day, rules in days_of(USER).items()} == {YESTERDAY: 1, TODAY: 2}

    def test_a_day_is_found_as_long_as_its_counts_wait_for_the_roll_up(self, midnight: datetime) -> None:
        with freeze(midnight + timedelta(hours=23, minutes=59)):
            hit()
        with freeze(midnight + timedelta(days=8, hours=23, minutes=58)):
            assert {day: sum(rules["a"]) for day, rules in days_of(USER).items()} == {TODAY: 1}

    def test_the_metrics_of_today_are_of_this_day(self, midnight: datetime) -> None:
        for at in (midnight - SECOND, midnight, midnight + SECOND):
            with freeze(at):
                check("1/m", USER, name="a")
                count_what_waits()

        found = {}
        for later in (timedelta(seconds=2), timedelta(hours=23), timedelta(hours=24)):
            with freeze(midnight + later):
                found[later] = (checks_of_today(), refused_today())

        of_today = ({"a": (0, 2, 0)}, [(USER, 2)])
        assert list(found.values()) == [of_today, of_today, ({}, [])]

    def test_a_counter_counts_for_its_day(self, midnight: datetime) -> None:
        clicks = counter("clicks")
        for at in (midnight - SECOND, midnight, midnight + timedelta(hours=23)):
            with freeze(at):
                clicks.incr(USER)
        with freeze(midnight + timedelta(hours=23)):
            assert clicks.series(USER, YESTERDAY, TODAY) == {YESTERDAY: 1, TODAY: 2}


@pytest.mark.parametrize("text", ["2026-01-15T00:00:00", "15/Jan/2026:00:00:00", "2026-01-15 00:00:00.000"])
def test_a_time_of_a_log_without_a_zone_is_of_the_site(text: str, midnight: datetime) -> None:
    assert read_time(text) == int(midnight.timestamp()) * 1_000_000


@pytest.mark.usefixtures("database", "memory_store")
class TestAMomentWithoutAZone:
    MOMENT = datetime(2026, 1, 15)  # noqa: DTZ001
    DAILY = Rule.make("daily", "5/d")

    @pytest.fixture
    def of_django(self, midnight: datetime, named: str, settings: Any) -> datetime:
        """The moment, by the time zone of Django: that of days is another setting than that of moments."""
        settings.USE_TZ = False
        return NEW_YEAR if named == "QUOTA" else midnight

    def test_ends_a_raised_limit_by_the_zone_of_django(self, of_django: datetime) -> None:
        with freeze(of_django - timedelta(hours=1)):
            assert raise_limit(self.DAILY, "org:7", 5, self.MOMENT) == of_django

        with freeze(of_django - SECOND):
            assert peek(self.DAILY, "org:7").limit == 10
        with freeze(of_django):
            assert peek(self.DAILY, "org:7").limit == 5

    def test_ends_an_override_by_the_zone_of_django(self, of_django: datetime) -> None:
        with freeze(of_django - timedelta(hours=1)):
            assert check(self.DAILY, "org:8")  # has the overrides read
            QuotaOverride.objects.create(subject="org:8", rule="*", mode="blocked", expires=self.MOMENT)

        with freeze(of_django - SECOND):
            assert not check(self.DAILY, "org:8")
        with freeze(of_django):
            assert check(self.DAILY, "org:8")
