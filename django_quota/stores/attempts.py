"""How often and how long a command to a Redis Cluster is tried, and what a server says that has not done it.

It must not know the slot table, nor what is sent where.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from django_quota.forks import begins_anew_in_children
from django_quota.stores.slots import UNKNOWN, Address

PATIENCE = 2.0
"""Seconds that the commands to a slot are tried for, all in all, while its keys are on the move."""

FORGOTTEN_AFTER = 10.0
"""Seconds after which a slot that nobody has met on the move is taken for a quiet one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds before a command is tried again; each pause is twice as long as the one before."""

MOST_HOPS = 16
"""Servers that a command is sent on to without a pause: more means that they name each other."""

NOT_THERE = frozenset({"CLUSTERDOWN", "MASTERDOWN", "READONLY"})
"""Answers of a server that does not, or no longer, take what belongs to a slot: another one may by now."""


class Moves:
    """Slots whose keys are met on the move, and how long that may be waited for. For any thread and event loop.

    All that meet a slot on the move share one patience: a move that never ends must not hold up a worker's threads one
    after the other. Once it is used up, one in the whole process waits at a time, to find out whether it goes on.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._met: dict[int, tuple[float, float]] = {}
        """Since when each has been met so, and when it was last."""
        self._next_turn = 0.0
        self.forget_parent()
        begins_anew_in_children(self)

    def forget_parent(self) -> None:
        """Go on in a forked process."""
        self._guard = threading.Lock()

    def deadline(self, slot: int) -> float:
        """Return until when a command may wait that meets a slot so; that is now where it may not."""
        with self._guard:
            now = self._clock()
            since, last = self._met.get(slot, (now, now))
            if now - last > FORGOTTEN_AFTER:
                since = now
            self._met[slot] = (since, now)
            if now < since + PATIENCE:
                return since + PATIENCE
            if now < self._next_turn:
                return now
            self._next_turn = now + PATIENCE
            return self._next_turn

    def goes_on(self, slot: int) -> None:
        """Note that a command was done that had to wait: the slot has moved on."""
        with self._guard:
            self._met.pop(slot, None)


class Attempt:
    """How often and how long a command has been tried."""

    def __init__(self, server: Address) -> None:
        self.server = server
        """Where the command was sent last."""
        self._deadline: float | None = None
        self._hops = 0
        self._pause = FIRST_PAUSE

    @property
    def has_waited(self) -> bool:
        """Whether it met its slot on the move."""
        return self._deadline is not None

    def hop(self) -> None:
        """Count a server that it is sent on to."""
        self._hops += 1
        if self._hops > MOST_HOPS:
            raise RedisConnectionError("the servers of the cluster send a command to each other")

    def pause(self, moves: Moves, slot: int, now: float) -> float:
        """Return how long to wait before it is tried again; 0 where there is no time left."""
        if self._deadline is None:
            self._deadline = moves.deadline(slot)
        if now >= self._deadline:
            return 0.0
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        self._hops = 0
        return min(pause, self._deadline - now)


class Refusal(NamedTuple):
    """What a server says that has not done a command."""

    word: str
    """Its first word, such as `"MOVED"`."""
    rest: str

    @classmethod
    def of(cls, error: ResponseError) -> Refusal:
        """Read an error; redis-py takes the first word off those that it knows by class."""
        words = str(error)
        for word, name in _BY_CLASS.items():
            if type(error).__name__ == name:
                return cls(word, words.removeprefix(f"{word} "))
        word, _, rest = words.partition(" ")
        if "READONLY" in words:  # Redis 6 wraps what a script ran into
            word = "READONLY"
        return cls(word, rest)

    def address(self, asked: Address) -> Address | None:
        """Return the server that MOVED or ASK names: `"<slot> <host>:<port>"`; None where it cannot be read."""
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
