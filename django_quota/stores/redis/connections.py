"""Connections to the Redis of a cache alias, sync and async, with the alias' own settings.

Both kinds send packed commands and read replies themselves. redis-py's `execute_command` would repeat a command whose
reply got lost, and a hit must not count twice.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, NamedTuple, Self, cast
from weakref import WeakKeyDictionary

import redis.asyncio as aioredis
from django.core.cache import InvalidCacheBackendError
from django.core.exceptions import ImproperlyConfigured
from django_redis import get_redis_connection
from django_redis.pool import SentinelConnectionFactory, get_connection_factory
from redis import ConnectionPool, Redis, RedisError, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool

from django_quota.core.errors import ConfigurationError
from django_quota.core.forks import register_fork_aware
from django_quota.stores.redis.config import (
    PLAIN_TIMEOUT,
    TIMEOUTS,
    config_of,
    options_of,
    primary_location,
    with_timeouts,
)
from django_quota.stores.redis.config_checks import USE_DJANGO_REDIS, alias_problem
from django_quota.stores.redis.errors import AllInUseError, ConnectFailedError, is_cut
from django_quota.stores.redis.sentinel import async_sentinel_client, shorten_sentinel_timeouts

MAX_IDLE_CONNECTIONS = 64
"""Idle sync connections that a process keeps."""

ASYNC_CONNECTIONS = 50
"""Connections for each event loop, unless CONNECTION_POOL_KWARGS says `max_connections`; further calls wait."""

CONNECTION_TIMEOUT = 1.0
"""Seconds that a call waits for a free connection, if the pool has no `timeout` of its own."""


def pack_command(command: Sequence[str | int]) -> bytes:
    """Return a command as the Redis protocol sends it: an array of bulk strings.

    redis-py packs any type in any encoding. For our texts and whole numbers this takes a third of its time.
    """
    text = "".join([f"${len(argument)}\r\n{argument}\r\n" for argument in map(str, command)])
    if text.isascii():  # nearly always; then each character is a byte
        return b"*%d\r\n%s" % (len(command), text.encode())
    encoded = [str(argument).encode() for argument in command]
    return b"*%d\r\n%s" % (len(encoded), b"".join([b"$%d\r\n%s\r\n" % (len(data), data) for data in encoded]))


# --- sync -------------------------------------------------------------------------------------------------------------


def sync_client(alias: str) -> Redis:
    """Return django-redis' client of the alias. Raises `ConfigurationError` if the alias cannot serve."""
    problem = alias_problem(alias)
    if problem is not None:
        raise ConfigurationError(problem.message, problem.hint)
    try:
        return cast("Redis", get_redis_connection(alias, write=True))
    except ImproperlyConfigured as error:
        hint = "`manage.py check` says which of its OPTIONS is wrong."
        raise ConfigurationError(f'CACHES["{alias}"] cannot be used: {error}.', hint) from error
    except (NotImplementedError, InvalidCacheBackendError) as error:
        raise ConfigurationError(f'CACHES["{alias}"] cannot be used: {error}.', USE_DJANGO_REDIS) from error


class SyncConnections:
    """The sync connections of one alias, kept between calls.

    They exist for speed: to take a connection from redis-py's pool and give it back costs 17 µs, a third of a whole
    `check()`. They are made as the pool makes them, and there are never more than its `max_connections`, beside those
    that the pool lends to others. A call that finds none waits.

    `pool_of`: returns the pool of an alias; None: that of its client.
    """

    def __init__(self, alias: str, pool_of: Callable[[str], Any] | None = None) -> None:
        self._alias = alias
        self._pool_of = pool_of or (lambda alias: sync_client(alias).connection_pool)
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without connections: a forked worker must not write to the sockets of its parent."""
        self._idle: deque[Any] = deque()
        self._pool: Any = None
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
            pool = self._pool = self._pool_of(self._alias)
            shorten_sentinel_timeouts(pool, options_of(self._alias))
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
            if _is_stale(connection):
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
                while not self._idle and self._open >= pool.max_connections:
                    if not self._changed.wait(deadline - time.monotonic()) and not self._idle:
                        raise AllInUseError(f"all {pool.max_connections} connections are in use")
                if self._idle:
                    return self._idle.pop()
                self._open += 1
            except IndexError:  # a call that did not have to wait was faster
                return self._make_or_wait(pool, timeout)
            finally:
                self._waiting -= 1
        try:
            return pool.connection_class(**with_timeouts(pool.connection_kwargs))
        except BaseException:
            self._one_less()
            raise

    def release(self, connection: Any) -> None:
        """Keep a connection for the next call. Its last reply must have been read."""
        pool = self._pool
        if pool is None or _leads_to_an_old_primary(connection, pool) or len(self._idle) >= MAX_IDLE_CONNECTIONS:
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

    def __len__(self) -> int:
        return len(self._idle)


def _leads_to_an_old_primary(connection: Any, pool: Any) -> bool:
    """Say whether Sentinel has named another primary. The pool's own answer does not work in a forked worker."""
    if not isinstance(pool, SentinelConnectionPool):
        return False
    sentinel_pool: Any = pool  # redis-py leaves it untyped
    return bool(sentinel_pool.is_master and sentinel_pool.master_address != (connection.host, connection.port))


def _is_stale(connection: Any) -> bool:
    """Say whether the server has closed an idle connection, or sent something that nobody asked for."""
    try:
        return bool(connection.can_read())
    except (RedisError, OSError):
        return True


def plain_client(client: Redis) -> Redis:
    """Return a client for plain commands like this one, with time-outs; this very one if it has them."""
    pool: Any = client.connection_pool
    options = with_timeouts(pool.connection_kwargs, PLAIN_TIMEOUT)
    if all(options[name] == pool.connection_kwargs.get(name) for name in TIMEOUTS):
        return client
    options.pop("connection_pool", None)  # a Sentinel's pool adds itself
    if not isinstance(pool, SentinelConnectionPool):
        return type(client)(connection_pool=ConnectionPool(pool.connection_class, pool.max_connections, **options))
    make: Any = SentinelConnectionPool  # redis-py leaves it untyped
    for name in ("is_master", "check_connection", "connection_class", "max_connections"):
        options[name] = getattr(pool, name)
    return type(client)(connection_pool=make(pool.service_name, pool.sentinel_manager, **options))


# --- async ------------------------------------------------------------------------------------------------------------

_SYNC_ONLY = frozenset(
    {"url", "parser_class", "connection_class", "retry", "retry_on_error", "retry_on_timeout", "timeout", "queue_class"}
)
"""Connection options that the async client takes in another form, or not at all."""

LATE = 0.1
"""Seconds by which a time-out must be late, so that something has blocked the event loop."""

LAST_LOOK = 0.01
"""Seconds for a last look at a socket after a time-out: a busy event loop ends time-outs before it reads sockets."""

_TIMED_OUT = (TimeoutError, RedisTimeoutError, MasterNotFoundError)
"""What connecting raises when time is over. No sentinel names a primary if none has answered in time."""

_CUT_BY_REDIS_PY = (RedisError, OSError, asyncio.CancelledError)
"""Errors after which redis-py has closed a connection that it could not hand out; not `InvalidResponse`."""

# redis-py up to 5.2 wants the name of the command that the connection is for; later versions warn about it.
_WANTS_COMMAND = inspect.signature(aioredis.ConnectionPool.get_connection).parameters["command_name"].default is (
    inspect.Parameter.empty
)
_FOR_COMMAND: tuple[str, ...] = ("EVALSHA",) if _WANTS_COMMAND else ()


def _without_notices() -> Mapping[str, Any]:
    """Return options that turn notices of maintenance off, where this redis-py has them.

    With them its pool does not check idle connections: after a restart of the server, each would cost one decision.
    """
    option = "maint_notifications_config"
    if option not in inspect.signature(aioredis.ConnectionPool.__init__).parameters:
        return {}
    return {option: import_module("redis.maint_notifications").MaintNotificationsConfig(enabled=False)}


_WITHOUT_NOTICES = _without_notices()


class AsyncClient(NamedTuple):
    """The client of one event loop, with a slot for each connection. A call that finds no slot waits."""

    client: aioredis.Redis
    slots: asyncio.Semaphore
    sentinels: Sequence[aioredis.Redis] = ()
    """The clients of the sentinels."""
    timeout: float = CONNECTION_TIMEOUT
    """Seconds that a call waits for a slot."""
    connect_timeout: float = 0.0
    """Seconds that connecting takes at most, unless something blocks the event loop."""

    async def enter(self) -> bool:
        """Take a slot, which you must release; return whether you had to wait. Raises `AllInUseError`."""
        if not self.slots.locked():
            await self.slots.acquire()
            return False
        try:
            async with asyncio.timeout(self.timeout):
                await self.slots.acquire()
        except TimeoutError:
            if self.slots.locked():
                raise AllInUseError(f"all connections of the event loop were in use for {self.timeout:g} s") from None
            await self.slots.acquire()  # one came free while something blocked the event loop
        return True

    async def take(self) -> Any:
        """Return a connection that is ready to send; release it to the client's pool.

        It tries again if something has blocked the event loop: then the time-out says nothing about the server.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.connect_timeout
        try:
            return await self._connect()
        except _TIMED_OUT:
            if loop.time() < deadline:
                raise
        return await self._connect()

    async def _connect(self) -> Any:
        pool: Any = self.client.connection_pool
        try:
            return await pool.get_connection(*_FOR_COMMAND)
        except BaseException as error:
            if isinstance(error, InvalidResponse) or not isinstance(error, _CUT_BY_REDIS_PY):
                # redis-py has put back a connection in the middle of its handshake, or with bytes that are no reply.
                await pool.disconnect(inuse_connections=False)
            if is_cut(error):
                raise ConnectFailedError(f"cut before an answer: {error}") from error
            raise

    def __repr__(self) -> str:  # error reports show it, and some versions of redis-py would add the password
        return object.__repr__(self)

    async def aclose(self) -> None:
        """Close all connections."""
        for client in (self.client, *self.sentinels):
            await client.aclose(close_connection_pool=True)


class AsyncClients:
    """The async clients of one alias: one for each event loop, closed with it. `make` makes one."""

    def __init__(self, alias: str, make: Callable[[str], AsyncClient] | None = None) -> None:
        self._alias = alias
        self._make = make or async_client
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._closers: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = WeakKeyDictionary()

    async def get(self) -> AsyncClient:
        """Return the client of the running loop; make it if there is none."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            self._forget_closed_loops()
            client = self._clients[loop] = self._make(self._alias)
            # A loop that ends closes its async generators. The end of this one closes the client.
            closer = self._closers[loop] = self._close_at_end(weakref.ref(loop), client)
            await anext(closer)
        return client

    async def _close_at_end(
        self, loop_ref: weakref.ref[asyncio.AbstractEventLoop], client: AsyncClient
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            loop = loop_ref()
            if loop is not None:
                self._clients.pop(loop, None)
            await client.aclose()

    def _forget_closed_loops(self) -> None:
        """Forget loops that were closed without ending their generators. `asyncio.run` always ends them."""
        for loop in list(self._clients):
            if loop.is_closed():
                self._clients.pop(loop, None)
                self._closers.pop(loop, None)

    def __len__(self) -> int:
        return len(self._clients)


def async_client(alias: str, at: tuple[str, int] | None = None) -> AsyncClient:
    """Return a new async client with the settings of a cache alias, Sentinel included; `at`: another host and port.

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
    slots = asyncio.Semaphore(max_connections)
    timeout = float(given.get("timeout") or CONNECTION_TIMEOUT)
    kwargs = {**with_timeouts(kwargs), **_WITHOUT_NOTICES}
    kwargs["retry"] = Retry(NoBackoff(), 0)
    connect_timeout = max(kwargs[name] for name in TIMEOUTS) + LATE
    if isinstance(factory, SentinelConnectionFactory):
        kwargs["connection_class"] = given.get("connection_class")
        client, sentinels = async_sentinel_client(url, options, kwargs, max_connections)
        return AsyncClient(client, slots, sentinels, timeout, connect_timeout * (1 + len(sentinels)))
    connection_class = given.get("connection_class")
    if isinstance(connection_class, type) and issubclass(connection_class, SSLConnection):
        kwargs["connection_class"] = aioredis.SSLConnection
    pool = aioredis.ConnectionPool.from_url(url, max_connections=max_connections, **kwargs)
    if at is not None:
        pool.connection_kwargs["host"], pool.connection_kwargs["port"] = at
    return AsyncClient(aioredis.Redis(connection_pool=pool), slots, (), timeout, connect_timeout)


async def read_reply(connection: Any) -> Any:
    """Read a reply from an async connection, also one that came while something blocked the event loop.

    If it raises anything but a `ResponseError`, you must disconnect.
    """
    try:
        return await connection.read_response(disconnect_on_error=False)
    except RedisTimeoutError as error:
        try:
            async with asyncio.timeout(LAST_LOOK):
                return await connection.read_response(disconnect_on_error=False)
        except TimeoutError:
            raise error from None


class Cancellation:
    """A context manager that raises `CancelledError` if the task was cancelled and redis-py has hidden that.

    redis-py sends by `asyncio.wait_for`. Up to Python 3.11 that hides a cancellation which comes as it ends.
    """

    __slots__ = ("_before", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def check(self) -> None:
        """Raise `CancelledError` if the task was cancelled since."""
        if self._task is not None and self._task.cancelling() > self._before:
            raise asyncio.CancelledError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None or issubclass(kind, Exception):
            self.check()
