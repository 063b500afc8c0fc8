"""Finding keys by walking through all keys of Redis, for commands that go over all subjects."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import cast

from django_quota.engine.operations import text
from django_quota.stores.base import Store
from django_quota.stores.cluster.walking import Walk
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.store import RedisStore

SCAN_COUNT = 1_000
"""Keys that one SCAN looks at."""


def find_hashes(store: RedisStore, matching: str, batch: int) -> Iterator[list[str]]:
    """Yield the keys of all hashes that match a pattern, at most `batch` at a time. A key may come twice.

    In a Cluster, a key that moves meanwhile may not come. Raises `StoreUnavailable` if Redis does not answer; if a part
    of a Cluster does not, after all other servers.
    """
    walk = Walk(store)
    for server in walk.servers:
        with walk.past(), store.commands(server) as client:
            keys = map(text, client.scan_iter(matching, batch, "HASH"))
            while found := list(islice(keys, batch)):
                yield found
    walk.end()


def find_keys(store: Store, matching: str) -> Iterator[str]:
    """Yield all keys that match a pattern; see `find_hashes`. The memory store has those of this process."""
    if isinstance(store, MemoryStore):
        yield from (key for key in store.names() if fnmatchcase(key, matching))
        return
    walk = Walk(store)
    for server in walk.servers:
        with walk.past(), cast("RedisStore", store).commands(server) as client:
            yield from map(text, client.scan_iter(matching, SCAN_COUNT))
    walk.end()
