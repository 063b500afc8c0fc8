"""A Redis Cluster as a cache: django-redis' client over redis-py's `RedisCluster`, and what the store needs of it.

`"OPTIONS": {"CLIENT_CLASS": "django_quota.stores.cluster.ClusterClient"}`. LOCATION names one or several servers of the
Cluster. The cache's own operations go through redis-py; the store has its own connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from django.core.exceptions import ImproperlyConfigured
from django_redis.client import DefaultClient
from django_redis.exceptions import ConnectionInterrupted
from django_redis.pool import ConnectionFactory
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError, SlotNotCoveredError

from django_quota.stores.redis.urls import DEFAULT_PORT, Address, read_server


def address_of(url: str) -> Address:
    """Return the server in a URL."""
    options = read_server(url)
    return Address(options["host"], options.get("port", DEFAULT_PORT))


class DjangoRedisCluster(RedisCluster):
    """redis-py's client, but it raises `ConnectionError` if no server of the Cluster answers.

    django-redis and its `IGNORE_EXCEPTIONS` expect that; redis-py's own error is no `RedisError`.
    """

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command; see redis-py."""
        with _as_connection_error():
            return cast("Any", super()).execute_command(*args, **kwargs)  # redis-py leaves it untyped

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Any:
        """Return a pipeline; see redis-py."""
        with _as_connection_error():
            made = cast("Any", super()).pipeline(transaction, shard_hint)
        execute = made.execute

        def executed(*args: Any, **kwargs: Any) -> Any:
            with _as_connection_error():
                return execute(*args, **kwargs)

        made.execute = executed
        return made


@contextmanager
def _as_connection_error() -> Iterator[None]:
    try:
        yield
    except RedisClusterException as error:
        is_misuse = not isinstance(error.__cause__, RedisError) and "cannot be connected" not in str(error)
        if is_misuse and not isinstance(error, SlotNotCoveredError):  # such as keys of several slots
            raise
        raise RedisConnectionError(str(error)) from error


class ClusterConnectionFactory(ConnectionFactory):  # type: ignore[misc]  # django-redis has no types
    """Makes one `RedisCluster` for each LOCATION, for all threads of the process."""

    _clusters: ClassVar[dict[str, RedisCluster]] = {}

    def connect_to(self, urls: Iterable[str]) -> RedisCluster:
        """Return the client of the Cluster that these servers belong to."""
        urls = list(urls)
        place = ",".join(urls)
        return self._clusters.get(place) or self._clusters.setdefault(place, self._made(urls))

    def _made(self, urls: list[str]) -> RedisCluster:
        given = {**self.make_connection_params(urls[0]), **self.pool_cls_kwargs, **self.redis_client_cls_kwargs}
        given.pop("parser_class", None)  # the client of a Cluster has its own
        url = given.pop("url")
        make_node = cast("Any", ClusterNode)  # redis-py leaves it untyped
        nodes = [make_node(*address_of(other)) for other in urls]
        with _as_connection_error():
            return DjangoRedisCluster(url=url, startup_nodes=nodes, **given)

    def disconnect(self, connection: RedisCluster) -> None:
        """Close the connections of a client."""
        connection.close()

    @classmethod
    def forget(cls) -> None:
        """Close all clients: the next use makes new ones."""
        clusters, cls._clusters = cls._clusters, {}
        for cluster in clusters.values():
            cluster.close()


class ClusterClient(DefaultClient):  # type: ignore[misc]  # django-redis has no types
    """The client class of an alias whose Redis is a Cluster. Operations on several slots are no transaction."""

    def __init__(self, server: Any, params: dict[str, Any], backend: Any) -> None:
        factory = {"CONNECTION_FACTORY": f"{__name__}.ClusterConnectionFactory"}
        super().__init__(server, {**params, "OPTIONS": {**factory, **params.get("OPTIONS", {})}}, backend)
        if not isinstance(self.connection_factory, ClusterConnectionFactory):
            raise ImproperlyConfigured("ClusterClient needs the ClusterConnectionFactory, which is its default.")
        given: Any = vars(self)["_server"]  # the list of URLs in LOCATION
        self._server: list[str] = [url.strip() for url in given]
        self._clients = [None]

    def get_next_client_index(self, write: bool = True, tried: list[int] | None = None) -> int:  # noqa: ARG002
        """Return the index of the only client, which finds the server of each key."""
        return 0

    def connect(self, index: int = 0) -> RedisCluster:  # noqa: ARG002
        """Return the client of the Cluster. Raises `ConnectionInterrupted` if no server answers."""
        try:
            return cast("RedisCluster", self.connection_factory.connect_to(self._server))
        except (RedisClusterException, RedisError) as error:
            raise ConnectionInterrupted(connection=None) from error

    def get_many(
        self, keys: Iterable[str], version: int | None = None, client: RedisCluster | None = None
    ) -> dict[str, Any]:
        """Return the values of the keys that exist."""
        client = self.get_client(write=False) if client is None else client
        asked = {self.make_key(key, version=version): key for key in keys}
        if not asked:
            return {}
        try:
            with client.pipeline() as pipeline:
                for key in asked:
                    pipeline.get(key)
                values = pipeline.execute()
        except (RedisClusterException, RedisError, OSError) as error:
            raise ConnectionInterrupted(connection=client) from error
        found = zip(asked.values(), values, strict=True)
        return {key: self.decode(value) for key, value in found if value is not None}

    def keys(self, search: str, version: int | None = None, client: RedisCluster | None = None) -> list[str]:
        """Return the keys of all servers that match a pattern."""
        return list(self.iter_keys(search, version=version, client=client))
