"""The connections of a process to the database of its states, and the queues of its threads before them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

from django_quota.core.errors import StoreUnavailable
from django_quota.core.forks import register_fork_aware

WAIT = 1.0
"""Seconds that a thread waits for a connection, or for another thread that decides the same subject."""


class Connection(Protocol):
    """One connection, used by one thread at a time. Each method raises an error of the driver."""

    now: str
    """The SQL of the clock."""
    batch: str
    """The SQL of the number of the transaction."""
    settled: str
    """The SQL that says whether no event will come before this one any more."""
    skip_locked: str
    """What ends a query for rows to delete, so that it waits for nobody."""

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

    def close(self) -> None:
        """Close it."""
        ...


class Lent(NamedTuple):
    """A connection on loan."""

    connection: Connection
    target: Hashable
    """Where it leads."""
    is_new: bool = True
    """Whether nobody has used it yet; the server may have closed one that was idle."""


_inherited: list[Lent] = []
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
        self._idle: deque[Lent] = deque()
        self._is_closed = False
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections in a forked process."""
        _inherited.extend(self._idle)
        self._idle = deque()
        self._room = threading.BoundedSemaphore(self._size)

    def take(self) -> Lent:
        """Return a connection. Raises `StoreUnavailable` if none comes free in time."""
        if not self._room.acquire(timeout=WAIT):
            raise StoreUnavailable(
                f"all {self._size} connections of this process are in use, and none came free in {WAIT:.0f} s"
            )
        try:
            self._is_closed, target = False, self._target()
            while self._idle:
                lent = self._idle.pop()
                if lent.target == target:
                    return lent
                close_quietly(lent.connection)
            return Lent(self._make(), target)
        except BaseException:
            self._room.release()
            raise

    def renew(self, lent: Lent) -> Lent:
        """Return a new connection for one that the server has closed. The idle ones are as old."""
        close_quietly(lent.connection)
        self._close_idle()
        return Lent(self._make(), lent.target)

    def give_back(self, lent: Lent, *, is_usable: bool) -> None:
        """Take a connection back."""
        if is_usable and self._keeps() and not self._is_closed:
            self._idle.append(lent._replace(is_new=False))
        else:
            close_quietly(lent.connection)
        self._room.release()

    def close(self) -> None:
        """Close all idle connections now, and those in use when they are given back."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            close_quietly(self._idle.pop().connection)


def close_quietly(connection: Connection) -> None:
    """Close a connection that may be broken."""
    with suppress(Exception):  # nothing is lost with it
        connection.close()


class Subjects:
    """Lets one thread of this process at a time decide a subject.

    The others would only hold a connection while they wait for the lock in the database, and leave none to the threads
    that decide other subjects.
    """

    def __init__(self) -> None:
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without locks in a forked process."""
        self._changing = threading.Lock()
        self._locks: dict[str, list[Any]] = {}
        """The lock of each subject that is being decided, and how many threads hold it or wait for it."""

    @contextmanager
    def held(self, subjects: Iterable[str]) -> Iterator[None]:
        """Hold subjects for the block. Raises `StoreUnavailable` if another thread keeps one for too long."""
        deadline = time.monotonic() + WAIT
        held: list[str] = []
        try:
            for subject in sorted(subjects):  # all threads take them in one order, so no two wait for each other
                self._take(subject, deadline)
                held.append(subject)
            yield
        finally:
            for subject in held:
                self._release(subject)

    def _take(self, subject: str, deadline: float) -> None:
        with self._changing:
            found = self._locks.setdefault(subject, [threading.Lock(), 0])
            found[1] += 1
        if not found[0].acquire(timeout=max(0.0, deadline - time.monotonic())):
            self._leave(subject)
            raise StoreUnavailable(f"other threads have decided the same subject for {WAIT:.0f} s")

    def _release(self, subject: str) -> None:
        self._locks[subject][0].release()
        self._leave(subject)

    def _leave(self, subject: str) -> None:
        with self._changing:
            found = self._locks[subject]
            found[1] -= 1
            if not found[1]:
                del self._locks[subject]
