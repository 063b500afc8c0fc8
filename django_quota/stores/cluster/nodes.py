"""One server of a Redis Cluster: its connections, sync and async, by the settings of the alias, and its breaker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis import ConnectionPool, Redis, RedisError
from redis.exceptions import BusyLoadingError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from django_quota.engine.resp import pack_command
from django_quota.stores.cluster.client import base_pool
from django_quota.stores.cluster.slots import Address
from django_quota.stores.redis.blocking import BlockingConnections
from django_quota.stores.redis.breaker import CLOSED, Breaker, probing
from django_quota.stores.redis.connections import (
    ConnectionsByLoop,
    SyncConnections,
    async_connections,
    plain_client,
)
from django_quota.stores.redis.errors import AllInUseError, GarbledError, is_passthrough, is_silence

Command = Sequence[str | int]


class NotSentError(RedisConnectionError):
    """The server ran nothing: there is no connection, or it still loads its keys."""


class _Call:
    """One call of a server. `was_sent`: whether the server may have run something."""

    def __init__(self, probe: int) -> None:
        self.probe = probe
        self.was_sent = False


class Node:
    """One server. It raises redis-py's errors: `NotSentError` if the server ran nothing."""

    def __init__(self, alias: str, address: Address) -> None:
        self.address = address
        self.breaker = Breaker()
        self._alias = alias
        self._pool, make = partial(_node_pool, at=address), partial(async_connections, at=address)
        self._connections = SyncConnections(alias, self._pool)
        self._async_connections = ConnectionsByLoop(alias, make)
        self.blocking = BlockingConnections(SyncConnections(alias, self._pool), ConnectionsByLoop(alias, make))
        self._plain: Redis | None = None

    @contextmanager
    def _call(self, errors: type[BaseException] | tuple[type[BaseException], ...] = Exception) -> Iterator[_Call]:
        """Ask the breaker, and tell it how the call ends. `errors`: those that are the server's."""
        probe = self.breaker.acquire()
        if probe is None:
            raise NotSentError(f"{self.address} does not answer")
        call = _Call(probe)
        try:
            yield call
        except BaseException as error:
            if is_passthrough(error) or not isinstance(error, errors):
                self.breaker.release(probe)
                raise
            is_loading = isinstance(error, BusyLoadingError)
            if is_loading or isinstance(error, AllInUseError) or (call.was_sent and not is_silence(error)):
                self.breaker.release(probe)
            else:
                self.breaker.failed(probe)
            if is_loading or not call.was_sent:
                raise NotSentError(f"{self.address}: {error}") from error
            if not isinstance(error, (RedisError, OSError)):
                raise GarbledError(f"{self.address}: {error!r}") from error
            raise
        self.breaker.succeeded()

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend a client for plain commands on this server alone."""
        with self._call((RedisError, OSError)) as call, probing(call.probe):
            call.was_sent = True
            if self._plain is None:
                self._plain = plain_client(Redis(connection_pool=self._pool(self._alias)))
            yield self._plain

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and read their replies: one round trip, never repeated. An error reply is returned."""
        with self._call() as call:
            connection = self._connections.take(is_refusing=self._refusal(call))
            call.was_sent = True
            try:
                connection.send_packed_command((b"".join(map(pack_command, commands)),))
                replies = [_read(connection) for _ in commands]
            except BaseException:
                self._connections.drop(connection)  # a reply may still be under way: the next call must not read it
                raise
            self._connections.release(connection)
        return replies

    async def asend(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and read their replies; see `send`."""
        connections = await self._async_connections.get()
        with self._call() as call:
            connection = await connections.take(is_refusing=self._refusal(call))
            call.was_sent = True
            replies = await connections.exchange(connection, b"".join(map(pack_command, commands)), len(commands))
            connections.release(connection)
        return replies

    def _refusal(self, call: _Call) -> Callable[[], bool] | None:
        return self.breaker.is_refusing if call.probe == CLOSED else None

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        self._connections.close()
        self.blocking.close()
        if self._plain is not None:
            self._plain.connection_pool.disconnect()
            self._plain = None


def _read(connection: Any) -> Any:
    """Read a reply. An error reply is returned, because the other replies must still be read."""
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _node_pool(alias: str, at: Address) -> ConnectionPool:
    """Return a pool of connections to one server, by the settings of an alias."""
    base = base_pool(alias)
    options = {**base.connection_kwargs, "host": at.host, "port": at.port}
    return ConnectionPool(base.connection_class, base.max_connections, **options)
