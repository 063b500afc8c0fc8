"""Connections to a Redis, kept between calls: a pool for all threads. `async_wire` has that of an event loop.

redis-py's clients are not used: they cost half a check more, and they repeat a command whose reply got lost. A hit must
not count twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

import redis.asyncio as aioredis
from redis import Connection, RedisError, SSLConnection, UnixDomainSocketConnection, sentinel
from redis.asyncio import sentinel as aiosentinel
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from django_quota.core.errors import StoreBusy
from django_quota.engine.operations import command as packed_command
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis.errors import (
    ConnectFailedError,
    is_cut,
    leaves_a_reply,
    of_this_process,
    server_answered,
)
from django_quota.stores.redis.settings import TIMEOUTS, has_sentinels, known_options, with_timeouts
from django_quota.stores.redis.wire import Wire

# --- how connections are made -----------------------------------------------------------------------------------------


_ASYNC: Mapping[type[Any], type[Any]] = {
    Connection: aioredis.Connection,
    SSLConnection: aioredis.SSLConnection,
    UnixDomainSocketConnection: aioredis.UnixDomainSocketConnection,
    sentinel.SentinelManagedConnection: aiosentinel.SentinelManagedConnection,
    sentinel.SentinelManagedSSLConnection: aiosentinel.SentinelManagedSSLConnection,
}
"""The async class of each sync one."""

_LEFT_OUT = ("retry", "maint", "orig_", "oss_", "himport")
"""The beginnings of options that our connections do not get.

No command is repeated. Notices of maintenance would change time-outs, and close connections of the pool that gets them.
"""

_SYNC_ONLY = ("parser_class", "command_packer")


class Source(NamedTuple):
    """How to make connections to a Redis."""

    connection_class: type[Any]
    options: Mapping[str, Any]
    sentinels: Any = None
    """The pool that asks the sentinels for the primary; None without Sentinel."""

    def make(self) -> Any:
        """Return a new connection, which is not connected yet."""
        return self.connection_class(**self.options)

    @property
    def sentinel_clients(self) -> Sequence[Any]:
        """redis-py's clients of the sentinels."""
        return self.sentinels.sentinel_manager.sentinels if self.sentinels else ()

    def leads_elsewhere(self, connection: Any) -> bool:
        """Say whether Sentinel has named another primary. The pool's own answer does not work in a forked worker."""
        pool = self.sentinels
        return pool is not None and pool.is_master and pool.master_address != (connection.host, connection.port)


def sync_source(pool: Any) -> Source:
    """Return how to make connections like those of a pool."""
    return Source(pool.connection_class, _kept_options(pool), pool if has_sentinels(pool) else None)


def async_source(pool: Any) -> Source:
    """Return how to make async connections like those of a sync pool."""
    if not has_sentinels(pool):
        return _async_source(pool)
    make_manager, make_pool = cast("Any", aiosentinel.Sentinel), cast("Any", aiosentinel.SentinelConnectionPool)
    manager = make_manager([])
    for each in map(_async_source, (each.connection_pool for each in pool.sentinel_manager.sentinels)):
        its_pool: Any = aioredis.ConnectionPool(each.connection_class, **each.options)
        manager.sentinels.append(aioredis.Redis(connection_pool=its_pool))
    options = {"is_master": pool.is_master, "check_connection": pool.check_connection}
    sentinels = make_pool(pool.service_name, manager, **options)
    made = _async_source(pool)
    return made._replace(options={**made.options, "connection_pool": sentinels}, sentinels=sentinels)


def _async_source(pool: Any) -> Source:
    made = next((_ASYNC[each] for each in pool.connection_class.__mro__ if each in _ASYNC), aioredis.Connection)
    known = known_options(made)
    options = {
        name: value
        for name, value in _kept_options(pool).items()
        if name not in _SYNC_ONLY and (value or name in known)  # what is set must not be ignored silently
    }
    return Source(made, options)


def _kept_options(pool: Any) -> dict[str, Any]:
    """Return the options of our connections: short time-outs if there are none, and replies as bytes."""
    options = with_timeouts(pool.connection_kwargs)
    kept = {name: value for name, value in options.items() if not name.startswith(_LEFT_OUT)}
    return {**kept, "decode_responses": False}


# --- a pool for all threads -------------------------------------------------------------------------------------------


T = TypeVar("T")

REDIS_CONNECTIONS = 50
"""Connections for the threads of a process, unless the settings say `max_connections`.

Further calls wait: more calls under way would not be answered sooner, since one process sends and reads them all.
"""

CONNECTION_TIMEOUT = 1.0
"""Seconds that a call waits for a free connection, or in async code to be sent, unless the settings say `timeout`."""

GIVING_BACK = 30.0
"""The same for a call that gives back, such as the end of a slot, which others wait for."""

CHECK_AFTER_IDLE = 1.0
"""Seconds without a use after which a connection is asked before its next use: a firewall may have forgotten it."""

LATE = 0.1
"""If a time-out is this many seconds late, this process was too busy to see what has arrived."""

RedisCommand = bytes | Sequence[str | int]
"""A command in words, or as it goes over the wire."""


def pack(command: RedisCommand) -> bytes:
    """Return a command as it goes over the wire."""
    return command if isinstance(command, bytes) else packed_command(command)


@contextmanager
def connecting() -> Iterator[None]:
    """Raise `ConnectFailedError` if a new connection is cut: a server may cut an old one and still serve others.

    Raise `StoreBusy` if this process may open no more connections.
    """
    try:
        yield
    except Exception as error:
        if of_this_process(error):
            raise StoreBusy(f"this process cannot open another connection: {error}") from None
        if is_cut(error):
            raise ConnectFailedError(f"cut before an answer: {error}") from error
        raise


NOT_ALONE = "the server sent unexpected data after connecting"

TIMED_OUT = (TimeoutError, RedisTimeoutError, MasterNotFoundError, AsyncMasterNotFoundError)
"""What connecting raises after a time-out. No sentinel names a primary if none has answered in time."""

ASK = pack(("TIME",))
"""Asks a connection whether it still leads to a server. The user of the limits is permitted to, as the scripts do."""


ASKING = pack(("ASKING",))
"""Comes before a command for a slot that a server of a Cluster takes over."""


def is_too_late(began: float, source: Source, now: float) -> bool:
    """Say whether connecting timed out later than it can: this process was busy, and did not see what arrived."""
    longest = max(source.options[name] for name in TIMEOUTS)
    return bool(now - began > longest * (1 + len(source.sentinel_clients)) + LATE)


OptionOf = Callable[[str], Any]
"""Returns an option of a pool by its name; None if it is not set."""


def patience_of(option: OptionOf) -> float:
    """Return how many seconds a call waits for a connection, or to be sent."""
    return option("timeout") or CONNECTION_TIMEOUT


def sync_pool(pool: Any, option: OptionOf, breaker: Breaker) -> SyncPool:
    """Return our connections for a pool of redis-py."""
    max_connections = min(pool.max_connections, option("max_connections") or REDIS_CONNECTIONS)
    return SyncPool(sync_source(pool), max_connections, patience_of(option), breaker)


class SyncPool:
    """The connections of all threads. A call that finds none free waits, `patience` seconds at most."""

    def __init__(self, source: Source, max_connections: int, patience: float, breaker: Breaker) -> None:
        self._source = source
        self._patience = patience
        self._breaker = breaker
        self._idle: deque[Wire] = deque()
        self._is_closed = False
        self._permits: SimpleQueue[None] = SimpleQueue()
        """One for each connection that a call may use."""
        for _ in range(max_connections):
            self._permits.put(None)

    def execute(self, command: RedisCommand, *, gives_back: bool = False, is_asking: bool = False) -> Any:
        """Send a command once, and return its reply. One that gives back waits its turn for longer.

        `is_asking`: whether another server of a Cluster sent us here, since it moves the slot.

        Raises redis-py's errors, also for error replies; `StoreBusy` if nothing was sent because others keep this
        process busy.
        """
        sent = pack(command)
        try:
            self._permits.get_nowait()
        except Empty:
            self._wait(max(self._patience, GIVING_BACK) if gives_back else self._patience)
        try:
            is_probe = self._breaker.enter()  # it may have opened while the call waited
            try:
                reply = self._ask(self._connected(), sent, is_asking=is_asking)
            except BaseException as error:
                self._breaker.leave(server_answered(error), is_probe=is_probe)
                raise
            self._breaker.succeeded()
            return reply
        finally:
            self._permits.put(None)

    def _wait(self, seconds: float) -> None:
        try:
            self._permits.get(timeout=seconds)
        except Empty:
            raise StoreBusy(f"all connections of this process were in use for {seconds:g} s") from None

    def _ask(self, wire: Wire, command: bytes, *, is_asking: bool) -> Any:
        """Return the reply over a wire. It is closed if a reply may still come, which the next must not read."""
        try:
            if is_asking:
                wire.send(ASKING + command)
                with suppress(ResponseError):  # the reply to the command shows it
                    wire.read()
            else:
                wire.send(command)
            reply = wire.read()
        except BaseException as error:
            if not leaves_a_reply(error):
                self._keep(wire)
                raise
            wire.close()
            if isinstance(error, Exception):  # the others may lead nowhere, or to a replica, as well
                self._drop_idle()
            raise
        self._keep(wire)
        return reply

    def _keep(self, wire: Wire) -> None:
        wire.used = time.monotonic()
        self._idle.append(wire)
        if self._is_closed:  # after the append, since another thread may be closing the pool
            self._drop_idle()

    def _connected(self) -> Wire:
        while True:
            try:
                wire = self._idle.pop()
            except IndexError:
                return self._connect()
            if not wire.is_ready() or self._source.leads_elsewhere(wire.connection):
                wire.close()
            elif time.monotonic() < wire.used + CHECK_AFTER_IDLE or self._answers(wire):
                return wire

    def _answers(self, wire: Wire) -> bool:
        """Say whether a wire still leads to a server."""
        try:
            wire.send(ASK)
            wire.read()
        except BaseException as error:
            if not leaves_a_reply(error):
                return True
            wire.close()
            if not isinstance(error, (RedisError, OSError)):
                raise
            self._drop_idle()
            return False
        return True

    def _connect(self) -> Wire:
        """Return a new connection. It tries once more if this process was too busy to see what had arrived."""
        for is_last in (False, True):
            began = time.monotonic()
            try:
                return self._connect_once()
            except TIMED_OUT as error:
                if not is_too_late(began, self._source, time.monotonic()):
                    raise
                if is_last:
                    raise StoreBusy(f"this process was too busy to connect: {error}") from None
        raise AssertionError

    def _connect_once(self) -> Wire:
        with connecting():
            connection = self._source.make()
            try:
                connection.connect()
                wire = Wire(connection)
                if not wire.is_ready() or self._source.leads_elsewhere(connection):
                    raise ConnectFailedError(NOT_ALONE)  # noqa: TRY301
            except BaseException:
                connection.disconnect()
                raise
            return wire

    def _drop_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def close(self) -> None:
        """Keep no connection from now on: the idle ones are closed, and each other one when it comes back."""
        self._is_closed = True
        self._drop_idle()
        for client in self._source.sentinel_clients:
            client.close()
