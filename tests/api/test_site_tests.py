"""The tests of sites that use us: they stay isolated however they change the settings, and can move our clock."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fakeredis
import freezegun
import pytest
import time_machine
from django.core import mail
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.core.management.commands import runserver

from django_quota import check, counter, once
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.testing import QuotaKit, freeze, plugin, quota_kit
from django_quota.testing.kit import isolated
from tests.support.commands import ROOT
from tests.support.findings import REDIS, TIMEOUTS

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

def starts_at_zero():
    assert [bool(Client().get("/").status_code == 200) for _ in range(3)] == [True, True, False]
    assert not check("2/m", "user:1", 2).degraded
    assert not check("2/m", "user:1")

def change(settings, changed):
    for name, value in changed.items():
        setattr(settings, name, value)

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
    check("1/m", "user:2")
    change(settings, changed)
    assert not check("1/m", "user:2")
    starts_at_zero()

@override_settings(**OF_QUOTA, **OF_CACHES)
class TestClass(SimpleTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        check("2/m", "user:1", 2)  # before any fixture of a test

    def test_of_the_class(self):
        starts_at_zero()

@override_settings(**OF_CACHES)
class TestMixin(QuotaTestMixin, SimpleTestCase):
    def test_the_mixin(self):
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


def run_site(folder: Path, files: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of a site in a process of its own."""
    for name, text in files.items():
        (folder / name).write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "settings_of_a_site",
    }
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


PYTEST = ("pytest", "-p", "no:django_quota", "-p", plugin.__name__, "-p", "no:cacheprovider", "-p", "no:valkey")


def test_a_site_stays_isolated_however_it_changes_the_settings(tmp_path: Path) -> None:
    """A test that asks the network fails."""
    done = run_site(tmp_path, SITE, *PYTEST)
    assert "10 passed" in done.stdout, done.stdout + done.stderr
    assert "django_quota: each test counts in memory, from zero on" in done.stdout
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert pyproject["project"]["entry-points"]["pytest11"] == {"django_quota": plugin.__name__}


def test_pytest_says_that_it_does_not_isolate(tmp_path: Path) -> None:
    done = run_site(tmp_path, SITE, *PYTEST, "-o", "quota_store=settings", "-k", "test_of_the_class")
    assert "django_quota: tests are not isolated, they count where the settings say" in done.stdout
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    with pytest.raises(pytest.UsageError, match=r"quota_store is 'redis'\. Use 'memory' or 'settings'\."):
        plugin._checked("redis")


# --- settings without Redis -------------------------------------------------------------------------------------------

FAKEREDIS = {"connection_class": fakeredis.FakeRedisConnection}
OTHER_CACHES = ["django.core.cache.backends.locmem.LocMemCache", "django.core.cache.backends.dummy.DummyCache"]


@pytest.mark.parametrize("backend", OTHER_CACHES)
def test_runserver_starts_with_another_cache_while_you_develop(
    backend: str, settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.CACHES = {"default": {"BACKEND": backend}}
    monkeypatch.delattr(mail, "outbox")  # as outside of tests
    with patch.object(runserver, "run") as serve, patch.object(runserver.Command, "check_migrations"):
        settings.DEBUG = True
        call_command("runserver", "127.0.0.1:0", use_reloader=False, skip_checks=False)
        assert serve.called
        said = capsys.readouterr()
        assert f'(django_quota.E004) CACHES["default"] is {backend}' in said.out + said.err
        assert 'Without Redis, use QUOTA = {"STORE": "memory"}' in said.out + said.err

        serve.reset_mock()
        settings.DEBUG = False
        with pytest.raises(SystemCheckError, match=r"django_quota\.E004"):
            call_command("runserver", "127.0.0.1:0", use_reloader=False, skip_checks=False)
        assert not serve.called


# --- the clock --------------------------------------------------------------------------------------------------------

Mover = Callable[[datetime], AbstractContextManager[Any]]

NOON = datetime(2031, 5, 6, 12, tzinfo=UTC)
"""A time that is not now."""


def by_freezegun(moment: datetime) -> AbstractContextManager[Any]:
    return freezegun.freeze_time(moment)


def by_time_machine(moment: datetime) -> AbstractContextManager[Any]:
    return time_machine.travel(moment, tick=False)


@pytest.fixture(params=[by_freezegun, by_time_machine])
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
        past = NOON.replace(year=year)
        with at(past):
            assert check("1/d", "user:1", algorithm="calendar").reset_after == 12 * 3600
        with at(past - timedelta(days=1, hours=-1)):
            assert check("1/d", "user:2", algorithm="calendar").reset_after == 11 * 3600
            assert counter("clicks").incr("user:1") == 1
        with at(past):
            assert not check("1/d", "user:1", algorithm="calendar")
        assert check("1/m", "user:3")

    def test_our_own_freeze_takes_precedence(self, at: Mover) -> None:
        with at(NOON), freeze(NOON + timedelta(days=1)):
            assert QuotaKit().now == NOON + timedelta(days=1)
        with freeze(NOON + timedelta(days=1)), at(NOON):
            assert QuotaKit().now == NOON + timedelta(days=1)


def test_the_fixture_goes_as_the_moved_clock_goes() -> None:
    with quota_kit() as kit, freezegun.freeze_time(NOON) as frozen:
        kit.exhaust("1/m", "user:1")
        frozen.tick(59)
        assert not check("1/m", "user:1")
        frozen.tick(1)
        assert check("1/m", "user:1")
        frozen.move_to(NOON - timedelta(days=1))
        assert kit.now == NOON - timedelta(days=1)


# --- servers that are no Redis ----------------------------------------------------------------------------------------


def test_fakeredis_is_a_clear_error_that_names_the_plugin(settings: Any) -> None:
    settings.CACHES = {"default": {**REDIS, "OPTIONS": {**TIMEOUTS, "CONNECTION_POOL_KWARGS": FAKEREDIS}}}
    for call in (lambda: check("2/m", "user:1"), lambda: counter("clicks").incr("user:1"), lambda: once("a", "b")):
        with pytest.raises(
            ConfigurationError, match=r"without the library `struct`.* Perhaps it is fakeredis"
        ) as raised:
            call()
        assert "by the pytest plugin of django_quota" in raised.value.hint
        assert '{"STORE": "memory"}' in raised.value.hint


# --- the names of rules -----------------------------------------------------------------------------------------------


def test_an_unknown_rule_is_told_the_nearest_one_or_what_is_known_views_included(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    settings.QUOTA = {"RULES": {"search": "3/m"}}
    known = "Known: again, by-method-decorator, class, method, search, two."
    with quota_kit() as kit:
        for name, hint in (("serach", "Did you mean 'search'?"), ("twoo", "Did you mean 'two'?"), ("x:y", known)):
            with pytest.raises(RuleError) as raised:
                kit.used(name, "ip:192.0.2.1")
            assert raised.value.problem == f"No rule of the settings or of a view has the name {name!r}."
            assert raised.value.hint == hint
