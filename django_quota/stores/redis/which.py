"""Which Redis counts: what an alias of `CACHES` or `QUOTA["REDIS"]` says of it, in one form for all readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django_quota.stores.redis.config import Address


class RedisProblem(NamedTuple):
    """Why a Redis cannot serve; `code` is the number of its system check."""

    code: str
    message: str
    hint: str
    is_another_cache: bool = False
    """Whether the alias is a cache of another kind, such as one in memory while you develop or test."""


class ClusterPlace(NamedTuple):
    """Where a Cluster is."""

    addresses: Sequence[Address]
    """Servers that are asked for all others."""
    url: str
    """The URL of the first of them, for redis-py."""
    options: Mapping[str, Any]
    """redis-py's options of its connections, with `max_connections`, `timeout` and `address_remap` if they are set."""


class WhichRedis:
    """The settings of a Redis. It opens no connection, and its texts show no password."""

    name: str
    """How texts name it, such as `CACHES["default"]`."""
    options_name: str
    """How texts name its options."""
    options_hint: str
    """What to write instead of options that redis-py refuses."""
    sentinel_options_name: str = "SENTINEL_KWARGS"
    """How its settings name the options of the connections to sentinels."""
    is_cluster: bool = False

    def problem(self) -> RedisProblem | None:
        """Say why it cannot serve; None if it can, unless its options are wrong."""
        return None

    def new_pool(self) -> Any:
        """Return a pool of redis-py that nobody else uses. Raises what redis-py raises for wrong options."""
        raise NotImplementedError

    def pool(self) -> Any:
        """Return a pool of redis-py. Raises `ConfigurationError` if there is none."""
        return self.new_pool()

    def pool_option(self, name: str) -> Any:
        """Return `max_connections` or `timeout` where it is set: redis-py's defaults are long waits, or no bounds."""
        raise NotImplementedError

    def sentinel_options(self) -> Mapping[str, Any] | None:
        """Return the options of the connections to sentinels; None if they are not set."""
        return None

    def cluster(self) -> ClusterPlace:
        """Return where the Cluster is. Call it only if this is one."""
        raise NotImplementedError

    def timeout_names(self, names: Sequence[str]) -> Sequence[str]:
        """Return how its settings write these time-outs; empty where nobody but the limits uses the connections."""
        return names
