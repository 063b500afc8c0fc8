"""PostgreSQL: a decision is one transaction in two round trips, and a read is one round trip.

The first trip begins, locks the subjects and reads; the second one writes and commits. Everything that a session could
remember is set for the transaction alone, so a pooler in between may give each transaction another server process.

Why not psycopg's own cursors and pipeline
------------------------------------------
Values go to the server as parameters, in pipeline mode, and psycopg reads errors. But statements are sent and results
are waited for by `psycopg.pq`, psycopg's public wrapper of libpq, and not by its cursors. Two reasons, each enough:

1. A database that hangs must not hang the site. A server that was stopped, or that waits for its disk, does not keep
   `statement_timeout`. TCP goes on acknowledging, so `tcp_user_timeout` does not help either, and a cursor has no
   time-out of its own: it would wait for as long as the server is there. Overriding `Connection.wait` would be a loop,
   too, and one that depends on how psycopg's generators yield; only its newest version takes a time-out, and raises a
   private error. Here a call ends after `ANSWER_WAIT`.

2. Its cost. A check on PostgreSQL should take no more than five times the CPU of a check on Redis. The two trips of a
   decision, with one state, in thousands of instructions of the client (callgrind; psycopg 3.3 with its C extension,
   PostgreSQL 15), and in CPU time as a multiple of this module's in the same run:

   ==========================================================  ============  ========
   way                                                         instructions  CPU time
   ==========================================================  ============  ========
   this module: `pq`, pipeline, parameters                     176           1.0
   a cursor, all statements in one string with own quoting     215           1.3
   a `ClientCursor`, psycopg's quoting                         336           1.4
   `connection.pipeline()` kept open, three `RawCursor` kept   421           1.8
   `connection.pipeline()` with `RawCursor`                    504           2.6
   `connection.pipeline()` with `connection.execute`           668           3.0
   ==========================================================  ============  ========

   The order is the same behind PgBouncer in transaction mode, and with psycopg's implementation in pure Python. A whole
   check takes five to six times as many as one on Redis; with the best of psycopg's pipelines it would be seven
   times, with the plain one nearly nine.

What it costs: this module reads results itself (`_Pipeline._results`): one for each statement, then the mark of the
pipeline's end. After an error, the server skips the statements that follow until that mark, and libpq reports them as
aborted; so all results are read before the first error is raised, and the connection stays usable. libpq cuts a
parameter at a null character, so `_parameter` refuses one.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeAlias

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_quota.core.errors import ConfigurationError
from django_quota.stores.base import Statement
from django_quota.stores.database.errors import AnswerTimeoutError
from django_quota.stores.database.sql import lock_of

FoundRows: TypeAlias = Sequence[Sequence[Any]]

LOCK_WAIT = 1.0
"""Seconds that a transaction waits for locks of other processes. A statement may take half as long again."""

ANSWER_WAIT = 2.0
"""Seconds that a call waits for the server. One that hangs does not keep its own time-outs."""

CONNECT_TIMEOUT = 2
"""Seconds for a new connection, if OPTIONS has no `connect_timeout`; libpq knows no less."""

NOW = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
"""The clock of the server, after all locks, in microseconds."""

TRANSACTION_NUMBER = "pg_current_xact_id()::text::bigint"
"""The number of a transaction, by which a reader of events knows those that have ended."""

TRANSACTION_PAUSE = 5.0
"""Seconds after which the server ends a transaction whose process sends nothing: it may have been stopped."""

SETTLED = (
    "(batch < pg_snapshot_xmin(pg_current_snapshot())::text::bigint OR "
    f"(batch < pg_snapshot_xmax(pg_current_snapshot())::text::bigint AND at < {NOW} - 15000000))"
)
"""Whether no event with a smaller number can come any more: all older transactions have ended, or ours must have.

A restored backup may have larger numbers, from the server that it was taken from.
"""

_BEGIN, _COMMIT, _ROLLBACK = map(Statement, ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", "COMMIT", "ROLLBACK"))
"""Each statement sees what others have committed before it, whatever isolation the site has chosen. A replica refuses:
it must not decide, and what it knows is old."""

_LOCK = "SELECT pg_advisory_xact_lock(?)"

_TIME_LIMITS = (
    "SELECT set_config('statement_timeout', ?, true), set_config('lock_timeout', ?, true), "
    "set_config('idle_in_transaction_session_timeout', ?, true), set_config('synchronous_commit', 'off', true)"
)


@lru_cache(maxsize=128)
def _time_limits(locks: int = 1) -> Statement:
    """Return the statement that sets the time-outs of one transaction, which waits for so many locks one by one.

    No hit waits for the disk, so a crash of the server may lose what the last moments have counted, as with Redis.
    """
    timeouts = (LOCK_WAIT * 1.5, LOCK_WAIT / max(1, locks), TRANSACTION_PAUSE)
    return Statement(_TIME_LIMITS, [f"{seconds * 1000:.0f}" for seconds in timeouts])


class PostgresConnection:
    """A connection of our own to the database of an alias. One thread uses it at a time."""

    now = NOW
    batch = TRANSACTION_NUMBER
    settled = SETTLED
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, alias: str) -> None:
        wrapper: BaseDatabaseWrapper = connections.create_connection(alias).copy()
        settings: Any = wrapper.settings_dict
        settings["AUTOCOMMIT"] = True
        settings["OPTIONS"].pop("pool", None)
        settings["OPTIONS"].setdefault("connect_timeout", CONNECT_TIMEOUT)
        settings["OPTIONS"].setdefault("tcp_user_timeout", round(1000 * ANSWER_WAIT))  # psycopg2 has no other
        wrapper.inc_thread_sharing()
        self._wrapper: Any = wrapper  # which must not be collected: it knows the connection
        try:
            _ensure_open(wrapper)
            self._raw = self._wrapper.connection
            self._arrived = _arrivals_of(self._raw.fileno())
            self._run: Callable[..., FoundRows] = (
                _Pipeline(self._raw.pgconn, self._arrived)
                if hasattr(self._raw, "pgconn")
                else partial(_run_by_psycopg2, self._raw)
            )
        except BaseException:
            self.close()
            raise

    def begin(self, subjects: Iterable[str], query: Statement) -> FoundRows:
        """Begin a transaction that has locked these subjects, and return what a query finds in it.

        All callers lock in the order of the locks' numbers, so no two wait for each other.
        """
        locks = [Statement(_LOCK, (number,)) for number in sorted(set(map(lock_of, subjects)))]
        return self._run([_BEGIN, _time_limits(len(locks)), *locks, query])

    def commit(self, statements: Sequence[Statement]) -> None:
        """Run these statements and commit."""
        self._run([*statements, _COMMIT])

    def read(self, query: Statement) -> FoundRows:
        """Return what a query finds. It waits for no lock."""
        return self._run([_BEGIN, _time_limits(), query, _COMMIT], -2)

    def rollback(self) -> None:
        """End the transaction; nothing of it stays."""
        self._run([_ROLLBACK])

    def is_ready(self) -> bool:
        """Say whether the connection is open: before the server closes an idle one, it sends a notice."""
        return not self._arrived(0)

    def close(self) -> None:
        """Close the connection, if it was opened."""
        if self._wrapper.connection is not None:
            self._wrapper.connection.close()  # Django's own `close` refuses to run in an event loop


def _arrivals_of(number: int) -> Callable[[float], Any]:
    """Return a function that waits until a socket has bytes or has ended, and says whether it has.

    It takes the longest wait in seconds.
    """
    if not hasattr(select, "poll"):  # on Windows
        selector = selectors.SelectSelector()
        selector.register(number, selectors.EVENT_READ)
        return selector.select
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return lambda seconds: poll.poll(math.ceil(seconds * 1000))


def _ensure_open(wrapper: BaseDatabaseWrapper) -> None:
    """Connect. Sync code may call us in an event loop, where Django does not let it connect: then a thread does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        wrapper.ensure_connection()
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(wrapper.ensure_connection).result()


def _run_by_psycopg2(connection: Any, statements: Sequence[Statement], place: int = -1) -> FoundRows:
    """Run statements; see `_Pipeline`. psycopg2 inserts the parameters itself, and waits as long as the server is up.

    It keeps only the last result of a message, so what follows the query is a message of its own.
    """
    with connection.cursor() as cursor:
        texts = [cursor.mogrify(text.replace("?", "%s"), values) for text, values in statements]
        last = len(texts) + place + 1
        cursor.execute(b"; ".join(texts[:last]))
        found: FoundRows = cursor.fetchall() if cursor.description else ()
        if texts[last:]:
            cursor.execute(b"; ".join(texts[last:]))
        return found


class _Pipeline:
    """Runs statements in one trip to the server, by the pipeline of psycopg's `pq`.

    `arrived`: waits for what the server sends; see `_arrivals_of`.
    """

    def __init__(self, pgconn: Any, arrived: Callable[[float], Any]) -> None:
        from psycopg import errors, pq  # noqa: PLC0415 — a site may have psycopg2, or none

        self._errors = errors
        self._synced, self._failed = int(pq.ExecStatus.PIPELINE_SYNC), int(pq.ExecStatus.FATAL_ERROR)
        self._pgconn = pgconn
        self._arrived = arrived
        try:
            pgconn.enter_pipeline_mode()
        except errors.NotSupportedError as error:
            raise ConfigurationError(
                f"The libpq of psycopg is too old: {error}.", 'Install "psycopg[binary]", or libpq 14 or newer.'
            ) from None

    def __call__(self, statements: Sequence[Statement], place: int = -1) -> FoundRows:
        """Run statements. Return what the one at a place finds; raise the first error, which stops the rest."""
        pgconn, until = self._pgconn, time.monotonic() + ANSWER_WAIT
        for text, values in statements:
            pgconn.send_query_params(_numbered(text), [_parameter(value) for value in values] if values else None)
        pgconn.pipeline_sync()
        if pgconn.flush():
            self._send_rest(until)
        return _rows_of(self._results(until)[place])

    def _results(self, until: float) -> Sequence[Any]:
        """Return the result of each statement. Raises the first error, after all that the server has sent is read."""
        pgconn = self._pgconn
        results: list[Any] = []
        failed = None
        nothing = False
        while True:
            while pgconn.is_busy():
                if not self._arrived(max(0.0, until - time.monotonic())):
                    raise _too_late()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:  # the end of a statement's results; twice: nothing more comes
                if nothing:
                    break
                nothing = True
                continue
            nothing = False
            if result.status == self._synced:
                break
            if result.status == self._failed:
                failed = failed or result
            else:
                results.append(result)
        if failed is not None:
            raise self._errors.error_from_result(failed, encoding="utf-8")
        if nothing:
            raise self._errors.OperationalError("the connection is closed")
        return results

    def _send_rest(self, until: float) -> None:
        """Send what did not fit into the buffers of the system, and read meanwhile, so that the server goes on."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pgconn.socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while self._pgconn.flush():
                if not selector.select(max(0.0, until - time.monotonic())):
                    raise _too_late()
                self._pgconn.consume_input()


def _too_late() -> AnswerTimeoutError:
    return AnswerTimeoutError(f"no answer within {ANSWER_WAIT:.0f} seconds")


@lru_cache(maxsize=256)
def _numbered(text: str) -> bytes:
    """Return SQL with the marks of PostgreSQL: $1, $2, and so on."""
    first, *rest = text.split("?")
    return "".join([first, *(f"${number}{part}" for number, part in enumerate(rest, 1))]).encode()


def _parameter(value: str | int) -> bytes:
    """Return a parameter as libpq takes it, which would cut it at a null character."""
    sent = str(value).encode()
    if b"\0" in sent:
        raise ValueError("PostgreSQL cannot keep a string with a null character")
    return sent


_INTEGERS = (20, 21, 23)
"""The numbers of PostgreSQL's types of whole numbers."""


def _rows_of(result: Any) -> FoundRows:
    read = [int if result.ftype(column) in _INTEGERS else bytes.decode for column in range(result.nfields)]
    get = result.get_value
    return [
        [None if (value := get(row, column)) is None else kind(value) for column, kind in enumerate(read)]
        for row in range(result.ntuples)
    ]
