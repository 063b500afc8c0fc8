"""What a process makes from the settings: it is made when it is needed, and follows them by one receiver."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.core.signals import request_finished, request_started, setting_changed
from django.db import connections
from django.test import override_settings

from django_quota import check, peek
from django_quota.conf import current
from django_quota.features import request_end
from django_quota.features.request_end import at_request_end
from django_quota.runtime import Part, Runtime, Wanted
from django_quota.stores.memory import MemoryStore
from tests.support.commands import PATIENCE, ROOT
from tests.support.processes import ended, forks, started

OURS = """
import gc, weakref
from django.dispatch import Signal

def ours(signals):
    for signal in signals:
        for _, found, *_ in signal.receivers:
            receiver = found() if isinstance(found, weakref.ReferenceType) else found
            if receiver.__module__.startswith("django_quota"):
                yield f"{receiver.__module__}.{receiver.__qualname__}"
"""
"""Python that finds our receivers of signals."""

IMPORTED = """
import django_quota.adapters, django_quota.middleware, django_quota.testing
print(*ours([each for each in gc.get_objects() if isinstance(each, Signal)]))
"""

INSTALLED = """
import django
from django.conf import settings
from django.core.signals import setting_changed
settings.configure(INSTALLED_APPS=["django_quota"], QUOTA={"STORE": "memory"})
django.setup()
from django_quota import check
check("1/m", "user:1")
print(*ours([setting_changed]))
"""


STARTED = """
import django
from django.conf import settings
from django.core import signals
from django.db.models import signals as of_rows
settings.configure(INSTALLED_APPS=["django_quota"], QUOTA={"STORE": "memory"})
django.setup()
each = {**vars(signals), **vars(of_rows)}
names = ["request_started", "request_finished", "post_save", "post_migrate"]
print(*sorted({f"{name}:{found.rpartition('.')[0]}" for name in names for found in ours([each[name]])}))
"""


def receivers(code: str) -> list[str]:
    command = [sys.executable, "-c", OURS + code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.thorough("slow")
def test_importing_the_package_connects_no_signal() -> None:
    assert receivers(IMPORTED) == []


@pytest.mark.thorough("slow")
def test_one_receiver_hears_of_changes_of_settings() -> None:
    assert receivers(INSTALLED) == ["django_quota.runtime.Runtime._see_change"]


@pytest.mark.thorough("slow")
def test_an_installed_app_hears_of_requests_and_of_rows_before_it_is_used() -> None:
    assert receivers(STARTED) == [
        "post_migrate:django_quota.limiting.override_rows",
        "post_save:django_quota.limiting.override_rows",
        "request_finished:django_quota.features.request_end",
        "request_started:django_quota.features.request_end",
    ]


@pytest.mark.usefixtures("memory_store")
def test_counts_in_memory_stay_when_another_setting_changes() -> None:
    check("1/m", "user:1")

    with override_settings(LANGUAGE_CODE="de"):
        assert not check("1/m", "user:1")


def test_the_settings_are_read_anew_after_a_change() -> None:
    before = current()

    with override_settings(QUOTA={"PREFIX": "other"}):
        assert (current().prefix, current() is before) == ("other", False)


def test_two_threads_get_the_same_part_though_both_have_made_one() -> None:
    made: list[object] = []
    closed: list[object] = []
    together = threading.Barrier(2, timeout=PATIENCE)

    def make() -> object:
        part = object()
        made.append(part)
        together.wait()
        return part

    part, found = Runtime().part(make, end=closed.append), []
    threads = [threading.Thread(target=lambda: found.append(part.get())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (found[0] is found[1], len(made), len(closed)) == (True, 2, 1)
    assert closed[0] is not found[0]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda part: part.forget(), id="by a call"),
        pytest.param(lambda part: setting_changed.send(None, setting="SHOP", value=1, enter=True), id="by the signal"),
    ],
)
def test_what_is_being_made_while_a_setting_changes_is_made_again(change: Callable[[Any], object]) -> None:
    made: list[str] = []
    closed: list[str] = []

    def make() -> str:
        made.append(f"from settings {len(made)}")
        found = made[-1]
        if len(made) == 1:
            change(part)
        return found

    runtime = Runtime()  # in a variable, since the signal holds receivers weakly
    part = runtime.part(make, end=closed.append)

    assert part.get() == "from settings 1"
    assert closed == ["from settings 0"]


def test_a_part_stays_when_a_setting_changes_that_it_does_not_depend_on() -> None:
    closed: list[object] = []
    runtime = Runtime()
    part = runtime.part(object, depends=lambda made, setting: setting == "SHOP", end=closed.append)
    made = part.get()

    setting_changed.send(None, setting="OTHER", value=1, enter=True)
    assert (part.get() is made, closed) == (True, [])

    setting_changed.send(None, setting="SHOP", value=1, enter=True)
    assert (part.get() is made, closed) == (False, [made])


def test_a_part_is_made_again_after_any_change_unless_it_says_on_what_it_depends() -> None:
    closed: list[object] = []
    runtime = Runtime()
    part = runtime.part(object, end=closed.append)
    made = part.get()

    setting_changed.send(None, setting="SHOP", value=1, enter=True)

    assert (part.get() is made, closed) == (False, [made])


def test_a_part_that_is_not_made_yet_ends_nothing() -> None:
    closed: list[object] = []
    runtime = Runtime()
    part = runtime.part(object, end=closed.append)

    part.forget()

    assert (closed, part.made) == ([], None)


def test_the_parts_of_a_runtime_end_each_for_itself() -> None:
    closed: list[object] = []
    runtime = Runtime()

    def part_of(name: str) -> Part[str]:
        return runtime.part(lambda: name, depends=lambda made, setting: made == setting, end=closed.append)

    found = [part.get() for part in (part_of("SHOP"), part_of("CART"))]

    setting_changed.send(None, setting="CART", value=1, enter=True)

    assert (found, closed) == (["SHOP", "CART"], ["CART"])


@forks
def test_a_forked_process_makes_its_parts_though_another_thread_was_making_one() -> None:
    runtime = Runtime()
    part = runtime.part(object)
    holds, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with runtime.changing:
            holds.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    try:
        assert ended([started(part.get)]) == [0]
    finally:
        may_end.set()
        thread.join()


@pytest.fixture
def an_app_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hear of no request, as before the first use without `INSTALLED_APPS`."""
    request_started.disconnect(request_end._begin)
    request_finished.disconnect(request_end._end)
    monkeypatch.setattr(request_end.hearing, "made", None)


@pytest.mark.usefixtures("an_app_that_is_not_installed")
def test_without_the_app_what_the_first_request_holds_is_given_back_at_its_end() -> None:
    given_back: list[str] = []
    request_started.send(None)

    at_request_end(lambda: given_back.append("slot"))
    request_finished.send(None)

    assert given_back == ["slot"]


def test_outside_of_a_request_nothing_waits_for_the_end_of_another_one() -> None:
    given_back: list[str] = []

    at_request_end(lambda: given_back.append("slot"))
    request_finished.send(None)

    assert given_back == []


@pytest.mark.usefixtures("memory_store")
def test_the_memory_store_keeps_its_counts_when_the_caches_change(settings: Any) -> None:
    check("9/h", "user:1")

    with override_settings(CACHES=dict(settings.CACHES)):
        assert peek("9/h", "user:1").remaining == 8


class TestATestRunner:
    @pytest.fixture
    def runtime(self) -> Runtime:
        """A site after `django.setup()`."""
        runtime = Runtime()
        runtime.note_site()
        return runtime

    def test_is_not_seen_on_a_site_that_runs(self, runtime: Runtime) -> None:
        assert not runtime.is_tested()

    def test_is_not_seen_where_the_app_is_not_installed(self, settings: Any) -> None:
        runtime = Runtime()
        settings.DEBUG = not settings.DEBUG

        assert not runtime.is_tested()

    def test_is_seen_by_the_store_that_a_test_has_set(self) -> None:
        runtime = Runtime()
        runtime.wanted = Wanted(store=MemoryStore(1_000))

        assert runtime.is_tested()

    @pytest.mark.parametrize("debug", [False, True], ids=["off", "on"])
    def test_is_seen_by_another_value_of_debug(self, debug: bool, settings: Any) -> None:
        settings.DEBUG = debug
        runtime = Runtime()
        runtime.note_site()

        settings.DEBUG = not debug

        assert runtime.is_tested()

    @pytest.mark.parametrize("what", ["NAME", "HOST", "PORT", "USER"])
    def test_is_seen_by_another_database(self, what: str, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], what: "test_shop"})

        assert (runtime.is_of_site("default"), runtime.is_tested()) == (False, True)

    def test_is_seen_by_another_database_of_any_alias(self, runtime: Runtime) -> None:
        assert runtime.site is not None
        runtime.site = runtime.site._replace(databases={**runtime.site.databases, "shops": ("shops", "", "", "")})
        connections.settings["shops"] = {**connections.settings["default"], "NAME": "test_shops"}
        try:
            assert (runtime.is_of_site("default"), runtime.is_tested()) == (True, True)
        finally:
            del connections.settings["shops"]

    def test_is_not_seen_by_another_option_of_a_database(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(connections.settings, "default", {**connections.settings["default"], "CONN_MAX_AGE": 60})

        assert (runtime.is_of_site("default"), runtime.is_tested()) == (True, False)

    def test_is_not_seen_by_an_alias_that_is_no_longer_there(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert runtime.site is not None
        runtime.site = runtime.site._replace(databases={"gone": ("", "", "", "")})

        assert (runtime.is_of_site("gone"), runtime.is_tested()) == (True, False)

    def test_an_alias_that_was_added_later_is_one_of_the_site(self, runtime: Runtime) -> None:
        assert runtime.is_of_site("added later")
