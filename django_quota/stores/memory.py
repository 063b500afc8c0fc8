"""The memory store: states in one process. It runs the Python specification of each operation.

It serves tests, single processes, and rules that fall back while another store is away. All keys are in one dict with
one lock. Each operation looks at two keys, and drops those that have expired. A test that sets the time, and a clock
that steps forth and back, lose no count (`_has_ended`).

It holds a limited number of keys. It never drops a key that still counts: its subject would start again from zero.
Instead it raises `StoreFull` for an operation that needs another key. Known subjects go on. A rule holds at most a part
of all keys (`SHARE`), so a rule that is flooded with new subjects leaves room for others.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from django_quota.core.clock import SECOND, elapsed, machine_now
from django_quota.core.errors import StoreFull
from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import Operation
from django_quota.stores.base import AskedAgain, Draft, asked_once, tried

logger = logging.getLogger("django_quota.store")

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


def _owner(key: str, keys: Sequence[str]) -> str:
    """Return what a key counts for. The status of a subject, and its days, count for the operation's first rule."""
    return _counted_name(key) or next(filter(None, map(_counted_name, keys)), "")


def _counted_name(key: str) -> str:
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
        self._lock = threading.Lock()
        self._keys = OrderedDict[str, tuple[Any, int, str, int | None]]()
        """The value of each key, when it expires, the rule, counter or slot that it counts for, and when it expires by
        `elapsed`; None if the time was passed in."""
        self._held = Counter[str]()
        """The number of keys of each rule."""
        self._was_full = False

    def is_refusing(self) -> bool:
        """Say that no call is refused: there is no server."""
        return False

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`. Raises `StoreFull`."""
        with self._lock:
            moment = machine_now() if now is None else now
            lasting = int(elapsed() * SECOND) if now is None else None
            self._sweep_some(moment, lasting)
            draft = Draft(self._keys)
            reply = operation.run(draft, moment)
            self._keep(draft.changed, operation.keys, None if lasting is None else lasting - moment)
            return reply

    def _sweep_some(self, now: int, lasting: int | None) -> None:
        """Look at the next keys, and drop those that expired a while before `now`; see `_has_ended`."""
        for _ in range(min(LOOKED_AT, len(self._keys))):
            key = next(iter(self._keys))
            if self._has_ended(key, now - LINGERS, None if lasting is None else lasting - LINGERS):
                self._drop(key)
            else:
                self._keys.move_to_end(key)
        self._was_full = self._was_full and len(self) >= self._max_keys * ROOM_AGAIN

    def _has_ended(self, key: str, now: int, lasting: int | None) -> bool:
        """Say whether a key has expired by the clock, and by how long it has really been kept.

        `lasting`: the time by `elapsed`, which never steps; None if `now` was passed in. A key that was written at a
        time that was passed in only ends at such a time, and the others only at the time of the machine.
        """
        _, expiry, _, lasts = self._keys[key]
        if lasts is None or lasting is None:
            return lasts is lasting and expiry <= now
        return expiry <= now and lasts <= lasting

    def _keep(
        self, changed: Mapping[str, tuple[Any, int] | None], keys: Sequence[str], later: int | None = None
    ) -> None:
        """Keep what an operation with these keys has changed, all or nothing.

        `later`: how much later it is by `elapsed` than by the clock; None if the time was passed in.
        """
        new = Counter(_owner(key, keys) for key, state in changed.items() if state and key not in self._keys)
        for owner, count in new.items():
            if len(self) + new.total() > self._max_keys or self._held[owner] + count > self._max_keys * SHARE:
                error = StoreFull(f"{owner!r} may have no more keys in the memory of this process")
                self._report(error)
                raise error
        for key, state in changed.items():
            if state is None:
                self._drop(key)
            else:
                owner = self._keys[key][2] if key in self._keys else _owner(key, keys)
                self._held[owner] += key not in self._keys
                self._keys[key] = (*state, sys.intern(owner), None if later is None else state[1] + later)

    def _drop(self, key: str) -> None:
        found = self._keys.pop(key, None)
        if found is not None:
            self._held[found[2]] -= 1
            if not self._held[found[2]]:
                del self._held[found[2]]

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
            self._keys.clear()
            self._held.clear()

    def close(self) -> None:
        """Do nothing: there are no threads and connections."""

    def __len__(self) -> int:
        return len(self._keys)

    def names(self, matching: str, asked: AskedAgain = asked_once) -> Iterator[str]:  # noqa: ARG002 — memory answers
        """Yield the keys of this process that match a pattern; see `Store.names`."""
        with self._lock:
            found = list(self._keys)
        return (key for key in found if fnmatchcase(key, matching))
