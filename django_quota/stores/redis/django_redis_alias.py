"""The Redis of an alias of django-redis: with one server, behind Sentinel, or a Cluster with our `ClusterClient`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from django_redis import get_redis_connection
from django_redis.client import SentinelClient, ShardClient
from django_redis.pool import get_connection_factory

from django_quota.core.errors import ConfigurationError, without_secrets
from django_quota.stores.cluster.client import ClusterClient, ClusterConnectionFactory
from django_quota.stores.redis.config import address_of, locations, parse_location, without_password
from django_quota.stores.redis.config_checks import NAME_A_REDIS, cannot_serve, locations_problem
from django_quota.stores.redis.which import ClusterPlace, RedisProblem, WhichRedis


class DjangoRedisAlias(WhichRedis):
    """An alias of django-redis."""

    options_hint = (
        "Give CONNECTION_POOL_KWARGS options of redis.Connection, paths that lead to classes, and SENTINELS as "
        '[("10.0.0.1", 26379)].'
    )

    def __init__(self, alias: str) -> None:
        self.name = f'CACHES["{alias}"]'
        self.options_name = f"The OPTIONS of {self.name}"
        self._alias = alias

    @property
    def _location(self) -> Any:
        return settings.CACHES[self._alias].get("LOCATION") or ""

    @property
    def _options(self) -> dict[str, Any]:
        return dict(cast("dict[str, Any]", settings.CACHES[self._alias].get("OPTIONS") or {}))

    @property
    def is_cluster(self) -> bool:  # type: ignore[override]  # the settings may change
        """Whether its client is that of a Cluster."""
        path = self._options.get("CLIENT_CLASS", "")
        try:
            client = import_string(path) if path else None
        except ImportError:
            return False
        return isinstance(client, type) and issubclass(client, ClusterClient)

    def problem(self) -> RedisProblem | None:
        """Say why it cannot serve; see `WhichRedis`."""
        what = f"The LOCATION of {self.name}"
        return locations_problem(what, self._location, locations(self._location)) or self._client_problem()

    def new_pool(self) -> Any:
        """Return a pool that is not the one that django-redis shares; see `WhichRedis`."""
        make: Any = ClusterConnectionFactory if self.is_cluster else get_connection_factory
        factory = make(options=self._options)
        return factory.get_connection_pool(factory.make_connection_params(locations(self._location)[0]))

    def pool(self) -> Any:
        """Return the pool of django-redis; see `WhichRedis`."""
        try:
            return cast("Any", get_redis_connection(self._alias, write=True)).connection_pool
        except (ImproperlyConfigured, NotImplementedError, InvalidCacheBackendError) as error:
            raise ConfigurationError(f"{self.name} cannot be used: {error}.", NAME_A_REDIS) from error

    def pool_option(self, name: str) -> Any:
        """Return an option of the pool; see `WhichRedis`."""
        return self._options.get("CONNECTION_POOL_KWARGS", {}).get(name)

    def sentinel_options(self) -> Mapping[str, Any] | None:
        """Return the options of the sentinels; see `WhichRedis`."""
        return cast("Mapping[str, Any] | None", self._options.get("SENTINEL_KWARGS"))

    def cluster(self) -> ClusterPlace:
        """Return where the Cluster is; see `WhichRedis`."""
        client = cast("Any", caches[self._alias]).client
        factory, urls = client.connection_factory, client._server  # noqa: SLF001 — the client is ours
        given = {**factory.make_connection_params(urls[0]), **factory.pool_cls_kwargs}
        remap = factory.redis_client_cls_kwargs.get("address_remap")
        return ClusterPlace([address_of(url) for url in urls], given.pop("url"), {**given, "address_remap": remap})

    def timeout_names(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names of time-outs in capitals, as django-redis has them."""
        return [name.upper() for name in names]

    def _client_problem(self) -> RedisProblem | None:
        options = self._options
        path = options.get("CLIENT_CLASS", "django_redis.client.DefaultClient")
        try:
            client = import_string(path)
        except (ImportError, AttributeError, ValueError) as error:
            words = f"The CLIENT_CLASS of {self.name} cannot be imported: {error}."
            return cannot_serve(words, NAME_A_REDIS)
        if not isinstance(client, type):
            return cannot_serve(f"The CLIENT_CLASS of {self.name} is not a class: {path}.", NAME_A_REDIS)
        if issubclass(client, ShardClient):
            return RedisProblem(
                "E005",
                f"{self.name} uses the ShardClient, which spreads keys over servers by itself: a script has no single "
                "home.",
                "Use an alias with the DefaultClient, the SentinelClient or the ClusterClient.",
            )
        if issubclass(client, SentinelClient) and (missing := _missing_for_sentinel(options)):
            words = f"{self.name} uses the SentinelClient, but sets no {' and no '.join(missing)}."
            return cannot_serve(words, _SENTINEL_HINT)
        if issubclass(client, ClusterClient) and (problem := _no_cluster(self._location)):
            words = f"The LOCATION of {self.name} does not lead to a Cluster: {problem}."
            return cannot_serve(words, _CLUSTER_HINT)
        return None


def _missing_for_sentinel(options: Mapping[str, Any]) -> list[str]:
    for_all = getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None)  # django-redis' setting for all aliases
    given = {"CONNECTION_FACTORY": options.get("CONNECTION_FACTORY", for_all), "SENTINELS": options.get("SENTINELS")}
    return [name for name, value in given.items() if not value]


_SENTINEL_HINT = (
    'Use, for example, "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory" and "SENTINELS": '
    '[("10.0.0.1", 26379)] in its OPTIONS.'
)

_CLUSTER_HINT = 'Name one or several servers, for example ["redis://10.0.0.1:6379/0", "redis://10.0.0.2:6379/0"].'


def _no_cluster(location: object) -> str | None:
    """Say why a LOCATION names no servers of a Cluster; None if it does."""
    urls = location.split(",") if isinstance(location, str) else cast("Iterable[str]", location)
    for url in urls:
        try:
            parts = parse_location(url.strip())
            address_of(url.strip())
        except ValueError as error:
            return without_secrets(str(error).rstrip("."))
        if parts.get("db"):
            return f"{without_password(url)!r} names another database than 0, the only one of a Cluster"
    return None
