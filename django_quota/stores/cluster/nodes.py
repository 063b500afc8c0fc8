"""The servers of a Redis Cluster as this process knows them: connections to each, sync and async, and a breaker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis import ConnectionPool, Redis, RedisError
from redis.exceptions import BusyLoadingError

from django_quota.stores.cluster.client import base_pool
from django_quota.stores.cluster.routing import NotSentError
from django_quota.stores.cluster.slots import Address
from django_quota.stores.redis.blocking import BlockingConnections
from django_quota.stores.redis.breaker import Breaker, probing
from django_quota.stores.redis.connections import ConnectionsByLoop, SyncConnections, async_connections, plain_client
from django_quota.stores.redis.errors import AllInUseError, GarbledError, is_passthrough, is_silence


class Node:
    """One server: its connections, by the settings of the alias, and its breaker."""

    def __init__(self, alias: str, address: Address) -> None:
        self.address = address
        self._alias = alias
        pool_of, make = partial(node_pool, at=address), partial(async_connections, at=address)
        self.connections = SyncConnections(alias, pool_of)
        self.async_connections = ConnectionsByLoop(alias, make)
        self.blocking = BlockingConnections(SyncConnections(alias, pool_of), ConnectionsByLoop(alias, make))
        self.breaker = Breaker()
        self._client: Redis | None = None

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend a client for plain commands on this server alone. Raises redis-py's errors."""
        probe = self.acquire()
        if self._client is None:
            self._client = plain_client(Redis(connection_pool=node_pool(self._alias, self.address)))
        try:
            with probing(probe):
                yield self._client
        except (RedisError, OSError) as error:
            self.lost(error, probe)
            raise
        except BaseException:
            self.breaker.release(probe)
            raise
        self.breaker.succeeded()

    def acquire(self) -> int:
        """Return what the breaker gives. Raises `NotSentError` if it refuses."""
        probe = self.breaker.acquire()
        if probe is None:
            raise NotSentError(f"{self.address} does not answer")
        return probe

    def not_sent(self, error: BaseException, probe: int) -> None:
        """Note that there was no connection to the server. Raises `NotSentError`, unless the caller ended the call."""
        if is_passthrough(error):
            self.breaker.release(probe)
            return
        if isinstance(error, AllInUseError):
            self.breaker.release(probe)
        else:
            self.breaker.failed(probe)
        raise NotSentError(f"{self.address}: {error}") from error

    def lost(self, error: BaseException, probe: int) -> None:
        """Note that the server did not answer. Raises `NotSentError` if it said that it did nothing."""
        if is_passthrough(error):
            self.breaker.release(probe)
            return
        if isinstance(error, BusyLoadingError):
            self.breaker.release(probe)
            raise NotSentError(f"{self.address} is loading its keys") from error
        if is_silence(error):
            self.breaker.failed(probe)
        else:
            self.breaker.release(probe)
        if not isinstance(error, (RedisError, OSError)):
            raise GarbledError(f"{self.address}: {error!r}") from error

    def close(self) -> None:
        """Close idle connections."""
        self.connections.close()
        self.blocking.close()
        if self._client is not None:
            self._client.close()
            self._client.connection_pool.disconnect()
            self._client = None


class AllBreakers(Breaker):
    """The breakers of all servers as one. It never opens itself, and refuses while all of them refuse."""

    __slots__ = ("_are_refusing",)

    def __init__(self, are_refusing: Callable[[], bool]) -> None:
        super().__init__()
        self._are_refusing = are_refusing

    def is_refusing(self) -> bool:
        """Say whether every server would refuse a caller now."""
        return self._are_refusing()


SPARE = 16
"""Servers that are kept in addition to twice the number that the Cluster has: addresses change, and servers leave."""


class Nodes:
    """The servers that were asked, made when they are first needed. `known`: returns those of the Cluster.

    Servers that have left are dropped when there are many of them: a process lives for months, and addresses change.
    """

    def __init__(
        self, alias: str, known: Callable[[], Collection[Address]], make: Callable[[str, Address], Node] = Node
    ) -> None:
        self._alias = alias
        self._known = known
        self._make = make
        self._nodes: dict[Address, Node] = {}

    def __getitem__(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            self._drop_unknown(address)
            node = self._nodes.setdefault(address, self._make(self._alias, address))
        return node

    def __len__(self) -> int:
        return len(self._nodes)

    def are_refusing(self, addresses: Collection[Address]) -> bool:
        """Say whether all of these servers refuse callers now; False if there are none."""
        nodes = [self._nodes.get(address) for address in addresses]
        return bool(nodes) and all(node is not None and node.breaker.is_refusing() for node in nodes)

    def _drop_unknown(self, wanted: Address) -> None:
        known = {*self._known(), wanted}
        if len(self._nodes) < 2 * len(known) + SPARE:
            return
        for address in [address for address in list(self._nodes) if address not in known]:
            node = self._nodes.pop(address, None)
            if node is not None:
                node.close()

    def close(self) -> None:
        """Close idle connections to all of them."""
        for node in list(self._nodes.values()):
            node.close()


def node_pool(alias: str, at: Address) -> Any:
    """Return a pool of connections to one server, by the settings of an alias."""
    base = base_pool(alias)
    options = {**base.connection_kwargs, "host": at.host, "port": at.port}
    return ConnectionPool(base.connection_class, base.max_connections, **options)
