"""The connections of a process to the database of its states, and the queues in which threads wait for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from django_quota.core.errors import StoreBusy
from django_quota.core.forks import register_fork_aware
from django_quota.stores.base import Dialect, Statement
from django_quota.stores.database.errors import is_lost

TURN_WAIT = 1.0
"""Seconds that a call waits for the other calls of its process."""

REPLACE_AFTER_IDLE = 30.0
"""Seconds after which an idle connection is replaced before its next use. Firewalls and load balancers forget them."""


def deadline() -> float:
    """Return until when a call that begins now waits for the other calls of its process."""
    return time.monotonic() + TURN_WAIT


class Connection(Dialect, Protocol):
    """One connection, used by one thread at a time. Each method raises an error of the driver."""

    def begin(self, subjects: Iterable[str], query: Statement) -> Sequence[Sequence[Any]]:
        """Begin a transaction that has locked these subjects, and return what a query finds in it."""
        ...

    def commit(self, statements: Sequence[Statement]) -> None:
        """Run these statements and commit."""
        ...

    def read(self, query: Statement) -> Sequence[Sequence[Any]]:
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


class _Line:
    """How many threads are inside, and those that wait, in the order in which they came."""

    __slots__ = ("inside", "waiting")

    def __init__(self) -> None:
        self.inside = 0
        self.waiting: deque[threading.Lock] = deque()


class Turns:
    """Lets so many threads in under a name at a time; the others wait in line, first come, first served.

    A lock has no order, so in a flood some threads would wait in vain. `places`: how many are inside under
    one name. `problem`: why a thread has waited in vain.
    """

    def __init__(self, places: int, problem: str) -> None:
        self._places = places
        self._problem = problem
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start with nobody inside in a forked process."""
        self._guard = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def are_taken(self, names: Iterable[str]) -> bool:
        """Say whether a thread is inside under one of these names."""
        return any(name in self._lines for name in names)

    def held(self, names: Iterable[str], until: float) -> Turn:
        """Be inside for a block. Entering it raises `StoreBusy` if no turn has come by then (`time.monotonic`)."""
        return Turn(self, sorted(names), until)

    def enter(self, name: str, until: float) -> None:
        """Wait for a turn under a name, and take it; see `held`."""
        with self._guard:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = _Line()
            if line.inside < self._places:
                line.inside += 1
                return
            turn = threading.Lock()
            turn.acquire()  # the thread that leaves releases it
            line.waiting.append(turn)
        try:
            has_come = turn.acquire(timeout=max(0.0, until - time.monotonic()))
        except BaseException:
            if not self._gave_up(line, turn):
                self.leave(name)
            raise
        if not has_come and self._gave_up(line, turn):
            raise StoreBusy(self._problem)

    def _gave_up(self, line: _Line, turn: threading.Lock) -> bool:
        """Leave the line; return False if the turn has just come."""
        with self._guard:
            if turn in line.waiting:
                line.waiting.remove(turn)
                return True
            return False

    def leave(self, name: str) -> None:
        """Give the turn to the next in line."""
        with self._guard:
            line = self._lines[name]
            if line.waiting:
                line.waiting.popleft().release()
                return
            line.inside -= 1
            if not line.inside:
                del self._lines[name]


class Turn:
    """The context of who is inside under some names, all in one order, so that no two wait for each other."""

    __slots__ = ("_names", "_taken", "_turns", "_until")

    def __init__(self, turns: Turns, names: Sequence[str], until: float) -> None:
        self._turns, self._names, self._until = turns, names, until
        self._taken = 0

    def __enter__(self) -> None:
        try:
            for name in self._names:
                self._turns.enter(name, self._until)
                self._taken += 1
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        for name in self._names[: self._taken]:
            self._turns.leave(name)


class _Idle(NamedTuple):
    """A connection that waits for its next use."""

    target: Hashable
    """Where it leads."""
    since: float
    """Since when it is idle (seconds of the pool's clock)."""
    connection: Connection


_inherited: list[_Idle] = []
"""The parent's connections in a forked process. They are kept: closing one would end the parent's session."""


class Pool:
    """At most `size` connections, opened when they are needed.

    `target`: says where the settings lead now; a connection that leads elsewhere is closed. A test runner changes the
    name of the database after the process has begun. `keeps`: says whether connections wait for their next use.
    `clock`: returns seconds and never goes back.
    """

    def __init__(
        self,
        size: int,
        target: Callable[[], Hashable],
        make: Callable[[], Connection],
        keeps: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keeps = keeps
        self._target = target
        self._make = make
        self._clock = clock
        self._idle: deque[_Idle] = deque()
        self._is_closed = False
        self._places = Turns(size, f"all {size} connections of this process to the database are in use")
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections in a forked process."""
        _inherited.extend(self._idle)
        self._idle = deque()

    def place(self, until: float) -> Turn:
        """Be one of those who may have a connection, for a block; see `Turns.held`."""
        return self._places.held(("",), until)

    def lent(self) -> Loan:
        """Lend a connection for a block to a thread with a place. If the block fails, its transaction is rolled back.

        If the connection is lost, the idle ones are closed too: they have probably lost the same server.
        """
        return Loan(self)

    def take(self) -> LentConnection:
        """Return a connection to where the settings lead now; see `lent`."""
        target = self._target()
        kept = self._ready(target)
        return LentConnection(kept or self._make(), kept is not None, target)

    def give_back(self, taken: LentConnection, error: BaseException | None) -> None:
        """Keep a connection, or close it. `error`: with which the block failed; see `lent`."""
        connection = taken.connection
        is_kept = False
        try:
            if error is not None and is_lost(error):
                self._close_idle()
            else:
                is_kept = (error is None or _is_rolled_back(connection)) and self._keeps()
        finally:
            if is_kept:
                self._idle.append(_Idle(taken.target, self._clock(), connection))
                if self._is_closed:  # after the append: another thread may be closing the pool
                    self._close_idle()
            else:
                close_quietly(connection)

    def _ready(self, target: Hashable) -> Connection | None:
        """Return an idle connection to this target that the server has not closed."""
        while True:
            try:
                leads_to, since, connection = self._idle.pop()
            except IndexError:
                return None
            if leads_to == target and self._clock() - since < REPLACE_AFTER_IDLE and connection.is_ready():
                return connection
            close_quietly(connection)

    def close(self) -> None:
        """Close all connections, each after its use. A thread that still uses a replaced store leaves none behind."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                close_quietly(self._idle.pop().connection)


class LentConnection(NamedTuple):
    """A connection of a pool that is in use."""

    connection: Connection
    was_idle: bool
    """Whether it has served before. The network may have lost it since."""
    target: Hashable
    """Where it leads."""


class Loan:
    """The context of a connection that is lent for one transaction; its start returns `was_idle`, too."""

    __slots__ = ("_pool", "_taken")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __enter__(self) -> tuple[Connection, bool]:
        self._taken = self._pool.take()
        return self._taken.connection, self._taken.was_idle

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._pool.give_back(self._taken, error)


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
