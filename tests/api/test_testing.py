"""`django_quota.testing` in the tests of sites: a clock that you set, and counts from zero on, whatever changes."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import fakeredis
import freezegun
import pytest
import redis
import time_machine
from django.core.checks import WARNING
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.core.management.commands import runserver
from hypothesis import given
from hypothesis import strategies as st

from django_quota import check, counter, lock, once
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.runtime import Site, runtime
from django_quota.stores.redis.errors import translate_error
from django_quota.testing import QuotaKit, RedisServer, clear, freeze, plugin, quota_kit
from django_quota.testing.kit import isolated
from tests.support.commands import ROOT
from tests.support.findings import REDIS, TIMEOUTS, findings
from tests.support.inputs import inputs
from tests.support.outages import no_answer
from tests.support.steps import ALGORITHMS

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

@pytest.fixture(autouse=True)
def only_a_test_that_wants_it_reaches_a_network(request):
    yield
    assert bool(asked) == request.node.name.endswith("counts_in_redis")
    asked.clear()
""",
    "test_site.py": """
import pytest
from django.test import Client, SimpleTestCase, override_settings
from django_quota import check
from django_quota.testing import QuotaTestMixin

OTHER_QUOTA = {"HEADERS": False, "STORE": "redis", "ENABLED": True}
OTHER_CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:2"}}
overrides = pytest.mark.parametrize("changed", [("QUOTA", OTHER_QUOTA), ("CACHES", OTHER_CACHES)])

def starts_at_zero():
    assert [bool(Client().get("/").status_code == 200) for _ in range(3)] == [True, True, False]
    assert not check("2/m", "user:1", 2).degraded
    assert not check("2/m", "user:1")

@overrides
def test_settings_with_the_fixture(quota, settings, changed):
    quota.exhaust("5/m", "user:2")
    setattr(settings, *changed)
    assert not check("5/m", "user:2")
    starts_at_zero()
    quota.advance(60)
    assert check("5/m", "user:2")
    assert quota.used("2/m", "user:1") == 0
    quota.exhaust("home", "ip:127.0.0.1")
    assert Client().get("/").status_code == 429

@overrides
def test_settings_without_the_fixture(settings, changed):
    setattr(settings, *changed)
    starts_at_zero()

@override_settings(CACHES=OTHER_CACHES)
class TestClass(QuotaTestMixin, SimpleTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        check("2/m", "user:1", 2)  # before any fixture of a test

    def test_of_the_class(self):
        self.quota.exhaust("5/m", "user:2")
        with self.settings(QUOTA=OTHER_QUOTA):
            assert not check("5/m", "user:2")
        starts_at_zero()

@pytest.mark.quota(off=True)
@overrides
def test_limits_stay_off(settings, changed):
    setattr(settings, *changed)
    assert all(check("1/m", "user:1") for _ in range(3))

@pytest.fixture(scope="module")
def counted():
    return check("1/h", "user:7")

def test_a_fixture_of_the_module(counted):
    assert counted and not counted.degraded

@pytest.mark.quota(store="settings")
def test_that_counts_in_redis():
    assert check("1/h", "user:7").degraded
""",
}


def test_a_site_stays_isolated_however_it_changes_the_settings_and_pytest_says_so(tmp_path: Path) -> None:
    for name, text in SITE.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # a folder above may have settings of pytest
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "settings_of_a_site",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-ppytest_django.plugin", f"-p{plugin.__name__}", "-pno:cacheprovider"]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout
    assert "9 passed" in said, said
    assert "django_quota: each test counts in memory, from zero on" in said
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert pyproject["project"]["entry-points"]["pytest11"] == {"django_quota": plugin.__name__}
    with pytest.raises(pytest.UsageError, match=r"quota_store is 'redis'\. Use 'memory' or 'settings'\."):
        plugin._checked("redis")


# --- settings without Redis -------------------------------------------------------------------------------------------

LOCAL_CACHE = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


def test_runserver_starts_with_another_cache_while_you_develop(
    settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.CACHES = LOCAL_CACHE
    run = partial(call_command, "runserver", "127.0.0.1:0", use_reloader=False, skip_checks=False)
    with patch.object(runserver, "run") as serve, patch.object(runserver.Command, "check_migrations"):
        settings.DEBUG = True
        run()
        assert serve.called
        assert 'Without Redis, use QUOTA = {"STORE": "memory"}' in "".join(capsys.readouterr())
        serve.reset_mock()
        settings.DEBUG = False
        with pytest.raises(SystemCheckError, match=r"django_quota\.E004"):
            run()
        assert not serve.called


@pytest.mark.parametrize(
    "site",
    [Site(debug=True, databases={}), Site(debug=False, databases={"default": "where the site's database is"})],
    ids=["DEBUG was on at setup", "an alias led to another database at setup"],
)
def test_another_cache_is_a_warning_where_a_test_runner_has_changed_the_site(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(runtime, "is_of_site")
    monkeypatch.setattr(runtime, "site", site)
    (found,) = findings(caches=LOCAL_CACHE)
    assert (found.id, found.level) == ("django_quota.E004", WARNING)


def test_another_cache_is_a_warning_where_the_pytest_plugin_counts_in_memory() -> None:
    with isolated():
        (found,) = findings(caches=LOCAL_CACHE)
    assert (found.id, found.level) == ("django_quota.E004", WARNING)


def test_fakeredis_is_a_clear_error_that_names_the_plugin(settings: Any) -> None:
    fake = {"CONNECTION_POOL_KWARGS": {"connection_class": fakeredis.FakeRedisConnection}}
    settings.CACHES = {"default": {**REDIS, "OPTIONS": {**TIMEOUTS, **fake}}}
    with pytest.raises(ConfigurationError, match=r"have no sockets\. Perhaps it is fakered") as raised:
        check("2/m", "user:1")
    assert "by the pytest plugin of django_quota" in raised.value.hint


def test_a_server_whose_lua_lacks_struct_is_a_clear_error() -> None:
    error = translate_error(redis.ResponseError("NOSTRUCT"))
    assert isinstance(error, ConfigurationError)
    assert "without the library `struct`" in error.problem


# --- the clock --------------------------------------------------------------------------------------------------------

NOON = datetime(2031, 5, 6, 12, 0, 0, 5, tzinfo=UTC)


def test_freeze_takes_microseconds_and_datetimes_with_a_time_zone_and_says_so() -> None:
    latest = datetime.max.replace(tzinfo=UTC)
    in_kolkata = NOON.astimezone(ZoneInfo("Asia/Kolkata"))
    for now, found in ((1_935_835_200_000_005, NOON), (in_kolkata, NOON), (latest, latest)):
        with freeze(now):
            assert QuotaKit().now == found
        assert QuotaKit().now != found
    wrong: list[tuple[Any, str]] = [
        (NOON.replace(tzinfo=None), r"no time zone\. Use, for example, .*tzinfo=UTC"),
        (1_795_262_400, "looks like seconds. Use 1795262400000000"),
        (1_795_262_400_000, "looks like milliseconds. Use 1795262400000000"),
        *((value, "takes a datetime with a time zone, or whole microsec") for value in (1.5, True)),
    ]
    for value, words in wrong:
        with pytest.raises((TypeError, ValueError), match=words), freeze(value):
            pass


@pytest.mark.parametrize("kit", [quota_kit, isolated], ids=["with the fixture quota", "with the plugin alone"])
@pytest.mark.parametrize("at", [freezegun.freeze_time, partial(time_machine.travel, tick=False)])
def test_a_library_that_moves_the_clock_moves_the_limits(at: Any, kit: Callable[[], Any]) -> None:
    later = NOON + timedelta(days=1)
    with isolated(), kit():
        assert check("1/m", "user:1")
        assert not check("1/m", "user:1", cache_refusals=60)
        with at(NOON):
            assert QuotaKit().now == NOON
            assert [bool(check("1/m", "user:1", cache_refusals=60)) for _ in range(2)] == [True, False]
        with at(NOON + timedelta(seconds=59)):
            assert check("1/m", "user:1", cache_refusals=60).retry_after == 1
        with at(NOON + timedelta(minutes=1)):
            assert check("1/m", "user:1", cache_refusals=60)
        with at(NOON.replace(year=2001, microsecond=0)):
            assert check("1/d", "user:1", algorithm="calendar").reset_after == 12 * 3600
            assert not check("1/d", "user:1", algorithm="calendar")
        assert check("1/m", "user:3")
        with at(NOON), freeze(later):  # our own takes precedence
            assert QuotaKit().now == later
        with freeze(later), at(NOON):
            assert QuotaKit().now == later


@pytest.mark.parametrize("at", [freezegun.freeze_time, partial(time_machine.travel, tick=False)])
def test_the_kit_moves_the_limits_on_from_where_a_library_has_moved_the_clock(at: Any) -> None:
    with at(NOON), quota_kit() as kit:
        kit.advance(90)

        assert kit.now == NOON + timedelta(seconds=90)


# --- the kit ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kit() -> Iterator[QuotaKit]:
    with quota_kit() as kit:
        yield kit


def test_the_clock_stands_still_for_all_threads_until_it_is_moved(kit: QuotaKit) -> None:
    began = kit.now
    kit.advance(1.5)
    assert kit.now - began == timedelta(seconds=1.5)
    kit.now = NOON
    assert check("1/m", "user:1").reset_after == 60
    with ThreadPoolExecutor() as pool:
        assert pool.submit(lambda: kit.now).result() == NOON


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@inputs(40)
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


def test_the_kit_says_how_an_address_or_a_rule_is_written(kit: QuotaKit, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "3/m"}}
    known = "Known: again, by-method-decorator, class, method, search, two."
    verbs: list[Callable[..., Any]] = [kit.exhaust, kit.used, kit.left, kit.reset]
    for verb in verbs:
        with pytest.raises(RuleError, match=r"No request has the subject '127\.0\.0\.1'\. Use 'ip:127\.0\.0\.1'"):
            verb("5/m", "127.0.0.1")
        verb("5/m", "tenant")  # as code may count it
        for rule, hint in (("twoo", r"Did you mean 'two'\?"), ("x:y", known)):
            with pytest.raises(RuleError, match=rf"No rule of .* has the name {rule!r}\. {hint}"):
                verb(rule, "ip:192.0.2.1")


# --- clear ------------------------------------------------------------------------------------------------------------


def test_clear_deletes_every_count_of_the_memory_store(memory_store: None) -> None:
    for _ in range(2):
        clear()
        assert check("1/m", "user:1", ban={"after": "1/m", "for": ["1h"]})
        assert not check("1/m", "user:1", ban={"after": "1/m", "for": ["1h"]})
        assert once("webhook", "17", ttl=60)
        assert counter("clicks").incr("user:1") == 1
        lock("nightly", lease=60).acquire()


def test_clear_deletes_local_counts_and_never_calls_redis(redis_cache: RedisServer, raw: redis.Redis) -> None:
    assert check("1/m", "user:1")
    kept, calls = sorted(raw.keys()), raw.info("stats")["total_commands_processed"]
    clear()
    assert raw.info("stats")["total_commands_processed"] - calls == 1  # this INFO
    assert sorted(raw.keys()) == kept
    for _ in range(2):
        with no_answer():
            assert [bool(check("1/m", "user:1", on_unavailable="local")) for _ in range(2)] == [True, False]
        clear()
