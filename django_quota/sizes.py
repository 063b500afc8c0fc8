"""Sizes: about how many keys of ours Redis holds, and what they take, from a sample. No walk over all of them.

A bounded number of SCAN steps lists keys, of which some are measured; what they come to is taken for all that the
database holds. Redis lists keys in the order of their hashes, so that the first ones are as good as any.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from django_quota.keys import is_system, read
from django_quota.operations.base import text
from django_quota.stores.redis import RedisStore
from django_quota.stores.walking import Walk

STEPS, STEP = 20, 100
"""SCAN steps, and keys that each looks at, about."""

MEASURED = 200
"""Keys that are measured at most."""

KEPT = 60.0
"""Seconds for which an estimate is given again."""


@dataclass(slots=True)
class KindSize:
    """The keys of one kind."""

    kind: str
    """One of `keys.KINDS`, or, with `is_system`, of `keys.SYSTEM_KINDS`."""
    is_system: bool
    keys: int
    """About how many there are."""
    bytes: int
    """About how many bytes they take."""


@dataclass(slots=True)
class Sizes:
    """An estimate."""

    listed: int = 0
    """Keys of the database that were looked at, ours or not."""
    total: int = 0
    """Keys of the database."""
    measured: int = 0
    """Keys of ours that were measured."""
    kinds: list[KindSize] = field(default_factory=list)
    """The largest first."""

    @property
    def is_whole(self) -> bool:
        """Whether all keys of the database were looked at."""
        return self.listed >= self.total

    @property
    def keys(self) -> int:
        """About how many keys of ours there are."""
        return sum(kind.keys for kind in self.kinds)

    @property
    def bytes(self) -> int:
        """About how many bytes they take."""
        return sum(kind.bytes for kind in self.kinds)


_last: dict[tuple[int, str], tuple[float, Sizes]] = {}


def sizes(store: RedisStore, prefix: str) -> Sizes:
    """Return an estimate that is a minute old at most. Raises `StoreUnavailable` where Redis does not answer."""
    place = (id(store), prefix)
    known = _last.get(place)
    if known is None or time.monotonic() - known[0] > KEPT:
        _last.clear()
        known = _last[place] = (time.monotonic(), _estimate(store, prefix))
    return known[1]


def _estimate(store: RedisStore, prefix: str) -> Sizes:
    found = Sizes()
    kinds: dict[str, tuple[str, bool]] = {}
    listed, measured = set[str](), dict[str, int]()
    walk = Walk(store)
    for server in walk.servers:
        with walk.past(), store.commands(server) as lent:
            total, keys = _listed(lent, max(1, STEPS // len(walk.servers)))
            found.total += total
            listed |= keys
    for key in listed:
        kind = _kind_of(prefix, key)
        if kind is not None:
            kinds[key] = kind
    sample = _spread(list(kinds))
    with walk.past():
        sizes_of = zip(sample, store.of_each(("MEMORY", "USAGE"), sample), strict=True)
        measured.update({key: size for key, size in sizes_of if size is not None})
    found.listed, found.measured = len(listed), len(measured)
    found.kinds = _extrapolated(kinds, measured, found.total / max(1, found.listed))
    return found


def _listed(client: Any, steps: int) -> tuple[int, set[str]]:
    """Return how many keys a server has, and those that so many steps list."""
    total, cursor, listed = int(client.dbsize()), 0, set[str]()
    for _ in range(steps):
        cursor, keys = client.scan(cursor, count=STEP)
        listed.update(map(text, keys))
        if cursor == 0:
            return min(total, len(listed)), listed
    return total, listed


def _kind_of(prefix: str, key: str) -> tuple[str, bool] | None:
    parts = read(prefix, key)
    return None if parts is None else (parts.what.partition(":")[0], is_system(prefix, key))


def _spread(keys: list[str]) -> list[str]:
    """Return as many of these keys as are measured, from all over them."""
    step = max(1, -(-len(keys) // MEASURED))
    return keys[::step]


def _extrapolated(kinds: dict[str, tuple[str, bool]], measured: dict[str, int], factor: float) -> list[KindSize]:
    keys, bytes_of, samples = Counter(kinds.values()), Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
    for key, size in measured.items():
        bytes_of[kinds[key]] += size
        samples[kinds[key]] += 1
    mean_of_all = sum(measured.values()) / max(1, len(measured))
    found = []
    for kind, count in keys.items():
        mean = bytes_of[kind] / samples[kind] if samples[kind] else mean_of_all
        found.append(KindSize(*kind, round(count * factor), round(count * factor * mean)))
    return sorted(found, key=lambda size: -size.bytes)
