"""The memory store: one process, no Redis. Runs the executable specifications in shards with a lock each.

It serves tests, single processes, and the fallback while Redis is away. A sweeper thread goes from shard to shard and
drops what has expired, so that memory follows the subjects that are active; it holds one shard's lock at a time, and
ends by itself when the store is gone.

It holds so many keys and no more. Nothing that still counts is thrown away for it, since whoever it was of could begin
anew: an operation that would need another key is not done, and raises `StoreFull`. Whoever is known goes on.

One rule cannot use up all keys: it gets no further one while it has `SHARE` times as many as are free. So a rule that
is flooded with new subjects takes four fifths, two take four ninths each, and there is always room for the others.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django_quota.clock import SECOND
from django_quota.exceptions import StoreFull
from django_quota.forks import begins_anew_in_children
from django_quota.operations.base import DictStates, Operation
from django_quota.stores.waiters import Waiters

logger = logging.getLogger("django_quota")

SHARDS = 16
SWEEP_EVERY = 5.0
"""Seconds between two rounds of the sweeper."""

MOST = 100_000
"""Keys that a store holds at most, unless it is told otherwise."""

SWEPT_FOR_ROOM = SECOND
"""Microseconds after which a full store looks again for what has expired, before the sweeper does."""

SHARE = 4
"""How many times as many keys as are free a rule may have, and get another one."""

HAS_ROOM = 0.7
"""The part of its keys below which a store that was full has room again, and says so once it no longer has."""


class _Shard(DictStates):
    """A part of all keys, and the lock that guards them."""

    __slots__ = ("held", "lock", "owners")

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.owners: dict[str, str] = {}
        """The rule that each key counts for."""
        self.held: Counter[str] = Counter()
        """How many keys each rule has."""

    def put_for(self, owner: str, key: str, value: Any, expiry: int) -> None:
        """Keep a value under a key that is new, for this rule."""
        self.owners[key] = owner = sys.intern(owner)
        self.held[owner] += 1
        self.put(key, value, expiry)

    def drop(self, key: str) -> bool:
        """Forget a key; see `States.drop`."""
        owner = self.owners.pop(key, None)
        if owner is not None:
            self.held[owner] -= 1
            if not self.held[owner]:
                del self.held[owner]
        return super().drop(key)

    def sweep(self, now: int) -> int:
        """Drop what has expired by `now` (microseconds); return how many keys that were."""
        with self.lock:
            expired = [key for key, (_, expiry) in self.kept.items() if expiry <= now]
            for key in expired:
                self.drop(key)
        return len(expired)


def _owner(key: str, keys: Iterable[str]) -> str:
    """Return the name of the rule, counter or slot that a key of an operation counts for; `keys`: all of its keys.

    How a subject stands, and its days, count for the first of the rules that are asked for it.
    """
    if name := _name(key):
        return name
    subject = key[: key.rindex("}")]
    return next((name for other in keys if other.startswith(subject) and (name := _name(other))), "")


def _name(key: str) -> str:
    kind, _, rest = key.rpartition("}:")[2].partition(":")
    return "" if kind == "day" else rest.partition(":")[0]


class _Joined:
    """The states of an operation, whose keys may lie in several shards."""

    __slots__ = ("_shards", "woken")

    def __init__(self, shards: dict[str, _Shard]) -> None:
        self._shards = shards
        self.woken: tuple[str, ...] = ()

    def get(self, key: str, now: int | None = None) -> Any:
        return self._shards[key].get(key, now)

    def put(self, key: str, value: Any, expiry: int) -> None:
        shard = self._shards[key]
        if key in shard.kept:
            shard.put(key, value, expiry)
        else:
            shard.put_for(_owner(key, self._shards), key, value, expiry)

    def expiry(self, key: str) -> int:
        return self._shards[key].expiry(key)

    def drop(self, key: str) -> bool:
        return self._shards[key].drop(key)

    def wake(self, token: str) -> None:
        self.woken += (token,)


class _Draft:
    """What an operation would change: to be kept as a whole, or not at all."""

    __slots__ = ("_changed", "_shards", "woken")

    def __init__(self, shards: dict[str, _Shard]) -> None:
        self._shards = shards
        self._changed: dict[str, tuple[Any, int] | None] = {}
        self.woken: tuple[str, ...] = ()

    def _kept(self, key: str) -> tuple[Any, int]:
        found = self._changed[key] if key in self._changed else self._shards[key].kept.get(key)
        return found or (None, 0)

    def get(self, key: str, now: int | None = None) -> Any:
        value, expiry = self._kept(key)
        return None if now is not None and expiry <= now else value

    def put(self, key: str, value: Any, expiry: int) -> None:
        self._changed[key] = (value, expiry)

    def expiry(self, key: str) -> int:
        return self._kept(key)[1]

    def drop(self, key: str) -> bool:
        found = self._changed[key] if key in self._changed else self._shards[key].kept.get(key)
        self._changed[key] = None
        return found is not None

    def wake(self, token: str) -> None:
        self.woken += (token,)

    def grows_by(self) -> int:
        """Return how many keys more there would be."""
        grown = 0
        for key, kept in self._changed.items():
            grown += (kept is not None) - (key in self._shards[key].kept)
        return grown

    def owners(self) -> set[str]:
        """Return the rules that would have further keys."""
        new = [key for key, kept in self._changed.items() if kept is not None and key not in self._shards[key].kept]
        return {_owner(key, self._shards) for key in new}

    def keep(self) -> None:
        """Make the changes."""
        joined = _Joined(self._shards)
        for key, kept in self._changed.items():
            if kept is None:
                joined.drop(key)
            else:
                joined.put(key, *kept)


class MemoryStore:
    """States in this process's memory, `most` keys. Its clock is the machine's."""

    is_whole = True
    """It has but itself."""

    def __init__(self, shards: int = SHARDS, sweep_every: float = SWEEP_EVERY, most: int = MOST) -> None:
        self._shards = [_Shard() for _ in range(shards)]
        self._most = most
        self._ample = most * SHARE // (SHARE + 1)
        """While there are fewer keys than this, no rule can have more than its share."""
        self._was_full = False
        self._swept_at = 0
        self._sweep_every = sweep_every
        self._behind = 0
        """How far the last decision's time was behind the machine's (microseconds): a test may have frozen it."""
        self._starting = threading.Lock()
        self._sweeper: threading.Thread | None = None
        self._stop = threading.Event()
        self.waiters = Waiters(self.run, None)
        """Those who wait for a slot."""
        begins_anew_in_children(self)

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        placed = {key: self._shard(key) for key in operation.keys}
        self._ensure_sweeper()
        moment = self._noted(now)
        if len(self) >= self._ample and not self._finds_room(moment):
            return self._run_in_shares(operation, placed, moment)
        states = _Joined(placed)
        with _locked(list(placed.values())):
            reply = operation.run(states, self.now() if now is None else now)
        self._wake(states.woken)
        return reply

    def _wake(self, tokens: tuple[str, ...]) -> None:
        for token in tokens:
            self.waiters.wake(token)

    def _noted(self, now: int | None) -> int:
        """Return when it is for a decision; the sweeper goes by how far that is behind the machine's time."""
        by_machine = self.now()
        moment = by_machine if now is None else now
        self._behind = by_machine - moment
        return moment

    def _finds_room(self, now: int) -> bool:
        """Drop what has expired, unless that was just done; say whether there is room."""
        if abs(now - self._swept_at) < SWEPT_FOR_ROOM:
            return False
        self._swept_at = now
        self.sweep(now)
        return len(self) < self._ample

    def _run_in_shares(self, operation: Operation, placed: dict[str, _Shard], now: int) -> Any:
        """Do what needs no further key, or has a share left for it. Raises `StoreFull` where there is none."""
        draft = _Draft(placed)
        with _locked(list(placed.values())):
            reply = operation.run(draft, now)
            grows, free = draft.grows_by(), self._most - len(self)
            over = [] if grows <= 0 else [owner for owner in draft.owners() if self._held(owner) >= SHARE * free]
            if grows <= 0 or (grows <= free and not over):
                draft.keep()
                self._wake(draft.woken)
                return reply
        if not self._was_full:
            self._was_full = True
            logger.error(
                'This process counts with %d of the %d keys that QUOTA["MEMORY_KEYS"] allows, and %s may have no more: '
                "new subjects are refused there.",
                len(self),
                self._most,
                " and ".join(map(repr, over)) or "a request",
            )
        raise StoreFull

    def _held(self, owner: str) -> int:
        return sum([shard.held.get(owner, 0) for shard in self._shards])

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; it takes microseconds, so that it does not leave the event loop."""
        return self.run(operation, now)

    def sweep(self, now: int | None = None) -> int:
        """Drop all that has expired by `now` (microseconds); return how many keys that were.

        None: the machine's time, or, where decisions are made at another one, that.
        """
        moment = self.now() - self._behind if now is None else now
        dropped = sum(shard.sweep(moment) for shard in self._shards)
        if self._was_full and len(self) < self._most * HAS_ROOM:
            self._was_full = False
        return dropped

    def clear(self) -> None:
        """Forget every key."""
        self._shards = [_Shard() for _ in self._shards]
        self._was_full = False

    def close(self) -> None:
        """Stop the threads; states stay, and the next decision starts them again."""
        self.waiters.close()
        with self._starting:
            sweeper, self._sweeper = self._sweeper, None
            self._stop.set()
        if sweeper is not None:
            sweeper.join()

    def __len__(self) -> int:
        return sum([len(shard.kept) for shard in self._shards])  # a list: this is asked at each decision

    @staticmethod
    def now() -> int:
        """Return the machine's time in microseconds."""
        return time.time_ns() // 1_000

    def _shard(self, key: str) -> _Shard:
        return self._shards[zlib.crc32(key.encode()) % len(self._shards)]

    def forget_parent(self) -> None:
        """Begin anew in a forked worker: a lock that another thread held at the fork would never come free."""
        self._shards = [_Shard() for _ in self._shards]
        self._starting = threading.Lock()
        self._sweeper = None

    def _ensure_sweeper(self) -> None:
        if self._sweeper is None:
            self._start_sweeper()

    def _start_sweeper(self) -> None:
        with self._starting:
            if self._sweeper is None:
                self._sweeper = self._new_sweeper()

    def _new_sweeper(self) -> threading.Thread:
        self._stop = threading.Event()
        sweeper = threading.Thread(
            target=_sweep_rounds,
            args=(weakref.ref(self), self._stop, self._sweep_every),
            name="django-quota-sweeper",
            daemon=True,
        )
        sweeper.start()
        return sweeper


def _sweep_rounds(store_ref: weakref.ref[MemoryStore], stop: threading.Event, every: float) -> None:
    """Sweep until told to stop, or until nobody uses the store any more."""
    while not stop.wait(every):
        store = store_ref()
        if store is None:
            return
        store.sweep()
        del store


@contextmanager
def _locked(shards: list[_Shard]) -> Iterator[None]:
    """Hold the locks of these shards, always taken in the same order so that two plans never wait for each other."""
    if len(shards) == 1:
        with shards[0].lock:
            yield
        return
    with ExitStack() as stack:
        for shard in sorted(set(shards), key=id):
            stack.enter_context(shard.lock)
        yield
