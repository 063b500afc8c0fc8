"""The limiter of this process: made from the settings, and replaced when they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django_quota.conf import current
from django_quota.core.clock import frozen_now
from django_quota.core.flow import IOCall
from django_quota.engine.operations import Operation
from django_quota.limiting.known_rules import known_rules
from django_quota.limiting.limiter import Limiter
from django_quota.limiting.stores import CountingStore
from django_quota.runtime import runtime
from django_quota.stores.base import Store
from django_quota.stores.database.store import DatabaseStore
from django_quota.stores.memory import MemoryStore

if TYPE_CHECKING:
    from django_quota.stores.redis.settings import WhichRedis
    from django_quota.stores.redis.store import RedisStore


def _make_limiter() -> Limiter:
    wanted = runtime.wanted.store
    if wanted is not None:  # an empty memory store is false
        return Limiter(wanted)
    settings = current()
    return Limiter(make_store(settings.store), None if settings.store == "database" else _open_database)


def _depends(limiter: Limiter, setting: str) -> bool:
    # The memory store does not depend on CACHES and DATABASES.
    return setting == "QUOTA" or (setting in ("CACHES", "DATABASES") and limiter.stores.is_shared)


_limiter = runtime.part(_make_limiter, depends=_depends, end=Limiter.close)


def get_limiter() -> Limiter:
    """Return the configured limiter, made when first needed."""
    return _limiter.made or _limiter.get()


def store_call(operation: Operation, *, in_database: bool = False) -> IOCall:
    """Return the call that runs an operation on the configured store. Made, it may raise `StoreUnavailable`.

    `in_database`: whether it is about a rule or a counter with `store="database"`.
    """
    store = get_limiter().stores.counting_in(database=in_database).reporting_store
    return IOCall(store.run, store.arun, operation, frozen_now())


def counting_stores() -> Sequence[CountingStore]:
    """Return the stores that count: that of the settings, then the database if a rule or a counter is known to use it.

    A counter is known from when the process made it.
    """
    known_rules()
    return get_limiter().stores.in_use()


def make_store(name: str) -> Store:
    """Return a new store by its name as a value of `STORE`, with the other settings of the site."""
    settings = current()
    if name == "database":
        return _open_database()
    if name == "memory":
        return MemoryStore(max_keys=settings.memory_keys)
    return store_of(which_redis())


def _open_database() -> Store:
    alias = current().database
    return DatabaseStore(alias, lambda: runtime.is_of_site(alias))


def force_store(store: Store | None) -> Store | None:
    """Use this store, whatever the settings say; None: follow the settings. Return the store that was forced before.

    All threads use it, even if a test changes the settings: so no test reaches your real store by accident.
    """
    before = runtime.wanted
    runtime.wanted = before._replace(store=store)
    _limiter.forget()
    return before.store


def clear_memory() -> None:
    """Forget what this process counts in its own memory. A shared store keeps what it has."""
    limiter = _limiter.made
    if limiter is not None:
        limiter.fallback.local.clear_memory()
        limiter.refusals.forget()
        limiter.prefetch.forget()
        limiter.store.clear_memory()
        if not limiter.store.is_shared:
            limiter.metrics.clear()


def which_redis() -> WhichRedis:
    """Return the Redis of the settings: `REDIS`, or the alias in `CACHE`."""
    # Imported here, because a site without Redis may not have its packages.
    from django_quota.stores.redis.aliases import redis_of_alias  # noqa: PLC0415
    from django_quota.stores.redis.settings import GivenRedis  # noqa: PLC0415

    settings = current()
    return redis_of_alias(settings.cache) if settings.redis is None else GivenRedis(settings.redis)


def store_of(which: WhichRedis) -> RedisStore:
    """Return the store of a Redis: one server, or a Cluster."""
    from django_quota.stores.redis.store import RedisStore  # noqa: PLC0415

    if not which.is_cluster:
        return RedisStore(which)
    from django_quota.stores.cluster.store import ClusterStore  # noqa: PLC0415 — most sites have none

    return ClusterStore(which)
