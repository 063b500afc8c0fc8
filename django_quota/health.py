"""Health: whether Redis answers, how fast, and what about it may harm the limits. It changes nothing.

It takes two trips a server. Of a Cluster it tells of all primaries: sums, and of what may harm, the worst.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django_quota.exceptions import QuotaError, StoreUnavailable
from django_quota.keys import system_key
from django_quota.overrides import marker_key
from django_quota.stores.errors import ours
from django_quota.stores.redis import RedisStore, Server
from django_quota.stores.walking import Walk

PROBE = ":probe"
"""What the name of a key ends with that never is: to change what is there and nothing else (ZADD XX) changes nothing,
and is refused by a server that takes no changes."""

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
    refuses: str = ""
    """What it says to a change, where it takes none: it is full, a replica, or cannot save. Nothing is counted then."""
    parts: Sequence[Health] = ()
    """Of a Cluster, how each server is that answers."""
    silent: Sequence[str] = ()
    """Of a Cluster, where those listen that do not answer."""

    @property
    def servers(self) -> int:
        """How many servers there are, whether or not they answer."""
        return max(1, len(self.parts)) + len(self.silent)

    @property
    def may_evict(self) -> bool:
        """Whether it drops keys when it is full: limits are forgotten then."""
        if self.parts:
            return any(part.may_evict for part in self.parts)
        return bool(self.most) and self.policy not in (None, "noeviction")

    @property
    def fullest(self) -> float | None:
        """The share that is used of what may be, of the server where it is largest; None where nothing bounds it."""
        shares = [(part.used or 0) / part.most for part in self.parts or (self,) if part.most]
        return max(shares, default=None)

    @property
    def is_nearly_full(self) -> bool:
        """Whether it has used up nearly all that it may."""
        return (self.fullest or 0) >= NEARLY_FULL

    @property
    def is_full(self) -> bool:
        """Whether it takes no changes since its memory is full."""
        return is_full(self.refuses)

    @property
    def is_replica(self) -> bool:
        """Whether it takes no writes: nothing can be counted in it."""
        return any(part.is_replica for part in self.parts) or self.role == "slave"


def health(store: RedisStore, prefix: str) -> Health:
    """Ask Redis how it is. Raises `StoreUnavailable` where it does not answer, of a Cluster where no server does."""
    walk = Walk(store)
    own = None
    with walk.past():
        own = store.server_of(system_key(prefix, "events"))
    parts, silent = [], []
    for server in walk.servers:
        missed = walk.missed
        with walk.past():
            parts.append(_of_one(store, server, prefix, has_events=server == own))
        if walk.missed > missed:
            silent.append(str(server))
    if not parts:
        walk.end()
    return parts[0] if len(parts) == 1 and not silent else _joined(parts, silent)


def _of_one(store: RedisStore, server: Server, prefix: str, *, has_events: bool) -> Health:
    marker = store.witness(marker_key(prefix), server) or marker_key(prefix)
    with store.commands(server) as client:
        client.ping()  # what a new connection takes is not the latency
        began = time.perf_counter()
        client.ping()
        latency = time.perf_counter() - began
        with client.pipeline(transaction=False) as lent:
            pipeline: Any = lent  # redis-py leaves it untyped
            pipeline.info()
            pipeline.dbsize()
            pipeline.exists(marker)
            pipeline.zadd(f"{marker}{PROBE}", {"": 1}, xx=True)
            if has_events:
                pipeline.xlen(system_key(prefix, "events"))
            # A user of Redis may not be allowed all of them: what is refused is left out.
            info, keys, marked, change, *events = pipeline.execute(raise_on_error=False)
    info, keys, marked = map(_given, (info, keys, marked))
    told: Mapping[str, Any] = info or {}
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
        _given(events[0]) if events else None,
        None if marked is None else bool(marked),
        _refusal(ours(change)) if isinstance(change, Exception) else "",
    )


def _joined(parts: Sequence[Health], silent: Sequence[str]) -> Health:
    """Return how a Cluster is: the slowest, the oldest version, sums, and the policy that harms most."""
    policies = [part.policy for part in sorted(parts, key=lambda part: not part.may_evict) if part.policy]
    marked = [part.holds_overrides for part in parts if part.holds_overrides is not None]
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
        holds_overrides=all(marked) if marked else None,
        refuses=next((part.refuses for part in parts if part.refuses), ""),
        parts=parts,
        silent=silent,
    )


def is_full(refusal: str) -> bool:
    """Say whether Redis refuses a change with these words because its memory is full."""
    return "OutOfMemory" in refusal or "OOM" in refusal


def refused_change(store: RedisStore, key: str) -> str:
    """Return what the server of a key says to a change, where it takes none; empty where it does, or may not be asked.

    Nothing is changed. Raises `StoreUnavailable` where it does not answer.
    """
    probe = f"{key}{PROBE}"
    try:
        with store.commands(store.server_of(probe)) as client:
            client.zadd(probe, {"": 1}, xx=True)
    except StoreUnavailable as error:
        if not (error.only_writes or error.not_permitted):
            raise
        return _refusal(error)
    return ""


def _refusal(error: QuotaError) -> str:
    """Return what an error says, where it is that changes are not taken."""
    return error.reason if isinstance(error, StoreUnavailable) and error.only_writes else ""


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def _given(reply: Any) -> Any:
    return None if isinstance(reply, Exception) else reply
