"""Health: whether Redis answers, how fast, and what about it may harm the limits. It only reads, in two trips.

Of a Cluster it tells of the server that has the system's keys.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django_quota.keys import system_key
from django_quota.overrides import marker_key
from django_quota.stores.redis import RedisStore

NEARLY_FULL = 0.9
"""The share of `maxmemory` from which on Redis counts as nearly full."""


@dataclass(frozen=True, slots=True)
class Health:
    """How Redis is. What it does not tell, since it may not be asked, is None."""

    latency: float
    """Seconds that a PING took."""
    version: str | None = None
    role: str | None = None
    """`"master"` or `"slave"`, as Redis calls it."""
    uptime: int | None = None
    """Seconds."""
    clients: int | None = None
    used: int | None = None
    """Bytes."""
    most: int | None = None
    """Bytes that it may use; 0: as many as there are."""
    policy: str | None = None
    """What it does when it is full, such as `"noeviction"`."""
    keys: int | None = None
    """Keys of the whole database; of a Cluster, those of all servers."""
    events: int | None = None
    """Entries of the event stream."""
    holds_overrides: bool | None = None
    """Whether it shows that all overrides have been published to it."""

    @property
    def may_evict(self) -> bool:
        """Whether it drops keys when it is full: limits are forgotten then."""
        return bool(self.most) and self.policy not in (None, "noeviction")

    @property
    def is_nearly_full(self) -> bool:
        """Whether it has used up nearly all that it may."""
        return bool(self.most) and (self.used or 0) >= NEARLY_FULL * (self.most or 0)

    @property
    def is_replica(self) -> bool:
        """Whether it takes no writes: nothing can be counted in it."""
        return self.role == "slave"


def health(store: RedisStore, prefix: str) -> Health:
    """Ask Redis how it is. Raises `StoreUnavailable` where it does not answer."""
    with store.commands() as client:
        client.ping()  # what a new connection takes is not the latency
        began = time.perf_counter()
        client.ping()
        latency = time.perf_counter() - began
        with client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.info()
            pipeline.dbsize()
            pipeline.xlen(system_key(prefix, "events"))
            pipeline.exists(marker_key(prefix))
            # A user of Redis may not be allowed all of them: what is refused is left out.
            info, keys, events, marked = (_given(reply) for reply in pipeline.execute(raise_on_error=False))
    told: Mapping[str, Any] = info or {}
    keys = _keys_of_all(store, keys)
    return Health(
        latency,
        told.get("redis_version"),
        told.get("role"),
        told.get("uptime_in_seconds"),
        told.get("connected_clients"),
        told.get("used_memory"),
        told.get("maxmemory"),
        told.get("maxmemory_policy"),
        keys,
        events,
        None if marked is None else bool(marked),
    )


def _keys_of_all(store: RedisStore, own: int | None) -> int | None:
    """Return how many keys all servers of a Cluster have; `own`: those of the one that was asked."""
    servers = store.servers()
    if len(servers) == 1 or own is None:
        return own
    total = 0
    for server in servers:
        with store.commands(server) as client:
            total += int(client.dbsize())
    return total


def _given(reply: Any) -> Any:
    return None if isinstance(reply, Exception) else reply
