"""How a Redis Cluster is reached: by redis-py's clients, which know its servers, and by our connections to each.

There is a client for all threads, and one for each event loop. They read the slot table; commands go over our own
connections, which keep to one policy on every kind of Redis. A server that answers MOVED, ASK or TRYAGAIN has not run
the command, so only such commands are sent again: one without an answer may have been run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import redis.asyncio as aioredis
import redis.cluster
from redis import Redis
from redis.asyncio import cluster as aiocluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from django_quota.stores.breaker import Breaker
from django_quota.stores.redis.async_wire import AsyncWire, Loading, async_wire
from django_quota.stores.redis.connections import SyncPool, sync_pool
from django_quota.stores.redis.settings import PLAIN_TIMEOUT, Address, WhichRedis, pool_of_server, with_timeouts

_CLUSTER_OPTIONS = (
    "host", "port", "db", "startup_nodes", "parser_class", "connection_class", "queue_class",
    "retry", "retry_on_error", "retry_on_timeout", "timeout", "max_connections", "address_remap",
)  # fmt: skip
"""Options that no connection gets: the clients of a Cluster have their own, and repeat no command."""

_PARSER_OF_THREADS, _PARSER_OF_TASKS = (
    {"parser_class": module.ClusterParser} if hasattr(module, "ClusterParser") else {}
    for module in cast("tuple[Any, Any]", (redis.cluster, aiocluster))
)
"""The option that reads MOVED and ASK in a reply. The usual parsers of redis-py 8 do."""


class ClusterSettings:
    """How a Cluster is reached. Raises `ConfigurationError` if its settings are wrong."""

    def __init__(self, which: WhichRedis) -> None:
        which.raise_problem()
        self.addresses, given = which.cluster()
        self._limits = {name: given.get(name) for name in ("max_connections", "timeout")}
        self._given = {name: value for name, value in given.items() if name not in _CLUSTER_OPTIONS}
        self.options: dict[str, Any] = {
            **with_timeouts(self._given),
            "decode_responses": False,
            "protocol": 2,  # with 3 a server may send notices, which change time-outs
            "max_connections": 2**31,  # at the limit, redis-py would raise, not wait
            "address_remap": given.get("address_remap"),
            "require_full_coverage": False,  # covered slots go on working
            "reinitialize_steps": 0,  # a slot that has moved says nothing about the others
        }

    def sync_pool(self, server: Address, breaker: Breaker) -> SyncPool:
        """Return the connections of all threads to a server."""
        return sync_pool(self._pool(server), self._limits.get, breaker)

    def async_wire(self, server: Address, breaker: Breaker) -> AsyncWire:
        """Return a new wire of an event loop to a server."""
        return async_wire(self._pool(server), self._limits.get, breaker, **_PARSER_OF_TASKS)

    def _pool(self, server: Address) -> Any:
        return pool_of_server(server, {**self._given, "protocol": 2, **_PARSER_OF_THREADS})

    def plain_client(self, server: str) -> Redis:
        """Return a client for plain commands on one server, `"<host>:<port>"`."""
        host, _, port = server.rpartition(":")
        options = with_timeouts(self._given, PLAIN_TIMEOUT)
        return Redis(connection_pool=pool_of_server(Address(host, int(port)), options))


class SyncSide:
    """The client of all threads, and their connections to each server."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.client: Any = None
        """None before it has read the slot table, and after it reached no server: then `connect` makes a new one."""
        self._lock = threading.Lock()
        self._pools: dict[Address, SyncPool] = {}
        self._is_closed = False

    def pool(self, server: Address, breaker: Breaker, *, is_slow: bool = False) -> SyncPool:  # noqa: ARG002
        """Return the connections to a server."""
        found = self._pools.get(server)
        if found is None:
            found = self._pools.setdefault(server, self.settings.sync_pool(server, breaker))
            if self._is_closed:  # after it was made known: another thread may be closing them all
                found.close()
        return found

    def connect(self) -> Any:
        """Return a new client, or that of a thread that was faster."""
        make_node, make = cast("Any", ClusterNode), cast("Any", _SyncCluster)  # redis-py leaves them untyped
        nodes = [make_node(*address) for address in self.settings.addresses]
        client = make(startup_nodes=nodes, retry=Retry(NoBackoff(), 0), **self.settings.options)
        client.nodes_manager.initialize = _alone(client.nodes_manager.initialize)
        with self._lock:
            first = self.client
            if first is None:
                self.client = client
        if first is not None or self._is_closed:
            client.close()
        return first or client

    def leave(self, client: Any) -> None:
        """Close a client that reached no server; the next call makes a new one."""
        with self._lock:
            if self.client is client:
                self.client = None
        client.close()

    def read_slots(self) -> None:
        """Read the slot table again, and close the connections to servers that have left."""
        client = self.client
        if client is None:  # another thread has just found that it reaches no server
            return
        client.nodes_manager.initialize()
        if self._is_closed:
            client.close()
        for server in self._pools.keys() - known_servers(client):
            self._pools.pop(server).close()

    def is_loaded_by_another(self, script: tuple[str, str]) -> bool:  # noqa: ARG002
        """Say False: each thread sends the script itself."""
        return False

    def loaded(self, script: tuple[str, str]) -> None:
        """Do nothing; see `AsyncSide.loaded`."""

    pause = staticmethod(time.sleep)

    def close(self) -> None:
        """Keep no connection from now on; see `SyncPool.close`."""
        self._is_closed = True
        for pool in list(self._pools.values()):
            pool.close()
        if self.client is not None:
            self.client.close()


class AsyncSide:
    """The client of an event loop, and its wire to each server; see `SyncSide`."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.client: Any = None
        self._making: Any = None
        self._pools: dict[Address, AsyncWire] = {}
        self._loading = Loading()

    def pool(self, server: Address, breaker: Breaker, *, is_slow: bool = False) -> AsyncWire:
        """Return the wire to a server, or the one beside it for what takes long."""
        wire = self._pools.get(server) or self._pools.setdefault(server, self.settings.async_wire(server, breaker))
        return wire.beside() if is_slow else wire

    async def is_loaded_by_another(self, script: tuple[str, str]) -> bool:
        """Say whether another task has sent a script to a server, after its end; see `Loading.by_another`."""
        return await self._loading.by_another(script)

    def loaded(self, script: tuple[str, str]) -> None:
        """Note that a script was sent to a server, or that sending it failed."""
        self._loading.done(script)

    async def connect(self) -> Any:
        """Return a new client, which the tasks share."""
        if self._making is None:
            make, retry = cast("Any", _AsyncCluster), AsyncRetry(NoBackoff(), 0)
            self._making = make(startup_nodes=self.settings.addresses, retry=retry, **self.settings.options)
            self._making.commands_parser = _NoCommands()
        client = self._making
        await client.initialize()
        if self._making is client:
            self.client, self._making = client, None
        return client

    async def leave(self, client: Any) -> None:
        """Close a client that reached no server; the next call makes a new one."""
        if self.client is client:
            self.client = None
        await client.aclose()

    async def read_slots(self) -> None:
        """Read the slot table again, and close the connections to servers that have left."""
        client = self.client
        if client is None:
            return
        client._initialize = True  # noqa: SLF001 — redis-py has no other way to say so
        await client.initialize()
        for server in self._pools.keys() - known_servers(client):
            await self._pools.pop(server).aclose()

    pause = staticmethod(asyncio.sleep)

    async def aclose(self) -> None:
        """Close the connections; the next call makes new ones."""
        clients, self.client, self._making = (self.client, self._making), None, None
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()
        for client in clients:
            if client is not None:
                await client.aclose()


Side: TypeAlias = SyncSide | AsyncSide


def node_address(node: Any) -> Address:
    """Return where a node of redis-py is."""
    return Address(node.host, int(node.port))


def known_servers(client: Any) -> set[Address]:
    """Return the servers that the slot table names."""
    return {node_address(node) for node in client.get_nodes()}


# --- differences from redis-py ---------------------------------------------------------------------------------------


class _SyncCluster(RedisCluster):
    """redis-py's client, without the commands of Redis."""

    def command(self, **_: Any) -> dict[str, Any]:
        """Return no commands: redis-py asks one server for them, and fails without an answer."""
        return {}


def _alone(read: Callable[..., None]) -> Callable[..., None]:
    """Let one thread read the slot table, and the others go on; in redis-py each waits its turn while servers hang."""
    lock = threading.Lock()

    def read_alone(*arguments: Any, **options: Any) -> None:
        if lock.acquire(blocking=False):
            try:
                read(*arguments, **options)
            finally:
                lock.release()

    return read_alone


class _NoCommands:
    """No commands; see `_SyncCluster.command`."""

    async def initialize(self, *_: Any) -> None: ...


class _AsyncCluster(aioredis.RedisCluster):
    """redis-py's client, but the tasks that need the slot table share one reading, and its error."""

    _reading: asyncio.Future[Any] | None = None

    async def initialize(self, **options: Any) -> _AsyncCluster:  # type: ignore[override]  # redis-py names them
        """Read the slot table if that is due."""
        if self._initialize and not (self._reading and self.nodes_manager.slots_cache):
            if self._reading is None:
                self._reading = asyncio.ensure_future(super().initialize(**options))
                self._reading.add_done_callback(self._was_read)
            await asyncio.shield(self._reading)
        return self

    def _was_read(self, reading: asyncio.Future[Any]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # the waiting tasks raise it

    async def aclose(self) -> None:
        """Close all connections; redis-py leaves them open if it is to read the slot table."""
        self._initialize = True
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")
