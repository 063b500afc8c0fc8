"""`django_quota.testing`: a clock that you set, and counts that start at zero."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
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

from django_quota import Rule, check, counter, lock, once, quota
from django_quota.exceptions import RuleError
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import QuotaKit, RedisServer, clear, freeze, plugin, quota_kit
from tests.support.commands import ROOT
from tests.support.steps import ALGORITHMS
from tests.support.stores import caches, current_store

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

    @pytest.mark.usefixtures("memory_store")
    def test_a_limit_has_room_again_when_the_clock_says_so(self) -> None:
        with freeze(NOON):
            assert [bool(check("1/m", "user:1")) for _ in range(2)] == [True, False]
        with freeze(NOON + timedelta(minutes=1)):
            assert check("1/m", "user:1")

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

    def test_a_full_store_has_room_again_and_objects_from_before_go_on(self, settings: Any) -> None:
        settings.QUOTA = {"STORE": "memory", "MEMORY_KEYS": 1_000}
        (clicks := counter("clicks")).incr("user:1")
        assert not all(check("1/m", f"user:{number}") for number in range(1_001))
        clear()
        assert check("1/m", "user:1000")
        assert clicks.incr("user:1") == 1


def test_the_kit_knows_the_rule_of_a_view_by_name(settings: Any) -> None:
    settings.ROOT_URLCONF, settings.QUOTA = "tests.support.urls_of_rules", {"STORE": "memory"}
    with quota_kit() as kit:
        assert not kit.exhaust("two", "ip:192.0.2.1")
        assert (kit.used("two", "ip:192.0.2.1"), kit.left("two", "ip:192.0.2.1")) == (20, 0)
        kit.reset("two", "ip:192.0.2.1")
        assert kit.used("two", "ip:192.0.2.1") == 0


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


PROJECT = {
    "settings_of_a_site.py": """
from tests.support.settings import *
QUOTA = {"RULES": {"search": {"rate": "3/m", "key": "user"}}}
ROOT_URLCONF = "urls_of_a_site"
""",
    "urls_of_a_site.py": """
from django.http import HttpResponse
from django.urls import path
from django_quota import quota
urlpatterns = [path("", quota("2/m", key="ip", name="home")(lambda request: HttpResponse("home")))]
""",
    "test_site.py": """
import asyncio, urllib.request, urllib.error
from datetime import UTC, datetime, timedelta
import pytest
from django.test import SimpleTestCase
from django_quota import acheck, check
from django_quota.testing import QuotaTestMixin

@pytest.mark.parametrize("number", range(3))
def test_no_count_stays_for_the_next_test(number):
    assert check("1/h", "user:1")

class TestOfDjango(SimpleTestCase):
    def test_no_count_stays(self):
        assert check("1/h", "user:1")

class TestWithTheMixin(QuotaTestMixin, SimpleTestCase):
    def test_the_kit(self):
        self.quota.exhaust("search", "user:1")
        assert not check("search", "user:1")

def test_the_kit(quota):
    assert quota.used("search", "user:1") == 0
    check("search", "user:1")
    assert (quota.used("search", "user:1"), quota.left("search", "user:1")) == (1, 2)
    assert not quota.exhaust("search", "user:1")
    assert not check("search", "user:1")
    quota.advance(timedelta(minutes=1))
    assert check("search", "user:1")

@pytest.mark.quota(off=True)
def test_limits_are_off():
    assert all(check("1/h", "user:1") for _ in range(3))

def test_an_async_limit(quota):
    quota.exhaust("search", "user:1")
    assert not asyncio.run(acheck("search", "user:1"))

def test_a_live_server(live_server, quota):
    quota.now = datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(2):
        with urllib.request.urlopen(live_server.url) as reply:
            assert reply.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(live_server.url)
    refused.value.close()
    assert refused.value.headers["Retry-After"] == "60"
    quota.advance(60)
    with urllib.request.urlopen(live_server.url) as reply:
        assert reply.status == 200
""",
}


@pytest.mark.thorough("processes")
def test_the_plugin_in_a_project_of_its_own(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    # By its module: the project's own tests run without it, and an editable install may be older than the entry point.
    plugins = ["-p", "no:django_quota", "-p", "django_quota.testing.plugin", "-p", "no:cacheprovider"]
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert pyproject["project"]["entry-points"]["pytest11"] == {"django_quota": plugin.__name__}
    ran = [sys.executable, "-m", "pytest", "-q", *plugins, "--ds=settings_of_a_site", "-n", "2", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(ran, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "9 passed" in done.stdout, done.stdout + done.stderr


class TestKit:
    @pytest.fixture
    def kit(self) -> Iterator[QuotaKit]:
        with quota_kit() as kit:
            yield kit

    def test_it_counts_in_memory_and_gives_the_settings_back(self, settings: Any) -> None:
        settings.QUOTA = {"PREFIX": "mine"}
        with quota_kit() as kit:
            kit.now = NOON
            assert settings.QUOTA == {"PREFIX": "mine"}
            assert isinstance(current_store(), MemoryStore)
        assert settings.QUOTA == {"PREFIX": "mine"}
        assert isinstance(current_store(), RedisStore)
        assert kit.now != NOON

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

    def test_a_limit_that_limits_nobody_cannot_be_used_up(self, kit: QuotaKit) -> None:
        rule = Rule.make("free", None)
        with pytest.raises(AssertionError, match="So it cannot be used up"):
            kit.exhaust(rule, "user:1")
        assert (kit.used(rule, "user:1"), kit.left(rule, "user:1")) == (0, None)

    def test_limits_can_be_off_for_a_block(self, kit: QuotaKit) -> None:
        kit.exhaust("1/m", "user:1")
        with kit.off():
            assert check("1/m", "user:1")
        assert not check("1/m", "user:1")


def test_the_clock_of_a_task_is_its_own() -> None:
    async def frozen(now: datetime) -> datetime:
        with freeze(now):
            await asyncio.sleep(0)
            return QuotaKit().now

    async def both() -> list[datetime]:
        return list(await asyncio.gather(*map(frozen, days)))

    days = [NOON, NOON + timedelta(days=1)]
    assert asyncio.run(both()) == days
