"""The memory store: states in one process, without Redis. It runs the Python specification of each operation.

It serves tests, single processes, and rules that fall back while Redis is away. All keys are in one dict with one lock.
Each operation looks at two keys, and drops those that have expired.

It holds a limited number of keys. It never drops a key that still counts: its subject would start again from zero.
Instead it raises `StoreFull` for an operation that needs another key. Known subjects go on. A rule holds at most a part
of all keys (`SHARE`), so a rule that is flooded with new subjects leaves room for others.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from django_quota.core.clock import SECOND, machine_now
from django_quota.core.errors import StoreFull
from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import Operation
from django_quota.stores.base import tried

logger = logging.getLogger("django_quota")

MAX_KEYS = 100_000
"""Keys that a store holds by default."""

SHARE = 0.8
"""The part of all keys that one rule may hold."""

ROOM_AGAIN = 0.7
"""A store that was full logs that again only after it held less than this part of its keys."""

LOOKED_AT = 2
"""Keys that an operation looks at. More than one: an operation may add one, and the expired ones must not stay."""

LINGERS = 2 * SECOND
"""How long an expired key stays at least: the clock may step back."""


class _Kept:
    """The keys of a store. They change under its lock."""

    __slots__ = ("held", "most", "of_key")

    def __init__(self, most: int) -> None:
        self.most = most
        self.of_key = OrderedDict[str, tuple[Any, int, str]]()
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

    def sweep_some(self, now: int) -> None:
        """Look at the next keys, and drop those that expired a while before `now`."""
        for _ in range(min(LOOKED_AT, len(self.of_key))):
            key = next(iter(self.of_key))
            if self.of_key[key][1] <= now - LINGERS:
                self.drop(key)
            else:
                self.of_key.move_to_end(key)


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

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked worker: another thread may have held the lock at the fork."""
        self._kept = _Kept(self._max_keys)
        self._was_full = False
        self._lock = threading.Lock()

    def is_refusing(self) -> bool:
        """Say that no call is refused: there is no server."""
        return False

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`. Raises `StoreFull`."""
        with self._lock:
            moment = machine_now() if now is None else now
            self._kept.sweep_some(moment)
            change = _Change(self._kept, operation.keys)
            try:
                return operation.run(change, moment)
            except BaseException as error:
                change.undo()
                if isinstance(error, StoreFull):
                    self._report(error)
                raise
            finally:
                self._was_full = self._was_full and len(self) >= self._max_keys * ROOM_AGAIN

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations; see `Runner.try_all`."""
        return tried(self.run, operations, now)

    def _report(self, error: StoreFull) -> None:
        """Log once that the keys are used up."""
        if not self._was_full:
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

    def clear_memory(self) -> None:
        """Drop every key."""
        with self._lock:
            self._kept = _Kept(self._max_keys)

    def close(self) -> None:
        """Do nothing: there are no threads and connections."""

    def __len__(self) -> int:
        return len(self._kept.of_key)

    def names(self, matching: str) -> Iterator[str]:
        """Yield the keys of this process that match a pattern; see `Store.names`."""
        with self._lock:
            found = list(self._kept.of_key)
        return (key for key in found if fnmatchcase(key, matching))
