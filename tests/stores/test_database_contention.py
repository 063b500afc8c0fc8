"""Many calls for one subject of the database store: they wait in line, and waiting is not an outage."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from django_quota import Rule, check, peek, unban
from django_quota.core.errors import StoreBusy, StoreRefusesWrites
from django_quota.engine.operations import Operation, States
from django_quota.exceptions import StoreUnavailable
from django_quota.features.counters.operations import Get, Set
from django_quota.stores.base import Statement
from django_quota.stores.breaker import FAILURES
from django_quota.stores.database import postgresql, sql, sqlite
from django_quota.stores.database import store as store_module
from django_quota.stores.database.connections import Turns
from django_quota.stores.database.sqlite import SqliteConnection, file_of
from django_quota.stores.database.store import DATABASE_CONNECTIONS, DatabaseStore
from tests.support.commands import PATIENCE, wait_until
from tests.support.counts import keys_of
from tests.support.outages import fail
from tests.support.steps import Clock, decided, hits_of
from tests.support.stores import current_store

SUBJECT = "ip:192.0.2.1"
KEY = f"quota:1:{{{SUBJECT}}}:c:a"
FULL = Rule.make("full", "1/h", on_unavailable="deny")


def waiting(turns: Turns) -> int:
    return sum(len(line.waiting) for line in turns._lines.values())


def far() -> float:
    return time.monotonic() + PATIENCE


# --- the line ---------------------------------------------------------------------------------------------------------


def test_who_comes_first_goes_first() -> None:
    turns, came = Turns(1, "busy"), list[int]()

    def enter(number: int) -> None:
        with turns.held(["a"], far()):
            came.append(number)

    with ThreadPoolExecutor(20) as threads, turns.held(["a"], far()):
        for number in range(20):
            threads.submit(enter, number)
            wait_until(lambda: waiting(turns) == number + 1)  # noqa: B023 — called at once
    assert came == list(range(20))
    assert not turns.are_taken(["a"])


def test_who_waits_in_vain_leaves_the_line() -> None:
    turns = Turns(1, "busy")
    with turns.held(["a"], far()):
        with pytest.raises(StoreBusy, match="busy"), turns.held(["b", "a"], time.monotonic()):
            pass
        assert turns.are_taken(["a"])
        assert not turns.are_taken(["b"])
    with turns.held(["a", "b"], time.monotonic()):
        pass


def test_who_gives_up_leaves_the_others_in_line() -> None:
    turns = Turns(1, "busy")

    def enter() -> None:
        with turns.held(["a"], far()):
            pass

    with ThreadPoolExecutor(1) as threads, turns.held(["a"], far()):
        threads.submit(enter)
        wait_until(lambda: waiting(turns) == 1)
        (first,) = turns._lines["a"].waiting
        with pytest.raises(StoreBusy), turns.held(["a"], time.monotonic()):
            pass
        assert list(turns._lines["a"].waiting) == [first]


def test_as_many_are_inside_as_there_are_places() -> None:
    turns = Turns(2, "busy")
    with (
        turns.held(["a"], far()),
        turns.held(["a"], far()),
        pytest.raises(StoreBusy),
        turns.held(["a"], time.monotonic()),
    ):
        pass
    with turns.held(["a"], time.monotonic()):
        pass


# --- a subject that is being decided ----------------------------------------------------------------------------------


class Held(Operation):
    """Holds its subject until it is let go."""

    def __init__(self) -> None:
        super().__init__([KEY])
        self.begun, self.let_go = threading.Event(), threading.Event()

    def run(self, states: States, now: int) -> None:
        self.begun.set()
        assert self.let_go.wait(PATIENCE)


@contextmanager
def held(store: DatabaseStore, threads: ThreadPoolExecutor) -> Iterator[None]:
    operation = Held()
    holding = threads.submit(store.run, operation)
    try:
        assert operation.begun.wait(PATIENCE)
        yield
    finally:
        operation.let_go.set()
        holding.result()


@pytest.mark.usefixtures("on_postgres")
def test_a_hit_on_a_limit_that_is_used_up_does_not_wait_for_its_subject(settings: Any) -> None:
    settings.QUOTA = {"STORE": "database", "EVENTS": 0}  # else one refusal a second is written
    assert check(FULL, SUBJECT)
    with ThreadPoolExecutor(40) as threads, held(current_store(), threads):
        decisions = list(threads.map(lambda _: check(FULL, SUBJECT), range(30)))
    assert not any(decisions)
    assert not any(each.degraded for each in decisions)


@pytest.fixture
def used_up(on_sqlite: DatabaseStore, settings: Any) -> DatabaseStore:
    """A store in which the limit of the subject is used up, and whose refusals write nothing."""
    settings.QUOTA = {"STORE": "database", "EVENTS": 0}
    store: DatabaseStore = current_store()
    assert check(FULL, SUBJECT)
    return store


def test_a_look_that_is_answered_does_not_say_that_the_database_takes_writes(used_up: DatabaseStore) -> None:
    fail(used_up.breaker, 1)
    with used_up._turns.held([sql.subject_prefix(KEY)], far()):
        assert not check(FULL, SUBJECT)
    assert used_up.breaker.has_failed


def test_a_hit_on_a_limit_that_was_used_up_while_it_waited_locks_nothing(
    on_sqlite: DatabaseStore, settings: Any
) -> None:
    settings.QUOTA = {"STORE": "database", "EVENTS": 0}
    store, other, begin = current_store(), DatabaseStore("default"), SqliteConnection.begin
    with (
        patch.object(SqliteConnection, "begin", autospec=True, side_effect=begin) as begun,
        ThreadPoolExecutor(1) as threads,
    ):
        with store._turns.held([sql.subject_prefix(KEY)], far()):
            waits = threads.submit(check, FULL, SUBJECT)
            wait_until(lambda: waiting(store._turns) == 1)
            decided(other, hits_of(FULL, subject=SUBJECT), "check", None)
        assert not waits.result()
    other.close()
    assert begun.call_count == 1  # the hit that used it up


def test_a_database_that_takes_no_writes_lets_nobody_wait_for_a_turn(
    on_sqlite: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(on_sqlite.breaker)
    monkeypatch.setattr(store_module, "deadline", time.monotonic)

    with (
        on_sqlite._turns.held([sql.subject_prefix(KEY)], far()),
        pytest.raises(StoreUnavailable, match="the database has failed several times in a row"),
    ):
        on_sqlite.run(Set(keys_of(KEY), 1, 1))


def test_lifting_a_ban_does_not_wait_for_the_log_that_all_subjects_share(
    on_sqlite: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_sqlite._turns.held([sql.subject_prefix("quota:1:{!}:events")], far()):
        monkeypatch.setattr(store_module, "deadline", time.monotonic)

        assert not unban(FULL, SUBJECT)


TRACES = {
    "an admitted hit": Rule.make("free", "9/h"),
    "a refused hit that counts": Rule.make("counted", "1/h", count_refused=True, algorithm="fixed_window"),
    "a refusal towards a ban": Rule.make("banning", "1/h", ban={"after": "2/h", "for": "1h"}),
}


@pytest.mark.parametrize("rule", TRACES.values(), ids=TRACES)
def test_what_changes_something_waits_for_its_turn(on_postgres: DatabaseStore, rule: Rule) -> None:
    check(rule, SUBJECT)
    before = changes(on_postgres)
    with ThreadPoolExecutor(2) as threads:
        with held(on_postgres, threads):
            waits = threads.submit(check, rule, SUBJECT)
            wait_until(lambda: waiting(on_postgres._turns) == 1)
            assert not waits.done()
        assert not waits.result().degraded
    assert changes(on_postgres) != before


def changes(store: DatabaseStore) -> Any:
    return sorted(store.read(lambda _: Statement(f"SELECT id, value FROM {sql.STATE_TABLE}")))


def test_a_subject_that_others_decide_for_too_long_is_not_an_outage(
    on_postgres: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as threads, held(on_postgres, threads):
        monkeypatch.setattr(store_module, "deadline", time.monotonic)
        for _ in range(FAILURES):
            with pytest.raises(
                StoreBusy, match=r": other calls of this process have decided the same subject for 1 s$"
            ):
                on_postgres.run(Set(keys_of(KEY), 1, 1))
    assert not on_postgres.breaker.has_failed


def test_connections_that_others_use_for_too_long_are_not_an_outage(
    on_postgres: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as places:
        for _ in range(DATABASE_CONNECTIONS):
            places.enter_context(on_postgres.pool.place(far()))
        monkeypatch.setattr(store_module, "deadline", time.monotonic)
        for _ in range(FAILURES):
            with pytest.raises(StoreBusy, match=f"all {DATABASE_CONNECTIONS} connections"):
                on_postgres.run(Set(keys_of(KEY), 1, 1))
    assert not on_postgres.breaker.has_failed


def test_looks_at_a_subject_that_is_being_decided_leave_a_connection_to_others(
    on_postgres: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_postgres._turns.held([sql.subject_prefix(KEY)], far()), ExitStack() as looks:
        for _ in range(3):
            looks.enter_context(on_postgres._lookers.held(("",), far()))
        monkeypatch.setattr(store_module, "deadline", time.monotonic)

        with pytest.raises(StoreBusy, match=r": more calls look at the database than it answers in 1 s$"):
            on_postgres.run(Set(keys_of(KEY), 1, 1))


def test_async_calls_that_no_thread_could_begin_in_time_are_not_an_outage(
    on_sqlite: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "deadline", lambda: time.monotonic() - 1)
    with pytest.raises(StoreBusy, match=r": all 16 threads of this process that decide for async code are in use$"):
        asyncio.run(on_sqlite.arun(Get(keys_of(KEY))))
    assert not on_sqlite.breaker.has_failed


def test_an_async_call_waits_no_longer_for_its_turn_because_it_waited_for_a_thread(
    on_sqlite: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = [far()]
    monkeypatch.setattr(store_module, "deadline", ends.pop)

    assert asyncio.run(on_sqlite.arun(Get(keys_of(KEY)))) == [1, "0", 0]


def test_closing_waits_for_no_async_call_that_is_under_way(on_sqlite: DatabaseStore) -> None:
    operation = Held()

    async def close_meanwhile() -> None:
        call = asyncio.ensure_future(on_sqlite.arun(operation))
        await asyncio.to_thread(operation.begun.wait, PATIENCE)
        on_sqlite.close()
        operation.let_go.set()
        await call

    asyncio.run(close_meanwhile())


@pytest.mark.thorough("slow")
def test_first_calls_that_come_at_once_share_their_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    store, together, vendor_of = DatabaseStore("default"), threading.Barrier(2), store_module.vendor_of

    def slowly(alias: str) -> str:
        with suppress(threading.BrokenBarrierError):
            together.wait(0.2)
        return vendor_of(alias)

    monkeypatch.setattr(store_module, "vendor_of", slowly)
    with ThreadPoolExecutor(2) as threads:
        pools: list[Future[Any]] = [threads.submit(lambda: store.pool) for _ in range(2)]
        assert len({id(each.result()) for each in pools}) == 1


# --- other processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        postgresql, "_time_limits", lambda *_: Statement("SELECT set_config('lock_timeout', '50', true)")
    )
    monkeypatch.setattr(sqlite, "FILE_WAIT", 0.05)


@pytest.fixture
def another(postgres: dict[str, Any]) -> Iterator[Any]:
    """A session of another process."""
    with psycopg.connect(host=postgres["HOST"], user="quota", dbname="postgres") as other:
        yield other


@pytest.mark.usefixtures("impatient")
def test_a_subject_that_another_process_holds_is_not_an_outage(on_postgres: DatabaseStore, another: Any) -> None:
    another.execute(f"SELECT pg_advisory_xact_lock({sql.lock_of(sql.subject_prefix(KEY))})")
    for _ in range(FAILURES):
        with pytest.raises(StoreBusy, match="lock timeout"):
            on_postgres.run(Set(keys_of(KEY), 1, 1))
    assert not on_postgres.breaker.has_failed


@pytest.mark.thorough("slow")
@pytest.mark.usefixtures("impatient")
def test_a_table_that_somebody_has_locked_is_not_asked_each_time(on_postgres: DatabaseStore, another: Any) -> None:
    another.execute(f"LOCK TABLE {sql.STATE_TABLE} IN ACCESS EXCLUSIVE MODE")
    for _ in range(FAILURES):
        with pytest.raises(StoreRefusesWrites, match="lock timeout"):
            on_postgres.run(Set(keys_of(KEY), 1, 1))
    assert on_postgres.is_refusing()


@pytest.fixture
def writer(on_sqlite: DatabaseStore) -> Iterator[sqlite3.Connection]:
    """A connection of another process to the file of the states, which has locked it."""
    on_sqlite.run(Set(keys_of(KEY), 5, 10**12))
    connection = sqlite3.connect(file_of("default"), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


@pytest.mark.usefixtures("impatient", "writer")
def test_a_file_that_somebody_has_locked_is_not_asked_each_time(
    on_sqlite: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = [0], SqliteConnection.begin

    def counted(*asked: Any) -> Any:
        begun[0] += 1
        return begin(*asked)

    monkeypatch.setattr(SqliteConnection, "begin", counted)
    read: list[Any] = []
    for number in range(FAILURES + 5):
        with pytest.raises(StoreRefusesWrites if number < FAILURES else StoreUnavailable):
            on_sqlite.run(Set(keys_of(KEY), 6, 10**12))
        read.append((on_sqlite.run(Get(keys_of(KEY))), peek(FULL, SUBJECT).remaining))

    assert read == [([1, "5", 0], 1)] * (FAILURES + 5)
    assert begun == [FAILURES]


@pytest.fixture
def others_write(writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let others write each time a decision waits for the file; returns the clock that measures the wait."""
    clock = Clock()

    def write(seconds: float) -> None:
        assert 0.0002 <= seconds <= 0.002
        clock.now += 0.5 * sqlite.FILE_WAIT
        writer.execute(f"UPDATE {sql.STATE_TABLE} SET expires = expires + 1")
        writer.execute("COMMIT")
        writer.execute("BEGIN IMMEDIATE")

    monkeypatch.setattr(sqlite, "time", SimpleNamespace(monotonic=clock, sleep=write))
    return clock


@pytest.mark.usefixtures("others_write")
def test_a_file_that_others_write_all_the_time_is_not_an_outage(on_sqlite: DatabaseStore) -> None:
    for _ in range(FAILURES):
        with pytest.raises(StoreBusy, match=f": NoTurnError: other processes have written for {PATIENCE:.0f} s$"):
            on_sqlite.run(Set(keys_of(KEY), 6, 10**12))
    assert not on_sqlite.breaker.has_failed


def test_a_decision_waits_once_for_a_file_that_others_write_all_the_time(
    on_sqlite: DatabaseStore, others_write: Clock
) -> None:
    began = others_write.now

    with pytest.raises(StoreBusy):
        on_sqlite.run(Set(keys_of(KEY), 6, 10**12))

    assert others_write.now - began == 1.5 * sqlite.FILE_WAIT


def test_a_decision_sees_what_another_process_has_counted_while_it_waited(
    on_postgres: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores of one process are like two processes. A snapshot of the begin would be too old to write over."""
    monkeypatch.setattr(store_module, "ATTEMPTS", 1)
    key, other = "quota:1:{user:1}:c:a", DatabaseStore("default")
    operation = Adding(key, 1)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(on_postgres.run, operation)
        assert operation.begun.wait(PATIENCE)
        second = threads.submit(other.run, Adding(key, 1, is_held=False))
        wait_until(lambda: waits_in_database(on_postgres))
        operation.let_go.set()
        assert (first.result(), second.result()) == (1, 2)
    other.close()


class Adding(Operation):
    def __init__(self, key: str, units: int, *, is_held: bool = True) -> None:
        super().__init__([key])
        self._units = units
        self.begun, self.let_go = threading.Event(), threading.Event()
        if not is_held:
            self.let_go.set()

    def run(self, states: States, now: int) -> int:
        self.begun.set()
        assert self.let_go.wait(PATIENCE)
        after: int = (states.get(self.keys[0]) or 0) + self._units
        states.put(self.keys[0], after, now + 10**10)
        return after


def waits_in_database(store: DatabaseStore) -> bool:
    return bool(store.read(lambda _: Statement("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")))
