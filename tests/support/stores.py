"""The stores of the tests: programs to run, the settings that lead to them, and what a process remembers of them."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.core.signals import setting_changed
from django_redis.pool import ConnectionFactory

from django_quota.engine.operations import States
from django_quota.limiting.flusher import flusher
from django_quota.limiting.registry import get_limiter
from django_quota.stores.base import Draft, Statement
from django_quota.stores.database import sql
from django_quota.stores.database.store import DatabaseStore
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.django_redis import ClusterConnectionFactory
from django_quota.stores.redis.store import RedisStore
from django_quota.testing import RedisServer, server_programs
from tests.support.clusters import Cluster
from tests.support.databases import default_database

CLIENT = "django_redis.client.DefaultClient"
CLUSTER_CLIENT = "django_quota.stores.cluster.ClusterClient"


PATIENT = {"SOCKET_TIMEOUT": 60, "SOCKET_CONNECT_TIMEOUT": 60}
"""A busy machine stops a process for longer than a site would wait: that must not look like a Redis that is gone."""


def caches(server: RedisServer, **pool_options: Any) -> dict[str, Any]:
    return _caches(server.url, CLIENT, pool_options)


def cluster_caches(cluster: Cluster, **pool_options: Any) -> dict[str, Any]:
    return _caches(cluster.location, CLUSTER_CLIENT, pool_options)


def _caches(location: str | list[str], client: str, pool_options: dict[str, Any]) -> dict[str, Any]:
    options = {"CLIENT_CLASS": client, **PATIENT, "CONNECTION_POOL_KWARGS": pool_options}
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}}


@cache
def server_name(program: Path) -> str:
    words = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    return f"{words.partition(' ')[0]} {words.partition('v=')[2].partition(' ')[0]}"


def programs() -> list[Any]:
    """Return the parameters of a fixture that runs each server: only the first one is in `make test`."""
    repeats = pytest.mark.thorough("server")
    return [pytest.param(each, marks=[repeats] if number else []) for number, each in enumerate(server_programs())]


def named(program: Path | str) -> str:
    return program if isinstance(program, str) else server_name(program).lower().replace(" ", "-")


def cluster_program() -> Path:
    return server_programs()[0]


def current_store() -> Any:
    return get_limiter().store


def spy(
    patched: pytest.MonkeyPatch,
    before: Callable[[Any], object] = bool,
    after: Callable[[Any], object] = bool,
    *,
    background: bool = True,
) -> None:
    """Call these functions before and after each call of the store, sync or async; they get the operation.

    `background`: also for calls in the thread of the flusher. It settles what earlier tests have left, whenever the
    garbage collector finds it.
    """
    if not background:
        before, after = in_the_foreground(before), in_the_foreground(after)
    store = current_store()
    run, arun = store.run, store.arun

    def spied(operation: Any, now: int | None = None) -> Any:
        before(operation)
        reply = run(operation, now)
        after(operation)
        return reply

    async def aspied(operation: Any, now: int | None = None) -> Any:
        before(operation)
        reply = await arun(operation, now)
        after(operation)
        return reply

    patched.setattr(store, "run", spied)
    if not isinstance(store, MemoryStore):  # its `arun` calls its `run`
        patched.setattr(store, "arun", aspied)


def in_the_foreground(function: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda operation: threading.current_thread().name == flusher.name or function(operation)


def local_store() -> MemoryStore:
    """Return what decides in this process while Redis is away, for rules with on_unavailable="local"."""
    return get_limiter().fallback.local


def memory_states(store: MemoryStore) -> States:
    return _Kept(store)


class _Kept(Draft):
    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store._keys)
        self._store = store

    def put(self, key: str, value: Any, expiry: int) -> None:
        self._store._keep({key: (value, expiry)}, ())

    def drop(self, key: str) -> bool:
        existed = super().drop(key)
        self._store._keep({key: self.changed.pop(key)}, ())
        return existed


def empty_database(store: DatabaseStore) -> None:
    for table in (sql.STATE_TABLE, sql.EVENT_TABLE, sql.BAN_TABLE):
        store.write(lambda _: Statement(f"DELETE FROM {table} RETURNING 1"))  # noqa: B023 — called at once


@contextmanager
def store_on(database: dict[str, Any], settings: Any, blocker: Any) -> Iterator[DatabaseStore]:
    """Count in a database, also in a test that has none."""
    with blocker.unblock(), default_database(database):
        settings.QUOTA = {"STORE": "database"}
        yield current_store()
        current_store().close()


class UnsweptMemory(MemoryStore):
    """Keeps what has expired, as Redis does for an hour where a test passes the time in."""

    def _sweep_some(self, now: int, lasting: int | None) -> None: ...

    def kept(self) -> dict[str, tuple[Any, int]]:
        """Return the value of each key, and when it expires."""
        return {key: (value, expiry) for key, (value, expiry, *_) in self._keys.items()}


@contextmanager
def own_memory_store(**options: Any) -> Iterator[MemoryStore]:
    """Yield a memory store that no other code uses, and end its threads."""
    store = UnsweptMemory(**options)
    try:
        yield store
    finally:
        store.close()


def redis_store() -> RedisStore:
    store = get_limiter().store
    assert isinstance(store, RedisStore)
    return store


def replace_store() -> None:
    """Close the store of the settings, as a change of them does; the next call makes a new one."""
    setting_changed.send(None, setting="QUOTA", value=None, enter=True)


def forget_connections() -> None:
    """Close all connections of django-redis, and forget them: it keeps its pools, one a URL, whatever the options."""
    for pool in list(ConnectionFactory._pools.values()):  # a thread of a test may still add one
        pool.disconnect()
        for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
            sentinel.close()
    ConnectionFactory._pools.clear()
    ClusterConnectionFactory.forget()
