"""One server of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis import ConnectionPool, Redis, RedisError
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError

from django_quota.engine.operations import pack_command
from django_quota.stores.cluster.client import base_pool
from django_quota.stores.cluster.slots import Address
from django_quota.stores.redis.connections import async_connections, plain_client
from django_quota.stores.redis.errors import GarbledError, is_passthrough
from django_quota.stores.redis.server_client import ServerClient

Command = Sequence[str | int]


class NotSentError(RedisConnectionError):
    """The server ran nothing: there is no connection, or it still loads its keys."""


class Node(ServerClient):
    """One server of a Cluster, by the settings of the alias. It raises redis-py's errors, and `NotSentError`."""

    def __init__(self, alias: str, address: Address) -> None:
        self.address = address
        self._pool = partial(_node_pool, at=address)
        super().__init__(alias, self._pool, partial(async_connections, at=address))

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and read their replies: one round trip, never repeated. An error reply is returned."""
        with self._errors():
            return self.exchange(b"".join(map(pack_command, commands)), len(commands))

    async def asend(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and read their replies; see `send`."""
        with self._errors():
            return await self.aexchange(b"".join(map(pack_command, commands)), len(commands))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise no other errors than those that the router knows."""
        try:
            yield
        except BusyLoadingError as error:
            raise self.not_sent(error) from error
        except BaseException as error:
            if is_passthrough(error) or isinstance(error, (RedisError, OSError)):
                raise
            raise GarbledError(f"{self.address}: {error!r}") from error

    def not_asked(self) -> Exception:
        """Return the error of a caller whom the breaker refuses."""
        return NotSentError(f"{self.address} does not answer")

    def not_sent(self, error: BaseException) -> NotSentError:
        """Return the error of a caller who got no connection."""
        return NotSentError(f"{self.address}: {error}")

    def make_client(self) -> Redis:
        """Return a new client for plain commands."""
        return plain_client(Redis(connection_pool=self._pool(self._alias)))

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        if self._plain is not None:
            self._plain.connection_pool.disconnect()
        super().close()


def _node_pool(alias: str, at: Address) -> ConnectionPool:
    """Return a pool of connections to one server, by the settings of an alias."""
    base = base_pool(alias)
    options = {**base.connection_kwargs, "host": at.host, "port": at.port}
    return ConnectionPool(base.connection_class, base.max_connections, **options)
