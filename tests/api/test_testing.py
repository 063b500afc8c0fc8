"""`django_quota.testing`: a clock that you set, and counts that start at zero."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from django.test import RequestFactory

from django_quota import check, counter, lock, once, quota
from django_quota.conf import MIN_KEYS
from django_quota.core.clock import frozen_now
from django_quota.testing import RedisServer, clear, freeze
from tests.support.stores import caches, current_store

NOON = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
MICROSECONDS = 1_795_262_400_000_005


class TestFreeze:
    @pytest.mark.parametrize(
        "now", [MICROSECONDS, NOON, NOON.astimezone(ZoneInfo("Asia/Kolkata")), datetime.fromisoformat(str(NOON))]
    )
    def test_it_takes_microseconds_and_datetimes_with_a_time_zone(self, now: int | datetime) -> None:
        with freeze(now):
            assert frozen_now() == MICROSECONDS
        assert frozen_now() is None

    def test_it_keeps_every_microsecond_of_a_far_datetime(self) -> None:
        with freeze(datetime.max.replace(tzinfo=UTC)):
            assert frozen_now() == 253_402_300_799_999_999

    @pytest.mark.usefixtures("memory_store")
    def test_a_limit_has_room_again_when_the_clock_says_so(self) -> None:
        with freeze(NOON):
            assert [bool(check("1/m", "user:1")) for _ in range(2)] == [True, False]
        with freeze(NOON + timedelta(minutes=1)):
            assert check("1/m", "user:1")

    def test_a_datetime_without_a_time_zone_is_a_clear_error(self) -> None:
        naive = NOON.replace(tzinfo=None)
        with pytest.raises(ValueError, match=r"no time zone\. Use, for example, .*tzinfo=UTC"), freeze(naive):
            pass

    @pytest.mark.parametrize(("number", "unit"), [(1_795_262_400, "seconds"), (1_795_262_400_000, "milliseconds")])
    def test_seconds_and_milliseconds_are_refused_with_the_number_to_write(self, number: int, unit: str) -> None:
        with pytest.raises(ValueError, match=f"looks like {unit}. Use 1795262400000000"), freeze(number):
            pass

    @pytest.mark.parametrize("now", [1.5, "2026-01-01", None, True])
    def test_anything_else_is_a_clear_error(self, now: Any) -> None:
        with pytest.raises(TypeError, match="takes a datetime with a time zone, or whole microseconds"), freeze(now):
            pass


@pytest.mark.usefixtures("memory_store")
class TestClear:
    def test_clear_deletes_every_count_of_the_memory_store(self) -> None:
        view: Any = quota("1/m", key="ip", name="view")(lambda request: None)
        request = RequestFactory().get("/")
        for _ in range(2):
            clear()
            assert check("1/m", "user:1", ban={"after": "1/m", "for": ["1h"]})
            assert not check("1/m", "user:1", ban={"after": "1/m", "for": ["1h"]})
            assert view(request) is None
            assert view(request).status_code == 429
            assert once("webhook", "17", ttl=60)
            assert counter("clicks").incr("user:1") == 1
            lock("nightly", lease=60).acquire()

    def test_a_full_store_has_room_again(self, settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory", "MEMORY_KEYS": MIN_KEYS}
        assert not all(check("1/m", f"user:{number}") for number in range(MIN_KEYS + 1))
        clear()
        assert check("1/m", f"user:{MIN_KEYS}")

    def test_objects_from_an_earlier_test_go_on_working(self) -> None:
        store, clicks = current_store(), counter("clicks")
        clicks.incr("user:1")
        clear()
        assert current_store() is store
        assert clicks.incr("user:1") == 1


def test_clear_deletes_local_counts_and_never_calls_redis(
    settings: Any, redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
) -> None:
    settings.CACHES = caches(redis_server)
    assert check("1/m", "user:1")
    kept, calls = sorted(raw.keys()), raw.info("stats")["total_commands_processed"]
    clear()
    assert raw.info("stats")["total_commands_processed"] - calls == 1  # this INFO
    assert sorted(raw.keys()) == kept
    assert not check("1/m", "user:1")

    settings.CACHES = caches(RedisServer(f"unix://{tmp_path}/nobody.sock", 0, Path()))
    assert check("1/m", "user:1", on_unavailable="local").degraded
    assert not check("1/m", "user:1", on_unavailable="local")
    clear()
    assert check("1/m", "user:1", on_unavailable="local")


CONFTEST = """
import django
from django.conf import settings
settings.configure(QUOTA={"STORE": "memory"}, SECRET_KEY="x")
django.setup()
pytest_plugins = ["django_quota.testing.fixtures"]
"""
TESTS = """
from django.test import SimpleTestCase
from django_quota import check

def test_one():
    assert check("1/h", "user:1")

def test_another():
    assert check("1/h", "user:1")

class TestOfDjango(SimpleTestCase):
    def test_one(self):
        assert check("1/h", "user:1")
"""


def test_the_fixture_keeps_counts_out_of_the_next_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_site.py").write_text(TESTS)
    ran = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django", str(tmp_path)]
    done = subprocess.run(ran, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_clock_of_a_task_is_its_own() -> None:
    async def frozen(now: int) -> int | None:
        with freeze(now):
            await asyncio.sleep(0)
            return frozen_now()

    async def both() -> list[int | None]:
        return list(await asyncio.gather(frozen(1), frozen(2)))

    assert asyncio.run(both()) == [1, 2]
