"""Connections to the Redis of a cache alias, sync and async, with the alias' own settings.

Both kinds send packed commands and read replies themselves. redis-py's `execute_command` would repeat a command whose
reply got lost, and a hit must not count twice.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, cast
from weakref import WeakKeyDictionary

import redis.asyncio as aioredis
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from django_redis.pool import SentinelConnectionFactory, get_connection_factory
from redis import ConnectionPool, Redis, RedisError, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool

from django_quota.core.errors import ConfigurationError
from django_quota.core.forks import register_fork_aware
from django_quota.stores.redis.config import (
    ANSWER_TIMEOUT,
    PLAIN_TIMEOUT,
    TIMEOUTS,
    Address,
    config_of,
    options_of,
    primary_location,
    with_timeouts,
)
from django_quota.stores.redis.config_checks import USE_DJANGO_REDIS, alias_problem
from django_quota.stores.redis.errors import AllInUseError, ConnectFailedError, is_cut
from django_quota.stores.redis.sentinel import async_sentinel_pool, shorten_sentinel_timeouts

MAX_IDLE_CONNECTIONS = 64
"""Idle sync connections that a process keeps."""

ASYNC_CONNECTIONS = 50
"""Connections for each event loop, unless CONNECTION_POOL_KWARGS says `max_connections`; further calls wait."""

CONNECTION_TIMEOUT = 1.0
"""Seconds that a call waits for a free connection, if the pool has no `timeout` of its own."""


# --- sync -------------------------------------------------------------------------------------------------------------


def sync_client(alias: str) -> Redis:
    """Return django-redis' client of the alias. Raises `ConfigurationError` if the alias cannot serve."""
    problem = alias_problem(alias)
    if problem is not None:
        raise ConfigurationError(problem.message, problem.hint)
    try:
        return cast("Redis", get_redis_connection(alias, write=True))
    except (ImproperlyConfigured, AssertionError) as error:  # django-redis 5.4 asserts the types of timeouts
        hint = "`manage.py check` says which of its OPTIONS is wrong."
        raise ConfigurationError(f'CACHES["{alias}"] cannot be used: {error}.', hint) from error
    except (NotImplementedError, InvalidCacheBackendError) as error:
        raise ConfigurationError(f'CACHES["{alias}"] cannot be used: {error}.', USE_DJANGO_REDIS) from error


class SyncConnections:
    """The sync connections of one alias, kept between calls.

    They exist for speed: to take a connection from redis-py's pool and give it back costs 17 µs, a third of a whole
    `check()`. They are made as the pool makes them, and there are never more than its `max_connections`, beside those
    that the pool lends to others. A call that finds none waits.

    `get_pool`: returns redis-py's pool.
    """

    def __init__(self, get_pool: Callable[[], Any]) -> None:
        self._get_pool = get_pool
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections: a forked worker must not write to the sockets of its parent."""
        self._idle: deque[Any] = deque()
        self._pool: Any = None
        self._sentinel_pool: Any = None
        """The pool, if Sentinel names the primary."""
        self._changed = threading.Condition()
        """Guards the two counts below. Notified when a connection comes free and another call waits."""
        self._open = 0
        self._waiting = 0

    def take(self, timeout: float | None = None, is_refusing: Callable[[], bool] | None = None) -> Any:
        """Return a connection that is ready to send.

        `timeout`: seconds to wait while all are in use; None: that of the pool. `is_refusing`: says whether the breaker
        has opened meanwhile. Raises redis-py's errors if it cannot connect, `AllInUseError` if none came free.
        """
        pool = self._pool
        if pool is None:
            pool = self._pool = self._get_pool()
            self._sentinel_pool = _if_sentinel(pool)
        is_new = False
        try:
            connection = self._idle.pop()
        except IndexError:
            connection, is_new = self._make_or_wait(pool, timeout), True
            if is_refusing is not None and is_refusing():
                self.drop(connection)
                raise AllInUseError("Redis did not answer the calls that held the connections") from None
        try:
            if is_new:  # idle ones are connected
                connection.connect()
            if _is_stale(connection) or _leads_to_an_old_primary(connection, self._sentinel_pool):
                connection.disconnect()
                connection.connect()
        except BaseException as error:
            self.drop(connection)
            if is_cut(error):
                raise ConnectFailedError(f"cut before an answer: {error}") from error
            raise
        return connection

    def _make_or_wait(self, pool: Any, timeout: float | None) -> Any:
        seconds = (getattr(pool, "timeout", None) or CONNECTION_TIMEOUT) if timeout is None else timeout
        deadline = time.monotonic() + seconds
        with self._changed:
            self._waiting += 1  # before the look at `_idle`: `release` notifies from now on
            try:
                while self._open >= pool.max_connections:
                    with suppress(IndexError):  # a call that did not have to wait may be faster
                        return self._idle.pop()
                    if not self._changed.wait(deadline - time.monotonic()) and not self._idle:
                        raise AllInUseError(f"all {pool.max_connections} connections are in use")
                self._open += 1
            finally:
                self._waiting -= 1
        try:
            return pool.connection_class(**with_timeouts(pool.connection_kwargs))
        except BaseException:
            self._one_less()
            raise

    def release(self, connection: Any) -> None:
        """Keep a connection for the next call. Its last reply must have been read."""
        if self._pool is None or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            self.drop(connection)
            return
        self._idle.append(connection)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def drop(self, connection: Any) -> None:
        """Close a connection. A reply may still be under way."""
        try:
            connection.disconnect()
        finally:
            self._one_less()

    def _one_less(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()

    def close(self) -> None:
        """Close the idle connections; the next call makes new ones."""
        self._pool = None
        while self._idle:
            self.drop(self._idle.pop())


def _if_sentinel(pool: Any) -> Any:
    """Return the pool if Sentinel names its primary, else None. This is asked once: the class check takes 1 µs."""
    return pool if isinstance(pool, (SentinelConnectionPool, AsyncSentinelConnectionPool)) else None


def _leads_to_an_old_primary(connection: Any, sentinel_pool: Any) -> bool:
    """Say whether Sentinel has named another primary. The pool's own answer does not work in a forked worker."""
    if sentinel_pool is None or not sentinel_pool.is_master:
        return False
    return bool(sentinel_pool.master_address != (connection.host, connection.port))


def _is_stale(connection: Any) -> bool:
    """Say whether the server has closed an idle connection, or sent something that nobody asked for."""
    try:
        return bool(connection.can_read())
    except (RedisError, OSError):
        return True


def sync_pool(alias: str, at: Address | None = None) -> Any:
    """Return redis-py's pool of an alias; `at`: a new one for a server of a Cluster, by the settings of the alias."""
    if at is not None:
        factory = cast("Any", caches[alias]).client.connection_factory
        url = primary_location(config_of(alias).get("LOCATION", ""))
        base = factory.get_or_create_connection_pool(factory.make_connection_params(url))
        options = {**base.connection_kwargs, "host": at.host, "port": at.port}
        return ConnectionPool(base.connection_class, base.max_connections, **options)
    pool = sync_client(alias).connection_pool
    shorten_sentinel_timeouts(pool, options_of(alias))
    return pool


def plain_client(pool: Any) -> Redis:
    """Return a client for plain commands over this pool, or over one like it with time-outs if it has none."""
    options = with_timeouts(pool.connection_kwargs, PLAIN_TIMEOUT)
    if all(options[name] == pool.connection_kwargs.get(name) for name in TIMEOUTS):
        return Redis(connection_pool=pool)
    options.pop("connection_pool", None)  # a Sentinel's pool adds itself
    if not isinstance(pool, SentinelConnectionPool):
        return Redis(connection_pool=ConnectionPool(pool.connection_class, pool.max_connections, **options))
    make: Any = SentinelConnectionPool  # redis-py leaves it untyped
    for name in ("is_master", "check_connection", "connection_class", "max_connections"):
        options[name] = getattr(pool, name)
    return Redis(connection_pool=make(pool.service_name, pool.sentinel_manager, **options))


# --- async ------------------------------------------------------------------------------------------------------------

_SYNC_ONLY = frozenset(
    {"url", "parser_class", "connection_class", "retry", "retry_on_error", "retry_on_timeout", "timeout", "queue_class"}
)
"""Connection options that the async client takes in another form, or not at all."""

LATE = 0.1
"""Seconds by which a time-out must be late, so that something has blocked the event loop."""

GRACE = 0.01
"""Seconds that a reply has after its time is over: a busy event loop ends time-outs before it reads sockets."""

_TIMED_OUT = (TimeoutError, RedisTimeoutError, MasterNotFoundError)
"""What connecting raises when time is over. No sentinel names a primary if none has answered in time."""

_CAN_READ = "can_read" if hasattr(aioredis.Connection, "can_read") else "can_read_destructive"
"""The method that finds a closed connection and stray bytes; redis-py 8 renamed it."""


def _without_notices() -> Mapping[str, Any]:
    """Return options that turn notices of maintenance off, where this redis-py has them.

    Each connection would ask for them when it connects, and they change the time-outs of connections.
    """
    option = "maint_notifications_config"
    if option not in inspect.signature(aioredis.ConnectionPool.__init__).parameters:
        return {}
    return {option: import_module("redis.maint_notifications").MaintNotificationsConfig(enabled=False)}


_WITHOUT_NOTICES = _without_notices()


class AsyncConnections:
    """The async connections of one alias in one event loop, kept between calls.

    They exist for speed, as `SyncConnections` do. redis-py's pool only says how to make one. It holds the time-outs of
    connecting. Here, one timer of the event loop watches all replies: one for each exchange takes a tenth of it.

    `pool`: redis-py's. `max_connections`: a call that finds none free waits, `timeout` seconds at most.
    `reply_timeout`: seconds to wait for a reply. `connect_timeout`: seconds that connecting takes at most, unless
    something blocks the event loop. `sentinels`: the clients of the sentinels.
    """

    def __init__(
        self,
        pool: Any,
        max_connections: int = ASYNC_CONNECTIONS,
        *,
        timeout: float = CONNECTION_TIMEOUT,
        reply_timeout: float = ANSWER_TIMEOUT,
        connect_timeout: float = 0.0,
        sentinels: Sequence[aioredis.Redis] = (),
    ) -> None:
        self.pool = pool
        self._sentinel_pool = _if_sentinel(pool)
        self.max_connections = max_connections
        self.slots = asyncio.Semaphore(max_connections)
        """One for each connection that a call may use."""
        self._timeout = timeout
        self._reply_timeout = reply_timeout
        self._connect_timeout = connect_timeout
        self._sentinels = sentinels
        self._idle: list[Any] = []
        self._busy: dict[Any, float] = {}
        """The connections with a reply under way, and when it must have come (seconds of the event loop)."""
        self._next_check = math.inf
        self._timer: asyncio.TimerHandle | None = None

    async def take(self, seconds: float | None = None, is_refusing: Callable[[], bool] | None = None) -> Any:
        """Return a connection that is ready to send; see `SyncConnections.take`."""
        if not self.slots.locked():
            await self.slots.acquire()
        else:
            await self._wait(self._timeout if seconds is None else seconds)
            if is_refusing is not None and is_refusing():
                self.slots.release()
                raise AllInUseError("Redis did not answer the calls that held the connections")
        try:
            while self._idle:
                connection = self._idle.pop()
                if await self._is_ready(connection):
                    return connection
            return await self._connect()
        except BaseException:
            self.slots.release()
            raise

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.slots.acquire()
        except TimeoutError:
            if self.slots.locked():
                raise AllInUseError(f"all connections of the event loop were in use for {seconds:g} s") from None
            await self.slots.acquire()  # one came free while something blocked the event loop

    async def _connect(self) -> Any:
        """Return a new connection.

        It tries again if something has blocked the event loop: then the time-out says nothing about the server.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._connect_timeout
        try:
            return await self._connect_once()
        except _TIMED_OUT:
            if loop.time() < deadline:
                raise
        return await self._connect_once()

    async def _connect_once(self) -> Any:
        connection = self.pool.connection_class(**self.pool.connection_kwargs)
        try:
            await _connect(connection)
            if not await self._is_ready(connection):
                raise ConnectFailedError("it sent more than answers when it was connected")  # noqa: TRY301
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if is_cut(error):
                raise ConnectFailedError(f"cut before an answer: {error}") from error
            raise
        connection.socket_timeout = None  # from now on `exchange` watches the time
        return connection

    async def exchange(
        self, connection: Any, packed: bytes, replies: int = 1, seconds: float | None = None
    ) -> list[Any]:
        """Send commands and read that many replies, within some seconds. An error reply is returned like the others.

        If anything goes wrong, the connection is dropped: a reply may still be under way.
        """
        loop = asyncio.get_running_loop()
        deadline = self._busy[connection] = loop.time() + (self._reply_timeout if seconds is None else seconds)
        if deadline < self._next_check:
            self._check_at(deadline, loop)
        try:
            await connection.send_packed_command((packed,))
            found: list[Any] = []
            while len(found) < replies:
                try:
                    found.append(await connection.read_response(disable_decoding=True, disconnect_on_error=False))
                except ResponseError as error:
                    found.append(error)
            if connection not in self._busy:
                raise RedisTimeoutError("it came too late")  # noqa: TRY301
        except BaseException as error:
            is_overdue = self._busy.pop(connection, None) is None
            await self.drop(connection)
            if is_overdue and isinstance(error, Exception):
                raise RedisTimeoutError("Timeout reading from socket") from None
            raise
        del self._busy[connection]
        return found

    def _check_at(self, moment: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_check = moment
        self._timer = loop.call_at(moment, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Find replies that have not come in time. They get a moment more: the loop may only not have read them."""
        now = max(loop.time(), self._next_check)
        self._next_check, self._timer = math.inf, None
        overdue = {connection: deadline for connection, deadline in self._busy.items() if deadline <= now}
        if overdue:
            loop.call_later(GRACE, self._abort, overdue)
        if len(overdue) < len(self._busy):
            self._check_at(min(deadline for deadline in self._busy.values() if deadline > now), loop)

    def _abort(self, overdue: Mapping[Any, float]) -> None:
        """Cut the connections whose replies have still not come: `exchange` raises."""
        for connection, deadline in overdue.items():
            if self._busy.get(connection) == deadline:
                del self._busy[connection]
                connection._writer.transport.abort()  # noqa: SLF001 — `disconnect()` would wait for what is not sent

    async def _is_ready(self, connection: Any) -> bool:
        """Say whether a connection is open, has sent nothing that nobody asked for, and leads to the primary.

        Otherwise close it.
        """
        is_ready = False
        try:
            is_ready = not (
                await getattr(connection, _CAN_READ)() or _leads_to_an_old_primary(connection, self._sentinel_pool)
            )
        except (RedisError, OSError):
            pass
        finally:
            if not is_ready:
                await connection.disconnect(nowait=True)
        return is_ready

    def release(self, connection: Any) -> None:
        """Keep a connection for the next call. Its last reply must have been read."""
        self._idle.append(connection)
        self.slots.release()

    async def drop(self, connection: Any) -> None:
        """Close a connection. A reply may still be under way."""
        try:
            await connection.disconnect(nowait=True)
        finally:
            self.slots.release()

    async def aclose(self) -> None:
        """Close the idle connections; the next call makes new ones."""
        while self._idle:
            await self._idle.pop().disconnect()
        for client in self._sentinels:
            await client.aclose(close_connection_pool=True)


async def _connect(connection: Any) -> None:
    """Connect. Raises `CancelledError` if the task was cancelled meanwhile.

    redis-py greets by `asyncio.wait_for`. Up to Python 3.11 that hides a cancellation which comes as it ends.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        await connection.connect()
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class ConnectionsByLoop:
    """The async connections of one server, for each event loop and closed with it. `make`: makes those of a loop."""

    def __init__(self, make: Callable[[], AsyncConnections]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnections] = WeakKeyDictionary()
        self._closers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = WeakKeyDictionary()

    async def get(self) -> AsyncConnections:
        """Return the connections of the running loop."""
        loop = asyncio.get_running_loop()
        connections = self._by_loop.get(loop)
        if connections is None:
            self._forget_closed_loops()
            connections = self._by_loop[loop] = self._make()
            # A loop that ends closes its async generators. The end of this one closes the connections.
            closer = self._closers[loop] = self._close_at_end(weakref.ref(loop), connections)
            await anext(closer)
        return connections

    async def _close_at_end(
        self, loop_ref: weakref.ref[asyncio.AbstractEventLoop], connections: AsyncConnections
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            loop = loop_ref()
            if loop is not None:
                self._by_loop.pop(loop, None)
            await connections.aclose()

    def _forget_closed_loops(self) -> None:
        """Forget loops that were closed without ending their generators. `asyncio.run` always ends them."""
        for loop_ref in self._by_loop.keyrefs():  # a list: other threads add and remove loops meanwhile
            loop = loop_ref()
            if loop is not None and loop.is_closed():
                self._by_loop.pop(loop, None)
                self._closers.pop(loop, None)


def async_connections(alias: str, at: Address | None = None) -> AsyncConnections:
    """Return new async connections with the settings of a cache alias, Sentinel included; `at`: see `sync_pool`.

    It never repeats a command: a decision whose reply got lost may have been taken, and must not be taken twice.
    """
    if at is None:
        sync_client(alias)  # a clear error if the alias cannot serve
    options = options_of(alias)
    url = primary_location(config_of(alias).get("LOCATION", ""))
    factory = get_connection_factory(options=options)  # before django-redis 7 it is not the first argument
    given = {**factory.make_connection_params(url), **options.get("CONNECTION_POOL_KWARGS", {})}
    max_connections = int(given.pop("max_connections", None) or ASYNC_CONNECTIONS)  # None, as redis-py takes it
    kwargs: dict[str, Any] = {name: value for name, value in given.items() if name not in _SYNC_ONLY}
    kwargs = {**with_timeouts(kwargs), **_WITHOUT_NOTICES}
    kwargs["retry"] = Retry(NoBackoff(), 0)
    connect_timeout = max(kwargs[name] for name in TIMEOUTS) + LATE
    make = partial(
        AsyncConnections,
        max_connections=max_connections,
        timeout=float(given.get("timeout") or CONNECTION_TIMEOUT),
        reply_timeout=kwargs["socket_timeout"],
    )
    if isinstance(factory, SentinelConnectionFactory):
        kwargs["connection_class"] = given.get("connection_class")
        pool, sentinels = async_sentinel_pool(url, options, kwargs)
        return make(pool, connect_timeout=connect_timeout * (1 + len(sentinels)), sentinels=sentinels)
    connection_class = given.get("connection_class")
    if isinstance(connection_class, type) and issubclass(connection_class, SSLConnection):
        kwargs["connection_class"] = aioredis.SSLConnection
    pool = aioredis.ConnectionPool.from_url(url, **kwargs)
    if at is not None:
        pool.connection_kwargs.update(host=at.host, port=at.port)
    return make(pool, connect_timeout=connect_timeout)
