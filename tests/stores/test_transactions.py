"""When the database store repeats a transaction, who waits for whom, and what becomes of its connections."""

import asyncio
import gc
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from django.db import connections
from psycopg import errors as theirs

from django_quota.core.errors import StoreBusy, StoreUnavailable
from django_quota.engine.events import EventRecord
from django_quota.exceptions import ConfigurationError
from django_quota.features.counters.operations import Get, Pop, Set
from django_quota.stores.base import Statement
from django_quota.stores.breaker import FAILURES, Breaker
from django_quota.stores.database import store as store_module
from django_quota.stores.database.connections import Pool, Turns
from django_quota.stores.database.sqlite import SqliteConnection
from django_quota.stores.database.store import ATTEMPTS, DatabaseStore, vendor_of
from tests.support.commands import PATIENCE, wait_until
from tests.support.counts import keys_of
from tests.support.modules import read_again
from tests.support.outages import fail
from tests.support.processes import forks, in_child
from tests.support.steps import Clock

KEYS = keys_of("quota:1:{user:1}:c:a")
LATER = 10**12

CONFLICT = theirs.SerializationFailure("for another one")
LOST = psycopg.OperationalError("server closed the connection unexpectedly")
BUG = KeyError("a bug")


def far() -> float:
    return time.monotonic() + PATIENCE


# --- a transaction ----------------------------------------------------------------------------------------------------


class Connection:
    """A connection that fails as a test says; `fails`: the errors of what is done next, in order; None: it succeeds."""

    now, batch, settled, skip_locked = "0", "0", "1", ""

    def __init__(self, fails: list[Any]) -> None:
        self._fails = fails
        self.done: list[str] = []

    def _do(self, what: str) -> list[Any]:
        self.done.append(what)
        error = self._fails.pop(0) if self._fails else None
        if error is not None:
            raise error
        return [["", 1_000, ""]]

    def begin(self, subjects: Any, query: Statement) -> list[Any]:
        return self._do("begin")

    def read(self, query: Statement) -> list[Any]:
        return self._do("read")

    def commit(self, statements: Any) -> None:
        self._do("commit")

    def rollback(self) -> None:
        self.done.append("rollback")

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        self.done.append("close")


class Database:
    """A store on connections that a test plays."""

    def __init__(self) -> None:
        self.fails: list[Any] = []
        self.made: list[Connection] = []
        self.store = DatabaseStore("default")
        make: Any = self._make
        self.store._pool = Pool(4, lambda: "here", make)

    def _make(self) -> Connection:
        self.made.append(Connection(self.fails))
        return self.made[-1]

    @property
    def done(self) -> list[list[str]]:
        return [each.done for each in self.made]

    def write(self) -> None:
        self.store.run(Set(KEYS, 5, LATER))

    def begun(self) -> int:
        return sum(each.count("begin") for each in self.done)


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    yield made
    made.store.close()


@pytest.fixture
def idle(database: Database) -> Database:
    """A database to which a connection is idle."""
    database.write()
    database.made[0].done.clear()
    return database


class TestATransaction:
    def test_begins_once_if_all_is_well(self, database: Database) -> None:
        database.write()

        assert database.done == [["begin", "commit"]]

    def test_keeps_its_connection_for_the_next(self, database: Database) -> None:
        database.write()
        database.write()

        assert database.done == [["begin", "commit"] * 2]

    @pytest.mark.parametrize("times", range(1, ATTEMPTS))
    def test_begins_again_after_the_database_ended_it_for_another_one(self, times: int, database: Database) -> None:
        database.fails += [CONFLICT] * times

        database.write()

        assert database.begun() == times + 1

    def test_begins_again_after_its_commit_was_refused_for_another_one(self, database: Database) -> None:
        database.fails += [None, CONFLICT]

        database.write()

        assert database.begun() == 2

    def test_ends_after_a_few_conflicts(self, database: Database) -> None:
        database.fails += [CONFLICT] * ATTEMPTS

        with pytest.raises(StoreBusy):
            database.write()
        assert database.begun() == ATTEMPTS

    def test_begins_again_over_a_new_connection_if_an_idle_one_was_lost(self, idle: Database) -> None:
        idle.fails += [LOST]

        idle.write()

        assert idle.done == [["begin", "close"], ["begin", "commit"]]

    def test_does_not_begin_again_if_a_new_connection_was_lost(self, database: Database) -> None:
        database.fails += [LOST]

        with pytest.raises(StoreUnavailable):
            database.write()
        assert database.done == [["begin", "close"]]

    def test_does_not_begin_again_after_a_commit_without_an_answer(self, idle: Database) -> None:
        idle.fails += [None, LOST]

        with pytest.raises(StoreUnavailable):
            idle.write()
        assert idle.begun() == 1

    def test_does_not_begin_again_after_its_time(self, idle: Database) -> None:
        idle.fails += [LOST]

        with pytest.raises(psycopg.OperationalError):
            idle.store._attempts(lambda connection: (connection.begin((), Statement("")), None), time.monotonic())
        assert idle.begun() == 1

    @pytest.mark.parametrize("error", [theirs.DiskFull("x"), theirs.LockNotAvailable("x")], ids=type)
    def test_does_not_begin_again_after_another_error(self, error: Exception, idle: Database) -> None:
        idle.fails += [error]

        with pytest.raises(StoreUnavailable):
            idle.write()
        assert idle.done == [["begin", "rollback"]]

    def test_passes_on_a_bug(self, database: Database) -> None:
        database.fails += [BUG]

        with pytest.raises(KeyError) as caught:
            database.write()
        assert caught.value is BUG
        assert database.done == [["begin", "rollback"]]

    def test_does_not_begin_again_after_a_bug(self, idle: Database) -> None:
        idle.fails += [BUG]

        with pytest.raises(KeyError):
            idle.write()
        assert idle.done == [["begin", "rollback"]]

    def test_shows_no_error_of_the_driver_which_may_hold_the_password(self, database: Database) -> None:
        database.fails += [LOST]

        with pytest.raises(StoreUnavailable) as caught:
            database.write()
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)

    def test_says_that_its_error_is_of_the_database(self, database: Database) -> None:
        database.fails += [LOST]

        with pytest.raises(StoreUnavailable) as caught:
            database.write()
        assert caught.value.is_of_database


class TestALook:
    def test_commits_nothing(self, database: Database) -> None:
        database.store.run(Get(KEYS))

        assert database.done == [["read"]]

    def test_is_repeated_over_a_new_connection_if_an_idle_one_was_lost(self, idle: Database) -> None:
        idle.fails += [LOST]

        idle.store.run(Get(KEYS))

        assert idle.done == [["read", "close"], ["read"]]

    @pytest.mark.parametrize(
        ("events", "done"),
        [
            pytest.param([], ["read"], id="nothing to write"),
            pytest.param([EventRecord("refused", "r", "user:1")], ["read", "read", "begin", "commit"], id="an event"),
        ],
    )
    def test_answers_a_call_beside_another_one_unless_it_writes_something(
        self, events: list[EventRecord], done: list[str], database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database.store._turns, "are_taken", lambda _: True)
        operation = Set(["log", *KEYS], 5, LATER)
        monkeypatch.setattr(operation, "log_keys", lambda: ["log"])
        monkeypatch.setattr(operation, "run_with_events", lambda *_: ("reply", events))

        assert database.store.run(operation) == "reply"
        assert database.done == [done]

    def test_sees_the_time_that_is_passed_in(self, database: Database) -> None:
        assert [store_module._states(["a"], [["", 7, ""]], now)[1] for now in (None, 0, 5)] == [7, 0, 5]


class TestTheBreakers:
    def test_refuse_decisions_after_a_few_failures(self, database: Database) -> None:
        database.fails += [LOST] * FAILURES
        for _ in range(FAILURES):
            with pytest.raises(StoreUnavailable):
                database.write()

        with pytest.raises(StoreUnavailable, match="the database has failed several times in a row"):
            database.write()
        assert database.begun() == FAILURES

    def test_let_a_database_that_only_reads_answer_looks(self, database: Database) -> None:
        fail(database.store.breaker)

        database.store.run(Get(KEYS))

        assert database.done == [["read"]]

    def test_refuse_looks_at_a_database_that_does_not_answer_them(self, database: Database) -> None:
        fail(database.store._reading)

        with pytest.raises(StoreUnavailable, match="the database has failed several times in a row"):
            database.store.ping()
        assert database.done == []

    def test_are_closed_by_an_answer(self, database: Database) -> None:
        fail(database.store.breaker, 1)

        database.write()

        assert not database.store.breaker.has_failed

    @pytest.mark.parametrize("error", [BUG, theirs.DiskFull("x"), CONFLICT], ids=type)
    def test_count_no_failure_if_the_database_works(self, error: Exception, database: Database) -> None:
        database.fails += [error] * ATTEMPTS

        with pytest.raises((KeyError, StoreUnavailable)):
            database.write()
        assert not database.store.breaker.has_failed

    def test_say_whether_the_store_refuses(self, database: Database) -> None:
        clock = Clock()
        database.store.breaker = Breaker(clock=clock)
        assert not database.store.is_refusing()
        fail(database.store.breaker)
        assert database.store.is_refusing()
        clock.now += 1
        assert not database.store.is_refusing()


class TestAsyncCalls:
    def test_are_made_in_another_thread(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        threads: list[threading.Thread] = []

        def read(*_: object) -> list[Any]:
            threads.append(threading.current_thread())
            return [["", 1, ""]]

        monkeypatch.setattr(Connection, "read", read)

        asyncio.run(database.store.arun(Get(KEYS)))

        assert threading.current_thread() not in threads
        assert [thread.name.partition("_")[0] for thread in threads] == ["django-quota-database"]

    def test_say_that_their_error_is_of_the_database(self, database: Database) -> None:
        database.fails += [LOST]

        with pytest.raises(StoreUnavailable) as caught:
            asyncio.run(database.store.arun(Get(KEYS)))
        assert caught.value.is_of_database

    def test_run_at_the_time_of_the_database(self, on_sqlite: DatabaseStore) -> None:
        asyncio.run(on_sqlite.arun(Set(KEYS, 5, LATER)))

        assert on_sqlite.run(Get(KEYS)) == [1, "5", 0]

    @forks
    def test_are_made_in_a_forked_process_too(self, database: Database) -> None:
        """It has none of the threads of its parent."""
        asyncio.run(database.store.arun(Get(KEYS)))

        assert in_child(lambda: asyncio.run(database.store.arun(Get(KEYS)))[0]) == 1

    def test_work_after_the_store_was_closed(self, database: Database) -> None:
        asyncio.run(database.store.arun(Get(KEYS)))
        database.store.close()

        assert asyncio.run(database.store.arun(Get(KEYS))) == [1, "0", 0]


# --- the line ---------------------------------------------------------------------------------------------------------


class TestTurns:
    def test_are_given_back_after_an_error(self) -> None:
        turns = Turns(1, "busy")

        with pytest.raises(ZeroDivisionError), turns.held("ab", far()):
            raise ZeroDivisionError

        assert not turns.are_taken("ab")

    @pytest.mark.parametrize(("names", "are_taken"), [("", False), ("b", False), ("ba", True)])
    def test_are_taken_under_a_name(self, names: str, are_taken: bool) -> None:
        turns = Turns(1, "busy")

        with turns.held("a", far()):
            assert turns.are_taken(names) is are_taken

    def test_are_taken_in_one_order_so_that_no_two_wait_for_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns, entered = Turns(1, "busy"), list[str]()
        monkeypatch.setattr(turns, "enter", lambda name, until: entered.append(name))

        turns.held("cab", far()).__enter__()

        assert entered == ["a", "b", "c"]

    def test_are_given_back_if_the_next_one_does_not_come_in_time(self) -> None:
        turns = Turns(1, "busy")

        with turns.held("b", far()), pytest.raises(StoreBusy):
            turns.held("ab", 0).__enter__()

        assert not turns.are_taken("a")

    @forks
    def test_are_free_in_a_forked_process(self) -> None:
        turns = Turns(1, "busy")

        with turns.held("a", far()):
            assert not in_child(lambda: turns.are_taken("a"))

    def test_change_hands_under_a_lock(self) -> None:
        turns = Turns(1, "busy")

        class Watched(deque[Any]):
            def __bool__(self) -> bool:
                assert turns._guard.locked()
                return len(self) > 0

            def __contains__(self, turn: object) -> bool:
                assert turns._guard.locked()
                return super().__contains__(turn)

            def append(self, turn: Any) -> None:
                assert turns._guard.locked()
                super().append(turn)

        turns.enter("a", far())
        turns._lines["a"].waiting = Watched()

        with pytest.raises(StoreBusy):
            turns.enter("a", time.monotonic())
        turns.leave("a")

        assert not turns.are_taken("a")

    def test_are_taken_until_the_last_has_left(self) -> None:
        turns = Turns(2, "busy")
        with turns.held("a", far()):
            with turns.held("a", far()):
                pass
            assert turns.are_taken("a")

    @pytest.fixture
    def turns_with_one_who_waits(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Turns]:
        """Return turns, one of which is taken; whoever waits for it meets this."""

        def made(waits: Any) -> Turns:
            turns = Turns(1, "busy")
            turns.enter("a", far())

            def new_lock() -> Any:
                return SimpleNamespace(release=bool, acquire=lambda timeout=None: timeout is None or waits(turns))

            monkeypatch.setattr("django_quota.stores.database.connections.threading", SimpleNamespace(Lock=new_lock))
            return turns

        return made

    def test_leave_nobody_in_line_who_was_interrupted(self, turns_with_one_who_waits: Any) -> None:
        turns = turns_with_one_who_waits(Mock(side_effect=KeyboardInterrupt))

        with pytest.raises(KeyboardInterrupt), turns.held("a", far()):
            pytest.fail("it was inside")
        turns.leave("a")

        assert not turns.are_taken("a")

    def test_go_on_to_the_next_if_who_was_interrupted_had_one(self, turns_with_one_who_waits: Any) -> None:
        def interrupted(turns: Turns) -> bool:
            turns._lines["a"].waiting.popleft()  # the other has left, and handed its turn over
            raise KeyboardInterrupt

        turns = turns_with_one_who_waits(interrupted)

        with pytest.raises(KeyboardInterrupt), turns.held("a", far()):
            pytest.fail("it was inside")

        assert not turns.are_taken("a")

    def test_that_come_as_the_wait_ends_are_taken(self, turns_with_one_who_waits: Any) -> None:
        def late(turns: Turns) -> bool:
            turns._lines["a"].waiting.popleft()
            return False

        turns = turns_with_one_who_waits(late)

        with turns.held("a", far()):
            assert turns.are_taken("a")
        assert not turns.are_taken("a")

    def test_are_waited_for_no_longer_than_until_a_moment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns = Turns(1, "busy")
        turns.enter("a", far())
        waited: list[float] = []
        lock = Mock(side_effect=lambda: SimpleNamespace(acquire=lambda timeout=None: waited.append(timeout)))
        monkeypatch.setattr("django_quota.stores.database.connections.threading", SimpleNamespace(Lock=lock))
        monkeypatch.setattr("django_quota.stores.database.connections.time", SimpleNamespace(monotonic=lambda: 10.0))

        for until in (10.5, 9.0):
            with pytest.raises(StoreBusy):
                turns.enter("a", until)

        assert waited == [None, 0.5, None, 0.0]


# --- the pool ---------------------------------------------------------------------------------------------------------


class TestThePool:
    def pool(self, **options: Any) -> tuple[Pool, list[Connection]]:
        made: list[Connection] = []

        def make() -> Any:
            made.append(Connection([]))
            return made[-1]

        return Pool(2, options.pop("target", lambda: "here"), make, **options), made

    def lend(self, pool: Pool, error: BaseException | None = None) -> None:
        with pool.lent():
            if error is not None:
                raise error

    def test_keeps_no_connection_where_none_waits_for_its_next_use(self) -> None:
        pool, made = self.pool(keeps=lambda: False)

        self.lend(pool)

        assert made[0].done == ["close"]

    def test_rolls_back_after_an_error(self) -> None:
        pool, made = self.pool()

        with pytest.raises(KeyError):
            self.lend(pool, BUG)

        assert made[0].done == ["rollback"]

    def test_closes_a_connection_that_cannot_be_rolled_back(self) -> None:
        pool, made = self.pool()
        self.lend(pool)
        made[0].rollback = Mock(side_effect=psycopg.OperationalError("x"))  # type: ignore[method-assign]

        with pytest.raises(KeyError):
            self.lend(pool, BUG)

        assert made[0].done == ["close"]
        self.lend(pool)
        assert len(made) == 2

    def test_closes_a_connection_if_its_rollback_is_interrupted(self) -> None:
        pool, made = self.pool()
        self.lend(pool)
        made[0].rollback = Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]

        with pytest.raises(KeyboardInterrupt):
            self.lend(pool, BUG)

        assert made[0].done == ["close"]

    def test_bears_a_connection_that_cannot_be_closed(self) -> None:
        pool, made = self.pool()
        self.lend(pool)
        made[0].close = Mock(side_effect=psycopg.OperationalError("x"))  # type: ignore[method-assign]

        pool.close()

        made[0].close.assert_called_once_with()

    def test_closes_a_connection_that_leads_elsewhere(self) -> None:
        target = ["here"]
        pool, made = self.pool(target=lambda: target[0])
        self.lend(pool)
        target[0] = "there"

        self.lend(pool)

        assert (made[0].done, len(made)) == (["close"], 2)

    def test_closes_a_connection_that_the_server_has_closed(self) -> None:
        pool, made = self.pool()
        self.lend(pool)
        made[0].is_ready = lambda: False  # type: ignore[method-assign]

        self.lend(pool)

        assert (made[0].done, len(made)) == (["close"], 2)

    def test_uses_the_connection_that_was_used_last(self) -> None:
        pool, made = self.pool()
        with pool.lent():
            self.lend(pool)

        with pool.lent() as (connection, was_idle):
            assert (connection, was_idle) == (made[0], True)

    def test_says_how_many_connections_are_in_use_when_there_is_no_place(self) -> None:
        pool, _ = self.pool()

        with (
            pool.place(far()),
            pool.place(far()),
            pytest.raises(StoreBusy, match=r": all 2 connections of this process to the database are in use$"),
        ):
            pool.place(time.monotonic()).__enter__()

    @pytest.mark.thorough("slow")
    def test_lets_a_forked_process_collect_none_of_its_connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Collecting one would end the session of the parent."""
        monkeypatch.setattr("django_quota.stores.database.connections._inherited", [])
        pool, made = self.pool()
        self.lend(pool)
        (connection,) = map(weakref.ref, made)
        made.clear()

        pool.after_fork()
        gc.collect()

        assert connection() is not None

    def test_lets_a_forked_process_keep_its_connections_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.stores.database.connections._inherited", kept := list[Any]())
        pool, made = self.pool()
        self.lend(pool)

        pool.after_fork()

        assert [each.connection for each in kept] == made

    def test_lets_a_forked_process_use_none_of_its_connections(self) -> None:
        pool, made = self.pool()
        self.lend(pool)

        pool.after_fork()
        self.lend(pool)

        assert (len(made), made[0].done) == (2, [])

    @forks
    def test_has_no_connection_in_a_forked_process(self) -> None:
        pool, made = self.pool()
        self.lend(pool)

        def lend() -> int:
            self.lend(pool)
            return len(made)

        assert in_child(lend) == 2


# --- how long a site waits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "name", "seconds"),
    [
        ("connections", "TURN_WAIT", 1.0), ("connections", "REPLACE_AFTER_IDLE", 30.0), ("sqlite", "FILE_WAIT", 1.0),
        ("postgresql", "LOCK_WAIT", 1.0), ("postgresql", "ANSWER_WAIT", 2.0),
    ],
)  # fmt: skip
def test_a_site_waits_for_the_database_for_a_second_or_two(where: str, name: str, seconds: float) -> None:
    """The tests wait longer, so this reads the module again."""
    of_a_site = read_again(f"django_quota.stores.database.{where}")

    assert getattr(of_a_site, name) == seconds


# --- which database ---------------------------------------------------------------------------------------------------


def test_an_alias_that_databases_does_not_have_is_a_clear_error() -> None:
    with pytest.raises(ConfigurationError, match="DATABASES") as caught:
        vendor_of("defualt")
    assert str(caught.value) == (
        """QUOTA["DATABASE"] is 'defualt', which DATABASES does not have. Did you mean 'default'?"""
    )


def test_a_database_of_another_kind_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    mysql = SimpleNamespace(vendor="mysql", display_name="MySQL")
    monkeypatch.setattr(connections, "create_connection", lambda _: mysql)

    with pytest.raises(ConfigurationError, match="MySQL") as caught:
        vendor_of("default")
    assert str(caught.value) == (
        """QUOTA["STORE"] is "database", and DATABASES['default'] is MySQL. """
        "It works with PostgreSQL, and SQLite for one machine. "
        """Name such an alias in QUOTA["DATABASE"], or use Redis."""
    )


@pytest.mark.parametrize("name", ["NAME", "HOST", "PORT", "USER"])
def test_a_server_is_another_one_if_its_settings_differ(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = store_module._server_of("default")
    monkeypatch.setitem(connections.settings["default"], name, "another")

    assert store_module._server_of("default") != before


class TestAStoreThatIsClosed:
    def test_waits_for_nothing_that_its_threads_decide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = threading.Event()
        monkeypatch.setattr(DatabaseStore, "_run", lambda *_: closed.wait(1))
        store = DatabaseStore("default")

        async def decide() -> object:
            call = asyncio.ensure_future(store.arun(Get(KEYS)))
            await asyncio.sleep(0)
            store.close()
            closed.set()
            return await call

        assert asyncio.run(decide()) is True

    def test_ends_its_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(DatabaseStore, "_run", lambda *_: threading.current_thread())
        store = DatabaseStore("default")
        thread: Any = asyncio.run(store.arun(Get(KEYS)))

        store.close()

        thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_closes_its_connections(self, idle: Database) -> None:
        idle.store.close()

        assert idle.done == [["close"]]


# --- SQLite -----------------------------------------------------------------------------------------------------------


class TestAFileOfStates:
    @pytest.fixture
    def connection(self, on_sqlite: DatabaseStore) -> SqliteConnection:
        on_sqlite.run(Set(KEYS, 5, LATER))
        found: Any = on_sqlite.pool._idle[0].connection
        return found  # type: ignore[no-any-return]

    def test_is_written_beside_readers(self, connection: SqliteConnection) -> None:
        assert connection.read(Statement("PRAGMA journal_mode")) == [("wal",)]

    def test_is_not_waited_for_by_sqlite_itself(self, connection: SqliteConnection) -> None:
        assert connection.read(Statement("PRAGMA busy_timeout")) == [(0,)]

    def test_waits_for_no_disk_at_each_hit(self, connection: SqliteConnection) -> None:
        assert connection.read(Statement("PRAGMA synchronous")) == [(1,)]

    def test_is_read_and_written_by_any_thread(self, connection: SqliteConnection) -> None:
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(connection.read, Statement("SELECT 5")).result() == [(5,)]

    def test_forgets_the_row_of_a_state_that_is_dropped(
        self, connection: SqliteConnection, on_sqlite: DatabaseStore
    ) -> None:
        on_sqlite.run(Pop(KEYS))

        assert connection.read(Statement("SELECT count(*) FROM django_quota_quotastate")) == [(0,)]

    def test_is_as_it_was_after_a_rollback(self, connection: SqliteConnection) -> None:
        connection.begin((), Statement("DELETE FROM django_quota_quotastate RETURNING 1"))

        connection.rollback()

        assert connection.read(Statement("SELECT count(*) FROM django_quota_quotastate")) == [(1,)]

    def test_is_opened_once(self, connection: SqliteConnection, on_sqlite: DatabaseStore) -> None:
        on_sqlite.run(Set(KEYS, 6, LATER))

        assert on_sqlite.pool._idle[0].connection is connection

    def test_is_of_no_use_after_it_was_closed(self, connection: SqliteConnection) -> None:
        connection.close()

        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.read(Statement("SELECT 1"))

    def test_is_waited_for_while_another_process_repairs_it(
        self, connection: SqliteConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
        found = Mock(fetchall=lambda: [(1,)])
        database = Mock(execute=Mock(side_effect=[busy, found, found, found]))
        with monkeypatch.context() as patched:  # the fixture closes the real one
            patched.setattr(connection, "_connection", database)

            assert connection.begin((), Statement("SELECT 1")) == [(1,)]

    def test_is_opened_for_at_most_a_second(self, on_sqlite: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """By then another process may have made its tables."""
        opened = Mock(side_effect=sqlite3.OperationalError)
        monkeypatch.setattr(sqlite3, "connect", opened)
        monkeypatch.setattr("django_quota.stores.database.sqlite.FILE_WAIT", 1.0)

        with pytest.raises(sqlite3.OperationalError):
            SqliteConnection("default")

        assert opened.call_args.kwargs["timeout"] == 1.0

    def test_finds_what_has_expired_without_reading_all(self, connection: SqliteConnection) -> None:
        found = connection.read(Statement("SELECT name FROM sqlite_master WHERE type = 'index' AND sql <> ''"))

        assert sorted(name for (name,) in found) == [
            "django_quota_quotaban_until", "django_quota_quotaevent_order", "django_quota_quotastate_hour",
        ]  # fmt: skip

    def test_needs_no_rollback_without_a_transaction(self, connection: SqliteConnection) -> None:
        connection.rollback()

    def test_passes_on_an_error_that_waiting_does_not_end(self, connection: SqliteConnection) -> None:
        connection.begin((), Statement("SELECT 1"))

        with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
            connection.begin((), Statement("SELECT 1"))

    def test_is_closed_if_it_cannot_be_prepared(
        self, on_sqlite: DatabaseStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = Mock(executescript=Mock(side_effect=sqlite3.DatabaseError("file is not a database")))
        monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: made)

        with pytest.raises(sqlite3.DatabaseError):
            SqliteConnection("default")
        made.close.assert_called_once_with()


def test_threads_that_wait_for_a_subject_are_decided_in_turn(on_sqlite: DatabaseStore) -> None:
    with on_sqlite._turns.held(["quota:1:{user:1"], far()):
        thread = threading.Thread(target=on_sqlite.run, args=(Set(KEYS, 6, LATER),))
        thread.start()
        wait_until(lambda: on_sqlite._turns._lines["quota:1:{user:1"].waiting)
        assert on_sqlite.run(Get(KEYS)) == [1, "0", 0]
    thread.join()

    assert on_sqlite.run(Get(KEYS)) == [1, "6", 0]
