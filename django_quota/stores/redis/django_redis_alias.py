"""The Redis of an alias of django-redis: with one server, behind Sentinel, or a Cluster with our `ClusterClient`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string
from django_redis.client import SentinelClient, ShardClient
from django_redis.pool import get_connection_factory

from django_quota.stores.cluster.client import ClusterClient, ClusterConnectionFactory, address_of
from django_quota.stores.redis.aliases import NAME_A_REDIS, Alias, cannot_serve
from django_quota.stores.redis.settings import RedisProblem
from django_quota.stores.redis.urls import Address, Options, read_server


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

    def cluster(self) -> tuple[Sequence[Address], Options]:
        """Return the servers and options; see `WhichRedis`."""
        factory: Any = ClusterConnectionFactory(options=self.options)
        given = {**factory.make_connection_params(self.urls[0]), **factory.pool_cls_kwargs}
        given.update(read_server(given.pop("url")), address_remap=factory.redis_client_cls_kwargs.get("address_remap"))
        return [address_of(url) for url in self.urls], given

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
