"""PostgreSQL: a decision is one transaction in two round trips, and a read is one round trip.

The first trip begins, locks the subjects and reads; the second one writes and commits. Everything that a session could
remember is set for the transaction alone, so a pooler in between may give each transaction another server process.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_quota.core.errors import ConfigurationError
from django_quota.stores.database.errors import AnswerTimeoutError
from django_quota.stores.database.sql import lock_of

Rows: TypeAlias = Sequence[Sequence[Any]]

TIMEOUT = 1.0
"""Seconds that a transaction waits for locks of other processes. A statement may take half as long again, and its
answer twice as long."""

CONNECT_TIMEOUT = 2
"""Seconds for a new connection, if OPTIONS has no `connect_timeout`; libpq knows no less."""

NOW = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
"""The clock of the server, after all locks, in microseconds."""

BATCH = "pg_current_xact_id()::text::bigint"
"""The number of a transaction, by which a reader of events knows those that have ended."""

LONGEST = 5.0
"""Seconds after which the server ends a transaction whose process says nothing: it may have been stopped."""

SETTLED = (
    "(batch < pg_snapshot_xmin(pg_current_snapshot())::text::bigint OR "
    f"(batch < pg_snapshot_xmax(pg_current_snapshot())::text::bigint AND at < {NOW} - 15000000))"
)
"""Whether no event with a smaller number can come any more: all older transactions have ended, or ours must have.

A restored backup may have larger numbers, from the server that it was taken from.
"""

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Each statement sees what others have committed before it, whatever isolation the site has chosen. A replica refuses:
it must not decide, and what it knows is old."""

_READ = "SET LOCAL transaction_isolation = 'read committed'; SET LOCAL transaction_read_only = off"
"""The same for the transaction of one message, which needs no BEGIN."""


def _limits(locks: int = 1) -> str:
    """Return the statement that sets the time-outs of one transaction, which waits for so many locks one by one.

    No hit waits for the disk, so a crash of the server may lose what the last moments have counted, as with Redis.
    """
    lock_timeout = TIMEOUT * 1000 / max(1, locks)
    return (
        f"SET LOCAL statement_timeout = {TIMEOUT * 1500:.0f}; SET LOCAL lock_timeout = {lock_timeout:.0f}; "
        f"SET LOCAL idle_in_transaction_session_timeout = {LONGEST * 1000:.0f}; SET LOCAL synchronous_commit = off"
    )


class PostgresConnection:
    """A connection of our own to the database of an alias. One thread uses it at a time."""

    now = NOW
    batch = BATCH
    settled = SETTLED
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, alias: str) -> None:
        wrapper: BaseDatabaseWrapper = connections.create_connection(alias).copy()
        settings: Any = wrapper.settings_dict
        settings["AUTOCOMMIT"] = True
        settings["OPTIONS"].pop("pool", None)
        settings["OPTIONS"].setdefault("connect_timeout", CONNECT_TIMEOUT)
        settings["OPTIONS"].setdefault("tcp_user_timeout", round(2000 * TIMEOUT))  # psycopg2 knows no other
        wrapper.inc_thread_sharing()
        _open(wrapper)
        self._wrapper = wrapper  # which must not be collected: it knows the connection
        self._raw: Any = wrapper.connection
        is_psycopg3 = hasattr(self._raw, "pgconn")
        self._send: Callable[[str], Rows] = (
            _Psycopg3(self._raw) if is_psycopg3 else partial(_send_by_psycopg2, self._raw)
        )

    def begin(self, subjects: Iterable[str], query: str) -> Rows:
        """Begin a transaction that has locked these subjects, and return what a query finds in it.

        All callers lock in the order of the locks' numbers, so no two wait for each other.
        """
        locks = [f"SELECT pg_advisory_xact_lock({lock})" for lock in sorted(set(map(lock_of, subjects)))]
        return self._send("; ".join([_BEGIN, _limits(len(locks)), *locks, query]))

    def commit(self, statements: Sequence[str]) -> None:
        """Do these statements and commit."""
        self._send("; ".join([*statements, "COMMIT"]))

    def read(self, query: str) -> Rows:
        """Return what a query finds. It waits for no lock."""
        return self._send(f"{_READ}; {_limits()}; {query}")

    def rollback(self) -> None:
        """End the transaction; nothing of it stays."""
        self._send("ROLLBACK")

    def is_ready(self) -> bool:
        """Say whether the connection is open: before the server closes an idle one, it sends a notice."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._raw.fileno(), selectors.EVENT_READ)
            return not selector.select(0)

    def close(self) -> None:
        """Close the connection."""
        self._raw.close()  # Django's own `close` refuses to run in an event loop


def _open(wrapper: BaseDatabaseWrapper) -> None:
    """Connect. Sync code may call us in an event loop, where Django does not let it connect: then a thread does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        wrapper.ensure_connection()
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(wrapper.ensure_connection).result()


def _send_by_psycopg2(connection: Any, statements: str) -> Rows:
    """Send statements; return the rows of the last one. psycopg2 waits for as long as the server is there."""
    with connection.cursor() as cursor:
        cursor.execute(statements)
        return cursor.fetchall() if cursor.description else ()


class _Psycopg3:
    """Sends by psycopg's libpq, with a time-out of our own: a server that is stuck does not keep its own time-outs.

    A cursor of psycopg takes twice as long for the same.
    """

    def __init__(self, connection: Any) -> None:
        from psycopg import errors, pq  # noqa: PLC0415 — a site may have psycopg2, or none

        self._errors = errors
        self._statuses = pq.ExecStatus
        self._connection = connection
        self._pgconn = connection.pgconn
        if self._pgconn.parameter_status(b"standard_conforming_strings") != b"on":
            raise ConfigurationError(
                "The database has standard_conforming_strings = off, with which a backslash is no backslash.",
                "Turn it on, for all or for the role: ALTER ROLE ... SET standard_conforming_strings = on",
            )
        # `select` alone takes no descriptor above 1,023; a system without `poll` has nothing else.
        self._selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._selector.register(self._pgconn.socket, selectors.EVENT_READ)

    def __call__(self, statements: str) -> Rows:
        pgconn, deadline = self._pgconn, time.monotonic() + 2 * TIMEOUT
        pgconn.send_query(statements.encode())
        while pgconn.flush():
            self._wait(deadline, selectors.EVENT_READ | selectors.EVENT_WRITE)
            pgconn.consume_input()
        last = None
        while True:
            while pgconn.is_busy():
                self._wait(deadline, selectors.EVENT_READ)
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            last = result
        return self._rows(last)

    def _wait(self, deadline: float, events: int) -> None:
        self._selector.modify(self._pgconn.socket, events)
        if not self._selector.select(max(0.0, deadline - time.monotonic())):
            raise AnswerTimeoutError(f"no answer within {2 * TIMEOUT:.0f} seconds")

    def _rows(self, result: Any) -> Rows:
        if result is None or result.status == self._statuses.FATAL_ERROR:
            if result is None:
                raise self._errors.OperationalError("the connection is closed")
            raise self._errors.error_from_result(result, encoding="utf-8")
        columns = range(result.nfields)
        kinds = [result.ftype(column) for column in columns]
        return [
            [_read(result.get_value(row, column), kinds[column]) for column in columns] for row in range(result.ntuples)
        ]


_INTEGERS = (20, 21, 23)
"""The numbers of PostgreSQL's types of whole numbers."""


def _read(value: bytes | None, kind: int) -> Any:
    if value is None:
        return None
    return int(value) if kind in _INTEGERS else value.decode()
