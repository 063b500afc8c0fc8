"""How a command finds its server in a Redis Cluster: which server it is sent to, and what follows from the answer.

A route is a generator of round trips and sleeps, so the sync and the async driver share it. A server that answers
MOVED, ASK, TRYAGAIN, CLUSTERDOWN, READONLY or NOSCRIPT has not run the command, so it is sent again. A command that was
sent and never answered may have been run, so it is not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from django_quota.engine.operations import Script
from django_quota.stores.cluster.attempts import NOT_THERE, Attempt, Moves, Refusal
from django_quota.stores.cluster.slots import Address, SlotTable

READ_WITHIN = 0.5
"""Seconds after which no further server is asked for the table, if the others did not answer."""

PROBE_INTERVAL = 2.0
"""Seconds between two probes of servers that failed. On a quiet site, no other command may go there for long."""

Command = Sequence[str | int]

PROBE: Command = ("EVAL", "return 1", 0)
"""A script needs no permission beyond those of a decision, and a server that still loads its keys refuses it."""

ASKING: Command = ("ASKING",)


class RoundTrip(NamedTuple):
    """Send these commands to a server together. The result is a reply for each, which may be a `ResponseError`."""

    at: Address
    commands: Sequence[Command]


class Sleep(NamedTuple):
    """Sleep for some seconds."""

    seconds: float


Route = Generator[RoundTrip | Sleep, Any, Any]
"""The driver sends the result of each step into it, or throws the error: `NotSentError` if nothing was sent."""


Where = tuple[Address, Sequence[Command]]
"""The server of a command, and the commands that are sent before it."""


class NotSentError(RedisConnectionError):
    """There is no connection to a server, so nothing was sent."""


class _Refused(NamedTuple):
    """The server that did not run a command, and its answer."""

    by: Address
    error: ResponseError


class SlotCommand(NamedTuple):
    """A command on keys of one slot. `script`: the script that an EVALSHA runs."""

    slot: int
    command: Command
    script: Script | None = None


class Router:
    """Finds the routes of commands by a slot table. `clock`: returns seconds and never goes back."""

    def __init__(self, table: SlotTable, clock: Callable[[], float] = time.monotonic) -> None:
        self.table = table
        self._clock = clock
        self._moves = Moves(clock)
        self._silent: dict[Address, float] = {}
        """The servers that did not answer their last command, and when that was."""
        self._unfit: set[Address] = set()
        """The servers that answered their last command with an error."""
        self._ownerless: set[int] = set()
        """Slots that a command needed and no server had."""
        self._next_probe = 0.0

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether every server with slots has run its last command."""
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

    def reach(self, asked: SlotCommand, refused: _Refused | None = None) -> Route:
        """Return (as the route's result) the reply to a command.

        `refused`: the earlier answer of a server that did not run it. Raises redis-py's errors: `ResponseError` for an
        error that another attempt does not change, others if no server answers.
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

    def _reached(self, asked: SlotCommand, attempt: Attempt, where: Where) -> Route:
        """Return the reply of the server that runs a command. `where`: the server that it is sent to first."""
        while True:
            attempt.server = where[0]
            server, before = where
            try:
                *_, reply = yield RoundTrip(server, [*before, asked.command])
            except NotSentError as error:
                attempt.hop()
                where = (yield from self._instead_of(server, asked.slot, error)), ()
            except BaseException:
                self.table.doubt()
                raise
            else:
                if not isinstance(reply, ResponseError):
                    if attempt.has_waited:
                        self._moves.succeeded(asked.slot)
                    if self._silent or self._unfit:
                        self._has_done(server)
                    return reply
                where = yield from self._follow(asked, attempt, where, reply)

    def _follow(self, asked: SlotCommand, attempt: Attempt, where: Where, error: ResponseError) -> Route:
        """Return where a command goes next after a server did not run it. Raises the error if no other server can."""
        server, answer = where[0], Refusal.of(error)
        if answer.word == "TRYAGAIN" and (pause := attempt.next_sleep(self._moves, asked.slot, self._clock())):
            yield Sleep(pause)
            return (yield from self.server_of(asked.slot)), ()
        attempt.hop()
        if answer.word == "NOSCRIPT" and asked.script is not None:
            yield RoundTrip(server, [("SCRIPT", "LOAD", asked.script.text)])
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

    def server_of(self, slot: int) -> Route:
        """Return (as the route's result) the server of a slot. Raises redis-py's `ConnectionError` if there is none."""
        if self._silent or self._ownerless:
            yield from self._probe_silent()
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

    def _instead_of(self, server: Address, slot: int, error: Exception) -> Route:
        """Return the new server of a slot that its server does not serve. Raises the error if it is the same server."""
        self.table.doubt()
        if self.table.is_due:
            yield from self._refresh()
        now = self.table.owner(slot)
        if now is None or now == server:
            self.table.doubt()
            raise error
        return now

    def _probe_silent(self) -> Route:
        """Find out, at most once an interval, whether a server that failed answers again, or was replaced.

        A server that was replaced is not in the table any more when it is read again. A server that is back runs the
        script of the probe.
        """
        now = self._clock()
        if now < self._next_probe:
            return
        self._next_probe = now + PROBE_INTERVAL
        self.table.doubt()
        asked_at = {server: self._silent.get(server, now) for server in self.table.primaries}
        server = min(asked_at, key=asked_at.__getitem__, default=None)
        if server is None or now - asked_at[server] < PROBE_INTERVAL:
            return
        self._silent[server] = now  # other callers probe another server
        try:
            (reply,) = yield RoundTrip(server, [PROBE])
        except (RedisError, OSError):
            return  # it stays silent
        if not isinstance(reply, ResponseError):
            self._silent.pop(server, None)

    def _refresh(self) -> Route:
        """Read the table from the first server that answers."""
        self.table.begin_reading()
        error: Exception = RedisConnectionError("no server of the cluster is known")
        deadline = self._clock() + READ_WITHIN
        for source in sorted(self.table.sources, key=self._is_failing):
            if self._clock() >= deadline:  # several hang: the next reading starts with the others
                break
            try:
                (reply,) = yield RoundTrip(source, [("CLUSTER", "SLOTS")])
                if isinstance(reply, ResponseError):
                    error = reply
                elif reply:
                    self.table.learn(reply, source)
                    return
            except (RedisError, OSError) as failed:
                self._has_failed(source, failed)
                error = failed
        if self.table.primaries:
            return  # the old table may still be right
        raise error

    def refreshed(self) -> Route:
        """Read the table if that is due, or if it is empty."""
        if self.table.is_due or not self.table.primaries:
            yield from self._refresh()

    # --- several at once ----------------------------------------------------------------------------------------------

    def reach_all(self, asked: Sequence[SlotCommand]) -> Route:
        """Return (as the route's result) the replies to commands: one round trip for each server, if no slot is moving.

        A command that fails does not stop the others: its error is raised at the end.
        """
        if len(asked) == 1:
            return [(yield from self.reach(asked[0]))]
        failed: dict[int, Exception] = {}
        """By slot, the error for which its commands are not sent (again)."""
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

    def _by_server(self, asked: Sequence[SlotCommand], failed: dict[int, Exception]) -> Route:
        """Return the numbers of commands by the server of their slot. Slots without a server go into `failed`.

        Raises the error if no server is known at all.
        """
        found: dict[Address, list[int]] = {}
        for number, one in enumerate(asked):
            if one.slot in failed:
                continue
            try:
                server = yield from self.server_of(one.slot)
            except (RedisError, OSError) as error:
                if not self.table.primaries:  # each command would read the table again
                    raise
                failed[one.slot] = error
            else:
                found.setdefault(server, []).append(number)
        return found

    def _together(self, server: Address, numbers: Sequence[int], asked: Sequence[SlotCommand]) -> Route:
        """Send commands to a server; return by number the reply, the refusal, or the error of the round trip."""
        try:
            replies = yield RoundTrip(server, [asked[number].command for number in numbers])
        except NotSentError:
            return {}
        except (RedisError, OSError) as error:
            self.table.doubt()
            self._has_failed(server, error)
            return dict.fromkeys(numbers, error)
        self._has_done(server)
        pairs = zip(numbers, replies, strict=True)
        return {n: _Refused(server, reply) if isinstance(reply, ResponseError) else reply for n, reply in pairs}
