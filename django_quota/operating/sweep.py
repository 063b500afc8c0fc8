"""The sweep: drops expired entries from our sorted sets in Redis, in small batches.

Redis expires whole keys. An expired entry of a sorted set leaves only with its key, or at the next hit of its subject.
So keys in constant use, or with a long TTL, keep entries that nobody needs. The sweep examines each of our keys, by
kind:

| kind | what it is | expired entries | TTL for a key without one |
|---|---|---|---|
| `r`, `b` | states of limits, refusals towards a ban | dropped from sorted sets | until the last expires, or 400 days |
| `l` | leases | dropped | until the last expires, or an hour |
| `{!}:bans` | the index of bans | dropped | until the last expires, or an hour |
| `lately` | how long slots were held lately | none | an hour |
| `day` | the checks of a day | none | 8 days |
| `s`, `c`, `u`, `once` | subject status, counters, distinct values, `once` | none | 400 days |
| `{!}:` anything else | events and such | none | 400 days |

The sweep leaves all other keys alone, and uses the clock of Redis.

Each call does a fixed amount of work, so that no call holds Redis for more than 2 ms. After each call the sweep pauses,
so that it uses Redis for at most `budget_ms` of each second.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django_quota.core.clock import frozen_now
from django_quota.core.keys import KINDS, is_system, pattern, read, system_key
from django_quota.core.keys import field as name_field
from django_quota.engine.operations import text
from django_quota.engine.system_operations import Sweep, Swept
from django_quota.stores.redis.store import RedisStore
from django_quota.stores.scanning import Walk

SCAN_COUNT = 500
"""Keys of the database that one SCAN passes."""

KEYS_PER_CALL = 100
"""Keys that one call examines, or measures."""

ENTRIES_PER_CALL = 500
"""Expired entries that one call removes."""

PINGS = 5
"""How often the round trip is measured: the shortest is subtracted from the time of each call."""

POSITION_TTL = 3_600
"""Seconds for which a sweep that was stopped can be resumed."""

SAVE_INTERVAL = 1.0
"""Seconds between two saves of the position. A sweep that is killed repeats at most as much."""

HOUR = 3_600_000
DAY = 24 * HOUR
LONG = 400 * DAY

LIFETIMES = {"l": HOUR, "lately": HOUR, "day": 8 * DAY, "bans": HOUR}
"""The TTL in milliseconds that a key without one gets, by kind; `LONG` for all other kinds."""

SWEPT = frozenset({"r", "b", "l", "bans"})
"""The kinds whose expired entries are dropped."""


Target = tuple[str, str]
"""One of our keys, and its kind."""


def kind_of(prefix: str, key: str, rule: str | None = None) -> str | None:
    """Return the kind of a key; None for a key that is not ours, or not one of this rule."""
    parts = read(prefix, key)
    if parts is None:
        return None
    kind, _, rest = parts.what.partition(":")
    if rule is not None:
        return kind if kind in ("r", "b") and rest.partition(":")[0] == name_field(rule) else None
    if is_system(prefix, key):
        return "bans" if parts.what == "bans" else "system"
    return kind if kind in KINDS else None


@dataclass
class Report:
    """What a sweep has done, or what it would do in a dry run."""

    keys: int = 0
    """Keys that were examined. SCAN may return a key twice."""
    sets: int = 0
    """How many of them are sorted sets whose expired entries are dropped."""
    removed: int = 0
    """Expired entries that were removed."""
    changed: int = 0
    """Sets that lost entries."""
    emptied: int = 0
    """Sets that were empty afterwards, so that Redis deleted them."""
    freed: int = 0
    """Bytes that were freed: MEMORY USAGE of the changed sets, before minus after. Redis estimates large sets from five
    entries. 0 in a dry run."""
    repaired: Counter[str] = field(default_factory=Counter)
    """Keys that got a TTL because they had none, by kind."""
    missed: int = 0
    """Servers of a Cluster, or batches of keys, that did not answer. The next sweep examines them."""
    resumed: bool = False
    """Whether this sweep continued one that was stopped."""
    complete: bool = False
    """Whether the sweep examined all keys."""
    seconds: float = 0.0
    """How long it took."""
    slowest: float = 0.0
    """Seconds that the longest call took, with its round trip."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {**self.__dict__, "repaired": dict(self.repaired)}


class Sweeper:
    """Sweeps the keys of a prefix. `budget_ms`: how much of each second it may use Redis, 1 to 1000 milliseconds.

    `rule`: look at the keys of this rule only. `dry_run`: change nothing, and save no position.
    """

    def __init__(
        self, store: RedisStore, prefix: str, *, budget_ms: int = 100, rule: str | None = None, dry_run: bool = False
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._budget_ms = budget_ms
        self._rule = rule
        self._dry_run = dry_run
        self._position_key = ""

    def sweep(self, stop: threading.Event, advance: Callable[[int], object]) -> Report:
        """Sweep once, from where the last sweep was stopped, until the end or until `stop` is set.

        `advance` gets the number of keys of the database that were passed, ours or not. Raises `StoreUnavailable`. In a
        Cluster it sweeps the servers that answer, and the report says that others did not.
        """
        self._stop = stop
        self._report = report = Report()
        began = time.monotonic()
        self._walk = walk = Walk(self._store)
        for server in walk.servers:
            report.complete = False
            self._position_key = self._store.node_key(system_key(self._prefix, "sweep"), server)
            with walk.past(), self._store.commands(server) as client:
                self._sweep_server(client, advance)
            if stop.is_set() and not report.complete:
                break
        if walk.missed >= len(walk.servers) and not report.keys:
            walk.end()
        report.missed = walk.missed
        report.complete = report.complete and not walk.missed
        report.seconds = time.monotonic() - began
        return report

    def _sweep_server(self, client: Any, advance: Callable[[int], object]) -> None:
        """Sweep the keys of one server, until the end or until `stop` is set."""
        stop, report = self._stop, self._report
        self._round_trip = min(_timed(client.ping) for _ in range(PINGS))
        run = self._run_id(client)
        cursor = self._load_position(client, run)
        report.resumed = report.resumed or cursor != 0
        saved = time.monotonic()
        while not stop.is_set():
            after, found = self._scan(client, cursor)
            self._sweep_keys(found)
            if stop.is_set():
                break
            advance(SCAN_COUNT)
            cursor = after
            report.complete = cursor == 0
            if report.complete:
                break
            if time.monotonic() - saved >= SAVE_INTERVAL:
                saved = time.monotonic()
                self._save_position(client, run, cursor)
        self._save_position(client, run, cursor)

    def total(self) -> int:
        """Return how many keys the database has: about the sum of what `advance` gets."""
        total, walk = 0, Walk(self._store)
        for server in walk.servers:
            with walk.past(), self._store.commands(server) as client:
                total += int(client.dbsize())
        return total

    # --- the position -------------------------------------------------------------------------------------------------

    def _run_id(self, client: Any) -> str:
        """Return what a cursor is valid for: this run of the server, and the rule."""
        run = text(client.info("server")["run_id"])
        return f"{run} {'-' if self._rule is None else name_field(self._rule)}"

    def _load_position(self, client: Any, run: str) -> int:
        if self._dry_run or not self._position_key:
            return 0
        before, _, cursor = text(client.get(self._position_key) or "").rpartition(" ")
        return int(cursor) if before == run else 0

    def _save_position(self, client: Any, run: str, cursor: int) -> None:
        if self._dry_run or not self._position_key:
            return
        if cursor:
            client.set(self._position_key, f"{run} {cursor}", ex=POSITION_TTL)
        else:
            client.delete(self._position_key)

    # --- the calls ----------------------------------------------------------------------------------------------------

    def _scan(self, client: Any, cursor: int) -> tuple[int, list[Target]]:
        with self._paced():
            after, keys = client.scan(cursor, match=pattern(self._prefix), count=SCAN_COUNT)
        kinds = ((text(key), kind_of(self._prefix, text(key), self._rule)) for key in keys)
        return int(after), [(key, kind) for key, kind in kinds if kind is not None]

    def _sweep_keys(self, targets: Sequence[Target]) -> None:
        """Look at keys, give a TTL to those without one, and remove what has expired."""
        for first in range(0, len(targets), KEYS_PER_CALL):
            if self._stop.is_set():
                return
            with self._walk.past():  # some keys may have moved to a server that does not answer
                self._sweep_batch(targets[first : first + KEYS_PER_CALL])

    def _sweep_batch(self, batch: Sequence[Target]) -> None:
        expired = []
        for (key, kind), found in zip(batch, self._run(batch, 0), strict=True):
            self._report.keys += 1
            self._report.sets += found.is_set
            if found.given:
                self._report.repaired[kind] += 1
            if found.left and self._dry_run:
                self._report.changed += 1
                self._report.removed += found.left
            elif found.left:
                expired.append((key, kind))
        if expired:
            self._remove_expired(expired)

    def _remove_expired(self, targets: Sequence[Target]) -> None:
        before = self._memory(targets)
        queue, changed = list(targets), set[str]()
        while queue and not self._stop.is_set():
            replies = self._run(queue, ENTRIES_PER_CALL)
            self._report.removed += sum(found.removed for found in replies)
            changed |= {key for (key, _), found in zip(queue, replies, strict=True) if found.removed}
            queue = [target for target, found in zip(queue, replies, strict=True) if found.left]
        after = self._memory(targets)
        self._report.changed += len(changed)
        self._report.emptied += sum(size is None for size in after)
        self._report.freed += sum(was or 0 for was in before) - sum(size or 0 for size in after)

    def _run(self, targets: Sequence[Target], most: int) -> list[Swept]:
        keys, kinds = zip(*targets, strict=True)
        swept, lifetimes = [kind in SWEPT for kind in kinds], [LIFETIMES.get(kind, LONG) for kind in kinds]
        operation = Sweep(keys, swept, lifetimes, most, repairs=not self._dry_run)
        with self._paced():
            reply = self._store.run(operation, frozen_now())
        return Sweep.read(reply)

    def _memory(self, targets: Sequence[Target]) -> list[int | None]:
        """Return the size of each key in bytes; None for a key that is gone."""
        with self._paced():
            return self._store.of_each(("MEMORY", "USAGE"), [key for key, _ in targets])

    @contextmanager
    def _paced(self) -> Iterator[None]:
        """Time a call, and pause after it as the budget says."""
        began = time.perf_counter()
        yield
        took = time.perf_counter() - began
        self._report.slowest = max(self._report.slowest, took)
        spent = max(0.0, took - self._round_trip)
        self._stop.wait(spent * (1_000 - self._budget_ms) / self._budget_ms)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
