"""The Redis of an alias of django-redis: with one server, behind Sentinel, or a Cluster with our `ClusterClient`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django_redis.client import DefaultClient, SentinelClient, ShardClient
from django_redis.exceptions import ConnectionInterrupted
from django_redis.pool import ConnectionFactory, get_connection_factory
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError, SlotNotCoveredError

from django_quota.stores.redis.settings import (
    DEFAULT_PORT,
    NAME_A_REDIS,
    Address,
    Alias,
    RedisOptions,
    RedisProblem,
    cannot_serve,
    read_server,
)

# --- an alias ---------------------------------------------------------------------------------------------------------


class DjangoRedisAlias(Alias):
    """An alias of django-redis."""

    options_hint = (
        "Give CONNECTION_POOL_KWARGS options of redis.Connection, paths that lead to classes, and SENTINELS as "
        '[("10.0.0.1", 26379)]. For TLS behind Sentinel, use redis:// with "CONNECTION_POOL_KWARGS": {"ssl": True}.'
    )

    @property
    def _client(self) -> Any:
        """The client class, or what is there instead. Raises what an import raises."""
        return import_string(self.options.get("CLIENT_CLASS", "django_redis.client.DefaultClient"))

    @property
    def is_cluster(self) -> bool:  # type: ignore[override]  # the settings may change
        """Whether its client is a `ClusterClient`."""
        try:
            return issubclass(self._client, ClusterClient)
        except Exception:  # noqa: BLE001 — `place_problem` says what is wrong
            return False

    def place_problem(self) -> RedisProblem | None:
        """Say why it cannot serve; see `WhichRedis`."""
        return super().place_problem() or self._client_problem()

    def new_pool(self) -> Any:
        """Return a pool that is not the one that django-redis shares; see `WhichRedis`."""
        make: Any = ClusterConnectionFactory if self.is_cluster else get_connection_factory
        factory = make(options=self.options)
        return factory.get_connection_pool(factory.make_connection_params(self.urls[0]))

    def option(self, name: str) -> Any:
        """Return an option of the pool; see `WhichRedis`."""
        return self.options.get("CONNECTION_POOL_KWARGS", {}).get(name)

    def cluster(self) -> tuple[Sequence[Address], RedisOptions]:
        """Return the servers and options; see `WhichRedis`."""
        factory: Any = ClusterConnectionFactory(options=self.options)
        given = {**factory.make_connection_params(self.urls[0]), **factory.pool_cls_kwargs}
        given.update(read_server(given.pop("url")), address_remap=factory.redis_client_cls_kwargs.get("address_remap"))
        return [address_in(url) for url in self.urls], given

    def _client_problem(self) -> RedisProblem | None:
        try:
            client = self._client
            kinds = [kind for kind in (ShardClient, SentinelClient, ClusterClient) if issubclass(client, kind)]
        except Exception as error:  # noqa: BLE001 — whatever a wrong path leads to
            return cannot_serve(f"The CLIENT_CLASS of {self.name} cannot be used: {error}.", NAME_A_REDIS)
        if ShardClient in kinds:
            return RedisProblem(
                "E005",
                f"{self.name} uses the ShardClient, which spreads keys over servers by itself: a script has no single "
                "home.",
                "Use an alias with the DefaultClient, the SentinelClient or the ClusterClient.",
            )
        for_all = getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None)  # django-redis' setting for all aliases
        factory = self.options.get("CONNECTION_FACTORY", for_all)
        if SentinelClient in kinds and not (factory and self.options.get("SENTINELS")):
            words = f"{self.name} uses the SentinelClient, but sets no CONNECTION_FACTORY, or no SENTINELS."
            return cannot_serve(words, _SENTINEL_HINT)
        if ClusterClient in kinds and not all(map(_is_of_cluster, self.urls)):
            words = f"The LOCATION of {self.name} names no host, or another database than 0, the only one of a Cluster."
            return cannot_serve(words, _CLUSTER_HINT)
        return None


_SENTINEL_HINT = (
    'Use, for example, "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory" and "SENTINELS": '
    '[("10.0.0.1", 26379)] in its OPTIONS.'
)

_CLUSTER_HINT = 'Name one or several servers, for example ["redis://10.0.0.1:6379/0", "redis://10.0.0.2:6379/0"].'


def _is_of_cluster(url: str) -> bool:
    options = read_server(url)
    return "host" in options and not options.get("db")


# --- a Cluster as a cache ---------------------------------------------------------------------------------------------


def address_in(url: str) -> Address:
    """Return the server in a URL."""
    options = read_server(url)
    return Address(options["host"], options.get("port", DEFAULT_PORT))


class DjangoRedisCluster(RedisCluster):
    """redis-py's client, but it raises `ConnectionError` if no server of the Cluster answers.

    django-redis and its `IGNORE_EXCEPTIONS` expect that; redis-py's own error is not a `RedisError`.
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

    def disconnect(self) -> None:
        """Close the connections that nobody uses now. The next command opens new ones."""
        for node in cast("Any", self).get_nodes():  # redis-py leaves it untyped
            if node.redis_connection is not None:
                node.redis_connection.connection_pool.disconnect(inuse_connections=False)


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

    _clusters: ClassVar[dict[str, DjangoRedisCluster]] = {}

    def connect_to(self, urls: Iterable[str]) -> DjangoRedisCluster:
        """Return the client of the Cluster that these servers belong to."""
        urls = list(urls)
        place = ",".join(urls)
        if (found := self._clusters.get(place)) is not None:
            return found
        made = self._made(urls)
        first = self._clusters.setdefault(place, made)
        if first is not made:  # another thread was faster
            made.disconnect()
        return first

    def _made(self, urls: list[str]) -> DjangoRedisCluster:
        given = {**self.make_connection_params(urls[0]), **self.pool_cls_kwargs, **self.redis_client_cls_kwargs}
        given.pop("parser_class", None)  # the client of a Cluster has its own
        url = given.pop("url")
        make_node = cast("Any", ClusterNode)  # redis-py leaves it untyped
        nodes = [make_node(*address_in(other)) for other in urls]
        with _as_connection_error():
            return DjangoRedisCluster(url=url, startup_nodes=nodes, **given)

    def disconnect(self, connection: DjangoRedisCluster) -> None:
        """Close the connections of a client that no other thread uses now.

        Other threads have the same client: redis-py's `close` would end it for them, and would leave connections open.
        """
        connection.disconnect()

    @classmethod
    def forget(cls) -> None:
        """Close all clients: the next use makes new ones."""
        clusters, cls._clusters = cls._clusters, {}
        for cluster in clusters.values():
            cluster.disconnect()


class ClusterClient(DefaultClient):  # type: ignore[misc]  # django-redis has no types
    """The client class of an alias whose Redis is a Cluster. Operations on several slots are not one transaction."""

    def __init__(self, server: Any, params: dict[str, Any], backend: Any) -> None:
        factory = {"CONNECTION_FACTORY": f"{__name__}.ClusterConnectionFactory"}
        super().__init__(server, {**params, "OPTIONS": {**factory, **params.get("OPTIONS", {})}}, backend)
        if not isinstance(self.connection_factory, ClusterConnectionFactory):
            raise ImproperlyConfigured("ClusterClient needs the ClusterConnectionFactory, which is its default.")
        given: Any = vars(self)["_server"]  # the list of URLs in LOCATION
        self._server: list[str] = [url.strip() for url in given]

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
