"""Walks over all servers of a store, and over all its keys, for work that concerns all subjects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from django_quota.core.clock import SECOND
from django_quota.core.errors import StorePermissionDenied, StoreUnavailable
from django_quota.engine.operations import text
from django_quota.stores.base import RedisServers, Server, Store
from django_quota.stores.patience import AskedAgain, asked_once

if TYPE_CHECKING:
    from redis import Redis

KEYS_A_SCAN = 1_000
"""Keys that one SCAN looks at."""


class Walk:
    """One round over the servers of a store. A database is one server.

    A server that does not answer does not stop the others, and is reported at the end. If there is only one, its first
    error ends the round.
    """

    def __init__(self, store: Store) -> None:
        self.servers: Sequence[Server] = [None] if store.redis is None else store.redis.servers()
        self.missed = 0
        """Parts that were skipped."""
        self._first: StoreUnavailable | None = None

    @contextmanager
    def part(self) -> Iterator[None]:
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


def batched(names: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield names, at most `size` at a time."""
    while found := list(islice(names, size)):
        yield found


def scan(
    store: RedisServers,
    matching: str,
    batch: int = KEYS_A_SCAN,
    kind: str | None = None,
    asked: AskedAgain = asked_once,
) -> Iterator[list[str]]:
    """Yield all keys that match a pattern, at most `batch` at a time; see `Store.names`. `kind`: "HASH" for hashes."""
    walk = Walk(store)
    for server in walk.servers:
        with walk.part(), store.commands(server) as client:
            yield from batched(_keys_of(client, matching, batch, kind, asked), batch)
    walk.end()


def _keys_of(client: Any, matching: str, count: int, kind: str | None, asked: AskedAgain) -> Iterator[str]:
    """Yield the keys of one server that match a pattern; each call passes `count` keys. A key may come twice."""
    cursor = 0
    while True:
        cursor, keys = asked(partial(client.scan, cursor, match=matching, count=count, _type=kind))
        yield from map(text, keys)
        if not cursor:
            return


def time_of(client: Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * SECOND + int(microseconds)
