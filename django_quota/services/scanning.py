"""Going over all servers of a store, and over all keys of Redis, for what concerns all subjects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import islice
from typing import cast

from django_quota.core.errors import StorePermissionDenied, StoreUnavailable
from django_quota.engine.operations import text
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.store import RedisStore, Server

SCAN_COUNT = 1_000
"""Keys that one SCAN looks at."""


class Walk:
    """One round over the servers of a store.

    A server that does not answer does not stop the others, and is reported at the end. If there is only one, its first
    error ends the round.
    """

    def __init__(self, store: Store) -> None:
        self.servers: Sequence[Server] = store.servers() if isinstance(store, RedisStore) else [None]
        self.missed = 0
        """Parts that were skipped."""
        self._first: StoreUnavailable | None = None

    @contextmanager
    def past(self) -> Iterator[None]:
        """Do one part; skip it if the server does not answer."""
        try:
            yield
        except StoreUnavailable as error:
            if len(self.servers) == 1:
                raise
            self.missed += 1
            self._first = self._first or error

    @property
    def problem(self) -> StoreUnavailable | None:
        """The error to report at the end: the first one."""
        if self._first is None:
            return None
        kind = StorePermissionDenied if isinstance(self._first, StorePermissionDenied) else StoreUnavailable
        return kind(f"a part of the Cluster did not answer, and the rest was done: {self._first.reason}")

    def end(self) -> None:
        """Raise `StoreUnavailable` if a part was skipped."""
        if self.problem is not None:
            raise self.problem from self._first


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
