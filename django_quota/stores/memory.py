"""The memory store: states in one process, without Redis. It runs the Python specification of each operation.

It serves tests, single processes, and rules that fall back while Redis is away. All keys are in one dict with one lock.
A sweeper thread drops expired keys.

It holds a limited number of keys. It never drops a key that still counts: its subject would start again from zero.
Instead it raises `StoreFull` for an operation that needs another key. Known subjects go on. A rule holds at most a part
of all keys (`SHARE`), so a rule that is flooded with new subjects leaves room for others.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from django_quota.core.clock import SECOND, elapsed, machine_now
from django_quota.core.errors import StoreFull
from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import Operation

logger = logging.getLogger("django_quota")

SWEEP_INTERVAL = 5.0
"""Seconds between two rounds of the sweeper."""

MAX_KEYS = 100_000
"""Keys that a store holds by default."""

SHARE = 0.8
"""The part of all keys that one rule may hold."""

ROOM_AGAIN = 0.7
"""A store that was full logs that again only after it held less than this part of its keys."""


class _Kept:
    """The keys of a store. They change under its lock."""

    __slots__ = ("held", "most", "of_key")

    def __init__(self, most: int) -> None:
        self.most = most
        self.of_key: dict[str, tuple[Any, int, str]] = {}
        """The value of each key, when it expires, and the rule, counter or slot that it counts for."""
        self.held = Counter[str]()
        """The number of keys of each rule."""

    def add(self, key: str, value: Any, expiry: int, owner: str) -> None:
        """Keep a value under a new key. Raises `StoreFull`."""
        if len(self.of_key) >= self.most or self.held[owner] >= self.most * SHARE:
            raise StoreFull(f"{owner!r} may have no more keys in the memory of this process")
        self.of_key[key] = (value, expiry, sys.intern(owner))
        self.held[owner] += 1

    def drop(self, key: str) -> tuple[Any, int, str] | None:
        """Drop a key; return what it was."""
        found = self.of_key.pop(key, None)
        if found is not None:
            owner = found[2]
            self.held[owner] -= 1
            if not self.held[owner]:
                del self.held[owner]
        return found


class _Change:
    """What an operation sees of the keys, and how it changes them. All that it has changed can be undone."""

    __slots__ = ("_before", "_kept", "_keys")

    def __init__(self, kept: _Kept, keys: Sequence[str]) -> None:
        self._kept = kept
        self._keys = keys
        self._before: dict[str, tuple[Any, int, str] | None] = {}
        """What each changed key was before; None: there was no such key."""

    def get(self, key: str, now: int | None = None) -> Any:
        value, expiry, _ = self._kept.of_key.get(key, _NOTHING)
        return None if now is not None and expiry <= now else value

    def put(self, key: str, value: Any, expiry: int) -> None:
        before = self._kept.of_key.get(key)
        if before is None:
            self._kept.add(key, value, expiry, self._owner(key))
        else:
            self._kept.of_key[key] = (value, expiry, before[2])
        self._before.setdefault(key, before)

    def expiry(self, key: str) -> int:
        return self._kept.of_key.get(key, _NOTHING)[1]

    def drop(self, key: str) -> bool:
        before = self._kept.drop(key)
        self._before.setdefault(key, before)
        return before is not None

    def undo(self) -> None:
        """Undo all changes."""
        for key, before in self._before.items():
            self._kept.drop(key)
            if before is not None:
                self._kept.of_key[key] = before
                self._kept.held[before[2]] += 1

    def _owner(self, key: str) -> str:
        """Return what a key counts for. The status of a subject, and its days, count for the operation's first rule."""
        return _name(key) or next(filter(None, map(_name, self._keys)), "")


_NOTHING = (None, 0, "")


def _name(key: str) -> str:
    """Return the rule, counter or slot in the name of a key; empty if there is none."""
    kind, _, rest = key.rpartition("}:")[2].partition(":")
    return "" if kind == "day" else rest.partition(":")[0]


class MemoryStore:
    """States in the memory of this process, `max_keys` at most. Its clock is the machine's."""

    is_shared = False
    database = None
    redis = None
    all_nodes_healthy = True

    def __init__(
        self,
        sweep_interval: float = SWEEP_INTERVAL,
        max_keys: int = MAX_KEYS,
        clock: Callable[[], float] = elapsed,
    ) -> None:
        self._max_keys = max_keys
        self._clock = clock
        self._was_full = False
        self._sweep_interval = sweep_interval
        self._began = 0
        """The time of the last operation, without what has elapsed since the machine started: a test may set it."""
        self._stop = threading.Event()
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked worker: another thread may have held the lock at the fork."""
        self._kept = _Kept(self._max_keys)
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._sweeper: threading.Thread | None = None

    def is_refusing(self) -> bool:
        """Say that no call is refused: there is no server."""
        return False

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`. Raises `StoreFull`."""
        if self._sweeper is None:
            self._start_sweeper()
        with self._lock:
            moment = self.now() if now is None else now
            self._began = moment - int(self._clock() * SECOND)
            change = _Change(self._kept, operation.keys)
            try:
                reply = operation.run(change, moment)
            except BaseException as error:
                change.undo()
                if isinstance(error, StoreFull):
                    self._report(error)
                raise
        return reply

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations; see `Runner.try_all`."""
        replies: list[Any] = []
        for operation in operations:
            try:
                replies.append(self.run(operation, now))
            except StoreFull as error:
                replies.append(error)
        return replies

    def _report(self, error: StoreFull) -> None:
        """Log once that the keys are used up."""
        if self._was_full:
            return
        self._was_full = True
        logger.error(
            'This process counts with %d of the %d keys that QUOTA["MEMORY_KEYS"] allows, and %s. '
            "New subjects are refused there.",
            len(self),
            self._max_keys,
            error.reason,
        )

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; it takes microseconds, so it stays in the event loop."""
        return self.run(operation, now)

    def sweep(self, now: int | None = None) -> int:
        """Drop all keys that expired by `now` (microseconds); return their number.

        None: the time of the last operation, and what has elapsed since. A thread that sweeps does not know what time
        the tests in other threads have set.
        """
        moment = self._began + int(self._clock() * SECOND) if now is None else now
        dropped = 0
        for key in list(self._kept.of_key):
            if self._has_expired(key, moment):  # so that an operation waits for one key at most, not for a whole round
                with self._lock:
                    if self._has_expired(key, moment):
                        self._kept.drop(key)
                        dropped += 1
        if self._was_full and len(self) < self._max_keys * ROOM_AGAIN:
            self._was_full = False
        return dropped

    def _has_expired(self, key: str, moment: int) -> bool:
        found = self._kept.of_key.get(key)
        return found is not None and found[1] <= moment

    def clear_memory(self) -> None:
        """Drop every key."""
        with self._lock:
            self._kept = _Kept(self._max_keys)
            self._was_full = False

    def close(self) -> None:
        """Stop the threads. States stay, and the next operation starts the threads again."""
        with self._starting:
            sweeper, self._sweeper = self._sweeper, None
            self._stop.set()
        if sweeper is not None:
            sweeper.join()

    def __len__(self) -> int:
        return len(self._kept.of_key)

    def names(self, matching: str) -> Iterator[str]:
        """Yield the keys of this process that match a pattern; see `Store.names`."""
        return (key for key in list(self._kept.of_key) if fnmatchcase(key, matching))

    @staticmethod
    def now() -> int:
        """Return the machine's time in microseconds."""
        return machine_now()

    def _start_sweeper(self) -> None:
        with self._starting:
            if self._sweeper is None:
                self._stop = threading.Event()
                self._sweeper = threading.Thread(
                    target=_sweep_rounds,
                    args=(weakref.ref(self), self._stop, self._sweep_interval),
                    name="django-quota-sweeper",
                    daemon=True,
                )
                self._sweeper.start()


def _sweep_rounds(store_ref: weakref.ref[MemoryStore], stop: threading.Event, interval: float) -> None:
    """Sweep until `stop` is set, or until nobody uses the store any more."""
    while not stop.wait(interval):
        store = store_ref()
        if store is None:
            return
        store.sweep()
        del store
