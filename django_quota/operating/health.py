"""Health: whether Redis answers, how fast, and what may harm the limits.

The checks change nothing. In a Cluster they ask all primaries, and report sums, or the worst of the values.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.errors import QuotaError, StorePermissionDenied, StoreRefusesWrites, StoreUnavailable
from django_quota.core.keys import system_key
from django_quota.core.overrides import ALL_RULES, EVERYBODY
from django_quota.limiting.overrides import overrides
from django_quota.stores.base import RedisServers, Server
from django_quota.stores.scanning import Walk

PROBE = ":probe"
"""The end of the name of a key that never exists: ZADD XX changes nothing there, but fails if Redis refuses writes."""

NEARLY_FULL = 0.9
"""The share of `maxmemory` from which on Redis counts as nearly full."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of Redis. A value that our Redis user may not read is None."""

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
    """Bytes that Redis may use; 0: no limit."""
    policy: str | None = None
    """What Redis does when its memory is full, such as `"noeviction"`."""
    keys: int | None = None
    """Keys of the database; in a Cluster, of all servers."""
    events: int | None = None
    """Entries of the event stream."""
    refuses: str = ""
    """The error of a write, if Redis refuses it: it is full, a replica, or cannot save. Then nothing is counted."""
    parts: Sequence[Health] = ()
    """In a Cluster, the state of each server that answers."""
    silent: Sequence[str] = ()
    """In a Cluster, the addresses of the servers that do not answer."""

    @property
    def servers(self) -> int:
        """How many servers there are, including those that do not answer."""
        return max(1, len(self.parts)) + len(self.silent)

    @property
    def may_evict(self) -> bool:
        """Whether Redis evicts keys when it is full, so that limits are forgotten."""
        if self.parts:
            return any(part.may_evict for part in self.parts)
        return bool(self.most) and self.policy not in (None, "noeviction")

    @property
    def fullest(self) -> float | None:
        """The used share of the memory, of the fullest server; None if there is no limit."""
        shares = [(part.used or 0) / part.most for part in self.parts or (self,) if part.most]
        return max(shares, default=None)

    @property
    def is_nearly_full(self) -> bool:
        """Whether the memory of Redis is nearly full."""
        return (self.fullest or 0) >= NEARLY_FULL

    @property
    def is_full(self) -> bool:
        """Whether Redis refuses writes because its memory is full."""
        return is_full(self.refuses)

    @property
    def is_replica(self) -> bool:
        """Whether Redis is a replica, which refuses writes."""
        return any(part.is_replica for part in self.parts) or self.role == "slave"


def nothing_is_limited(failure: QuotaError | None = None) -> str:
    """Return why the whole site is without limits now, in the language of the reader; empty if it is not.

    `failure`: the error of the store, if it has just failed.
    """
    if not current().enabled:
        return _("Limits are switched off (ENABLED is false), so everything is allowed.")
    overrides.refresh()
    override = overrides.table.find(ALL_RULES, EVERYBODY, clock.now())
    if override is not None and override.mode == "exempt":
        return _("An override exempts everybody from all rules, so nothing is limited.")
    if isinstance(failure, StoreUnavailable) and current().on_unavailable == "allow":
        return _("The store fails, so nothing is limited, except by rules with an on_unavailable of their own.")
    return ""


def health(store: RedisServers, prefix: str) -> Health:
    """Return the state of Redis. Raises `StoreUnavailable` if no server answers."""
    walk = Walk(store)
    own = None
    with walk.part():
        own = store.server_of(system_key(prefix, "events"))
    parts, silent = [], []
    for server in walk.servers:
        missed = walk.missed
        with walk.part():
            parts.append(_of_one(store, server, prefix, has_events=server == own))
        if walk.missed > missed:
            silent.append(str(server))
    if not parts:
        walk.end()
    return parts[0] if len(parts) == 1 and not silent else _joined(parts, silent)


def _of_one(store: RedisServers, server: Server, prefix: str, *, has_events: bool) -> Health:
    from django_quota.stores.redis.errors import translate_error  # noqa: PLC0415 — a site may have no Redis

    probe = system_key(prefix, "events") + PROBE
    with store.commands(server) as client:
        client.ping()  # the time for a new connection is not latency
        began = time.perf_counter()
        client.ping()
        latency = time.perf_counter() - began
        with client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.info()
            pipeline.dbsize()
            pipeline.zadd(store.node_key(probe, server) or probe, {"": 1}, xx=True)
            if has_events:
                pipeline.xlen(system_key(prefix, "events"))
            # A Redis user may lack some of these permissions: what is refused stays None.
            info, keys, change, *events = pipeline.execute(raise_on_error=False)
    info, keys = map(_given, (info, keys))
    details: Mapping[str, Any] = info or {}
    return Health(
        latency,
        _version(details),
        details.get("role"),
        details.get("uptime_in_seconds"),
        details.get("connected_clients"),
        details.get("used_memory"),
        details.get("maxmemory"),
        details.get("maxmemory_policy"),
        keys,
        _given(events[0]) if events else None,
        _refusal(translate_error(change)) if isinstance(change, Exception) else "",
    )


def _version(details: Mapping[str, Any]) -> str | None:
    """Return the version in INFO. Valkey adds its own version to that of a compatible Redis."""
    of_valkey = details.get("valkey_version")
    return f"Valkey {of_valkey}" if of_valkey else details.get("redis_version")


def _joined(parts: Sequence[Health], silent: Sequence[str]) -> Health:
    """Return the state of a Cluster: the slowest latency, the oldest version, sums, and the worst policy."""
    policies = [part.policy for part in sorted(parts, key=lambda part: not part.may_evict) if part.policy]
    bounds = [part.most for part in parts if part.most]
    return Health(
        latency=max(part.latency for part in parts),
        version=min((part.version for part in parts if part.version), key=_numbers, default=None),
        role=next((part.role for part in parts if part.role), None),
        uptime=min((part.uptime for part in parts if part.uptime is not None), default=None),
        clients=_sum(part.clients for part in parts),
        used=_sum(part.used for part in parts),
        most=sum(bounds) if len(bounds) == len(parts) else 0,
        policy=policies[0] if policies else None,
        keys=_sum(part.keys for part in parts),
        events=_sum(part.events for part in parts),
        refuses=next((part.refuses for part in parts if part.refuses), ""),
        parts=parts,
        silent=silent,
    )


def is_full(refusal: str) -> bool:
    """Return whether these words of an error mean that Redis refuses a write because its memory is full."""
    return "OutOfMemory" in refusal or "OOM" in refusal


def refused_change(store: RedisServers, key: str) -> str:
    """Return why the server of a key refuses a write; empty if it accepts writes, or if our user may not ask.

    The probe changes nothing. Raises `StoreUnavailable` if the server does not answer.
    """
    probe = f"{key}{PROBE}"
    try:
        with store.commands(store.server_of(probe)) as client:
            client.zadd(probe, {"": 1}, xx=True)
    except (StoreRefusesWrites, StorePermissionDenied) as error:
        return _refusal(error)
    return ""


def _refusal(error: QuotaError) -> str:
    """Return the message of an error if it says that writes are refused."""
    return error.reason if isinstance(error, StoreRefusesWrites) else ""


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _numbers(version: str) -> list[int]:
    return list(map(int, re.findall(r"\d+", version)))


def _given(reply: Any) -> Any:
    return None if isinstance(reply, Exception) else reply
