"""A Redis Cluster: the cache client that settings name, and the store that sends each operation to its slot."""

from __future__ import annotations

from django_quota.stores.cluster.client import ClusterClient

__all__ = ["ClusterClient"]
