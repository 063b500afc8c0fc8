"""The Redis store over a Cluster: each operation goes to the server that has its keys.

`engine.scatter` splits an operation whose keys are in several slots, and `routing` finds the server of each command.
This module drives both, sync and async.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import ResponseError

from django_quota.core.errors import ConfigurationError
from django_quota.core.flow import run_async, run_sync
from django_quota.engine.operations import Operation
from django_quota.engine.resp import pack_command
from django_quota.engine.scatter import scatter
from django_quota.stores.cluster.client import is_cluster, remap_of, seeds
from django_quota.stores.cluster.cluster_errors import translated, translated_around_caller
from django_quota.stores.cluster.node_keys import SYSTEM_SLOT, SYSTEM_TAG, NodeKeys, node_keys
from django_quota.stores.cluster.nodes import AllBreakers, Node, Nodes
from django_quota.stores.cluster.routing import Command, RoundTrip, Route, Router, Sleep, SlotCommand
from django_quota.stores.cluster.slots import SlotTable, pairs, slot_of
from django_quota.stores.redis.blocking import WakeUpChannel
from django_quota.stores.redis.breaker import CLOSED
from django_quota.stores.redis.config_checks import alias_problem
from django_quota.stores.redis.store import RedisStore, Server
from django_quota.stores.wait_queue import WaitQueue

BATCH_SIZE = 200
"""Operations in one round trip, at most."""


class ClusterStore(RedisStore):
    """States in the Redis Cluster of a cache alias. A subject's clock is that of the server that has its keys.

    A primary that is cut off from the others still answers for the node timeout of the Cluster, while a replica may
    have taken its place. During that time each of the two admits the full limit.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self._nodes = Nodes(alias, lambda: self._router.table.known)
        self.breaker = AllBreakers(self.are_all_refusing)
        self._node_keys = NodeKeys(self._table)
        self.wait_queue = WaitQueue(self.run, self._channel)

    def _table(self) -> SlotTable:
        return self._router.table

    @property
    def _router(self) -> Router:
        known: Router | None = vars(self).get("known_router")
        if known is None:
            problem = alias_problem(self.alias)
            if problem is not None:
                raise ConfigurationError(problem.message, problem.hint)
            made = Router(SlotTable(seeds(self.alias), remap_of(self.alias)))
            known = vars(self).setdefault("known_router", made)  # two threads get the same one
        return known

    @property
    def all_nodes_healthy(self) -> bool:
        """Whether every server has run its last command."""
        return self._router.all_nodes_healthy

    def are_all_refusing(self) -> bool:
        """Say whether the breakers of all servers refuse callers now."""
        table = self._router.table
        return self._nodes.are_refusing(table.primaries or table.known)

    # --- sync ---------------------------------------------------------------------------------------------------------

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Store.run`. With keys in several slots, it is atomic in each slot."""
        return run_sync(scatter(operation, slot_of), lambda operations: self.run_all(operations, now))

    def run_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one slot each. Each is atomic, all together are not."""
        replies = []
        with translated():
            for route in self._routes(operations, now):
                replies += run_sync(route, self._step)
        return replies

    def _routes(self, operations: Sequence[Operation], now: int | None) -> Iterator[Route]:
        """Yield the routes of operations, `BATCH_SIZE` at a time."""
        asked = [SlotCommand(slot_of(each.keys[0]), each.command(now), each.script) for each in operations]
        for first in range(0, len(asked), BATCH_SIZE):
            yield self._router.reach_all(asked[first : first + BATCH_SIZE])

    def _step(self, step: RoundTrip | Sleep) -> Any:
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        return self._trip(self._nodes[step.at], step.commands)

    def _trip(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        """Send commands to one server and read their replies: one round trip, never repeated."""
        connections, packed = node.connections, b"".join(map(pack_command, commands))
        probe = node.acquire()
        try:
            connection = connections.take(is_refusing=node.breaker.is_refusing if probe == CLOSED else None)
        except BaseException as error:
            node.not_sent(error, probe)
            raise
        try:
            connection.send_packed_command((packed,))
            replies = [_read(connection) for _ in commands]
        except BaseException as error:
            connections.drop(connection)  # a reply may still be under way: the next call must not read it
            node.lost(error, probe)
            raise
        else:
            connections.release(connection)
            node.breaker.succeeded()
        return replies

    # --- async --------------------------------------------------------------------------------------------------------

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `run`."""
        return await run_async(scatter(operation, slot_of), lambda operations: self.arun_all(operations, now))

    async def arun_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations of one slot each; see `run_all`."""
        replies = []
        with translated():
            for route in self._routes(operations, now):
                replies += await run_async(route, self._astep)
        return replies

    async def _astep(self, step: RoundTrip | Sleep) -> Any:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        return await self._atrip(self._nodes[step.at], step.commands)

    async def _atrip(self, node: Node, commands: Sequence[Command]) -> list[Any]:
        """Send commands to one server and read their replies: one round trip, never repeated."""
        connections, packed = await node.async_connections.get(), b"".join(map(pack_command, commands))
        probe = node.acquire()
        try:
            connection = await connections.take(is_refusing=node.breaker.is_refusing if probe == CLOSED else None)
        except BaseException as error:
            node.not_sent(error, probe)
            raise
        try:
            replies = await connections.exchange(connection, packed, len(commands))
        except BaseException as error:
            node.lost(error, probe)
            raise
        connections.release(connection)
        node.breaker.succeeded()
        return replies

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _channel(self, process: str) -> WakeUpChannel:
        """Open the wake-up channel of a process. Every server receives what is published on another one."""
        node = self._nodes[run_sync(self._router.server_of(SYSTEM_SLOT), self._step)]
        try:
            return node.blocking.channel(process)
        except BaseException:
            self._router.table.doubt()
            raise

    async def acall(self, command: Sequence[str | int], seconds: float) -> Any:
        """Send a command on a system key that blocks for some seconds at most; see `RedisStore.acall`."""
        with translated():
            node = self._nodes[await run_async(self._router.server_of(SYSTEM_SLOT), self._astep)]
            try:
                return await node.blocking.acall(command, seconds)
            except BaseException:
                self._router.table.doubt()
                raise

    # --- plain commands -----------------------------------------------------------------------------------------------

    @contextmanager
    def commands(self, server: Server = None) -> Iterator[Redis]:
        """Lend a client of one server for plain commands; None: the server of the system keys."""
        with translated_around_caller():
            at = self.server_of(SYSTEM_TAG) if server is None else server
            try:
                with self._nodes[at].commands() as client:
                    yield client
            except (RedisError, OSError):
                self._router.table.doubt()
                raise

    def servers(self) -> Sequence[Server]:
        """Return all primaries."""
        with translated():
            self._router.table.doubt()  # a walk over all keys must not miss a new server
            run_sync(self._router.refreshed(), self._step)
            return self._router.table.primaries

    def server_of(self, key: str) -> Server:
        """Return the server that has a key."""
        with translated():
            return run_sync(self._router.server_of(slot_of(key)), self._step)

    def node_keys(self, key: str) -> list[str]:
        """Return the names of all copies of a system key; see `node_keys.node_keys`."""
        return node_keys(key)

    def node_key(self, key: str, server: Server) -> str:
        """Return the one of these that a server has; empty if it has none."""
        return self._node_keys.name(key, server)

    def of_each(self, command: Sequence[str], keys: Sequence[str]) -> list[Any]:
        """Return the reply to a command on each key, even if its slot moves; see `RedisStore.of_each`."""
        replies: list[Any] = []
        with translated():
            for first in range(0, len(keys), BATCH_SIZE):
                some = [SlotCommand(slot_of(key), (*command, key)) for key in keys[first : first + BATCH_SIZE]]
                replies += run_sync(self._router.reach_all(some), self._step)
            return [pairs(flat) for flat in replies] if command[0] == "HGETALL" else replies

    def by_server(self, keys: Iterable[str]) -> dict[Server, list[str]]:
        """Return keys by the server that has them."""
        found: dict[Server, list[str]] = {}
        for key in keys:
            found.setdefault(self.server_of(key), []).append(key)
        return found

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        self.wait_queue.close()
        self._nodes.close()
        vars(self).pop("known_router", None)


def _read(connection: Any) -> Any:
    """Read a reply. An error reply is returned, because the other replies must still be read."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def store_of(alias: str) -> RedisStore:
    """Return the store of a cache alias: one server, or a Cluster."""
    return ClusterStore(alias) if is_cluster(alias) else RedisStore(alias)
