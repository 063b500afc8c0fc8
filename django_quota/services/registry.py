"""The limiter of this process, put together from the settings and replaced when these change."""

from __future__ import annotations

import threading

from django.core.signals import setting_changed

from django_quota.conf import current
from django_quota.core.clock import frozen_now
from django_quota.core.flow import IOCall
from django_quota.engine.operations import Operation
from django_quota.engine.plans import clear_known_overrides
from django_quota.services.flusher import flusher
from django_quota.services.limiter import Limiter
from django_quota.services.metrics import DecisionMetrics
from django_quota.services.outages import ongoing
from django_quota.services.workers import Workers
from django_quota.signals import store_lost
from django_quota.stores.cluster.client import is_cluster
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.store import RedisStore

_limiter: Limiter | None = None
_replacing = threading.Lock()


def get_limiter() -> Limiter:
    """Return the limiter of the settings. It is made when it is first needed."""
    global _limiter  # noqa: PLW0603
    limiter = _limiter
    if limiter is None:
        made = _make_limiter()
        with _replacing:
            _limiter = limiter = _limiter or made
        if limiter is not made:  # another thread was faster; ours must not count as another worker
            _retire(made)
    return limiter


def store_call(operation: Operation) -> IOCall:
    """Return the call that runs an operation on the store of the settings. It raises `StoreUnavailable`."""
    store = get_limiter().reporting_store
    return IOCall(store.run, store.arun, operation, frozen_now())


def _make_limiter() -> Limiter:
    settings = current()
    if settings.store == "memory":
        memory = MemoryStore(max_keys=settings.memory_keys)
        return Limiter(memory, DecisionMetrics(memory))
    store = store_of(settings.cache)
    return Limiter(store, DecisionMetrics(store), Workers(store))


def clear_memory() -> None:
    """Forget what this process counts in its own memory. Redis keeps what it has."""
    limiter = _limiter
    if limiter is not None:
        limiter.local.clear()
        limiter.refusals.forget()
        if isinstance(limiter.store, MemoryStore):
            limiter.store.clear()
            if limiter.metrics is not None:
                limiter.metrics.clear()
    clear_known_overrides()


def _retire(limiter: Limiter) -> None:
    ongoing.discard(limiter.outages)
    flusher.remove(limiter.metrics, limiter.refusals, limiter.workers)
    limiter.store.close()
    limiter.local.close()


def _count_outage(**_: object) -> None:
    limiter = _limiter
    if limiter is not None and limiter.metrics is not None:
        limiter.metrics.count_outage()


store_lost.connect(_count_outage, dispatch_uid="django_quota.services.registry")


def _close(*, setting: str, **_: object) -> None:
    global _limiter
    if setting in ("CACHES", "QUOTA"):
        limiter, _limiter = _limiter, None
        if limiter is not None:
            _retire(limiter)


setting_changed.connect(_close, dispatch_uid="django_quota.services.registry")


def store_of(alias: str) -> RedisStore:
    """Return the store of a cache alias: one server, or a Cluster."""
    if not is_cluster(alias):
        return RedisStore(alias)
    from django_quota.stores.cluster.store_cluster import ClusterStore  # noqa: PLC0415 — most sites have none

    return ClusterStore(alias)
