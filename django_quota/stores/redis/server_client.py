"""One Redis server: its connections, sync and async, by the settings of a cache alias, and its breaker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import ResponseError

from django_quota.core.errors import StoreUnavailable
from django_quota.stores.redis.blocking import BlockingConnections
from django_quota.stores.redis.breaker import CLOSED, Breaker, probing
from django_quota.stores.redis.config import options_of
from django_quota.stores.redis.connections import (
    AsyncConnections,
    ConnectionsByLoop,
    SyncConnections,
    plain_client,
    sync_client,
)
from django_quota.stores.redis.errors import (
    AllInUseError,
    is_cut,
    is_passthrough,
    is_read_only,
    is_silence,
)
from django_quota.stores.redis.sentinel import shorten_sentinel_timeouts


class ServerClient:
    """The client of one server. It raises redis-py's errors.

    `pool_of`, `make`: what makes its connections, sync and async; None: the settings of the alias alone.
    """

    def __init__(
        self,
        alias: str,
        pool_of: Callable[[str], Any] | None = None,
        make: Callable[[str], AsyncConnections] | None = None,
    ) -> None:
        self.breaker = Breaker()
        self.connections = SyncConnections(alias, pool_of)
        self.async_connections = ConnectionsByLoop(alias, make)
        self.blocking = BlockingConnections(SyncConnections(alias, pool_of), ConnectionsByLoop(alias, make))
        self._alias = alias
        self._plain: Redis | None = None

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
            if connection is not None or is_passthrough(error):
                raise
            raise self.not_sent(error) from None
        if _is_of_a_replica(found[-1]):
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
            if connection is not None or is_passthrough(error):
                raise
            raise self.not_sent(error) from None
        if _is_of_a_replica(found[-1]):
            await connections.drop(connection)
        else:
            connections.release(connection)
        breaker.succeeded()
        return found

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend a client for plain commands on this server alone."""
        probe = self._acquire()
        try:
            if self._plain is None:
                self._plain = self.make_client()
            with probing(probe):
                yield self._plain
        except (RedisError, OSError) as error:
            self._note(error, probe)
            raise
        except BaseException:
            self.breaker.release(probe)
            raise
        self.breaker.succeeded()

    def make_client(self) -> Redis:
        """Return a new client for plain commands."""
        client = sync_client(self._alias)
        shorten_sentinel_timeouts(client.connection_pool, options_of(self._alias))
        return plain_client(client)

    def not_asked(self) -> Exception:
        """Return the error of a caller whom the breaker refuses."""
        return StoreUnavailable("it has not answered several times in a row, and is asked again in a moment")

    def not_sent(self, error: BaseException) -> BaseException:
        """Return the error of a caller who got no connection."""
        return error

    def _acquire(self) -> int:
        probe = self.breaker.acquire()
        if probe is None:
            raise self.not_asked()
        return probe

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
        self.blocking.close()
        self._plain = None


def _read(connection: Any) -> Any:
    """Read a reply. An error reply is returned, because the other replies must still be read."""
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _is_of_a_replica(reply: Any) -> bool:
    """Say whether the server has become a replica: then its connection must lead to the new primary next time."""
    return isinstance(reply, ResponseError) and is_read_only(reply)
