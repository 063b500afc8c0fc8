"""The memory store: states in one process, without Redis. It runs the Python specification of each operation.

It serves tests, single processes, and rules that fall back while Redis is away. The keys are in shards, each with a
lock. A sweeper thread goes from shard to shard and drops expired keys.

It holds a limited number of keys. It never drops a key that still counts: its subject would start again from zero.
Instead it raises `StoreFull` for an operation that needs another key. Known subjects go on.

One rule cannot use up all keys: it gets no new key once it has `SHARE` times as many as are free. So a rule that is
flooded with new subjects takes four fifths of all keys, two such rules take four ninths each, and others find room.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django_quota.core.clock import SECOND, machine_now
from django_quota.core.errors import StoreFull
from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import DictStates, Operation
from django_quota.stores.wait_queue import WaitQueue

logger = logging.getLogger("django_quota")

SHARDS = 16

SWEEP_INTERVAL = 5.0
"""Seconds between two rounds of the sweeper."""

MAX_KEYS = 100_000
"""Keys that a store holds by default."""

ROOM_INTERVAL = SECOND
"""Microseconds between two sweeps of a store that is nearly full, in addition to those of the sweeper."""

SHARE = 4
"""A rule gets another key while it has fewer than this many times the free keys."""

ROOM_AGAIN = 0.7
"""The part of its keys below which a store that was full logs again when it is full."""


class _Shard(DictStates):
    """A part of all keys, with its lock."""

    __slots__ = ("held", "lock", "owners")

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.owners: dict[str, str] = {}
        """The rule that each key counts for."""
        self.held: Counter[str] = Counter()
        """The number of keys of each rule."""

    def add(self, owner: str, key: str, value: Any, expiry: int) -> None:
        """Keep a value under a new key, for this rule."""
        self.owners[key] = owner = sys.intern(owner)
        self.held[owner] += 1
        self.put(key, value, expiry)

    def drop(self, key: str) -> bool:
        """Drop a key; see `States.drop`."""
        owner = self.owners.pop(key, None)
        if owner is not None:
            self.held[owner] -= 1
            if not self.held[owner]:
                del self.held[owner]
        return super().drop(key)

    def sweep(self, now: int) -> int:
        """Drop the keys that expired by `now` (microseconds); return their number."""
        with self.lock:
            expired = [key for key, (_, expiry) in self.kept.items() if expiry <= now]
            for key in expired:
                self.drop(key)
        return len(expired)


def _owner(key: str, keys: Iterable[str]) -> str:
    """Return the rule, counter or slot that a key counts for. `keys`: all keys of the operation.

    The status of a subject, and its days, count for the first of its rules in the operation.
    """
    if name := _name(key):
        return name
    subject = key[: key.rindex("}")]
    return next((name for other in keys if other.startswith(subject) and (name := _name(other))), "")


def _name(key: str) -> str:
    kind, _, rest = key.rpartition("}:")[2].partition(":")
    return "" if kind == "day" else rest.partition(":")[0]


class _Draft:
    """What an operation changes in its shards. The store commits all of it, or nothing."""

    __slots__ = ("_changed", "_shards", "woken")

    def __init__(self, shards: dict[str, _Shard]) -> None:
        self._shards = shards
        """The shard of each key."""
        self._changed: dict[str, tuple[Any, int] | None] = {}
        """The new value and expiry of each key; None for one that is dropped."""
        self.woken: tuple[str, ...] = ()

    def _find(self, key: str) -> tuple[Any, int] | None:
        return self._changed[key] if key in self._changed else self._shards[key].kept.get(key)

    def get(self, key: str, now: int | None = None) -> Any:
        value, expiry = self._find(key) or (None, 0)
        return None if now is not None and expiry <= now else value

    def put(self, key: str, value: Any, expiry: int) -> None:
        self._changed[key] = (value, expiry)

    def expiry(self, key: str) -> int:
        return (self._find(key) or (None, 0))[1]

    def drop(self, key: str) -> bool:
        found = self._find(key)
        self._changed[key] = None
        return found is not None

    def wake(self, token: str) -> None:
        self.woken += (token,)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of the shards, always in the same order: so two operations never wait for each other."""
        with ExitStack() as stack:
            for shard in sorted(set(self._shards.values()), key=id):
                stack.enter_context(shard.lock)
            yield

    def growth(self) -> int:
        """Return how many more keys there will be."""
        return sum((kept is not None) - (key in self._shards[key].kept) for key, kept in self._changed.items())

    def owners(self) -> set[str]:
        """Return the rules that get new keys."""
        new = [key for key, kept in self._changed.items() if kept is not None and key not in self._shards[key].kept]
        return {_owner(key, self._shards) for key in new}

    def commit(self) -> None:
        """Make the changes."""
        for key, kept in self._changed.items():
            shard = self._shards[key]
            if kept is None:
                shard.drop(key)
            elif key in shard.kept:
                shard.put(key, *kept)
            else:
                shard.add(_owner(key, self._shards), key, *kept)


class MemoryStore:
    """States in the memory of this process, `max_keys` at most. Its clock is the machine's."""

    all_nodes_healthy = True

    def __init__(self, shards: int = SHARDS, sweep_interval: float = SWEEP_INTERVAL, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._plenty = max_keys * SHARE // (SHARE + 1)
        """With fewer keys than this, no rule can have more than its share."""
        self._was_full = False
        self._swept_at = 0
        self._sweep_interval = sweep_interval
        self._behind = 0
        """Microseconds that the last operation's time was behind the machine's: a test may have frozen it."""
        self._shards = [_Shard() for _ in range(shards)]
        self._stop = threading.Event()
        self.after_fork()
        self.wait_queue = WaitQueue(self.run, None)
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked worker: another thread may have held a lock at the fork."""
        self._shards = [_Shard() for _ in self._shards]
        self._starting = threading.Lock()
        self._sweeper: threading.Thread | None = None

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Store.run`. Raises `StoreFull`."""
        if self._sweeper is None:
            self._start_sweeper()
        machine_time = self.now()
        moment = machine_time if now is None else now
        self._behind = machine_time - moment
        if len(self) >= self._plenty and abs(moment - self._swept_at) >= ROOM_INTERVAL:
            self._swept_at = moment
            self.sweep(moment)
        draft = _Draft({key: self._shard(key) for key in operation.keys})
        with draft.locked():
            reply = operation.run(draft, self.now() if now is None else now)
            self._check_room(draft)
            draft.commit()
        for token in draft.woken:
            self.wait_queue.notify(token)
        return reply

    def _check_room(self, draft: _Draft) -> None:
        """Raise `StoreFull` if a draft needs a new key, and there is none or its rule has its share."""
        free = self._max_keys - len(self)
        if self._max_keys - free < self._plenty or (growth := draft.growth()) <= 0:
            return
        over = [owner for owner in draft.owners() if self._held(owner) >= SHARE * free]
        if growth <= free and not over:
            return
        if not self._was_full:
            self._was_full = True
            logger.error(
                'This process counts with %d of the %d keys that QUOTA["MEMORY_KEYS"] allows, and %s may have no more: '
                "new subjects are refused there.",
                len(self),
                self._max_keys,
                " and ".join(map(repr, over)) or "a request",
            )
        raise StoreFull

    def _held(self, owner: str) -> int:
        return sum([shard.held.get(owner, 0) for shard in self._shards])

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; it takes microseconds, so it stays in the event loop."""
        return self.run(operation, now)

    def sweep(self, now: int | None = None) -> int:
        """Drop all keys that expired by `now` (microseconds); return their number.

        None: the machine's time, or the frozen time of the last operation.
        """
        moment = self.now() - self._behind if now is None else now
        dropped = sum(shard.sweep(moment) for shard in self._shards)
        if self._was_full and len(self) < self._max_keys * ROOM_AGAIN:
            self._was_full = False
        return dropped

    def clear(self) -> None:
        """Drop every key."""
        self._shards = [_Shard() for _ in self._shards]
        self._was_full = False

    def close(self) -> None:
        """Stop the threads. States stay, and the next operation starts the threads again."""
        self.wait_queue.close()
        with self._starting:
            sweeper, self._sweeper = self._sweeper, None
            self._stop.set()
        if sweeper is not None:
            sweeper.join()

    def __len__(self) -> int:
        return sum([len(shard.kept) for shard in self._shards])  # a list: it is faster, and each operation asks

    def names(self) -> list[str]:
        """Return all keys."""
        return [key for shard in self._shards for key in list(shard.kept)]

    @staticmethod
    def now() -> int:
        """Return the machine's time in microseconds."""
        return machine_now()

    def _shard(self, key: str) -> _Shard:
        return self._shards[zlib.crc32(key.encode()) % len(self._shards)]

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
