"""Connections to a Redis, kept between calls: a pool for all threads, and one for each event loop.

redis-py's connections pack commands and read replies. Its clients are not used: they cost half a check more, and they
repeat a command whose reply got lost. A hit must not count twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import redis.asyncio as aioredis
from redis import RedisError
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.stores.breaker import Breaker, Call
from django_quota.stores.redis.errors import AllInUseError, ConnectFailedError, answered, is_cut, leaves_a_reply
from django_quota.stores.redis.settings import TIMEOUTS, WhichRedis
from django_quota.stores.redis.sources import Source, async_source, sync_source

T = TypeVar("T")

pack_command: Callable[[tuple[Any, ...]], bytes] | None = None
with suppress(ImportError):  # PyPy does without hiredis
    from hiredis import pack_command

SYNC_CONNECTIONS = 1_000
"""Connections for the threads of a process, unless its settings allow fewer; further calls wait."""

ASYNC_CONNECTIONS = 50
"""Connections for each event loop, unless the settings say `max_connections`; further calls wait."""

CONNECTION_TIMEOUT = 1.0
"""Seconds that a call waits for a free connection, unless the settings say `timeout`."""

Command = Sequence[str | int]


def pack(command: Command) -> bytes:
    """Return a command encoded for Redis: an array of bulk strings. Both of redis-py's own ways take twice as long."""
    if pack_command is not None:
        return pack_command(tuple(command))
    words = [str(word).encode() for word in command]
    return b"*%d\r\n%s" % (len(words), b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words]))


@contextmanager
def _connecting() -> Iterator[None]:
    """Raise `ConnectFailedError` if a new connection is cut: a server may cut an old one and still serve others."""
    try:
        yield
    except Exception as error:
        if is_cut(error):
            raise ConnectFailedError(f"cut before an answer: {error}") from error
        raise


_NOT_ALONE = "it sent more than answers when it was connected"


# --- sync -------------------------------------------------------------------------------------------------------------


def sync_pool(pool: Any, which: WhichRedis, breaker: Breaker) -> SyncPool:
    """Return our connections for a pool of redis-py."""
    patience = which.option("timeout") or CONNECTION_TIMEOUT
    return SyncPool(sync_source(pool), min(pool.max_connections, SYNC_CONNECTIONS), patience, breaker)


class SyncPool:
    """The connections of all threads. A call that finds none free waits, `patience` seconds at most."""

    def __init__(self, source: Source, max_connections: int, patience: float, breaker: Breaker) -> None:
        self._source = source
        self._max_connections = max_connections
        self._patience = patience
        self._breaker = breaker
        self._idle: deque[Any] = deque()
        self._permits: SimpleQueue[None] = SimpleQueue()
        """One for each connection that a call may use."""
        for _ in range(max_connections):
            self._permits.put(None)

    def execute(self, command: Command) -> Any:
        """Send a command once, and return its reply. Raises redis-py's errors, also for error replies."""
        try:
            self._permits.get(timeout=self._patience)
        except Empty:
            raise AllInUseError(f"all {self._max_connections} connections are in use") from None
        try:
            with Call(self._breaker, answered):  # the breaker may have opened while the call waited
                connection = self._connected()
                try:
                    connection.send_packed_command((pack(command),))
                    reply = connection.read_response()
                except BaseException as error:
                    if leaves_a_reply(error):  # the next call must not read it
                        connection.disconnect()
                    else:
                        self._idle.append(connection)
                    raise
                self._idle.append(connection)
                return reply
        finally:
            self._permits.put(None)

    def _connected(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect()
            if self._is_ready(connection):
                return connection
            connection.disconnect()

    def _connect(self) -> Any:
        with _connecting():
            connection = self._source.make()
            try:
                connection.connect()
                if not self._is_ready(connection):
                    raise ConnectFailedError(_NOT_ALONE)  # noqa: TRY301
            except BaseException:
                connection.disconnect()
                raise
            return connection

    def _is_ready(self, connection: Any) -> bool:
        """Say whether a connection is open, has sent nothing that nobody asked for, and leads to the primary."""
        try:
            return not (connection.can_read() or self._source.leads_elsewhere(connection))
        except (RedisError, OSError):
            return False

    def close(self) -> None:
        """Close the idle connections."""
        with suppress(IndexError):
            while True:
                self._idle.pop().disconnect()
        for sentinel in self._source.sentinel_clients:
            sentinel.close()


# --- async ------------------------------------------------------------------------------------------------------------

LATE = 0.1
"""If a time-out is this many seconds late, something has blocked the event loop."""

GRACE = 0.01
"""More seconds for a late reply: a busy event loop ends time-outs before it reads sockets."""

_TIMED_OUT = (TimeoutError, RedisTimeoutError, MasterNotFoundError)
"""What connecting raises after a time-out. No sentinel names a primary if none has answered in time."""

_CAN_READ = "can_read" if hasattr(aioredis.Connection, "can_read") else "can_read_destructive"
"""The method that finds a closed connection and stray bytes; redis-py 8 renamed it."""


def async_pool(pool: Any, which: WhichRedis, breaker: Breaker) -> AsyncPool:
    """Return new connections for an event loop; see `sync_pool`."""
    most = min(pool.max_connections, which.option("max_connections") or ASYNC_CONNECTIONS)
    return AsyncPool(async_source(pool), most, which.option("timeout") or CONNECTION_TIMEOUT, breaker)


class AsyncPool:
    """The connections of an event loop. A call that finds none free waits, `patience` seconds at most."""

    def __init__(self, source: Source, max_connections: int, patience: float, breaker: Breaker) -> None:
        self._source = source
        self._patience = patience
        self._breaker = breaker
        self._idle: list[Any] = []
        self._busy: dict[Any, float] = {}
        """The connections that wait for a reply, each with its deadline (seconds of the loop), in rising order."""
        self._is_watching = False
        self.permits = asyncio.Semaphore(max_connections)
        """One for each connection that a call may use."""

    async def execute(self, command: Command) -> Any:
        """Send a command once, and return its reply; see `SyncPool.execute`."""
        if self.permits.locked():
            await self._wait()
        else:
            await self.permits.acquire()
        try:
            with Call(self._breaker, answered):
                return await self._ask(command)
        finally:
            self.permits.release()

    async def _ask(self, command: Command) -> Any:
        connection = await self._connected()
        self._watch(connection)
        try:
            await connection.send_packed_command((pack(command),))
            reply = await connection.read_response()
        except BaseException as error:
            is_late = self._busy.pop(connection, None) is None
            if leaves_a_reply(error):
                await connection.disconnect(nowait=True)
            else:
                self._idle.append(connection)
            if is_late and isinstance(error, Exception):
                raise RedisTimeoutError("Timeout reading from socket") from None
            raise
        self._busy.pop(connection, None)
        self._idle.append(connection)
        return reply

    def _watch(self, connection: Any) -> None:
        """Cut a connection unless the reply comes in time.

        redis-py's own time-outs cost more, and give up a reply that came while something blocked the event loop.
        """
        loop = asyncio.get_running_loop()
        deadline = self._busy[connection] = loop.time() + self._source.options["socket_timeout"]
        if not self._is_watching:
            self._is_watching = True
            loop.call_at(deadline, self._check, loop, {})

    def _check(self, loop: asyncio.AbstractEventLoop, late: Mapping[Any, float]) -> None:
        """Cut connections that were late a moment ago and still are: the loop may not have read them at that time."""
        for connection, deadline in late.items():
            if self._busy.get(connection) == deadline:
                del self._busy[connection]
                connection._writer.transport.abort()  # noqa: SLF001 — `disconnect()` would wait for what is not sent
        now = loop.time()
        late = {connection: deadline for connection, deadline in self._busy.items() if deadline <= now}
        self._is_watching = bool(self._busy)
        if self._is_watching:
            loop.call_at(now + GRACE if late else next(iter(self._busy.values())), self._check, loop, late)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self.permits.acquire()
        except TimeoutError:
            if self.permits.locked():
                raise AllInUseError(f"all connections of the event loop were in use for {self._patience:g} s") from None
            await self.permits.acquire()  # one came free while something blocked the event loop

    async def _connected(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if await self._is_ready(connection):
                return connection
        return await self._connect()

    async def _connect(self) -> Any:
        """Return a new connection.

        It tries again if something has blocked the event loop: then the time-out says nothing about the server.
        """
        loop = asyncio.get_running_loop()
        longest = max(self._source.options[name] for name in TIMEOUTS) + LATE
        deadline = loop.time() + longest * (1 + len(self._source.sentinel_clients))
        try:
            return await self._connect_once()
        except _TIMED_OUT:
            if loop.time() < deadline:
                raise
        return await self._connect_once()

    async def _connect_once(self) -> Any:
        with _connecting():
            connection = self._source.make()
            try:
                await cancellable(connection.connect())
                if not await self._is_ready(connection):
                    raise ConnectFailedError(_NOT_ALONE)  # noqa: TRY301
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            connection.socket_timeout = None  # from now on `_watch` sets a deadline
            return connection

    async def _is_ready(self, connection: Any) -> bool:
        """Say whether a connection is ready; see `SyncPool`. Otherwise close it."""
        is_ready = False
        try:
            is_ready = not (await getattr(connection, _CAN_READ)() or self._source.leads_elsewhere(connection))
        except (RedisError, OSError):
            pass
        finally:
            if not is_ready:
                await connection.disconnect(nowait=True)
        return is_ready

    async def aclose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().disconnect()
        for client in self._source.sentinel_clients:
            await client.aclose(close_connection_pool=True)


async def cancellable(call: Awaitable[T]) -> T:
    """Await a call of redis-py. Raises `CancelledError` if the task was cancelled meanwhile.

    redis-py waits by `asyncio.wait_for`. Up to Python 3.11 that hides a cancellation which arrives as the wait ends.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await call
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


class PoolsByLoop:
    """One object for each event loop, closed with the loop. `make` makes the object, which has a method `aclose`."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[Any, tuple[Any, AsyncGenerator[None, None]]] = WeakKeyDictionary()

    async def get(self) -> Any:
        """Return the object of the running loop."""
        loop = asyncio.get_running_loop()
        known = self._by_loop.get(loop)
        if known is None:
            self._forget_closed_loops()
            made = self._make()
            # A loop that ends closes its async generators. The end of this one closes the connections.
            known = self._by_loop[loop] = made, self._close_at_end(made)
            await anext(known[1])
        return known[0]

    async def _close_at_end(self, made: Any) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._by_loop.pop(asyncio.get_running_loop(), None)
            await made.aclose()

    def _forget_closed_loops(self) -> None:
        """Forget loops that were closed without ending their generators. `asyncio.run` always ends them."""
        for loop_ref in self._by_loop.keyrefs():  # a list: other threads add and remove loops meanwhile
            loop = loop_ref()
            if loop is not None and loop.is_closed():
                self._by_loop.pop(loop, None)
