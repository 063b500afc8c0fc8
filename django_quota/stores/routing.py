"""How a command finds its server in a Redis Cluster: what is sent where, and what follows from the answer.

A way is a generator of trips and pauses, so that the sync and the async driver go the same one. It must not know
connections. What a server refuses with MOVED, ASK, TRYAGAIN, CLUSTERDOWN, READONLY or NOSCRIPT it has not done, and is
sent again; what was sent and never answered may have been done, and is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from django_quota.operations.base import Script
from django_quota.stores.slots import Address, SlotTable

PATIENCE = 2.0
"""Seconds that the commands to a slot are tried for, all in all, while its keys are on the move."""

FORGOTTEN_AFTER = 10.0
"""Seconds after which a slot that nobody has met on the move is taken for a quiet one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds before a command is tried again; each pause is twice as long as the one before."""

MOST_HOPS = 16
"""Servers that a command is sent on to without a pause: more means that they name each other."""

Command = Sequence[str | int]

ASKING: Command = ("ASKING",)


class Trip(NamedTuple):
    """Send these commands to a server in one go; its outcome is a reply for each, which may be a `ResponseError`."""

    at: Address
    commands: Sequence[Command]


class Pause(NamedTuple):
    """Let so many seconds pass."""

    seconds: float


Way = Generator[Trip | Pause, Any, Any]
"""A driver sends in the outcome of each step, or throws in what went wrong: `NotSentError` where nothing was sent."""


Where = tuple[Address, Sequence[Command]]
"""Where a command is sent, and what goes in front of it."""


class NotSentError(RedisConnectionError):
    """There is no connection to a server: what was to be sent was not."""


class Asked(NamedTuple):
    """A command on keys of one slot; `script` is what it runs, where it is an EVALSHA."""

    slot: int
    command: Command
    script: Script | None = None


class Router:
    """Finds the way of commands by a slot table. `clock`: returns seconds that never go back."""

    def __init__(self, table: SlotTable, clock: Callable[[], float] = time.monotonic) -> None:
        self.table = table
        self._clock = clock
        self._moves = Moves(clock)

    # --- one command --------------------------------------------------------------------------------------------------

    def reach(self, asked: Asked, refused: tuple[Address, ResponseError] | None = None) -> Way:
        """Return (as the way's result) the reply to a command; `refused`: who has answered it already, and how.

        Raises redis-py's errors: `ResponseError` for an answer that sending again does not help, others where no server
        answers.
        """
        attempt = _Attempt()
        where: Where = (yield from self.server_of(asked.slot)), ()
        if refused is not None:
            where = yield from self._follow(asked, attempt, (refused[0], ()), refused[1])
        while True:
            server, before = where
            try:
                *_, reply = yield Trip(server, [*before, asked.command])
            except NotSentError as error:
                attempt.hop()
                where = (yield from self._instead_of(server, asked.slot, error)), ()
            except BaseException:
                self.table.doubt()
                raise
            else:
                if not isinstance(reply, ResponseError):
                    if attempt.has_waited:
                        self._moves.goes_on(asked.slot)
                    return reply
                where = yield from self._follow(asked, attempt, where, reply)

    def _follow(self, asked: Asked, attempt: _Attempt, where: Where, error: ResponseError) -> Way:
        """Return (as the way's result) where a command goes next that a server has not done. Raises the error else."""
        server, answer = where[0], Refusal.of(error)
        if answer.word == "TRYAGAIN" and (pause := attempt.pause(self._moves, asked.slot, self._clock())):
            yield Pause(pause)
            return (yield from self.server_of(asked.slot)), ()
        attempt.hop()
        if answer.word == "NOSCRIPT" and asked.script is not None:
            yield Trip(server, [("SCRIPT", "LOAD", asked.script.text)])
            return where
        if answer.word == "MOVED":
            return self.table.moved(asked.slot, answer.address(server)), ()
        if answer.word == "ASK":
            return self.table.reached(answer.address(server)), (ASKING,)
        if answer.word in _NOT_THERE:
            return (yield from self._instead_of(server, asked.slot, error)), ()
        raise error

    def server_of(self, slot: int) -> Way:
        """Return (as the way's result) who has a slot; raises redis-py's `ConnectionError` where nobody does."""
        if self.table.is_due:
            yield from self._refresh()
        server = self.table.owner(slot)
        if server is None:
            yield from self._refresh()
            server = self.table.owner(slot)
        if server is None:
            self.table.doubt()
            raise RedisConnectionError(f"no server of the cluster has slot {slot}")
        return server

    def _instead_of(self, server: Address, slot: int, error: Exception) -> Way:
        """Return who has a slot by now, where its server does not serve it. Raises the error where it is the same."""
        self.table.doubt()
        if self.table.is_due:
            yield from self._refresh()
        now = self.table.owner(slot)
        if now is None or now == server:
            self.table.doubt()
            raise error
        return now

    def _refresh(self) -> Way:
        """Read the table from the first server that has it."""
        self.table.begin_reading()
        error: Exception = RedisConnectionError("no server of the cluster is known")
        for source in self.table.sources:
            try:
                (reply,) = yield Trip(source, [("CLUSTER", "SLOTS")])
            except (RedisConnectionError, TimeoutError, OSError) as failed:
                error = failed
                continue
            if isinstance(reply, ResponseError):
                error = reply
            elif reply:
                self.table.learn(reply, source)
                return
        if self.table.primaries:
            return  # what is known so far may still do
        raise error

    def refreshed(self) -> Way:
        """Read the table where that is due, or nothing is known yet."""
        if self.table.is_due or not self.table.primaries:
            yield from self._refresh()

    # --- several at once ----------------------------------------------------------------------------------------------

    def reach_all(self, asked: Sequence[Asked]) -> Way:
        """Return (as the way's result) the replies to commands: one trip a server, where nothing is on the move."""
        if len(asked) == 1:
            return [(yield from self.reach(asked[0]))]
        by_server: dict[Address, list[int]] = {}
        for number, one in enumerate(asked):
            server = yield from self.server_of(one.slot)
            by_server.setdefault(server, []).append(number)
        replies: dict[int, Any] = {}
        refused: dict[int, tuple[Address, ResponseError]] = {}
        for server, numbers in by_server.items():
            try:
                found = yield Trip(server, [asked[number].command for number in numbers])
            except NotSentError:
                continue
            except BaseException:
                self.table.doubt()
                raise
            for number, reply in zip(numbers, found, strict=True):
                if isinstance(reply, ResponseError):
                    refused[number] = (server, reply)
                else:
                    replies[number] = reply
        for number, one in enumerate(asked):
            if number not in replies:
                replies[number] = yield from self.reach(one, refused.get(number))
        return [replies[number] for number in range(len(asked))]


_NOT_THERE = frozenset({"CLUSTERDOWN", "MASTERDOWN", "READONLY"})
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


class _Attempt:
    """How often and how long a command has been tried."""

    def __init__(self) -> None:
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

    def address(self, asked: Address) -> Address:
        """Return the server that MOVED or ASK names: `"<slot> <host>:<port>"`."""
        return Address.read(self.rest.split(" ")[1], asked)


_BY_CLASS = {
    "MOVED": "MovedError",
    "ASK": "AskError",
    "TRYAGAIN": "TryAgainError",
    "CLUSTERDOWN": "ClusterDownError",
    "MASTERDOWN": "MasterDownError",
    "NOSCRIPT": "NoScriptError",
    "READONLY": "ReadOnlyError",
}
