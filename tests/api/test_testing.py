"""`django_quota.testing` in the tests of sites: a clock that you set, and counts from zero on, whatever changes."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import fakeredis
import freezegun
import pytest
import redis
import time_machine
from django.core import mail
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.core.management.commands import runserver
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from django_quota import check, counter, lock, once, quota
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.testing import QuotaKit, RedisServer, clear, freeze, plugin, quota_kit
from django_quota.testing.kit import isolated
from tests.support.commands import ROOT
from tests.support.findings import REDIS, TIMEOUTS
from tests.support.steps import ALGORITHMS
from tests.support.stores import caches

SITE = {
    "settings_of_a_site.py": """
SECRET_KEY = "only for tests, and long enough for HS256"
DATABASES = {}
ROOT_URLCONF = "urls_of_a_site"
CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}
QUOTA = {"ON_UNAVAILABLE": "deny"}
""",
    "urls_of_a_site.py": """
from django.http import HttpResponse
from django.urls import path
from django_quota import quota
urlpatterns = [path("", quota("2/m", key="ip", name="home")(lambda request: HttpResponse("home")))]
""",
    "conftest.py": """
import socket
import pytest

asked = []

class Socket(socket.socket):
    def connect(self, address):
        asked.append(address)
        raise OSError("no network in tests")

socket.socket = Socket

@pytest.fixture(autouse=True, scope="session")
def no_test_reaches_a_network():
    yield
    assert asked == []
""",
    "test_site.py": """
import pytest
from django.test import Client, SimpleTestCase, override_settings
from django_quota import check
from django_quota.testing import QuotaTestMixin

OF_QUOTA = {"QUOTA": {"HEADERS": False, "STORE": "redis", "ENABLED": True}}
OF_CACHES = {"CACHES": {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:2"}}}
overrides = pytest.mark.parametrize("changed", [OF_QUOTA, OF_CACHES], ids=["QUOTA", "CACHES"])

def change(settings, changed):
    for name, value in changed.items():
        setattr(settings, name, value)

def starts_at_zero():
    assert [bool(Client().get("/").status_code == 200) for _ in range(3)] == [True, True, False]
    assert not check("2/m", "user:1", 2).degraded
    assert not check("2/m", "user:1")

@overrides
def test_settings_with_the_fixture(quota, settings, changed):
    quota.exhaust("5/m", "user:2")
    change(settings, changed)
    assert not check("5/m", "user:2")
    starts_at_zero()
    quota.advance(60)
    assert check("5/m", "user:2")
    assert quota.used("2/m", "user:1") == 0

@overrides
def test_settings_without_the_fixture(settings, changed):
    change(settings, changed)
    starts_at_zero()

@override_settings(**OF_CACHES)
class TestClass(QuotaTestMixin, SimpleTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        check("2/m", "user:1", 2)  # before any fixture of a test

    def test_of_the_class(self):
        self.quota.exhaust("5/m", "user:2")
        with self.settings(**OF_QUOTA):
            assert not check("5/m", "user:2")
        starts_at_zero()

@pytest.mark.quota(off=True)
@overrides
def test_limits_stay_off(settings, changed):
    change(settings, changed)
    assert all(check("1/m", "user:1") for _ in range(3))

@pytest.fixture(scope="module")
def counted():
    return check("1/h", "user:7")

def test_a_fixture_of_the_module(counted):
    assert counted and not counted.degraded

def test_a_rule_of_a_view_before_a_request(quota):
    quota.exhaust("home", "ip:127.0.0.1")
    assert Client().get("/").status_code == 429
""",
}


def run_site(folder: Path, *options: str) -> str:
    """Run the tests of a site in a process of its own; return what pytest says."""
    for name, text in SITE.items():
        (folder / name).write_text(text)
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "settings_of_a_site"}
    plugins = [f"-p{name}" for name in ("no:django_quota", plugin.__name__, "no:cacheprovider", "no:valkey")]
    command = [sys.executable, "-m", "pytest", *plugins, *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_site_stays_isolated_however_it_changes_the_settings_and_pytest_says_so(tmp_path: Path) -> None:
    """A test that asks the network fails."""
    said = run_site(tmp_path)
    assert "9 passed" in said, said
    assert "django_quota: each test counts in memory, from zero on" in said
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert pyproject["project"]["entry-points"]["pytest11"] == {"django_quota": plugin.__name__}

    said = run_site(tmp_path, "-o", "quota_store=settings", "-k", "test_of_the_class")
    assert "django_quota: tests are not isolated, they count where the settings say" in said
    assert "1 passed, 8 deselected, 1 error" in said, said  # it has asked the network
    with pytest.raises(pytest.UsageError, match=r"quota_store is 'redis'\. Use 'memory' or 'settings'\."):
        plugin._checked("redis")


# --- settings without Redis -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["locmem.LocMemCache", "dummy.DummyCache"])
def test_runserver_starts_with_another_cache_while_you_develop(
    backend: str, settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.CACHES = {"default": {"BACKEND": f"django.core.cache.backends.{backend}"}}
    monkeypatch.delattr(mail, "outbox")  # as outside of tests
    with patch.object(runserver, "run") as serve, patch.object(runserver.Command, "check_migrations"):
        settings.DEBUG = True
        call_command("runserver", "127.0.0.1:0", use_reloader=False, skip_checks=False)
        assert serve.called
        said = "".join(capsys.readouterr())
        assert f'(django_quota.E004) CACHES["default"] is django.core.cache.backends.{backend}' in said
        assert 'Without Redis, use QUOTA = {"STORE": "memory"}' in said

        serve.reset_mock()
        settings.DEBUG = False
        with pytest.raises(SystemCheckError, match=r"django_quota\.E004"):
            call_command("runserver", "127.0.0.1:0", use_reloader=False, skip_checks=False)
        assert not serve.called


def test_fakeredis_is_a_clear_error_that_names_the_plugin(settings: Any) -> None:
    fake = {"CONNECTION_POOL_KWARGS": {"connection_class": fakeredis.FakeRedisConnection}}
    settings.CACHES = {"default": {**REDIS, "OPTIONS": {**TIMEOUTS, **fake}}}
    for call in (lambda: check("2/m", "user:1"), lambda: counter("clicks").incr("user:1"), lambda: once("a", "b")):
        with pytest.raises(ConfigurationError, match=r"without the library `struct`.* Perhaps it is fakered") as raised:
            call()
        assert "by the pytest plugin of django_quota" in raised.value.hint
        assert '{"STORE": "memory"}' in raised.value.hint


# --- the clock --------------------------------------------------------------------------------------------------------

NOON = datetime(2031, 5, 6, 12, 0, 0, 5, tzinfo=UTC)
"""A time that is not now."""
MICROSECONDS = 1_935_835_200_000_005
LATEST = datetime.max.replace(tzinfo=UTC)

Mover = Callable[[datetime], AbstractContextManager[Any]]


@pytest.mark.parametrize(
    ("now", "found"),
    [(MICROSECONDS, NOON), (NOON, NOON), (NOON.astimezone(ZoneInfo("Asia/Kolkata")), NOON), (LATEST, LATEST)],
)
def test_freeze_takes_microseconds_and_datetimes_with_a_time_zone(now: int | datetime, found: datetime) -> None:
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
def test_freeze_refuses_anything_else_with_a_clear_error(now: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words), freeze(now):
        pass


@pytest.fixture(params=[freezegun.freeze_time, lambda moment: time_machine.travel(moment, tick=False)])
def at(request: pytest.FixtureRequest) -> Mover:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["the fixture", "the plugin alone"])
def around(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a site's test has with the fixture `quota`, and without it."""
    with isolated(), quota_kit() if request.param == "the fixture" else isolated():
        yield


@pytest.mark.usefixtures("around")
class TestLibrariesThatMoveTheClock:
    def test_forwards_a_limit_has_room_again(self, at: Mover) -> None:
        assert check("1/m", "user:1")
        assert not check("1/m", "user:1", cache_refusals=60)
        with at(NOON):
            assert QuotaKit().now == NOON
            assert check("1/m", "user:1", cache_refusals=60)
            assert not check("1/m", "user:1", cache_refusals=60)
        with at(NOON + timedelta(seconds=59)):
            assert check("1/m", "user:1", cache_refusals=60).retry_after == 1
        with at(NOON + timedelta(minutes=1)):
            assert check("1/m", "user:1", cache_refusals=60)

    @pytest.mark.parametrize("year", [2001, 2031])
    def test_backwards_a_limit_counts_by_the_time_that_was_set(self, at: Mover, year: int) -> None:
        past = NOON.replace(year=year, microsecond=0)
        with at(past):
            assert check("1/d", "user:1", algorithm="calendar").reset_after == 12 * 3600
        with at(past - timedelta(days=1, hours=-1)):
            assert check("1/d", "user:2", algorithm="calendar").reset_after == 11 * 3600
            assert counter("clicks").incr("user:1") == 1
        with at(past):
            assert not check("1/d", "user:1", algorithm="calendar")
        assert check("1/m", "user:3")

    def test_our_own_freeze_takes_precedence(self, at: Mover) -> None:
        later = NOON + timedelta(days=1)
        with at(NOON), freeze(later):
            assert QuotaKit().now == later
        with freeze(later), at(NOON):
            assert QuotaKit().now == later


# --- the kit ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kit() -> Iterator[QuotaKit]:
    with quota_kit() as kit:
        yield kit


def test_the_clock_stands_still_for_all_threads_until_it_is_moved(kit: QuotaKit) -> None:
    began = kit.now
    assert kit.now == began
    kit.advance(1.5)
    assert kit.now - began == timedelta(seconds=1.5)
    kit.now = NOON
    assert check("1/m", "user:1").reset_after == 60
    with ThreadPoolExecutor() as pool:
        assert pool.submit(lambda: kit.now).result() == NOON
    with freezegun.freeze_time(NOON) as frozen:
        kit.exhaust("1/m", "user:2")
        frozen.tick(59)
        assert not check("1/m", "user:2")
        frozen.tick(1)
        assert check("1/m", "user:2")
        frozen.move_to(NOON - timedelta(days=1))
        assert kit.now == NOON - timedelta(days=1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(hits=st.integers(0, 12), rate=st.sampled_from(["10/m", "1/m", "3/m; 40/h", "0/m"]))
def test_exhaust_leaves_nothing_and_never_more_than_the_limit(algorithm: Any, hits: int, rate: str) -> None:
    with quota_kit() as kit:
        for _ in range(hits):
            check(rate, "user:1", algorithm=algorithm)
        assert not kit.exhaust(rate, "user:1", algorithm=algorithm)
        assert not check(rate, "user:1", algorithm=algorithm)
        assert kit.used(rate, "user:1", algorithm=algorithm) == check(rate, "user:1", algorithm=algorithm).limit
        with kit.off():
            assert check(rate, "user:1", algorithm=algorithm)


@pytest.mark.parametrize("name", ["exhaust", "used", "left", "reset"])
def test_the_kit_says_how_an_address_or_a_rule_is_written(name: str, kit: QuotaKit, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "3/m"}}
    verb = getattr(kit, name)
    with pytest.raises(RuleError, match=r"No request has the subject '127\.0\.0\.1'\. Use 'ip:127\.0\.0\.1'"):
        verb("5/m", "127.0.0.1")
    with pytest.raises(RuleError, match="is a network"):
        verb("5/m", "10.0.0.0/8")
    verb("5/m", "tenant")  # as code may count it
    known = "Known: again, by-method-decorator, class, method, search, two."
    for rule, hint in (("serach", "Did you mean 'search'?"), ("twoo", "Did you mean 'two'?"), ("x:y", known)):
        with pytest.raises(RuleError) as raised:
            verb(rule, "ip:192.0.2.1")
        assert raised.value.problem == f"No rule of the settings or of a view has the name {rule!r}."
        assert raised.value.hint == hint


# --- clear ------------------------------------------------------------------------------------------------------------


def test_clear_deletes_every_count_of_the_memory_store(memory_store: None) -> None:
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
