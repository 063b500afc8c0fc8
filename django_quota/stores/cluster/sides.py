"""redis-py's clients of a Redis Cluster: one for all threads, and one for each event loop.

The clients know which server has a slot, follow MOVED and ASK, and read the slot table again when a server does not
answer. A server that answers MOVED, ASK or TRYAGAIN has not run the command, so only such commands are sent again: one
without an answer may have been run.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import redis.asyncio as aioredis
from redis import Redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ClusterError
from redis.retry import Retry

from django_quota.core.errors import StoreBusy
from django_quota.stores.redis import connections
from django_quota.stores.redis.connections import Command
from django_quota.stores.redis.settings import PLAIN_TIMEOUT, WhichRedis, with_timeouts
from django_quota.stores.redis.sources import pool_of_server
from django_quota.stores.redis.urls import Address

_OURS = (
    "host", "port", "db", "startup_nodes", "parser_class", "connection_class", "queue_class",
    "retry", "retry_on_error", "retry_on_timeout", "timeout", "max_connections", "address_remap",
)  # fmt: skip
"""Options that no connection gets: the clients of a Cluster have their own, and repeat no command."""


class ClusterSettings:
    """How a Cluster is reached. Raises `ConfigurationError` if its settings are wrong."""

    def __init__(self, which: WhichRedis) -> None:
        which.raise_problem()
        self.addresses, given = which.cluster()
        self.connections = int(given.get("max_connections") or connections.CONNECTIONS)
        """How many calls of an event loop may be under way. Threads wait for one call each."""
        self.patience = given.get("timeout") or connections.CONNECTION_TIMEOUT
        """Seconds that a call waits for others to end."""
        self._given = {name: value for name, value in given.items() if name not in _OURS}
        self.options: dict[str, Any] = {
            **with_timeouts(self._given),
            "decode_responses": False,
            "protocol": 2,  # with 3 a server may send notices, which change time-outs
            "max_connections": 2**31,  # at the limit, redis-py would raise, not wait
            "address_remap": given.get("address_remap"),
            "require_full_coverage": False,  # covered slots go on working
            "reinitialize_steps": 0,  # a slot that has moved says nothing about the others
        }

    def plain_client(self, server: str) -> Redis:
        """Return a client for plain commands on one server, `"<host>:<port>"`."""
        host, _, port = server.rpartition(":")
        options = with_timeouts(self._given, PLAIN_TIMEOUT)
        return Redis(connection_pool=pool_of_server(Address(host, int(port)), options))


class SyncSide:
    """The client of all threads."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.client: Any = None
        """None before it has read the slot table, and after it reached no server: then `connect` makes a new one."""

    def connect(self) -> None:
        """Make the client."""
        make_node, make = cast("Any", ClusterNode), cast("Any", _SyncCluster)  # redis-py leaves them untyped
        nodes = [make_node(*address) for address in self.settings.addresses]
        client = make(startup_nodes=nodes, retry=Retry(NoBackoff(), 0), **self.settings.options)
        client.nodes_manager.initialize = _alone(client.nodes_manager.initialize)
        self.client = client

    def read_slots(self) -> None:
        """Read the slot table again."""
        self.client.nodes_manager.initialize()

    def execute(self, client: Any, node: Any, command: Command) -> Any:
        """Send a command to a server."""
        return client.execute_command(*command, target_nodes=node)


class AsyncSide:
    """The client of an event loop; see `SyncSide`."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.client: Any = None
        self._making: Any = None
        self._permits = asyncio.Semaphore(settings.connections)
        """One for each call that may be under way: redis-py would connect once more for each."""

    async def connect(self) -> None:
        """Make the client."""
        if self._making is None:
            make, retry = cast("Any", _AsyncCluster), AsyncRetry(NoBackoff(), 0)
            self._making = make(startup_nodes=self.settings.addresses, retry=retry, **self.settings.options)
            self._making.commands_parser = _NoCommands()
        client = self._making
        await client.initialize()
        self.client, self._making = client, None

    async def read_slots(self) -> None:
        """Read the slot table again."""
        self.client._initialize = True  # noqa: SLF001 — redis-py has no other way to say so
        await self.client.initialize()

    async def execute(self, client: Any, node: Any, command: Command) -> Any:
        """Send a command to a server."""
        try:
            async with asyncio.timeout(self.settings.patience):
                await self._permits.acquire()
        except TimeoutError:
            raise StoreBusy(
                f"all connections of this event loop were in use for {self.settings.patience:g} s"
            ) from None
        try:
            return await client.execute_command(*command, target_nodes=node)
        finally:
            self._permits.release()

    async def aclose(self) -> None:
        """Close the connections; the next call makes new ones."""
        client, self.client = self.client, None
        if client is not None:
            await client.aclose()


Side: TypeAlias = SyncSide | AsyncSide


# --- what redis-py does otherwise -------------------------------------------------------------------------------------


class _KnownNodes:
    """Raises for a server that is not known yet, where redis-py would go on with None: ASK may name a new server."""

    def get_node(self, *arguments: Any, **named: Any) -> Any:
        """Return a server of the slot table. Raises `ClusterError` if there is none."""
        node = cast("Any", super()).get_node(*arguments, **named)
        if node is None:
            raise ClusterError("it is not in the slot table yet")
        return node


class _SyncCluster(_KnownNodes, RedisCluster):
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


class _AsyncCluster(_KnownNodes, aioredis.RedisCluster):  # type: ignore[misc]  # redis-py's own bases differ
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
