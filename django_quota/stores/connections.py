"""Connections to the Redis of a cache alias: django-redis' own for sync, `redis.asyncio` likewise for async.

Both go by the same settings. It knows `CACHES` and nothing of scripts. An event loop has a client of its own, closed
when the loop ends.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import redis.asyncio as aioredis
from django_redis.pool import SentinelConnectionFactory, get_connection_factory
from redis import RedisError, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.sentinel import SentinelConnectionPool

from django_quota.stores.aliases import config_of, primary_location, sync_client
from django_quota.stores.loops import unless_held_up
from django_quota.stores.sentinel import ask_in_time, async_sentinel_client
from django_quota.stores.timeouts import with_timeouts
from django_quota.stores.wire import FOR_COMMAND, WITHOUT_NOTICES, note_end

_SYNC_ONLY = frozenset(
    {"url", "parser_class", "connection_class", "retry", "retry_on_error", "retry_on_timeout", "timeout", "queue_class"}
)
"""Connection options that the async client takes in another form, or not at all."""

ASYNC_CONNECTIONS = 50
"""Connections an event loop, unless CONNECTION_POOL_KWARGS says `max_connections`; further calls wait for one."""

KEPT_CONNECTIONS = 64
"""Idle sync connections that a process keeps at most."""

WAIT_FOR_CONNECTION = 1.0
"""Seconds that a call waits for a connection where all are in use and the pool has no timeout of its own."""


class AllInUseError(RedisConnectionError):
    """There are as many connections as there may be, and none came free in time."""


class SyncConnections:
    """Connections of one alias for sync calls, made as its pool makes them, and kept between calls.

    Taking from a redis-py pool and giving back costs more than the decision itself. So a caller's connection stays with
    us: as many are kept as were ever in use at once, up to `KEPT_CONNECTIONS`. They stand beside those that the pool
    lends to others; of ours, too, there are never more than the pool's `max_connections`, and who finds none waits.
    `pool_of`: returns the pool of an alias, where that is not its client's.
    """

    def __init__(self, alias: str, pool_of: Callable[[str], Any] | None = None) -> None:
        self._alias = alias
        self._pool_of = pool_of or (lambda alias: sync_client(alias).connection_pool)
        self._begin()

    def _begin(self) -> None:
        self._idle: deque[Any] = deque()
        self._pool: Any = None
        self._changed = threading.Condition()
        """Guards the two counts below, and is told when a connection comes free for one who waits."""
        self._open = 0
        self._waiting = 0
        self._pid = os.getpid()  # last: another thread that finds it right must not find a parent's connection

    def take(self, seconds: float | None = None, in_vain: Callable[[], bool] | None = None) -> Any:
        """Return a connection that is ready to send.

        `seconds`: how long to wait for one where all are in use; None: as long as the pool would. `in_vain`: says
        whether others have found out meanwhile that there is nobody to connect to. Raises redis-py's errors where none
        can be had, `AllInUseError` where none came free in time.
        """
        if self._pid != os.getpid():  # a forked worker must not write to its parent's sockets
            self._begin()
        pool = self._pool
        if pool is None:
            pool = self._pool = self._pool_of(self._alias)
            ask_in_time(pool, config_of(self._alias).get("OPTIONS") or {})
        is_new = False
        try:
            connection = self._idle.pop()
        except IndexError:
            connection, is_new = self._make_or_wait(pool, seconds), True
            if in_vain is not None and in_vain():
                self.drop(connection)
                raise AllInUseError("it has not answered those who had the connections") from None
        try:
            if is_new:  # the others are connected: what was dropped is not kept
                connection.connect()
            if _is_spoilt(connection):
                connection.disconnect()
                note_end(connection)
                connection.connect()
        except BaseException:
            self.drop(connection)
            raise
        return connection

    def _make_or_wait(self, pool: Any, seconds: float | None) -> Any:
        patience = (getattr(pool, "timeout", None) or WAIT_FOR_CONNECTION) if seconds is None else seconds
        deadline = time.monotonic() + patience
        with self._changed:
            self._waiting += 1  # before the look at the idle ones: who gives back after it will tell
            try:
                while not self._idle and self._open >= pool.max_connections:
                    if not self._changed.wait(deadline - time.monotonic()) and not self._idle:
                        raise AllInUseError(f"all {pool.max_connections} connections are in use")
                if self._idle:
                    return self._idle.pop()
                self._open += 1
            except IndexError:  # taken in between by one who did not have to wait
                return self._make_or_wait(pool, seconds)
            finally:
                self._waiting -= 1
        try:
            return pool.connection_class(**with_timeouts(pool.connection_kwargs))
        except BaseException:
            self._one_less()
            raise

    def give_back(self, connection: Any) -> None:
        """Keep a connection, whose last reply has been read, for the next call."""
        pool = self._pool
        if pool is None or _leads_to_an_old_primary(connection, pool) or len(self._idle) >= KEPT_CONNECTIONS:
            self.drop(connection)
            return
        self._idle.append(connection)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def drop(self, connection: Any) -> None:
        """Close a connection, whose reply may still be under way."""
        try:
            connection.disconnect()
        finally:
            self._one_less()

    def _one_less(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def close(self) -> None:
        """Close the connections that nobody uses; the next call makes new ones."""
        self._pool = None
        while self._idle:
            self.drop(self._idle.pop())

    def __len__(self) -> int:
        return len(self._idle)


def _leads_to_an_old_primary(connection: Any, pool: Any) -> bool:
    """Say whether Sentinel has named another primary since: a pool's own answer is of no use to a forked worker."""
    if not isinstance(pool, SentinelConnectionPool):
        return False
    told: Any = pool  # redis-py leaves it untyped
    return bool(told.is_master and told.master_address != (connection.host, connection.port))


def _is_spoilt(connection: Any) -> bool:
    """Say whether an idle connection was closed by the server, or holds what nobody asked for."""
    try:
        return bool(connection.can_read())
    except (RedisError, OSError):
        return True


_LEAVES_NOTHING = (RedisError, OSError, asyncio.CancelledError)
"""Errors after which redis-py has cut the connection that it could not hand out; not so an `InvalidResponse`."""


class AsyncClient(NamedTuple):
    """A client of one event loop, and a slot for each connection that it may open: who finds none waits."""

    client: aioredis.Redis
    slots: asyncio.Semaphore
    sentinels: Sequence[aioredis.Redis] = ()
    """The clients that ask the sentinels where the primary is."""
    patience: float = WAIT_FOR_CONNECTION
    """Seconds that a call waits for a slot."""

    async def enter(self) -> bool:
        """Take a slot, to be released; say whether that meant waiting. Raises `AllInUseError` where none came free."""
        if not self.slots.locked():
            await self.slots.acquire()
            return False
        try:
            await unless_held_up(self._wait)
        except TimeoutError:
            raise AllInUseError(f"all connections of the event loop were in use for {self.patience:g} s") from None
        return True

    async def _wait(self) -> None:
        async with asyncio.timeout(self.patience):
            await self.slots.acquire()

    async def take(self) -> Any:
        """Return a connection that is ready to send, to be released to the client's pool."""
        return await unless_held_up(self._connect)

    async def _connect(self) -> Any:
        pool: Any = self.client.connection_pool
        try:
            return await pool.get_connection(*FOR_COMMAND)
        except BaseException as error:
            if isinstance(error, InvalidResponse) or not isinstance(error, _LEAVES_NOTHING):
                # redis-py has put a connection back whose handshake stopped half-way, and would go on where it is; or
                # one that has read what is no reply, which it would find there again.
                await pool.disconnect(inuse_connections=False)
            raise

    def __repr__(self) -> str:  # reports of errors show it, and some versions of redis-py the password with it
        return object.__repr__(self)

    async def aclose(self) -> None:
        """Close all connections."""
        for client in (self.client, *self.sentinels):
            await client.aclose(close_connection_pool=True)


class AsyncClients:
    """The async clients of one alias: one an event loop, closed with it. `make` makes one."""

    def __init__(self, alias: str, make: Callable[[str], AsyncClient] | None = None) -> None:
        self._alias = alias
        self._make = make or async_client
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._closers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = WeakKeyDictionary()

    async def get(self) -> AsyncClient:
        """Return the client of the running loop, making it where there is none."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            self._forget_closed_loops()
            client = self._clients[loop] = self._make(self._alias)
            # A loop that ends closes its async generators: so this one's end is where the client is closed.
            closer = self._closers[loop] = self._close_at_end(weakref.ref(loop), client)
            await anext(closer)
        return client

    async def _close_at_end(
        self, of: weakref.ref[asyncio.AbstractEventLoop], client: AsyncClient
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            loop = of()
            if loop is not None:
                self._clients.pop(loop, None)
            await client.aclose()

    def _forget_closed_loops(self) -> None:
        """Let go of loops that were closed without ending their generators, which `asyncio.run` never does."""
        for loop in list(self._clients):
            if loop.is_closed():
                self._clients.pop(loop, None)
                self._closers.pop(loop, None)

    def __len__(self) -> int:
        return len(self._clients)


def async_client(alias: str, at: tuple[str, int] | None = None) -> AsyncClient:
    """Return a new async client on the settings of a cache alias, Sentinel included; `at`: another host and port.

    It never repeats a command by itself: a decision whose reply got lost may have been taken, and is not taken twice.
    """
    if at is None:
        sync_client(alias)  # refuses what cannot serve, with a clear error
    config = config_of(alias)
    options: dict[str, Any] = dict(config.get("OPTIONS") or {})
    url = primary_location(config.get("LOCATION", ""))
    factory = get_connection_factory(options=options)  # before django-redis 7 it is not the first argument
    given = {**factory.make_connection_params(url), **options.get("CONNECTION_POOL_KWARGS", {})}
    max_connections = int(given.pop("max_connections", None) or ASYNC_CONNECTIONS)  # None, as redis-py takes it
    kwargs: dict[str, Any] = {name: value for name, value in given.items() if name not in _SYNC_ONLY}
    slots = asyncio.Semaphore(max_connections)
    patience = float(given.get("timeout") or WAIT_FOR_CONNECTION)
    kwargs = {**with_timeouts(kwargs), **WITHOUT_NOTICES}
    kwargs["retry"] = Retry(NoBackoff(), 0)
    if isinstance(factory, SentinelConnectionFactory):
        kwargs["connection_class"] = given.get("connection_class")
        client, sentinels = async_sentinel_client(url, options, kwargs, max_connections)
        return AsyncClient(client, slots, sentinels, patience)
    connection_class = given.get("connection_class")
    if isinstance(connection_class, type) and issubclass(connection_class, SSLConnection):
        kwargs["connection_class"] = aioredis.SSLConnection
    pool = aioredis.ConnectionPool.from_url(url, max_connections=max_connections, **kwargs)
    if at is not None:
        pool.connection_kwargs["host"], pool.connection_kwargs["port"] = at
    return AsyncClient(aioredis.Redis(connection_pool=pool), slots, patience=patience)
