"""The limiter of this process, made from the settings, and replaced when they change."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING

from django.core.signals import setting_changed

from django_quota.conf import current
from django_quota.core.clock import frozen_now
from django_quota.core.flow import IOCall
from django_quota.engine.operations import Operation
from django_quota.limiting.limiter import Limiter
from django_quota.signals import store_lost
from django_quota.stores.base import Store
from django_quota.stores.database.store import DatabaseStore
from django_quota.stores.memory import MemoryStore

if TYPE_CHECKING:
    from django_quota.stores.redis.settings import WhichRedis
    from django_quota.stores.redis.store import RedisStore

_limiter: Limiter | None = None
_forced: Store | None = None
_replacing = threading.RLock()


@cache
def get_limiter() -> Limiter:
    """Return the configured limiter, made when first needed."""
    global _limiter  # noqa: PLW0603
    made = Limiter(_make_store() if _forced is None else _forced)
    with _replacing:
        _limiter = limiter = _limiter or made
    if limiter is not made:  # another thread was faster; ours must not count as another worker
        made.close()
    return limiter


def store_call(operation: Operation) -> IOCall:
    """Return the call that runs an operation on the configured store. The call raises `StoreUnavailable`."""
    store = get_limiter().reporting_store
    return IOCall(store.run, store.arun, operation, frozen_now())


def _make_store() -> Store:
    settings = current()
    if settings.store == "database":
        return DatabaseStore(settings.database)
    if settings.store == "memory":
        return MemoryStore(max_keys=settings.memory_keys)
    return store_of(which_redis())


def force_store(store: Store | None) -> Store | None:
    """Count in this store, whatever the settings say; None: follow the settings. Return the store until now.

    All threads use it, however a test changes the settings: so no test reaches your store by accident.
    """
    global _forced
    before, _forced = _forced, store
    _forget_limiter()
    return before


def clear_memory() -> None:
    """Forget what this process counts in its own memory. A shared store keeps what it has."""
    limiter = _limiter
    if limiter is not None:
        limiter.fallback.local.clear_memory()
        limiter.refusals.forget()
        limiter.store.clear_memory()
        if not limiter.store.is_shared:
            limiter.metrics.clear()


def _count_outage(**_: object) -> None:
    if _limiter is not None:
        _limiter.metrics.count_outage()


store_lost.connect(_count_outage, dispatch_uid="django_quota.limiting.registry")


def _forget_limiter() -> None:
    global _limiter
    with _replacing:
        limiter, _limiter = _limiter, None
        get_limiter.cache_clear()
    if limiter is not None:
        limiter.close()


def _see_change(*, setting: str, **_: object) -> None:
    # What is counted in memory does not depend on CACHES and DATABASES.
    is_shared = _limiter is not None and _limiter.store.is_shared
    if setting == "QUOTA" or (setting in ("CACHES", "DATABASES") and is_shared):
        _forget_limiter()


setting_changed.connect(_see_change, dispatch_uid="django_quota.limiting.registry")


def which_redis() -> WhichRedis:
    """Return the Redis of the settings: `REDIS`, or the alias in `CACHE`."""
    # A site without Redis needs none of its packages.
    from django_quota.stores.redis.aliases import redis_of_alias  # noqa: PLC0415
    from django_quota.stores.redis.given import GivenRedis  # noqa: PLC0415

    settings = current()
    return redis_of_alias(settings.cache) if settings.redis is None else GivenRedis(settings.redis)


def store_of(which: WhichRedis) -> RedisStore:
    """Return the store of a Redis: one server, or a Cluster."""
    from django_quota.stores.redis.store import RedisStore  # noqa: PLC0415

    if not which.is_cluster:
        return RedisStore(which)
    from django_quota.stores.cluster.store_cluster import ClusterStore  # noqa: PLC0415 — most sites have none

    return ClusterStore(which)
