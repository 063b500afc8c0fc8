"""The connections of a process to the database of its states, and the queues in which threads wait for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol
from zlib import crc32

from django_quota.core.errors import StoreUnavailable
from django_quota.core.forks import register_fork_aware
from django_quota.stores.database.errors import answered

WAIT = 1.0
"""Seconds that a thread waits for a connection, or for another thread that decides the same subject."""


class Connection(Protocol):
    """One connection, used by one thread at a time. Each method raises an error of the driver."""

    now: str
    """The SQL of the clock."""
    batch: str
    """The SQL of the number of the transaction."""
    settled: str
    """The SQL that says whether no earlier event can still come."""
    skip_locked: str
    """The end of a query for rows to delete: with it, the query waits for nobody."""

    def begin(self, subjects: Iterable[str], query: str) -> Sequence[Sequence[Any]]:
        """Begin a transaction that has locked these subjects, and return what a query finds in it."""
        ...

    def commit(self, statements: Sequence[str]) -> None:
        """Do these statements and commit."""
        ...

    def read(self, query: str) -> Sequence[Sequence[Any]]:
        """Return what a query finds. It waits for no lock."""
        ...

    def rollback(self) -> None:
        """End the transaction; nothing of it stays."""
        ...

    def is_ready(self) -> bool:
        """Say whether the server has left the connection open."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


_inherited: list[tuple[Hashable, Connection]] = []
"""The parent's connections in a forked process. They are kept: closing one would end the parent's session."""


class Pool:
    """At most `size` connections, opened when they are needed.

    `target`: says where the settings lead now; a connection that leads elsewhere is closed. A test runner changes the
    name of the database after the process has begun. `keeps`: says whether connections wait for their next use.
    """

    def __init__(
        self,
        size: int,
        target: Callable[[], Hashable],
        make: Callable[[], Connection],
        keeps: Callable[[], bool] = lambda: True,
    ) -> None:
        self._size = size
        self._keeps = keeps
        self._target = target
        self._make = make
        self._idle: deque[tuple[Hashable, Connection]] = deque()
        self._is_closed = False
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections in a forked process."""
        _inherited.extend(self._idle)
        self._idle = deque()
        self._room = threading.BoundedSemaphore(self._size)

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """Lend a connection. If the block fails, its transaction is rolled back.

        Raises `StoreUnavailable` if none comes free in time.
        """
        if not self._room.acquire(timeout=WAIT):
            raise StoreUnavailable(
                f"all {self._size} connections of this process are in use, and none came free in {WAIT:.0f} s"
            )
        try:
            self._is_closed, target = False, self._target()
            connection = self._ready(target) or self._make()
            is_usable = False
            try:
                yield connection
                is_usable = True
            except BaseException as error:
                is_usable = answered(error) is not False and _is_rolled_back(connection)
                raise
            finally:
                if is_usable and self._keeps() and not self._is_closed:
                    self._idle.append((target, connection))
                else:
                    close_quietly(connection)
        finally:
            self._room.release()

    def _ready(self, target: Hashable) -> Connection | None:
        """Return an idle connection to this target that the server has not closed."""
        while self._idle:
            leads_to, connection = self._idle.pop()
            if leads_to == target and connection.is_ready():
                return connection
            close_quietly(connection)
        return None

    def close(self) -> None:
        """Close all idle connections now, and those in use when they are given back."""
        self._is_closed = True
        while self._idle:
            close_quietly(self._idle.pop()[1])


def close_quietly(connection: Connection) -> None:
    """Close a connection that may be broken."""
    with suppress(Exception):  # nothing is lost with it
        connection.close()


def _is_rolled_back(connection: Connection) -> bool:
    try:
        connection.rollback()
    except Exception:  # noqa: BLE001 — then it is closed, which rolls back as well
        return False
    return True


LOCKS = 1_024
"""Locks of a process for all subjects. Two subjects may share one."""


class Subjects:
    """Lets one thread of this process at a time decide a subject.

    The others would only hold a connection while they wait for the lock in the database, and leave none to the threads
    that decide other subjects.
    """

    def __init__(self) -> None:
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start with free locks in a forked process."""
        self._locks = [threading.Lock() for _ in range(LOCKS)]

    @contextmanager
    def held(self, subjects: Iterable[str]) -> Iterator[None]:
        """Hold subjects for the block. Raises `StoreUnavailable` if another thread keeps one for too long."""
        deadline = time.monotonic() + WAIT
        with ExitStack() as held:
            for number in sorted({crc32(subject.encode()) % LOCKS for subject in subjects}):  # all in one order
                if not self._locks[number].acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise StoreUnavailable(f"other threads have decided the same subject for {WAIT:.0f} s")
                held.callback(self._locks[number].release)
            yield
