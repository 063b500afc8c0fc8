"""Connections of the database store that the network or a failover has spoilt: they cost no decision."""

import os
import signal
import sqlite3
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from typing import Any

import psycopg
import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_quota.core.errors import StoreRefusesWrites, StoreUnavailable
from django_quota.features.counters.operations import Get, Set
from django_quota.stores.base import Statement
from django_quota.stores.database import postgresql
from django_quota.stores.database.connections import REPLACE_AFTER_IDLE, Pool
from django_quota.stores.database.errors import AnswerTimeoutError
from django_quota.stores.database.sql import STATE_TABLE
from django_quota.stores.database.sqlite import file_of
from django_quota.stores.database.store import DATABASE_CONNECTIONS, DatabaseStore
from tests.support.counts import keys_of
from tests.support.databases import Address, address_of, end_sessions, postgres_programs, running_replica
from tests.support.steps import Clock
from tests.support.stores import store_on

KEY = "quota:1:{user:1}:c:a"
LATER = 10**12


class Connection:
    """A connection that only notes whether it was closed."""

    is_closed = False

    def rollback(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Pool:
    make: Any = Connection
    return Pool(3, lambda: "here", make, clock=clock)


def idle(pool: Pool, number: int) -> list[Any]:
    """Leave so many idle connections in a pool, and return them."""
    loans = [pool.lent() for _ in range(number)]
    connections = [each.__enter__()[0] for each in loans]
    for each in loans:
        each.__exit__(None, None, None)
    return connections


@pytest.mark.parametrize(
    ("seconds", "is_kept"), [(REPLACE_AFTER_IDLE - 1, True), (REPLACE_AFTER_IDLE, False)], ids=["shortly", "long"]
)
def test_a_connection_that_was_idle_for_long_is_replaced(
    pool: Pool, clock: Clock, seconds: float, is_kept: bool
) -> None:
    (first,) = idle(pool, 1)
    clock.now += seconds
    with pool.lent() as (connection, was_idle):
        assert (connection is first, was_idle, first.is_closed) == (is_kept, is_kept, not is_kept)


def test_a_connection_in_use_while_its_pool_closes_is_closed_afterwards(pool: Pool) -> None:
    with pool.lent() as (connection, _):
        pool.close()

    made: Any = connection
    assert made.is_closed


def test_a_thread_that_still_uses_a_closed_pool_leaves_no_connection_behind(pool: Pool) -> None:
    pool.close()

    (connection,) = idle(pool, 1)

    assert connection.is_closed


def test_a_connection_that_comes_back_at_the_moment_when_its_pool_closes_is_closed(pool: Pool) -> None:
    class ClosedMeanwhile(deque[Any]):
        def append(self, connection: Any) -> None:
            pool.close()
            super().append(connection)

    pool._idle = ClosedMeanwhile()
    (connection,) = idle(pool, 1)

    assert connection.is_closed


LOST = {
    "lost": psycopg.OperationalError("server closed the connection unexpectedly"),
    "silent": AnswerTimeoutError(),
    "going down": psycopg.errors.AdminShutdown("x"),
    "a replica": psycopg.errors.FeatureNotSupported("cannot set transaction read-write mode during recovery"),
    "read-only": psycopg.errors.ReadOnlySqlTransaction("x"),
}


@pytest.mark.parametrize("error", LOST.values(), ids=LOST)
def test_one_lost_connection_empties_the_pool(pool: Pool, error: Exception) -> None:
    connections = idle(pool, 3)
    with pytest.raises(type(error)), pool.lent():
        raise error
    assert all(each.is_closed for each in connections)
    with pool.lent() as (_, was_idle):
        assert not was_idle


ANSWERED = {
    "a bug of ours": KeyError("x"),
    "a full disk": psycopg.errors.DiskFull("x"),
    "a lock": psycopg.errors.LockNotAvailable("x"),
    "too slow": psycopg.errors.QueryCanceled("x"),
}


@pytest.mark.parametrize("error", ANSWERED.values(), ids=ANSWERED)
def test_an_error_that_says_nothing_of_the_connection_leaves_the_pool_as_it_is(pool: Pool, error: Exception) -> None:
    connections = idle(pool, 3)
    with pytest.raises(type(error)), pool.lent():
        raise error
    assert not any(each.is_closed for each in connections)


@pytest.fixture
def unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a firewall has forgotten its connections: that is only noticed by what is sent next."""
    monkeypatch.setattr(postgresql.PostgresConnection, "is_ready", lambda _: True)


@pytest.mark.usefixtures("unnoticed")
def test_idle_connections_that_the_network_has_forgotten_cost_no_call(
    on_postgres: DatabaseStore, postgres: dict[str, Any]
) -> None:
    together = Barrier(DATABASE_CONNECTIONS)

    def write(number: int) -> None:
        together.wait()
        on_postgres.run(Set(keys_of(f"quota:1:{{user:{number}}}:c:a"), number, LATER))

    with ThreadPoolExecutor(DATABASE_CONNECTIONS) as threads:
        list(threads.map(write, range(DATABASE_CONNECTIONS)))
        end_sessions(postgres)
        list(threads.map(write, range(DATABASE_CONNECTIONS)))
    assert not on_postgres.breaker.has_failed
    assert on_postgres.run(Get(keys_of("quota:1:{user:1}:c:a"))) == [1, "1", 0]


@pytest.fixture(scope="module")
def replica(postgres: dict[str, Any]) -> Iterator[dict[str, Any]]:
    programs = postgres_programs()
    assert programs is not None
    with running_replica(programs, postgres) as server:
        yield server


@pytest.fixture
def address(postgres: dict[str, Any]) -> Iterator[Address]:
    with address_of(postgres) as address:
        yield address


@pytest.fixture
def at_address(address: Address, settings: Any, django_db_blocker: Any) -> Iterator[DatabaseStore]:
    with store_on(address.database, settings, django_db_blocker) as store:
        yield store


@pytest.mark.parametrize("operation", [Get(keys_of(KEY)), Set(keys_of(KEY), 1, LATER)], ids=["look", "decision"])
def test_a_connection_to_a_replica_is_not_kept(
    at_address: DatabaseStore, address: Address, postgres: dict[str, Any], replica: dict[str, Any], operation: Any
) -> None:
    """A failover leads the address to a reader for a while."""
    address.lead_to(replica)
    with pytest.raises(StoreRefusesWrites, match="recovery"):
        at_address.run(operation)
    address.lead_to(postgres)
    at_address.run(Set(keys_of(KEY), 2, LATER))
    assert at_address.run(Get(keys_of(KEY))) == [1, "2", 0]


def test_a_server_that_became_a_replica_is_left_at_once(
    at_address: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in use a moment ago, and the address leads to the new primary by now."""
    at_address.run(Set(keys_of(KEY), 1, LATER))
    left, begin = [1], postgresql.PostgresConnection.begin

    def refused(*asked: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise psycopg.errors.FeatureNotSupported("cannot set transaction read-write mode during recovery")
        return begin(*asked)

    monkeypatch.setattr(postgresql.PostgresConnection, "begin", refused)
    at_address.run(Set(keys_of(KEY), 2, LATER))
    assert at_address.run(Get(keys_of(KEY))) == [1, "2", 0]
    assert not at_address.breaker.has_failed


def test_a_session_that_hangs_is_replaced_after_the_wait_for_an_answer(
    on_postgres: DatabaseStore, postgres: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_postgres.run(Set(keys_of(KEY), 1, LATER))
    monkeypatch.setattr(postgresql, "ANSWER_WAIT", 0.25)
    with psycopg.connect(host=postgres["HOST"], user="quota", dbname="postgres", autocommit=True) as other:
        ours = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        hanging = [pid for (pid,) in other.execute(ours).fetchall()]
    for pid in hanging:
        os.kill(pid, signal.SIGSTOP)
    try:
        on_postgres.run(Set(keys_of(KEY), 2, LATER))
    finally:
        for pid in hanging:
            os.kill(pid, signal.SIGCONT)
    assert on_postgres.run(Get(keys_of(KEY))) == [1, "2", 0]


def test_a_new_connection_that_cannot_be_set_up_is_closed(on_postgres: DatabaseStore) -> None:
    opened: list[Any] = []

    def fail(connection: BaseDatabaseWrapper, **_: Any) -> None:
        opened.append(connection.connection)
        raise psycopg.OperationalError("the server has ended the session")

    on_postgres.close()
    connection_created.connect(fail)
    try:
        with pytest.raises(StoreUnavailable):
            on_postgres.run(Get(keys_of(KEY)))
    finally:
        connection_created.disconnect(fail)
    assert [each.closed for each in opened] == [True] * len(opened) != []


@pytest.mark.thorough("scale")
def test_a_statement_that_fills_all_buffers_is_sent_whole(on_postgres: DatabaseStore) -> None:
    sent = "x" * 20_000_000
    assert on_postgres.read(lambda _: Statement("SELECT length(?::text), ?::text", (sent, sent))) == [[len(sent), sent]]


def test_a_null_character_is_refused_before_it_cuts_a_string(on_postgres: DatabaseStore) -> None:
    with pytest.raises(ValueError, match="null character"):
        on_postgres.read(lambda _: Statement("SELECT ?::text", ("a\0b",)))
    assert on_postgres.read(lambda _: Statement("SELECT ?::text", ("b",))) == [["b"]]


def test_a_statement_that_fails_leaves_its_connection_usable(on_postgres: DatabaseStore) -> None:
    with on_postgres.pool.lent() as (connection, _):
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.begin((), Statement("SELECT 1 FROM nowhere"))
        connection.rollback()
        assert connection.read(Statement("SELECT 1")) == [[1]]


def test_a_file_of_states_that_was_emptied_costs_no_call(on_sqlite: DatabaseStore) -> None:
    on_sqlite.run(Set(keys_of(KEY), 1, LATER))
    with closing(sqlite3.connect(file_of("default"))) as other:
        other.execute(f"DROP TABLE {STATE_TABLE}")
    on_sqlite.run(Set(keys_of(KEY), 2, LATER))
    assert on_sqlite.run(Get(keys_of(KEY))) == [1, "2", 0]
