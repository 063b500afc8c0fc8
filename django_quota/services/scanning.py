"""Finding keys by walking through all keys of Redis, for commands that go over all subjects."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from django_quota.engine.operations import text
from django_quota.stores.cluster.walking import Walk
from django_quota.stores.redis.store import RedisStore


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
