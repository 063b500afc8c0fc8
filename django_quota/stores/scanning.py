"""Long jobs, which concern all subjects: walks over all servers and keys of a store, and patience with late answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from django_quota.core.clock import SECOND
from django_quota.core.errors import StoreBusy, StoreConnectionLost, StorePermissionDenied, StoreUnavailable
from django_quota.engine.operations import text
from django_quota.stores.base import AskedAgain, RedisServers, Server, Store, asked_once

if TYPE_CHECKING:
    from redis import Redis

T = TypeVar("T")

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
    asked: AskedAgain = asked_once,
) -> Iterator[list[str]]:
    """Yield all keys that match a pattern, at most `batch` at a time; see `Store.names`."""
    walk = Walk(store)
    for server in walk.servers:
        with walk.part(), store.commands(server) as client:
            yield from batched(_keys_of(client, matching, batch, asked), batch)
    walk.end()


def _keys_of(client: Any, matching: str, count: int, asked: AskedAgain) -> Iterator[str]:
    """Yield the keys of one server that match a pattern; each call passes `count` keys. A key may come twice."""
    cursor = 0
    while True:
        cursor, keys = asked(partial(client.scan, cursor, match=matching, count=count))
        yield from map(text, keys)
        if not cursor:
            return


def time_of(client: Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * SECOND + int(microseconds)


# --- patience ---------------------------------------------------------------------------------------------------------

PAUSES = (0.25, 1.0, 2.0)
"""Seconds before a call that was not answered is made again; after the last one, its error ends the job."""


class Patience:
    """Makes a call again that was not answered, after each of the `PAUSES`. `stop`: ends the job, also in a pause."""

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()

    def __call__(self, call: Callable[[], T], /) -> T:
        """Make the call."""
        for pause in PAUSES:
            try:
                return call()
            except Exception as error:
                if not _is_silence(error) or self._stop.wait(pause):
                    raise
        return call()


def _is_silence(error: Exception) -> bool:
    """Say whether an error may be over in a moment: its class says no more than that there was no answer."""
    if isinstance(error, StoreUnavailable):
        return type(error) in (StoreUnavailable, StoreBusy, StoreConnectionLost)
    # Only a command that talks to Redis itself comes here: other stores work without this import.
    from redis.exceptions import ConnectionError as RedisConnectionError  # noqa: PLC0415
    from redis.exceptions import TimeoutError as RedisTimeoutError  # noqa: PLC0415

    return isinstance(error, RedisTimeoutError) or type(error) is RedisConnectionError
