"""The servers of a Redis Cluster as this process knows them: connections to each, sync and async, and a breaker.

It must not know which keys lie where.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis import ConnectionPool, Redis, RedisError
from redis.exceptions import BusyLoadingError

from django_quota.stores.breaker import Breaker, holding
from django_quota.stores.cluster import base_pool
from django_quota.stores.connections import AllInUseError, AsyncClients, SyncConnections, async_client
from django_quota.stores.errors import is_of_redis_py, is_silence
from django_quota.stores.listening import Listener
from django_quota.stores.plain import plain_client
from django_quota.stores.routing import NotSentError
from django_quota.stores.slots import Address
from django_quota.stores.wire import GarbledError, has_answered, is_of_caller


class Node:
    """One server: what leads there, by the settings of the alias."""

    def __init__(self, alias: str, address: Address) -> None:
        self.address = address
        self._alias = alias
        pool_of, make = partial(node_pool, at=address), partial(async_client, at=address)
        self.connections = SyncConnections(alias, pool_of)
        self.clients = AsyncClients(alias, make)
        self.listener = Listener(SyncConnections(alias, pool_of), AsyncClients(alias, make))
        self.breaker = Breaker()
        self._client: Redis | None = None

    @contextmanager
    def commands(self) -> Iterator[Redis]:
        """Lend a client for plain commands on this server alone. Raises redis-py's errors."""
        turn = self.knock()
        if self._client is None:
            self._client = plain_client(Redis(connection_pool=node_pool(self._alias, self.address)))
        try:
            with holding(turn):
                yield self._client
        except BaseException as error:
            if is_of_redis_py(error):
                self.lost(error, turn)
            else:
                self.breaker.left(turn)
            raise
        self.breaker.succeeded()

    def knock(self) -> int:
        """Return the breaker's turn; raise `NotSentError` where nobody needs to find out again that it is gone."""
        turn = self.breaker.ask()
        if turn is None:
            raise NotSentError(f"{self.address} does not answer")
        return turn

    def not_sent(self, error: BaseException, turn: int) -> None:
        """Note that there was no connection to it. Raises `NotSentError`, but where the caller has ended it."""
        if is_of_caller(error):
            self.breaker.left(turn)
            return
        if isinstance(error, AllInUseError):
            self.breaker.left(turn)
        else:
            self.breaker.failed(turn)
        raise NotSentError(f"{self.address}: {error}") from error

    def lost(self, error: BaseException, turn: int, connection: Any = None) -> None:
        """Note that it gave no answer. Raises `NotSentError` where it said that it has done nothing."""
        if is_of_caller(error):
            self.breaker.left(turn)
            return
        if isinstance(error, BusyLoadingError):
            self.breaker.left(turn)
            raise NotSentError(f"{self.address} is loading its keys") from error
        if is_silence(error) or (connection is not None and not has_answered(connection)):
            self.breaker.failed(turn)
        else:
            self.breaker.left(turn)
        if not isinstance(error, (RedisError, OSError)):
            raise GarbledError(f"{self.address}: {error!r}") from error

    def close(self) -> None:
        """Close idle connections."""
        self.connections.close()
        self.listener.close()
        if self._client is not None:
            self._client.close()
            self._client.connection_pool.disconnect()
            self._client = None


class AllBreakers(Breaker):
    """Each server has a breaker of its own: this one never opens, and is shut while all of those are."""

    __slots__ = ("_are_shut",)

    def __init__(self, are_shut: Callable[[], bool]) -> None:
        super().__init__()
        self._are_shut = are_shut

    def is_shut(self) -> bool:
        """Say whether a caller that came now would be turned away by every server."""
        return self._are_shut()


SPARE = 16
"""Servers that are kept beside twice as many as there are: addresses change, and a cluster's servers leave it."""


class Nodes:
    """The servers that were asked, made when they are first needed. `known`: returns those of the cluster.

    Those that have left are let go once there are many of them: a process lives for months, and addresses change.
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
            self._let_go(address)
            node = self._nodes.setdefault(address, self._make(self._alias, address))
        return node

    def __len__(self) -> int:
        return len(self._nodes)

    def are_shut(self, addresses: Collection[Address]) -> bool:
        """Say whether none of these servers, one at least, would be asked at the moment."""
        nodes = [self._nodes.get(address) for address in addresses]
        return bool(nodes) and all(node is not None and node.breaker.is_shut() for node in nodes)

    def _let_go(self, wanted: Address) -> None:
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
