"""How often and how long a command to a Redis Cluster is tried, and how a server says that it did not run it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from django_quota.core.forks import register_fork_aware
from django_quota.stores.cluster.slots import UNKNOWN, Address

MOVE_TIMEOUT = 2.0
"""Seconds for which all commands to a slot are tried while its keys move to another server."""

FORGOTTEN_AFTER = 10.0
"""Seconds without a command that had to wait, after which a move counts as over."""

FIRST_SLEEP, MAX_SLEEP = 0.002, 0.05
"""Seconds before a command is tried again; each sleep is twice as long as the one before."""

MAX_HOPS = 16
"""Servers that a command is sent to without a sleep. If there are more, the servers name each other in a circle."""

NOT_THERE = frozenset({"CLUSTERDOWN", "MASTERDOWN", "READONLY"})
"""Answers of a server that does not serve a slot, or no longer. Another server may serve it by now."""


class Moves:
    """The slots whose keys are moving, and how long a command may wait for them. For any thread and event loop.

    All commands to a moving slot share one timeout, so a move that never ends does not hold up the threads of a worker
    one after the other. After the timeout, one command of the process waits at a time, to find out whether the move has
    ended.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._met: dict[int, tuple[float, float]] = {}
        """When a command met the move of each slot first, and when last."""
        self._next_probe = 0.0
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked process: another thread may have held it at the fork."""
        self._lock = threading.Lock()

    def deadline(self, slot: int) -> float:
        """Return until when a command to a moving slot may wait; the present time if it may not wait."""
        with self._lock:
            now = self._clock()
            since, last = self._met.get(slot, (now, now))
            if now - last > FORGOTTEN_AFTER:
                since = now
            self._met[slot] = (since, now)
            if now < since + MOVE_TIMEOUT:
                return since + MOVE_TIMEOUT
            if now < self._next_probe:
                return now
            self._next_probe = now + MOVE_TIMEOUT
            return self._next_probe

    def succeeded(self, slot: int) -> None:
        """Note that a command which had to wait was run: the timeout of the slot starts again."""
        with self._lock:
            self._met.pop(slot, None)


class Attempt:
    """How often and how long a command has been tried."""

    def __init__(self, server: Address) -> None:
        self.server = server
        """The server that the command was sent to last."""
        self._deadline: float | None = None
        self._hops = 0
        self._sleep = FIRST_SLEEP

    @property
    def has_waited(self) -> bool:
        """Whether it met a moving slot."""
        return self._deadline is not None

    def hop(self) -> None:
        """Count another server that it is sent to. Raises redis-py's `ConnectionError` if there are too many."""
        self._hops += 1
        if self._hops > MAX_HOPS:
            raise RedisConnectionError("the servers of the cluster send a command to each other")

    def next_sleep(self, moves: Moves, slot: int, now: float) -> float:
        """Return how long to sleep before it is tried again; 0 if there is no time left."""
        if self._deadline is None:
            self._deadline = moves.deadline(slot)
        if now >= self._deadline:
            return 0.0
        seconds, self._sleep = self._sleep, min(2 * self._sleep, MAX_SLEEP)
        self._hops = 0
        return min(seconds, self._deadline - now)


class Refusal(NamedTuple):
    """The answer of a server that did not run a command."""

    word: str
    """Its first word, such as `"MOVED"`."""
    rest: str

    @classmethod
    def of(cls, error: ResponseError) -> Refusal:
        """Read an error. redis-py removes the first word of errors that have a class of their own."""
        words = str(error)
        for word, name in _BY_CLASS.items():
            if type(error).__name__ == name:
                return cls(word, words.removeprefix(f"{word} "))
        word, _, rest = words.partition(" ")
        if "READONLY" in words:  # Redis 6 wraps the error of a script
            word = "READONLY"
        return cls(word, rest)

    def address(self, asked: Address) -> Address | None:
        """Return the server that MOVED or ASK names: `"<slot> <host>:<port>"`; None if it cannot be read."""
        try:
            named = Address.read(self.rest.split(" ")[1], asked)
        except (IndexError, ValueError):
            return None
        return None if named.host == UNKNOWN else named


_BY_CLASS = {
    "MOVED": "MovedError",
    "ASK": "AskError",
    "TRYAGAIN": "TryAgainError",
    "CLUSTERDOWN": "ClusterDownError",
    "MASTERDOWN": "MasterDownError",
    "NOSCRIPT": "NoScriptError",
    "READONLY": "ReadOnlyError",
}
