"""Refreshing the overrides takes one lasting connection of a process, and none that the site's own threads need."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.core.signals import got_request_exception
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_quota import acheck, check, lock
from django_quota.limiting import overrides as copies
from django_quota.limiting.flusher import reader
from django_quota.limiting.override_rows import DatabaseRows, ReaderConnection
from django_quota.limiting.overrides import NoConnectionError, overrides
from django_quota.models import OverrideChange, QuotaOverride
from django_quota.runtime import runtime
from tests.support.commands import PATIENCE, ROOT, wait_until
from tests.support.databases import default_database
from tests.support.processes import ended, forks, processes, started

SUBJECT = "ip:192.0.2.1"

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
"""SQLite has one transaction that writes, and others see what it has committed."""

pytestmark = pytest.mark.usefixtures("memory_store", "database")


class Age:
    """How old the copy is."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def refresh_is_due(self) -> None:
        """Let the next decision wait for a refresh."""
        let_the_refresh_end()
        self.now += copies.WAIT_AFTER


def let_the_refresh_end() -> None:
    in_the_reader(lambda: None)


@pytest.fixture(autouse=True)
def age(monkeypatch: pytest.MonkeyPatch) -> Age:
    age = Age()
    monkeypatch.setattr("django_quota.core.clock.elapsed", age)
    overrides.clear()
    assert overrides.rows is not None
    in_the_reader(overrides.rows.close)  # an earlier test may have left it open
    return age


@pytest.fixture
def opened() -> Iterator[list[BaseDatabaseWrapper]]:
    """Collect the connections that are opened."""
    found: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: Any) -> None:
        found.append(connection)

    connection_created.connect(note)
    yield found
    connection_created.disconnect(note)


@pytest.fixture
def no_connection_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The database refuses another connection of this process."""
    with patch.object(ReaderConnection, "use", side_effect=NoConnectionError("too many clients already")) as refused:
        yield refused


def admits() -> bool:
    return bool(check("1000/m", SUBJECT))


def aadmits() -> bool:
    return bool(asyncio.run(acheck("1000/m", SUBJECT)))


async def _block() -> None:
    await QuotaOverride.objects.acreate(subject=SUBJECT, mode="blocked")


def block_elsewhere(mode: str = "blocked") -> None:
    with patch.object(overrides, "change"):
        QuotaOverride.objects.update_or_create(subject=SUBJECT, rule="*", defaults={"mode": mode})


def of_the_reader(opened: list[BaseDatabaseWrapper]) -> list[BaseDatabaseWrapper]:
    return [each for each in opened if each is not connections["default"]]


def in_the_reader(work: Callable[[], object]) -> None:
    done = threading.Event()

    def call() -> None:
        work()
        done.set()

    reader.call_at(0.0, call)
    assert done.wait(60)


def test_refreshes_share_one_connection(age: Age, opened: list[BaseDatabaseWrapper]) -> None:
    decided = []
    for mode in ("blocked", "exempt", "blocked", "exempt"):
        block_elsewhere(mode)
        age.refresh_is_due()
        decided.append(admits())

    assert decided == [False, True, False, True]
    assert len(of_the_reader(opened)) == 1


def test_the_connection_is_closed_when_it_has_idled_for_minutes(age: Age, opened: list[BaseDatabaseWrapper]) -> None:
    admits()
    (own,) = of_the_reader(opened)
    age.refresh_is_due()
    age.now += copies.IDLE_AFTER
    in_the_reader(lambda: None)
    wait_until(lambda: own.connection is None)
    block_elsewhere()
    assert not admits()


@pytest.mark.always("postgresql")
def test_a_connection_that_was_closed_meanwhile_is_replaced(age: Age, opened: list[BaseDatabaseWrapper]) -> None:
    admits()
    (own,) = of_the_reader(opened)
    raw: Any = own.connection
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [raw.info.backend_pid])
    else:
        in_the_reader(raw.close)
    block_elsewhere()
    age.refresh_is_due()
    assert (admits(), overrides.problem) == (False, "")


@pytest.mark.usefixtures("no_connection_left")
@pytest.mark.parametrize("decide", [admits, aadmits], ids=["sync", "async"])
def test_without_a_connection_of_its_own_a_new_process_reads_on_that_of_the_request(
    decide: Callable[[], bool], opened: list[BaseDatabaseWrapper]
) -> None:
    block_elsewhere()
    del opened[:]
    assert (decide(), overrides.problem) == (False, "")


@pytest.mark.parametrize("decide", [admits, aadmits], ids=["sync", "async"])
class TestWithoutAConnectionOfItsOwn:
    def decided(self, age: Age, decide: Callable[[], bool]) -> list[bool]:
        decided = []
        for mode in ("exempt", "blocked", "exempt", "blocked"):
            block_elsewhere(mode)
            age.refresh_is_due()
            decided.append(decide())
        return decided

    def test_a_new_block_arrives(self, age: Age, no_connection_left: Any, decide: Callable[[], bool]) -> None:
        assert self.decided(age, decide) == [True, False, True, False]

    def test_none_is_asked_for_again(self, age: Age, no_connection_left: Any, decide: Callable[[], bool]) -> None:
        self.decided(age, decide)

        assert no_connection_left.call_count == 1


def test_if_requests_get_no_connection_either_the_reader_tries_again(age: Age, no_connection_left: Any) -> None:
    with patch.object(DatabaseRows, "changes", side_effect=OperationalError("too many clients already")):
        for _ in range(2):
            admits()
            age.refresh_is_due()
    assert (no_connection_left.call_count, overrides.problem) == (2, "too many clients already")


@pytest.mark.usefixtures("no_connection_left")
def test_a_refresh_in_a_transaction_of_the_site_leaves_it_whole(age: Age) -> None:
    admits()
    age.refresh_is_due()
    with transaction.atomic():
        QuotaOverride.objects.create(subject="ip:192.0.2.2", mode="blocked")
        with patch.object(DatabaseRows, "changes", ask_for_nothing):
            assert admits()
        assert "nothing" in overrides.problem
        assert QuotaOverride.objects.count() == 1


def ask_for_nothing(*_: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nothing")


@pytest.mark.usefixtures("no_connection_left")
def test_a_transaction_that_has_failed_is_not_asked(age: Age) -> None:
    admits()
    age.refresh_is_due()
    with transaction.atomic():
        transaction.set_rollback(True)
        assert (admits(), overrides.problem) == (True, "")


@on_postgresql
@pytest.mark.usefixtures("no_connection_left")
def test_a_transaction_that_sees_the_past_changes_nothing_that_is_known(age: Age) -> None:
    admits()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM django_quota_overridechange")

        def elsewhere() -> None:
            try:
                block_elsewhere()
            finally:
                connection.close()

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        with patch.object(overrides, "_here_until", 0.0), patch.object(ReaderConnection, "use", USE):
            age.refresh_is_due()
            assert not admits()
        age.refresh_is_due()
        assert not admits()
    age.refresh_is_due()
    assert not admits()


USE = ReaderConnection.use


def refuse(error: Exception, connected: object = None) -> None:
    """Let a request of the site fail, by default without a connection."""
    with patch.object(connections["default"], "connection", connected):
        try:
            raise error
        except (OperationalError, ValueError):
            got_request_exception.send(None, request=None)


@pytest.mark.parametrize(
    ("error", "connected", "is_noted"),
    [
        pytest.param(OperationalError("too many clients already"), None, True, id="no connection"),
        pytest.param(OperationalError("deadlock detected"), object(), False, id="an error on a connection"),
        pytest.param(ValueError("no number"), None, False, id="an error of another kind"),
    ],
)
def test_a_request_that_fails_counts_as_refused_if_it_has_no_connection(
    error: Exception, connected: object, is_noted: bool
) -> None:
    with patch.object(overrides, "note_refusal") as noted:
        refuse(error, connected)

    assert noted.called is is_noted


def test_if_a_request_of_the_site_gets_no_connection_the_readers_of_all_processes_leave_theirs(
    age: Age, opened: list[BaseDatabaseWrapper], caplog: pytest.LogCaptureFixture
) -> None:
    admits()
    (own,) = of_the_reader(opened)
    refuse(OperationalError("sorry, too many clients already"))
    age.refresh_is_due()
    admits()
    wait_until(lambda: own.connection is None)
    assert [line for line in caplog.messages if "no connection left" in line]

    found = []
    for _ in range(2):  # this process, and then one that only reads what this one says
        block_elsewhere()
        age.refresh_is_due()
        found.append((admits(), own.connection))
        overrides.clear()
        admits()
        wait_until(lambda: of_the_reader(opened)[-1].connection is None)

    assert found == [(False, None)] * 2


@pytest.mark.usefixtures("no_connection_left")
def test_a_rollback_is_noticed_on_the_connection_of_the_request_too() -> None:
    admits()
    with transaction.atomic():
        QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
        assert not admits()
        transaction.set_rollback(True)

    assert admits()


def test_an_hour_later_the_reader_has_a_connection_again(
    age: Age, no_connection_left: Any, opened: list[BaseDatabaseWrapper]
) -> None:
    admits()
    OverrideChange.objects.update(at=0)
    with patch.object(ReaderConnection, "use", USE):
        age.now += copies.HERE_FOR
        admits()
    assert len(of_the_reader(opened)) == 1


def test_a_database_that_is_down_is_not_taken_for_one_that_is_full(
    age: Age, opened: list[BaseDatabaseWrapper], caplog: pytest.LogCaptureFixture
) -> None:
    admits()
    down = OperationalError("connection refused")
    with patch.object(DatabaseRows, "changes", side_effect=down):
        age.refresh_is_due()
        admits()
        refuse(down)
    age.refresh_is_due()
    assert admits()
    assert not [line for line in caplog.messages if "no connection left" in line]
    assert of_the_reader(opened)[-1].connection is not None


def test_a_database_that_hangs_costs_no_slot(age: Age, renewed_often: list[float]) -> None:
    goes_on, hung = threading.Event(), threading.Event()

    def hang(kept: ReaderConnection, alias: str) -> bool:
        hung.set()
        goes_on.wait(60)
        return USE(kept, alias)

    with patch.object(ReaderConnection, "use", hang), lock("export", renew=True):
        try:
            overrides.refreshing()
            assert hung.wait(60)
            for _ in range(3):
                ends = lock("export").holders()
                age.now += 1
                wait_until(lambda ends=ends: lock("export").holders() != ends)  # type: ignore[misc]
        finally:
            goes_on.set()


@forks
class TestAForkedProcess:
    @pytest.fixture
    def forked(self, age: Age, opened: list[BaseDatabaseWrapper]) -> list[int]:
        """Two processes read on after a fork: how they ended."""

        def decide() -> None:
            age.now += copies.WAIT_AFTER
            assert not admits()
            assert len(opened) == 1
            assert overrides.rows is not None
            in_the_reader(overrides.rows.close)
            assert opened[0].connection is None

        admits()
        block_elsewhere()
        age.refresh_is_due()
        assert not admits()
        connection.close()
        del opened[:]
        with processes() as children:
            children += [started(decide) for _ in range(2)]
            return ended(children)

    @pytest.mark.thorough("slow")
    def test_reads_on_a_connection_of_its_own(self, forked: list[int]) -> None:
        assert forked == [0, 0]

    @pytest.mark.thorough("slow")
    def test_leaves_the_connection_of_its_parent_open(
        self, forked: list[int], age: Age, opened: list[BaseDatabaseWrapper]
    ) -> None:
        block_elsewhere("exempt")
        age.refresh_is_due()

        assert admits()
        assert of_the_reader(opened) == []


ENDING = """
import threading
from pathlib import Path
import django
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": Path("never.sqlite3")}
apps = ["django.contrib.contenttypes", "django.contrib.auth", "django_quota"]
settings.configure(DATABASES={"default": database}, INSTALLED_APPS=apps, QUOTA={"STORE": "memory"})
django.setup()
from django_quota import check
from django_quota.limiting import override_rows, overrides
from django_quota.limiting.flusher import flusher
overrides.FIRST_WAIT = 0.0
override_rows.ReaderConnection.use = lambda *_: threading.Event().wait()
print(bool(check("10/m", "user:1")), flush=True)
class Rounds:
    purpose, at_exit, number, began = "count rounds", True, 0, threading.Event()
    def flush(self):
        self.number += 1
        print("round", self.number, flush=True)
        self.began.set()
rounds = Rounds()
flusher.add(rounds)
flusher.wake()
rounds.began.wait()
"""


@pytest.mark.thorough("slow")
def test_a_process_ends_with_its_last_round_though_its_database_hangs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDING]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True, timeout=PATIENCE)
    assert done.stdout == b"True\nround 1\nround 2\n"


def test_in_a_test_run_the_connection_is_closed_at_once_so_that_the_test_database_can_be_dropped(
    age: Age, opened: list[BaseDatabaseWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(runtime, "is_of_site")  # at setup, the alias led elsewhere
    left = []
    for _ in range(2):
        age.refresh_is_due()
        admits()
        let_the_refresh_end()
        left.append(of_the_reader(opened)[-1].connection)

    assert left == [None, None]


@on_postgresql
def test_the_pool_of_the_site_is_left_to_the_site(database: dict[str, Any], opened: list[BaseDatabaseWrapper]) -> None:
    with default_database({**database, "OPTIONS": {"pool": True}}):
        admits()
        (own,) = opened
        assert (overrides.problem, "pool" in own.settings_dict["OPTIONS"]) == ("", False)
