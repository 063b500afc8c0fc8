"""How a command finds its server in a Redis Cluster: what is sent where, and what follows from the answer.

A way is a generator of trips and pauses, so that the sync and the async driver go the same one. It must not know
connections. What a server refuses with MOVED, ASK, TRYAGAIN, CLUSTERDOWN, READONLY or NOSCRIPT it has not done, and is
sent again; what was sent and never answered may have been done, and is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from django_quota.operations.base import Script
from django_quota.stores.attempts import NOT_THERE, Attempt, Moves, Refusal
from django_quota.stores.slots import Address, SlotTable

READ_WITHIN = 0.5
"""Seconds after which no further server is asked for the table, where those before did not answer."""

LOOK_EVERY = 2.0
"""Seconds after which it is looked whether what failed works by now, where no command goes there by itself."""

Command = Sequence[str | int]

LOOK: Command = ("EVAL", "return 1", 0)
"""What is permitted to whoever decides, and says most: one that still loads its keys refuses it."""

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


class _Refused(NamedTuple):
    """Who has not done a command, and what it said."""

    by: Address
    error: ResponseError


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
        self._silent: dict[Address, float] = {}
        """Who has not answered the last command that went there, and when that was."""
        self._unfit: set[Address] = set()
        """Who has answered the last one by an error, which says nothing of when it will do one."""
        self._ownerless: set[int] = set()
        """Slots that a command was for, and that nobody had."""
        self._next_look = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether all that have slots have done what they were last asked."""
        if not self._silent and not self._unfit and not self._ownerless:
            return True
        for server in {*self._silent, *self._unfit} - self.table.known:
            self._has_done(server)
        self._ownerless = {slot for slot in list(self._ownerless) if self.table.owner(slot) is None}
        return not self._ownerless and not any(map(self._is_failing, self.table.primaries))

    def _is_failing(self, server: Address) -> bool:
        return server in self._silent or server in self._unfit

    def _has_failed(self, server: Address, error: Exception) -> None:
        self._has_done(server)
        if isinstance(error, ResponseError):
            self._unfit.add(server)
        else:
            self._silent[server] = self._clock()

    def _has_done(self, server: Address) -> None:
        self._silent.pop(server, None)
        self._unfit.discard(server)

    # --- one command --------------------------------------------------------------------------------------------------

    def reach(self, asked: Asked, refused: _Refused | None = None) -> Way:
        """Return (as the way's result) the reply to a command; `refused`: who has answered it already, and how.

        Raises redis-py's errors: `ResponseError` for an answer that sending again does not help, others where no server
        answers.
        """
        where: Where = (yield from self.server_of(asked.slot)), ()
        attempt = Attempt(where[0])
        try:
            if refused is not None:
                where = yield from self._follow(asked, attempt, (refused.by, ()), refused.error)
            return (yield from self._reached(asked, attempt, where))
        except (RedisError, OSError) as error:
            self._has_failed(attempt.server, error)
            raise

    def _reached(self, asked: Asked, attempt: Attempt, where: Where) -> Way:
        """Return the reply of the server that does a command; `where` it is sent first."""
        while True:
            attempt.server = where[0]
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
                    if self._silent or self._unfit:
                        self._has_done(server)
                    return reply
                where = yield from self._follow(asked, attempt, where, reply)

    def _follow(self, asked: Asked, attempt: Attempt, where: Where, error: ResponseError) -> Way:
        """Return (as the way's result) where a command goes next that a server has not done. Raises the error else."""
        server, answer = where[0], Refusal.of(error)
        if answer.word == "TRYAGAIN" and (pause := attempt.pause(self._moves, asked.slot, self._clock())):
            yield Pause(pause)
            return (yield from self.server_of(asked.slot)), ()
        attempt.hop()
        if answer.word == "NOSCRIPT" and asked.script is not None:
            yield Trip(server, [("SCRIPT", "LOAD", asked.script.text)])
            return where
        if answer.word in ("MOVED", "ASK"):
            named = answer.address(server)
            if named is None:
                return (yield from self._instead_of(server, asked.slot, error)), ()
            if answer.word == "MOVED":
                return self.table.moved(asked.slot, named), ()
            return self.table.reached(named), (ASKING,)
        if answer.word in NOT_THERE:
            return (yield from self._instead_of(server, asked.slot, error)), ()
        raise error

    def server_of(self, slot: int) -> Way:
        """Return (as the way's result) who has a slot; raises redis-py's `ConnectionError` where nobody does."""
        if self._silent or self._ownerless:
            yield from self._look()
        if self.table.is_due:
            yield from self._refresh()
        server = self.table.owner(slot)
        if server is None and not self.table.primaries:
            yield from self._refresh()
            server = self.table.owner(slot)
        if server is None:
            self._ownerless.add(slot)
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

    def _look(self) -> Way:
        """Find out now and then whether what failed works by now: on a quiet site no command may go there for long.

        Who has been replaced is in the table no longer once it is read anew; who is there again does a script, which
        one that still loads its keys does not.
        """
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        self.table.doubt()
        asked_at = {server: self._silent.get(server, now) for server in self.table.primaries}
        server = min(asked_at, key=asked_at.__getitem__, default=None)
        if server is None or now - asked_at[server] < LOOK_EVERY:
            return
        self._silent[server] = now  # others look after another one
        try:
            (reply,) = yield Trip(server, [LOOK])
        except (RedisError, OSError):
            return  # as before
        if not isinstance(reply, ResponseError):
            self._silent.pop(server, None)

    def _refresh(self) -> Way:
        """Read the table from the first server that has it."""
        self.table.begin_reading()
        error: Exception = RedisConnectionError("no server of the cluster is known")
        deadline = self._clock() + READ_WITHIN
        for source in sorted(self.table.sources, key=self._is_failing):
            if self._clock() >= deadline:  # several that hang: the next reading begins with the others
                break
            try:
                (reply,) = yield Trip(source, [("CLUSTER", "SLOTS")])
                if isinstance(reply, ResponseError):
                    error = reply
                elif reply:
                    self.table.learn(reply, source)
                    return
            except (RedisError, OSError) as failed:
                self._has_failed(source, failed)
                error = failed
        if self.table.primaries:
            return  # what is known so far may still do
        raise error

    def refreshed(self) -> Way:
        """Read the table where that is due, or nothing is known yet."""
        if self.table.is_due or not self.table.primaries:
            yield from self._refresh()

    # --- several at once ----------------------------------------------------------------------------------------------

    def reach_all(self, asked: Sequence[Asked]) -> Way:
        """Return (as the way's result) the replies to commands: one trip a server, where nothing is on the move.

        What cannot be done holds up nothing else: its error is raised when the rest is done.
        """
        if len(asked) == 1:
            return [(yield from self.reach(asked[0]))]
        failed: dict[int, Exception] = {}
        """Of each slot, why it is not asked, or not again."""
        found: dict[int, Any] = {}
        for server, numbers in (yield from self._by_server(asked, failed)).items():
            found.update((yield from self._together(server, numbers, asked)))
        for number, one in enumerate(asked):
            known = found.get(number)
            if isinstance(known, Exception):
                failed[one.slot] = known
            elif one.slot not in failed and (number not in found or isinstance(known, _Refused)):
                try:
                    found[number] = yield from self.reach(one, known)
                except (RedisError, OSError) as error:
                    failed[one.slot] = error
        if failed:
            raise next(iter(failed.values()))
        return [found[number] for number in range(len(asked))]

    def _by_server(self, asked: Sequence[Asked], failed: dict[int, Exception]) -> Way:
        """Return (as the way's result) the numbers of commands by who has their slot; add to `failed` what nobody has.

        Raises the error where nobody has any.
        """
        found: dict[Address, list[int]] = {}
        for number, one in enumerate(asked):
            if one.slot in failed:
                continue
            try:
                server = yield from self.server_of(one.slot)
            except (RedisError, OSError) as error:
                if not self.table.primaries:  # each would ask for the table again
                    raise
                failed[one.slot] = error
            else:
                found.setdefault(server, []).append(number)
        return found

    def _together(self, server: Address, numbers: Sequence[int], asked: Sequence[Asked]) -> Way:
        """Return what a server makes of commands, by number: a reply, a refusal, or why nothing is known of it."""
        try:
            replies = yield Trip(server, [asked[number].command for number in numbers])
        except NotSentError:
            return {}
        except (RedisError, OSError) as error:
            self.table.doubt()
            self._has_failed(server, error)
            return dict.fromkeys(numbers, error)
        self._has_done(server)
        pairs = zip(numbers, replies, strict=True)
        return {n: _Refused(server, reply) if isinstance(reply, ResponseError) else reply for n, reply in pairs}
