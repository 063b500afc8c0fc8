"""`django_quota.testing`: a clock that you set, and counts that start at zero."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from django_quota import check, counter, lock, once, quota
from django_quota.exceptions import RuleError
from django_quota.testing import QuotaKit, RedisServer, clear, freeze, quota_kit
from tests.support.steps import ALGORITHMS
from tests.support.stores import caches

NOON = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
MICROSECONDS = 1_795_262_400_000_005
LATEST = datetime.max.replace(tzinfo=UTC)


class TestFreeze:
    @pytest.mark.parametrize(
        ("now", "found"),
        [
            (MICROSECONDS, NOON), (NOON, NOON), (NOON.astimezone(ZoneInfo("Asia/Kolkata")), NOON), (LATEST, LATEST),
        ],
    )  # fmt: skip
    def test_it_takes_microseconds_and_datetimes_with_a_time_zone(self, now: int | datetime, found: datetime) -> None:
        with freeze(now):
            assert QuotaKit().now == found
        assert QuotaKit().now != found

    @pytest.mark.parametrize(
        ("now", "words"),
        [
            (NOON.replace(tzinfo=None), r"no time zone\. Use, for example, .*tzinfo=UTC"),
            (1_795_262_400, "looks like seconds. Use 1795262400000000"),
            (1_795_262_400_000, "looks like milliseconds. Use 1795262400000000"),
            *((wrong, "takes a datetime with a time zone, or whole microsec") for wrong in (1.5, "2026", None, True)),
        ],
    )
    def test_anything_else_is_a_clear_error(self, now: Any, words: str) -> None:
        with pytest.raises((TypeError, ValueError), match=words), freeze(now):
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


@pytest.mark.parametrize("name", ["exhaust", "used", "left", "reset"])
def test_the_kit_says_how_an_address_is_written(name: str) -> None:
    with quota_kit() as kit:
        with pytest.raises(RuleError, match=r"No request has the subject '127\.0\.0\.1'\. Use 'ip:127\.0\.0\.1'"):
            getattr(kit, name)("5/m", "127.0.0.1")
        with pytest.raises(RuleError, match="is a network"):
            getattr(kit, name)("5/m", "10.0.0.0/8")
        getattr(kit, name)("5/m", "tenant")  # as code may count it


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


class TestKit:
    @pytest.fixture
    def kit(self) -> Iterator[QuotaKit]:
        with quota_kit() as kit:
            yield kit

    def test_the_clock_stands_still_for_all_threads_until_it_is_moved(self, kit: QuotaKit) -> None:
        began = kit.now
        assert kit.now == began
        kit.advance(1.5)
        assert kit.now - began == timedelta(seconds=1.5)
        kit.now = NOON
        assert check("1/m", "user:1").reset_after == 60
        with ThreadPoolExecutor() as pool:
            assert pool.submit(lambda: kit.now).result() == NOON
        with freeze(NOON + timedelta(days=1)):
            assert kit.now == NOON + timedelta(days=1)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @given(hits=st.integers(0, 12), rate=st.sampled_from(["10/m", "1/m", "3/m; 40/h", "0/m"]))
    def test_exhaust_leaves_nothing_and_never_more_than_the_limit(self, algorithm: Any, hits: int, rate: str) -> None:
        with quota_kit() as kit:
            for _ in range(hits):
                check(rate, "user:1", algorithm=algorithm)
            assert not kit.exhaust(rate, "user:1", algorithm=algorithm)
            assert not check(rate, "user:1", algorithm=algorithm)
            assert kit.used(rate, "user:1", algorithm=algorithm) == check(rate, "user:1", algorithm=algorithm).limit

    def test_limits_can_be_off_for_a_block(self, kit: QuotaKit) -> None:
        kit.exhaust("1/m", "user:1")
        with kit.off():
            assert check("1/m", "user:1")
        assert not check("1/m", "user:1")
