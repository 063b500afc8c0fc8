"""The database store: it runs the specification of an operation over rows, in one short transaction of its own.

The store has connections of its own. So a hit stays counted if `ATOMIC_REQUESTS` rolls its request back, and holds no
lock until the view ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from django.db import connections

from django_quota.core.errors import ConfigurationError, StoreBusy, did_you_mean
from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import Operation
from django_quota.stores.base import AskedAgain, Statement, asked_once, tried
from django_quota.stores.breaker import Breaker, GuardedCall, refused_call
from django_quota.stores.database import sql
from django_quota.stores.database.connections import TURN_WAIT, Connection, Pool, Turns, deadline
from django_quota.stores.database.errors import database_answered, failure_of, is_of_driver, of_database
from django_quota.stores.database.states import RowStates

T = TypeVar("T")

ATTEMPTS = 3
"""How often a transaction is begun, if the database ends it in favour of another one, or its connection is lost."""

DATABASE_CONNECTIONS = 4
"""How many connections a process has to a server. A decision keeps one for a millisecond."""

THREADS = 16
"""How many threads decide for async code."""

WORKS_WITH = "PostgreSQL, and SQLite for one machine"
"""The databases that keep states."""


def vendor_of(alias: str) -> str:
    """Return "postgresql" or "sqlite", the database of an alias. Raises `ConfigurationError` for another one."""
    if alias not in connections.settings:
        raise ConfigurationError(
            f'QUOTA["DATABASE"] is {alias!r}, which DATABASES does not have.',
            did_you_mean(alias, connections.settings).strip(),
        )
    database = connections.create_connection(alias)  # it connects to nothing
    vendor: str = database.vendor
    if vendor not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            f'QUOTA["STORE"] is "database", and DATABASES[{alias!r}] is {database.display_name}.',
            f'It works with {WORKS_WITH}. Name such an alias in QUOTA["DATABASE"], or use Redis.',
        )
    return vendor


class DatabaseStore:
    """States in the tables of a database alias. Its clock is the database's.

    `keeps_connections`: says whether a connection to PostgreSQL waits for its next use.
    """

    all_nodes_healthy = True
    is_shared = True
    redis = None

    def __init__(self, alias: str, keeps_connections: Callable[[], bool] = lambda: True) -> None:
        self.alias = alias
        self._keeps_connections = keeps_connections
        self.breaker = Breaker()
        self._reading = Breaker()
        """Its own, because a database that only reads, or that is locked, still answers reads."""
        self._turns = Turns(1, f"other calls of this process have decided the same subject for {TURN_WAIT:.0f} s")
        waited = f"{TURN_WAIT:.0f} s"
        self._lookers = Turns(DATABASE_CONNECTIONS - 1, f"more calls look at the database than it answers in {waited}")
        """They leave a connection to the threads whose turn it is."""
        self._pool: Pool | None = None
        self.after_fork()
        register_fork_aware(self)

    @property
    def database(self) -> DatabaseStore:
        """This store."""
        return self

    def after_fork(self) -> None:
        """Start without threads in a forked process."""
        self._threads: ThreadPoolExecutor | None = None
        self._making = threading.Lock()

    def is_refusing(self) -> bool:
        """Say whether the breaker refuses callers now."""
        return self.breaker.is_refusing()

    # --- operations ---------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`."""
        return self._run(operation, now, deadline())

    @of_database
    def _run(self, operation: Operation, now: int | None, until: float) -> Any:
        """Run an operation. `until`: how long it may wait for other calls of this process (`time.monotonic`).

        Two calls of a process never wait for one subject in the database: there they would hold connections that other
        subjects need. While one decides, the next one looks without a lock. What would change nothing, such as a hit on
        a limit that is used up, is decided by that: it is as if it had come at the moment of the look.
        """
        logs = operation.log_keys()
        keys = list(dict.fromkeys([key for key in operation.keys if key not in logs]))
        subjects = set(map(sql.subject_prefix, keys))

        def look(connection: Connection) -> tuple[tuple[Any, bool], None]:
            found = connection.read(sql.select(keys, connection.now))
            states, moment = _states(keys, found, now)
            reply, events = operation.run_with_events(states, moment)
            return (reply, not events and not _statements(states)), None

        def decide(connection: Connection) -> tuple[Any, Sequence[Statement]]:
            found = connection.begin(subjects, sql.select(keys, connection.now))
            states, moment = _states(keys, found, now)
            reply, events = operation.run_with_events(states, moment)
            statements = _statements(states)
            if events:
                statements += sql.log_events(logs[0], events, moment, connection.batch)
            return reply, statements

        if operation.is_reading:
            return self._transact(look, self._reading, until)[0]
        if self.is_refusing():
            raise refused_call("the database")
        waits = self._turns.are_taken(subjects)
        if waits:
            with self._lookers.held(("",), until):
                reply, changes_nothing = self._transact(look, self._reading, until)
            if changes_nothing:
                return reply
        with self._turns.held(subjects, until):
            if waits:  # others have decided meanwhile
                reply, changes_nothing = self._transact(look, self._reading, until)
                if changes_nothing:
                    return reply
            return self._transact(decide, self.breaker, until)

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation in a thread; see `Runner.run`."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "django-quota-database")
        until = deadline()

        @of_database
        def run() -> Any:
            if time.monotonic() > until:
                raise StoreBusy(f"all {THREADS} threads of this process that decide for async code are in use")
            return DatabaseStore._run(self, operation, now, until)  # not that of the store, which a test may replace

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations, each in a transaction of its own; see `Runner.try_all`."""
        return tried(self.run, operations, now)

    def _transact(
        self, begin: Callable[[Connection], tuple[T, Sequence[Statement] | None]], breaker: Breaker, until: float
    ) -> T:
        """Run a transaction. `begin` begins it, and returns the reply and the statements to commit (None: only a read).

        It is begun again if the database has ended it in favour of another one, or if it has lost a connection that was
        idle, but never after a commit without an answer. Raises our errors in place of the driver's.
        """
        with self.pool.place(until):
            try:
                # The breaker may have opened while the call waited.
                with GuardedCall(breaker, database_answered, "the database"):
                    return self._attempts(begin, until)
            except Exception as error:
                if not is_of_driver(error):
                    raise
                failure = failure_of(error)
            raise failure.error

    def _attempts(self, begin: Callable[[Connection], tuple[T, Sequence[Statement] | None]], until: float) -> T:
        """Run a transaction; see `_transact`. Raises the errors of the driver."""
        attempts = 0
        while True:
            attempts += 1
            was_idle = is_committing = False
            try:
                with self.pool.lent() as (connection, was_idle):
                    reply, statements = begin(connection)
                    if statements is not None:
                        is_committing = True
                        connection.commit(statements)
                    return reply
            except Exception as error:
                if attempts == ATTEMPTS or not is_of_driver(error):
                    raise
                failure = failure_of(error)
                is_replaceable = was_idle and not is_committing and time.monotonic() < until
                if not (failure.is_conflict or (failure.is_lost and is_replaceable)):
                    raise

    # --- what is asked beside operations ------------------------------------------------------------------------------

    @of_database
    def read(self, query: Callable[[Connection], Statement]) -> Sequence[Sequence[Any]]:
        """Return what a query finds, which may depend on the kind of database."""
        return self._transact(lambda connection: (connection.read(query(connection)), None), self._reading, deadline())

    @of_database
    def write(self, statement: Callable[[Connection], Statement]) -> Sequence[Sequence[Any]]:
        """Run a statement in a transaction of its own, which locks no subject; return the rows that it returns."""
        return self._transact(
            lambda connection: (connection.begin((), statement(connection)), ()), self.breaker, deadline()
        )

    def ping(self) -> None:
        """Ask the database for an answer. Raises `StoreUnavailable`."""
        self.read(lambda _: Statement("SELECT 1"))

    def names(self, matching: str, asked: AskedAgain = asked_once) -> Iterator[str]:
        """Yield the keys that match a pattern; see `Store.names`. It walks through the table, page by page."""
        start = sql.beginning(matching)
        after = sql.BEFORE_ALL
        while True:
            page = asked(lambda: self.read(lambda _: sql.page_of_keys(start, after)))  # noqa: B023 — it is called at once
            yield from (key for _, key in page if fnmatchcase(key, matching))
            if len(page) < sql.KEYS_A_PAGE:
                return
            after = str(page[-1][0])

    def clear_memory(self) -> None:
        """Keep what is counted: all processes share it."""

    # --- connections --------------------------------------------------------------------------------------------------

    @property
    def pool(self) -> Pool:
        """The connections of this process. Raises `ConfigurationError` if the alias has no database that serves."""
        return self._pool or self._new_pool()

    def _new_pool(self) -> Pool:
        with self._making:  # the first calls may come at once
            if self._pool is None:
                self._pool = _pool_of(self.alias, self._keeps_connections)
            return self._pool

    def close(self) -> None:
        """Close idle connections and end idle threads."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        if self._pool is not None:
            self._pool.close()


def _pool_of(alias: str, keeps: Callable[[], bool]) -> Pool:
    if vendor_of(alias) == "sqlite":
        from django_quota.stores.database.sqlite import SqliteConnection, file_of  # noqa: PLC0415

        # SQLite has one writer: more connections would wait for each other, and less fairly.
        return Pool(1, lambda: file_of(alias), lambda: SqliteConnection(alias))
    from django_quota.stores.database.postgresql import PostgresConnection  # noqa: PLC0415

    return Pool(DATABASE_CONNECTIONS, lambda: _server_of(alias), lambda: PostgresConnection(alias), keeps)


def _server_of(alias: str) -> Hashable:
    settings = connections.settings[alias]
    return settings["NAME"], settings.get("HOST"), settings.get("PORT"), settings.get("USER")


def _states(keys: Sequence[str], found: Sequence[Sequence[Any]], now: int | None) -> tuple[RowStates, int]:
    """Return the states that a query has found, and the time of the operation."""
    clock, rows = sql.rows_of(found)
    return RowStates(keys, rows), clock if now is None else now


def _statements(states: RowStates) -> list[Statement]:
    """Return the statements that write what has changed."""
    statements = []
    if rows := list(states.written()):
        statements.append(sql.upsert(rows))
    if keys := states.dropped():
        statements.append(sql.delete(keys))
    return statements
