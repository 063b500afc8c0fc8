"""The database store: it runs the specification of an operation over rows, in one short transaction of its own.

The connection is no one's but the store's. So a request that is rolled back, as by `ATOMIC_REQUESTS`, has counted all
the same, and it holds no lock until its view ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from django.core import mail
from django.db import connections

from django_quota.core.errors import ConfigurationError, QuotaError, StoreUnavailable, did_you_mean
from django_quota.core.forks import register_fork_aware
from django_quota.engine.events import AppendEvents
from django_quota.engine.operations import Operation
from django_quota.engine.scatter import scatter
from django_quota.stores.breaker import Breaker
from django_quota.stores.database import sql
from django_quota.stores.database.connections import Connection, Lent, Pool, Subjects
from django_quota.stores.database.errors import AnswerTimeoutError, failure_of, is_of_driver
from django_quota.stores.database.states import RowStates

T = TypeVar("T")

ATTEMPTS = 3
"""How often a transaction is begun that the database ends for another one."""

CONNECTIONS = 4
"""How many connections a process has to a server. A decision takes a millisecond of one."""

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
    """States in the tables of a database alias. Its clock is that of the database."""

    all_nodes_healthy = True
    is_shared = True
    redis = None

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.breaker = Breaker()
        self._subjects = Subjects()
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

    def is_refusing(self) -> bool:
        """Say whether the breaker refuses callers now."""
        return self.breaker.is_refusing()

    # --- operations ---------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`."""
        return self._perform(operation, now)

    def _perform(self, operation: Operation, now: int | None) -> Any:
        for attempt in range(ATTEMPTS):
            try:
                return self._transact(operation, now)
            except _ConflictError as error:
                if attempt == ATTEMPTS - 1:
                    raise error.ours from None
        raise AssertionError("unreachable")

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation in a thread; see `Runner.run`."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "django-quota-database")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._perform, operation, now)

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations, each in a transaction of its own; see `Runner.try_all`."""
        replies: list[Any] = []
        for operation in operations:
            try:
                replies.append(self.run(operation, now))
            except StoreUnavailable as error:
                replies.append(error)
        return replies

    def _transact(self, operation: Operation, now: int | None) -> Any:
        scattering = scatter(operation, _one_slot)
        (first,) = next(scattering)
        keys = [] if isinstance(first, AppendEvents) else list(dict.fromkeys(first.keys))
        subjects = {sql.subject_of(key) for key in keys}
        if first.is_reading:
            with self._lent() as lent:
                found = lent.first(lambda connection: connection.read(sql.select(keys, connection.now)))
            return _replied(scattering, first, *_states(keys, found, now))
        with self._subjects.held(subjects), self._lent() as lent:
            found = lent.first(lambda connection: connection.begin(subjects, sql.select(keys, connection.now)))
            states, moment = _states(keys, found, now)
            reply = _replied(scattering, first, states, moment)
            lent.connection.commit(_statements(states, moment, lent.connection.batch))
        return reply

    # --- what is asked beside operations ------------------------------------------------------------------------------

    def read(self, query: Callable[[Connection], str]) -> Sequence[Sequence[Any]]:
        """Return what a query finds, which may depend on the kind of database."""
        with self._lent() as lent:
            return lent.first(lambda connection: connection.read(query(connection)))

    def write(self, statement: Callable[[Connection], str]) -> Sequence[Sequence[Any]]:
        """Do a statement in a transaction of its own, which locks no subject; return the rows that it returns."""
        with self._lent() as lent:
            rows = lent.first(lambda connection: connection.begin((), statement(connection)))
            lent.connection.commit(())
        return rows

    def names(self, matching: str) -> Iterator[str]:
        """Yield the keys that match a pattern; see `Store.names`. It walks through the table, page by page."""
        start = sql.beginning(matching)
        after = ""
        while True:
            page = self.read(lambda _: sql.page_of_keys(start, after))  # noqa: B023 — it is called at once
            yield from (key for _, key in page if fnmatchcase(key, matching))
            if len(page) < sql.PAGE:
                return
            after = str(page[-1][0])

    def clear_memory(self) -> None:
        """Keep what is counted: all processes share it."""

    # --- connections --------------------------------------------------------------------------------------------------

    @contextmanager
    def _lent(self) -> Iterator[_Loan]:
        """Lend a connection. An error of the driver leaves the block as ours, and the transaction is rolled back."""
        probe = self.breaker.acquire()
        if probe is None:
            raise StoreUnavailable("it has not answered several times in a row, and is asked again in a moment")
        loan: _Loan | None = None
        try:
            loan = _Loan(self.pool)
            yield loan
        except BaseException as error:
            is_usable = loan is not None and not is_of_driver(error)
            if is_of_driver(error):
                failure = failure_of(error)
                if failure.is_silence:
                    self.breaker.failed(probe)
                else:
                    self.breaker.succeeded()
                    is_usable = loan is not None
            else:
                self.breaker.release(probe)
            if loan is not None:
                loan.end(is_usable=is_usable and _is_rolled_back(loan.connection))
            if not is_of_driver(error):
                raise
            raise _ConflictError(failure.error) if failure.is_conflict else failure.error from None
        loan.end(is_usable=True)
        self.breaker.succeeded()

    @property
    def pool(self) -> Pool:
        """The connections of this process. Raises `ConfigurationError` if the alias has no database that serves."""
        if self._pool is None:
            alias = self.alias
            if vendor_of(alias) == "sqlite":
                from django_quota.stores.database.sqlite import SqliteConnection, file_of  # noqa: PLC0415

                # SQLite has one writer: more connections would wait for each other, and less fairly.
                self._pool = Pool(1, lambda: file_of(alias), lambda: SqliteConnection(alias))
            else:
                from django_quota.stores.database.postgresql import PostgresConnection  # noqa: PLC0415

                self._pool = Pool(
                    CONNECTIONS,
                    lambda: _server_of(alias),
                    lambda: PostgresConnection(alias),
                    lambda: not is_testing(),
                )
        return self._pool

    def close(self) -> None:
        """Close idle connections and end idle threads."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        if self._pool is not None:
            self._pool.close()


class _ConflictError(Exception):
    """The database has ended a transaction for another one; it may be repeated."""

    def __init__(self, ours: QuotaError) -> None:
        self.ours = ours
        super().__init__(ours)


class _Loan:
    """A connection that is lent for one transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._lent: Lent = pool.take()

    @property
    def connection(self) -> Connection:
        """The connection."""
        return self._lent.connection

    def first(self, act: Callable[[Connection], T]) -> T:
        """Do the first thing on the connection. If the server has closed it while it was idle, a new one does it."""
        try:
            return act(self.connection)
        except BaseException as error:
            is_slow = isinstance(error, AnswerTimeoutError)  # nobody waits twice for that
            if self._lent.is_new or is_slow or not is_of_driver(error) or not failure_of(error).is_silence:
                raise
        self._lent = self._pool.renew(self._lent)
        return act(self.connection)

    def end(self, *, is_usable: bool) -> None:
        """Give it back."""
        self._pool.give_back(self._lent, is_usable=is_usable)


def is_testing() -> bool:
    """Say whether a test runner is at work: at its end, PostgreSQL drops no database that a connection leads to."""
    return hasattr(mail, "outbox")


def _is_rolled_back(connection: Connection) -> bool:
    try:
        connection.rollback()
    except Exception:  # noqa: BLE001 — then it is closed, which rolls back as well
        return False
    return True


def _server_of(alias: str) -> Hashable:
    settings = connections.settings[alias]
    return settings["NAME"], settings.get("HOST"), settings.get("PORT"), settings.get("USER")


def _one_slot(key: str) -> None:
    """Return the slot of a key for `scatter`, which takes the event log out of the decision."""


def _states(keys: Sequence[str], found: Sequence[Sequence[Any]], now: int | None) -> tuple[RowStates, int]:
    """Return the states that a query has found, and the time of the operation."""
    clock, rows = sql.rows_of(found)
    return RowStates(keys, rows), clock if now is None else now


def _replied(scattering: Any, operation: Operation, states: RowStates, moment: int) -> Any:
    """Run the operations of a scatter over these states, and return the reply of the whole."""
    operations: Sequence[Operation] = [operation]
    try:
        while True:
            replies = []
            for each in operations:
                if isinstance(each, AppendEvents):
                    states.logged.append(each)
                replies.append(each.run(states, moment))
            operations = scattering.send(replies)
    except StopIteration as done:
        return done.value


def _statements(states: RowStates, moment: int, batch: str) -> list[str]:
    """Return the statements that write what has changed."""
    statements = []
    if rows := list(states.written()):
        statements.append(sql.upsert(rows))
    if keys := states.dropped():
        statements.append(sql.delete(keys))
    for each in states.logged:
        statements += sql.log_events(each.keys[0], each.events, moment, batch)
    return statements
