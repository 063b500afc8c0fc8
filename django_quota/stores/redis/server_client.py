"""One Redis server: its connections, sync and async, by the settings of a cache alias, and its breaker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import BusyLoadingError, ResponseError

from django_quota.core.errors import StoreUnavailable
from django_quota.engine.operations import pack_command
from django_quota.stores.redis.breaker import CLOSED, Breaker
from django_quota.stores.redis.config import Address
from django_quota.stores.redis.connections import (
    ConnectionsByLoop,
    SyncConnections,
    async_connections,
    plain_client,
    sync_pool,
)
from django_quota.stores.redis.errors import (
    AllInUseError,
    GarbledError,
    NotSentError,
    is_cut,
    is_passthrough,
    is_read_only,
    is_silence,
)
from django_quota.stores.redis.wake_up import WakeUpChannel

Command = Sequence[str | int]

OVERDUE = 2.0
"""Seconds after the end of its wait, after which the reply to a blocking command no longer comes."""


class ServerClient:
    """The client of one server: that of a cache alias, or one of its Cluster. It raises redis-py's errors.

    `at`: the address of a server of a Cluster. Then `NotSentError` says that it ran nothing: another server may.
    """

    def __init__(self, alias: str, at: Address | None = None) -> None:
        self.breaker = Breaker()
        self._at = at
        self._get_pool = partial(sync_pool, alias, at)
        make = partial(async_connections, alias, at)
        self.connections = SyncConnections(self._get_pool)
        self.async_connections = ConnectionsByLoop(make)
        self._waiting = SyncConnections(self._get_pool)
        self._async_waiting = ConnectionsByLoop(make)
        """Those for calls that wait in Redis."""
        self._plain: Redis | None = None

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip; see `exchange`."""
        return self.exchange(b"".join(map(pack_command, commands)), len(commands))

    async def asend(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one round trip; see `exchange`."""
        return await self.aexchange(b"".join(map(pack_command, commands)), len(commands))

    def exchange(self, packed: bytes, replies: int = 1) -> list[Any]:
        """Send packed commands and read their replies: one round trip, never repeated. An error reply is returned."""
        breaker, connections = self.breaker, self.connections
        probe = self._acquire()
        connection = None
        try:
            connection = connections.take(is_refusing=breaker.is_refusing if probe == CLOSED else None)
            connection.send_packed_command((packed,))
            found = [_read(connection) for _ in range(replies)]
        except BaseException as error:
            if connection is not None:
                connections.drop(connection)  # a reply may still be under way: the next call must not read it
            self._note(error, probe)
            self._raise_for_router(error, is_sent=connection is not None)
            raise
        if is_read_only(found[-1]):
            connections.drop(connection)
        else:
            connections.release(connection)
        breaker.succeeded()
        return found

    async def aexchange(self, packed: bytes, replies: int = 1) -> list[Any]:
        """Send packed commands and read their replies; see `exchange`."""
        breaker, connections = self.breaker, await self.async_connections.get()
        probe = self._acquire()
        connection = None
        try:
            connection = await connections.take(is_refusing=breaker.is_refusing if probe == CLOSED else None)
            found = await connections.exchange(connection, packed, replies)  # drops the connection if it fails
        except BaseException as error:
            self._note(error, probe)
            self._raise_for_router(error, is_sent=connection is not None)
            raise
        if is_read_only(found[-1]):
            await connections.drop(connection)
        else:
            connections.release(connection)
        breaker.succeeded()
        return found

    def channel(self, process: str) -> WakeUpChannel:
        """Open the wake-up channel of a process."""
        return WakeUpChannel(self._waiting, process)

    async def acall(self, command: Command, seconds: float) -> Any:
        """Send a command that blocks for some seconds at most, and return its raw reply."""
        connections = await self._async_waiting.get()
        connection = await connections.take(seconds + OVERDUE)
        reply = (await connections.exchange(connection, pack_command(command), seconds=seconds + OVERDUE))[0]
        connections.release(connection)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend a client for plain commands on this server alone."""
        probe = self._acquire()
        try:
            if self._plain is None:
                self._plain = plain_client(self._get_pool())
            if probe != CLOSED:  # calls within the block would be refused until it has ended
                self._plain.eval("return 1", 0)
                self.breaker.succeeded()
            yield self._plain
        except (RedisError, OSError) as error:
            self._note(error, probe)
            raise
        except BaseException:
            self.breaker.release(probe)
            raise
        self.breaker.succeeded()

    def _acquire(self) -> int:
        probe = self.breaker.acquire()
        if probe is not None:
            return probe
        if self._at is not None:
            raise NotSentError(f"{self._at} does not answer")
        raise StoreUnavailable("it has not answered several times in a row, and is asked again in a moment")

    def _raise_for_router(self, error: BaseException, *, is_sent: bool) -> None:
        """In a Cluster, raise the error that tells the router whether another server may be asked, if there is one."""
        if self._at is None or is_passthrough(error):
            return
        if not is_sent or isinstance(error, BusyLoadingError):
            raise NotSentError(f"{self._at}: {error}") from error
        if not isinstance(error, (RedisError, OSError)):
            raise GarbledError(f"{self._at}: {error!r}") from error

    def _note(self, error: BaseException, probe: int) -> None:
        """Tell the breaker what a failure says about the server."""
        if is_passthrough(error) or isinstance(error, AllInUseError) or is_cut(error):  # nothing
            self.breaker.release(probe)
        elif is_silence(error):
            self.breaker.failed(probe)
        else:
            self.breaker.succeeded()

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        self.connections.close()
        self._waiting.close()
        plain, self._plain = self._plain, None
        if plain is not None and self._at is not None:  # else the pool may be that of the alias
            plain.connection_pool.disconnect()


def _read(connection: Any) -> Any:
    """Read a reply. An error reply is returned, because the other replies must still be read."""
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error
