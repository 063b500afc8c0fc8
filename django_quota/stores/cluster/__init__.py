"""A Redis Cluster: the cache client that settings name, and the store that sends each operation to its slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_quota.stores.redis.django_redis import ClusterClient

__all__ = ["ClusterClient"]


def __getattr__(name: str) -> Any:
    if name != "ClusterClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from django_quota.stores.redis.django_redis import ClusterClient  # noqa: PLC0415 — it needs django-redis

    return ClusterClient
