"""How a command finds its server in a Redis Cluster: which server it is sent to, and what follows from the answer.

A server that answers MOVED, ASK, TRYAGAIN, CLUSTERDOWN, READONLY or NOSCRIPT has not run the command, so it is sent
again. A command that was sent and never answered may have been run, so it is not sent again.

redis-py's cluster clients cannot do this for a limiter. The async one sends ASKING and the command over two connections
as soon as two are idle, so it does not reach a slot that is moving. In the sync one of redis-py 8, the threads that
meet a silent server wait for each other. Neither remaps the address in MOVED and ASK.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from django_quota.core.flow import Flow, IOCall
from django_quota.engine.operations import Script
from django_quota.stores.cluster.slots import Remap, redirect_target, slot_owners
from django_quota.stores.redis.config import Address
from django_quota.stores.redis.errors import NotSentError
from django_quota.stores.redis.server_client import Command, ServerClient

REFRESH_INTERVAL = 0.1
"""The least time in seconds between two readings of the slot table."""

READ_WITHIN = 0.5
"""Seconds after which no further server is asked for the table, if the others did not answer."""

PROBE_INTERVAL = 2.0
"""Seconds between two probes of servers that failed. On a quiet site, no other command may go there for long."""

MOVE_TIMEOUT = 2.0
"""Seconds for which a command to a moving slot is tried. After that, nobody waits for this slot for as long."""

FIRST_SLEEP, MAX_SLEEP = 0.002, 0.05
"""Seconds before a command to a moving slot is tried again: at first, and at most."""

MAX_HOPS = 16
"""Servers that a command is sent to without a sleep. If there are more, the servers name each other in a circle."""

MAX_GONE = 16
"""Servers that have left and are kept: a process lives for months, and addresses change."""

PROBE: Command = ("EVAL", "return 1", 0)
"""A script needs no permission beyond those of a decision, and a server that still loads its keys refuses it."""

ASKING: Command = ("ASKING",)


class SlotCommand(NamedTuple):
    """A command on keys of one slot. `script`: the script that an EVALSHA runs."""

    slot: int
    command: Command
    script: Script | None = None


class Router:
    """Finds the server of each command, for any thread and event loop.

    `seeds`: the servers to ask first. `make`: makes the node of an address. `clock`: returns seconds and never goes
    back. The flows raise redis-py's errors.
    """

    def __init__(
        self,
        seeds: Sequence[Address],
        make: Callable[[Address], ServerClient],
        remap: Remap | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seeds, self._make, self._remap, self._clock = seeds, make, remap, clock
        self.nodes: dict[Address, ServerClient] = {}
        self.primaries: list[Address] = []
        """All servers with slots, each once."""
        self._owners: dict[int, Address] = {}
        """The slot table. It may be out of date: a server that no longer has a slot names the one that has it."""
        self.is_stale = True
        """Whether the slot table may be out of date, so that it should be read again."""
        self._read_at = self._next_probe = clock() - REFRESH_INTERVAL
        self._failing: dict[Address, tuple[Exception, float]] = {}
        """The servers that did not run their last command, why, and since when."""
        self._not_waited_for: dict[int, float] = {}
        """Until when nobody waits for a slot, because its move took too long."""

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether every server with slots has run its last command."""
        return not any(server in self._failing for server in self.primaries)

    def is_refusing(self) -> bool:
        """Say whether the breakers of all servers refuse callers now."""
        nodes = [self.nodes.get(address) for address in self.primaries or self._seeds]
        return all(node is not None and node.breaker.is_refusing() for node in nodes)

    def owner(self, slot: int) -> Address | None:
        """Return the server of a slot by the table; None if it is not known."""
        return self._owners.get(slot)

    def node(self, address: Address) -> ServerClient:
        """Return the node of an address, made when it is first needed."""
        return self.nodes.get(address) or self.nodes.setdefault(address, self._make(address))

    # --- commands -----------------------------------------------------------------------------------------------------

    def reach(self, asked: Sequence[SlotCommand]) -> Flow[list[Any]]:
        """Return the replies to commands: one round trip for each server, if no slot is moving.

        A command that fails does not stop those of other slots. It has its error in place of its reply.
        """
        by_server: dict[Address | None, list[int]] = {}
        for number, each in enumerate(asked):
            by_server.setdefault((yield from self.up_to_date_owner(each.slot)), []).append(number)
        replies: list[Any] = [None] * len(asked)
        failed: dict[int, Exception] = {}
        for server, numbers in by_server.items():
            found = yield from self._send(server, [asked[number].command for number in numbers])
            for number, reply in zip(numbers, found, strict=True):
                each = asked[number]
                if not isinstance(reply, Exception):
                    replies[number] = reply
                elif each.slot in failed:
                    replies[number] = failed[each.slot]
                else:
                    try:
                        replies[number] = yield from self._follow(each, server, reply)
                    except (RedisError, OSError) as error:
                        replies[number] = failed[each.slot] = error
        return replies

    def _send(self, server: Address | None, commands: Sequence[Command]) -> Flow[list[Any]]:
        """Send commands to a server in one round trip. Return the replies, with errors in place of missing ones."""
        if server is None:
            return [NotSentError("no server of the cluster has the slot")] * len(commands)
        node = self.node(server)
        try:
            replies: list[Any] = yield IOCall(node.send, node.asend, commands)
        except (RedisError, OSError) as error:
            self.is_stale = True
            return [error] * len(commands)
        if self._failing and not isinstance(replies[-1], Exception):
            self._failing.pop(server, None)
        return replies

    def _follow(self, asked: SlotCommand, server: Address | None, error: Exception) -> Flow[Any]:
        """Send a command again that `server` has not run; return its reply. Raises the last error."""
        command, before, hops, since = asked.command, list[Command](), 0, self._clock()
        try:
            while True:
                code = _code_of(error)
                if code == "NOSCRIPT" and asked.script is not None and command[0] == "EVALSHA":
                    command = ("EVAL", asked.script.text, *command[2:])
                elif code == "TRYAGAIN":
                    yield from self._wait(asked.slot, since, error)
                    server, before, hops = (yield from self.up_to_date_owner(asked.slot)), [], 0
                else:
                    server = yield from self._next_server(asked.slot, server, code, error)
                    before, hops = [ASKING] if code == "ASK" else [], hops + 1
                if hops > MAX_HOPS:
                    raise RedisConnectionError("the servers of the cluster send a command to each other")
                (*_, reply) = yield from self._send(server, [*before, command])
                if not isinstance(reply, Exception):
                    return reply
                error = reply
        except (RedisError, OSError) as last:
            if server is not None:
                self._failing[server] = last, self._clock()
            raise

    def _next_server(self, slot: int, server: Address | None, code: str, error: Exception) -> Flow[Address | None]:
        """Return the server that a command is sent to next. Raises the error if no other server can change it."""
        if code in ("MOVED", "ASK") and server is not None:
            named = redirect_target(error, server, self._remap)
            if code == "MOVED":
                self._owners[slot] = named
                self.is_stale = True  # one slot seldom comes alone
            return named
        if code in ("CLUSTERDOWN", "MASTERDOWN", "READONLY") or isinstance(error, NotSentError):
            self.is_stale = True  # another server may have the slot by now
            owner = yield from self.up_to_date_owner(slot)
            if owner not in (None, server):
                return owner
        raise error

    def _wait(self, slot: int, since: float, error: Exception) -> Flow[None]:
        """Sleep before a command to a moving slot is tried again. Raises the error if there is no time left."""
        now = self._clock()
        if now >= since + MOVE_TIMEOUT:
            self._not_waited_for[slot] = now + MOVE_TIMEOUT
        if now < self._not_waited_for.get(slot, now):
            raise error
        yield IOCall(time.sleep, asyncio.sleep, min(FIRST_SLEEP + now - since, MAX_SLEEP))

    # --- servers ------------------------------------------------------------------------------------------------------

    def server_of(self, slot: int) -> Flow[Address]:
        """Return the server of a slot. Raises redis-py's `ConnectionError` if there is none."""
        server = yield from self.up_to_date_owner(slot)
        if server is None:
            raise NotSentError(f"no server of the cluster has slot {slot}")
        return server

    def up_to_date_owner(self, slot: int) -> Flow[Address | None]:
        """Return the server of a slot; read the table before, if that is due."""
        if self._failing:
            yield from self._probe()
        yield from self.refresh()
        server = self.owner(slot)
        self.is_stale = self.is_stale or server is None
        return server

    def _probe(self) -> Flow[None]:
        """Find out, at most once an interval, whether a server that was silent answers again, or was replaced.

        A server that was replaced is not in the table any more when it is read again.
        """
        now = self._clock()
        if now < self._next_probe:
            return
        self._next_probe, self.is_stale = now + PROBE_INTERVAL, True
        for server, (error, since) in sorted(self._failing.copy().items(), key=lambda each: each[1][1]):
            is_silent = not isinstance(error, ResponseError)
            if is_silent and server in self.primaries and since <= now - PROBE_INTERVAL:
                self._failing[server] = error, now  # the next probe goes to another one
                yield from self._send(server, [PROBE])
                return

    def refresh(self) -> Flow[None]:
        """Read the table from the first server that answers, if that is due or nothing is known yet."""
        now = self._clock()
        if self.primaries and not (self.is_stale and now >= self._read_at + REFRESH_INTERVAL):
            return
        self._read_at = now  # other callers use the old table meanwhile
        error: Exception = NotSentError("no server of the cluster is known")
        known = {*self.primaries, *self._seeds}
        sources = random.sample(sorted(known), len(known))  # one that is cut off has an old table
        for source in sorted(sources, key=self._failing.__contains__):
            node = self.node(source)
            try:
                (reply,) = yield IOCall(node.send, node.asend, [("CLUSTER", "SLOTS")])
                if not isinstance(reply, ResponseError):
                    return self._learn(slot_owners(reply, source, self._remap))
                error = reply
            except (RedisError, OSError) as failed:
                self._failing[source], error = (failed, self._clock()), failed
            if self._clock() >= now + READ_WITHIN:  # several hang: the next reading may start with the others
                break
        if not self.primaries:
            raise error  # otherwise the old table may still be right

    def _learn(self, owners: dict[int, Address]) -> None:
        self._owners, self.primaries, self.is_stale = owners, sorted(set(owners.values())), False
        for server in set(self._failing).difference(self.primaries):
            self._failing.pop(server, None)
        gone = set(self.nodes).difference(self.primaries, self._seeds)
        for server in gone if len(gone) > MAX_GONE else ():
            node = self.nodes.pop(server, None)
            if node is not None:
                node.close()


def _code_of(error: Exception) -> str:
    """Return the first word of an error reply, such as MOVED. redis-py has classes for some, and removes the word."""
    words = str(error)
    if type(error) is not ResponseError:
        return type(error).__name__.removesuffix("Error").upper()
    return "READONLY" if "READONLY" in words else words.partition(" ")[0]  # Redis 6 wraps the error of a script
