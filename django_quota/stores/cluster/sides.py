"""redis-py's clients of a Redis Cluster: the sync side, and that of an event loop.

The clients know which server has a slot, follow MOVED and ASK, and read the slot table again when a server does not
answer. A server that answers MOVED, ASK or TRYAGAIN has not run the command, so only such commands are sent again: one
without an answer may have been run.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, cast

import redis.asyncio as aioredis
from redis import ConnectionPool, Redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ClusterError
from redis.retry import Retry

from django_quota.core.errors import ConfigurationError
from django_quota.stores.redis import connections
from django_quota.stores.redis.config import PLAIN_TIMEOUT, with_timeouts
from django_quota.stores.redis.config_checks import option_problem
from django_quota.stores.redis.which import WhichRedis

_OURS = ("parser_class", "connection_class", "queue_class", "retry", "retry_on_error", "retry_on_timeout", "timeout")
"""Options that no client gets: the clients of a Cluster have their own, and repeat no command."""


class ClusterSettings:
    """How a Cluster is reached. Raises `ConfigurationError` if its settings are wrong."""

    def __init__(self, which: WhichRedis) -> None:
        problem = which.problem() or option_problem(which)
        if problem is not None:
            raise ConfigurationError(problem.message, problem.hint)
        cluster = which.cluster()
        given = dict(cluster.options)
        self.addresses = cluster.addresses
        self.connections = int(given.pop("max_connections", None) or connections.ASYNC_CONNECTIONS)
        """How many calls to one server may be under way."""
        self._timeout: float | None = given.get("timeout")
        self.url = cluster.url
        address_remap = given.pop("address_remap", None)
        self._given = {name: value for name, value in given.items() if name not in _OURS}
        self.options: dict[str, Any] = {
            **with_timeouts(self._given),
            "decode_responses": False,
            "protocol": 2,  # with 3 a server may send notices, which change time-outs
            "max_connections": 2**31,  # a side lets no more calls through than the settings say
            "address_remap": address_remap,
            "require_full_coverage": False,  # covered slots go on working
            "reinitialize_steps": 0,  # a slot that has moved says nothing about the others
        }

    @property
    def patience(self) -> float:
        """Seconds that a call waits for others to end."""
        return self._timeout or connections.CONNECTION_TIMEOUT

    def plain_client(self, server: str) -> Redis:
        """Return a client for plain commands on one server, `"<host>:<port>"`."""
        host, _, port = server.rpartition(":")
        pool: Any = ConnectionPool.from_url(self.url, **with_timeouts(self._given, PLAIN_TIMEOUT))
        pool.connection_kwargs.update(host=host, port=int(port))
        return Redis(connection_pool=pool)


class Side(ABC):
    """A client, and the calls that may be under way to each server."""

    semaphore: Any

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.client: Any = None
        """None until it has read the slot table, and after it reached no server: then it asks those of the settings."""
        self._permits: dict[str, Any] = {}

    def permits(self, server: str) -> Any:
        """Return the semaphore of the calls to a server."""
        return self._permits.get(server) or self._permits.setdefault(server, self.semaphore(self.settings.connections))

    @abstractmethod
    def connect(self) -> Any:
        """Make the client."""

    @abstractmethod
    def read_slots(self) -> Any:
        """Read the slot table again."""

    @abstractmethod
    def acquire(self, permits: Any) -> Any:
        """Wait until one more call may be under way; say whether it may."""


class SyncSide(Side):
    """The client of all threads."""

    semaphore = threading.Semaphore

    def connect(self) -> None:
        """Make the client; see `Side`."""
        make_node, make = cast("Any", ClusterNode), cast("Any", _SyncCluster)  # redis-py leaves them untyped
        nodes, retry = [make_node(*address) for address in self.settings.addresses], Retry(NoBackoff(), 0)
        client = make(url=self.settings.url, startup_nodes=nodes, retry=retry, **self.settings.options)
        client.nodes_manager.initialize = _alone(client.nodes_manager.initialize)
        self.client = client

    def read_slots(self) -> None:
        """Read the slot table again."""
        self.client.nodes_manager.initialize()

    def acquire(self, permits: Any) -> bool:
        """Wait for a permit; see `Side`."""
        return bool(permits.acquire(timeout=self.settings.patience))


class AsyncSide(Side):
    """The client of an event loop."""

    semaphore = asyncio.Semaphore

    def __init__(self, settings: ClusterSettings) -> None:
        super().__init__(settings)
        self._making: Any = None

    async def connect(self) -> None:
        """Make the client; see `Side`."""
        if self._making is None:
            make: Any = _AsyncCluster.from_url
            nodes, retry = self.settings.addresses, AsyncRetry(NoBackoff(), 0)
            self._making = make(self.settings.url, startup_nodes=nodes, retry=retry, **self.settings.options)
            self._making.commands_parser = _NoCommands()
        client = self._making
        await client.initialize()
        self.client, self._making = client, None

    async def read_slots(self) -> None:
        """Read the slot table again."""
        self.client._initialize = True  # noqa: SLF001 — redis-py has no other way to say so
        await self.client.initialize()

    async def acquire(self, permits: Any) -> bool:
        """Wait for a permit; see `Side`."""
        try:
            async with asyncio.timeout(self.settings.patience):
                return bool(await permits.acquire())
        except TimeoutError:
            return False

    async def aclose(self) -> None:
        """Close the connections; the next call makes new ones."""
        client, self.client = self.client, None
        if client is not None:
            await client.aclose()


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
