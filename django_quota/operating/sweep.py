"""The sweep: drops expired entries from our sorted sets in Redis, or expired rows of a database, in small batches.

Redis expires whole keys. An expired entry of a sorted set is removed only with its key, or by the next hit of its
subject. So keys in constant use, or with a long TTL, keep useless entries. The sweep examines each of our keys, by
kind:

| kind | what it is | expired entries | TTL for a key without one |
|---|---|---|---|
| `r`, `b`, `a` | limits, refusals, units taken ahead | dropped from sorted sets | until the last expires, or 400 days |
| `l` | leases | dropped | until the last expires, or an hour |
| `leased` | units of counters that are taken for a lease | given back to the counter | 400 days |
| `{!}:bans` | the index of bans | dropped | until the last expires, or an hour |
| `lately`, `sent` | how long slots were held recently, the last message of a process | none | an hour |
| `day` | the checks of a day | none | 8 days |
| `s`, `c`, `u` | subject status, counters, distinct values | none | 400 days |
| `grants`, `granted` | units of counters that expire, ids of grants | none: a total is read without them | 400 days |
| `once`, `settled` | what was seen, or settled | none | 400 days |
| `{!}:` anything else | events and such | none | 400 days |

The sweep ignores all other keys, and uses the clock of Redis.

Each call does a fixed amount of work, so that no call holds Redis for more than 2 ms. After each call the sweep pauses,
so that it uses Redis for at most `budget_ms` of each second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from django_quota.core.clock import frozen_now
from django_quota.core.errors import StoreDataError
from django_quota.core.keys import KEY_KINDS, is_system, pattern, read, system_key
from django_quota.engine.operations import text
from django_quota.engine.system_operations import Sweep
from django_quota.features.reservations.calls import GiveBackEnded
from django_quota.stores.base import AskedAgain, RedisServers, Store, Tables
from django_quota.stores.database.log import Expired, KeptEvents, delete_expired
from django_quota.stores.scanning import Patience, Walk

SWEEP_SCAN_COUNT = 500
"""Keys of the database, ours or not, that one SCAN visits."""

KEYS_PER_CALL = 100
"""Keys that one call examines."""

ENTRIES_PER_CALL = 500
"""Expired entries that one call removes."""

POSITION_TTL = 3_600
"""Seconds for which a sweep that was stopped can be resumed."""

SAVE_INTERVAL = 1.0
"""Seconds between two saves of the position. After a kill, the next sweep repeats at most this much."""

HOUR_IN_MS = 3_600_000
DAY_IN_MS = 24 * HOUR_IN_MS
LONG = 400 * DAY_IN_MS

LIFETIMES = {"l": HOUR_IN_MS, "lately": HOUR_IN_MS, "sent": HOUR_IN_MS, "day": 8 * DAY_IN_MS, "bans": HOUR_IN_MS}
"""The TTL in milliseconds that a key without one gets, by kind; `LONG` for all other kinds."""

SWEPT = frozenset({"r", "b", "a", "l", "bans"})
"""The kinds whose expired entries are dropped."""

LEASED = "leased"
"""The kind whose expired entries are given back."""

SweptKey = tuple[str, str]
"""One of our keys, and its kind."""

T = TypeVar("T")


def kind_of(prefix: str, key: str) -> str | None:
    """Return the kind of a key, as the table above lists them; None for a key that is not ours."""
    parts = read(prefix, key)
    if parts is None:
        return None
    if is_system(prefix, key):
        return "bans" if parts.what == "bans" else "system"
    kind = parts.what.partition(":")[0]
    return kind if kind in KEY_KINDS else None


@dataclass
class SweepReport:
    """What a sweep has done, or what it would do in a dry run."""

    keys: int = 0
    """Keys that were examined. SCAN may return a key twice."""
    sets: int = 0
    """How many of them are sorted sets whose expired entries are dropped."""
    removed: int = 0
    """Expired entries that were removed."""
    repaired: int = 0
    """Keys that got a TTL because they had none."""
    foreign: list[str] = field(default_factory=list)
    """The keys of units that were not given back: they, or their counter, hold data that we did not write."""
    missed: int = 0
    """Servers of a Cluster, or batches of keys, without an answer. The next sweep examines them."""
    resumed: bool = False
    """Whether this sweep continued one that was stopped."""
    complete: bool = False
    """Whether the sweep examined all keys."""
    seconds: float = 0.0
    """How long it took."""

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return asdict(self)


class Sweeper:
    """Sweeps the keys of a prefix. `budget_ms`: how much of each second it may use Redis, 1 to 1000 milliseconds.

    `dry_run`: change nothing, and save no position.
    """

    def __init__(self, store: RedisServers, prefix: str, *, budget_ms: int = 100, dry_run: bool = False) -> None:
        self._store = store
        self._prefix = prefix
        self._budget_ms = budget_ms
        self._dry_run = dry_run

    def sweep(self, stop: threading.Event, advance: Callable[[int], object]) -> SweepReport:
        """Sweep once, from where the last sweep was stopped, until the end or until `stop` is set.

        `advance` gets the number of keys that were visited, ours or not. Raises `StoreUnavailable`. In a Cluster it
        sweeps the servers that answer, and the report counts the others.
        """
        self._stop, self._patience = stop, Patience(stop)
        self._report = report = SweepReport()
        began = time.monotonic()
        self._walk = walk = Walk(self._store)
        for server in walk.servers:
            report.complete = False
            position = self._store.node_key(system_key(self._prefix, "sweep"), server)
            with walk.part(), self._store.commands(server) as client:
                self._sweep_server(client, "" if self._dry_run else position, advance)
            if stop.is_set() and not report.complete:
                break
        if walk.missed >= len(walk.servers) and not report.keys:
            walk.end()
        report.missed = walk.missed
        report.complete = report.complete and not walk.missed
        report.seconds = time.monotonic() - began
        return report

    def _sweep_server(self, client: Any, position: str, advance: Callable[[int], object]) -> None:
        """Sweep one server, until the end or until `stop` is set. `position`: the key with the place to go on from."""
        # A cursor is valid only for this run of the server.
        run = text(self._asked(partial(client.info, "server"))["run_id"])
        before, _, found = text((position and self._asked(partial(client.get, position))) or "").partition(" ")
        cursor = int(found) if before == run else 0
        self._report.resumed = self._report.resumed or cursor != 0
        saved = time.monotonic()
        while not self._stop.is_set():
            after, keys = self._asked(partial(client.scan, cursor, match=pattern(self._prefix), count=SWEEP_SCAN_COUNT))
            self._sweep_keys(list(map(text, keys)))
            if self._stop.is_set():
                break
            advance(SWEEP_SCAN_COUNT)
            cursor = int(after)
            self._report.complete = cursor == 0
            if self._report.complete:
                break
            if position and time.monotonic() - saved >= SAVE_INTERVAL:
                saved = time.monotonic()
                self._asked(partial(client.set, position, f"{run} {cursor}", ex=POSITION_TTL))
        if position and cursor:
            self._asked(partial(client.set, position, f"{run} {cursor}", ex=POSITION_TTL))
        elif position:
            self._asked(partial(client.delete, position))

    def total(self) -> int:
        """Return how many keys the database has: about the sum of the numbers that `advance` gets."""
        total, walk, patience = 0, Walk(self._store), Patience()
        for server in walk.servers:
            with walk.part(), self._store.commands(server) as client:
                total += int(patience(client.dbsize))
        return total

    def _sweep_keys(self, keys: Sequence[str]) -> None:
        """Examine keys: give a TTL to those without one, and remove expired entries."""
        targets = [(key, kind) for key in keys if (kind := kind_of(self._prefix, key)) is not None]
        for first in range(0, len(targets), KEYS_PER_CALL):
            if self._stop.is_set():
                return
            batch = targets[first : first + KEYS_PER_CALL]
            with self._walk.part():  # some keys may have moved to a server that does not answer
                self._give_back(batch)
                self._sweep_batch(batch)

    def _give_back(self, batch: Sequence[SweptKey]) -> None:
        """Give back the units of counters whose leases have ended."""
        for key, kind in batch:
            if kind == LEASED and not self._dry_run:
                self._report.removed += _give_back(self._store, key, frozen_now(), self._asked, self._report.foreign)
                self._report.sets += 1

    def _sweep_batch(self, batch: Sequence[SweptKey]) -> None:
        report, queue = self._report, batch
        while queue and not self._stop.is_set():
            keys, kinds = zip(*queue, strict=True)
            # What a lease has taken is only counted here, in a dry run.
            swept = [kind in SWEPT or (kind == LEASED and self._dry_run) for kind in kinds]
            lifetimes = [LIFETIMES.get(kind, LONG) for kind in kinds]
            most = 0 if self._dry_run else ENTRIES_PER_CALL
            operation = Sweep(keys, swept, lifetimes, most, repairs=not self._dry_run)
            reply = self._asked(partial(self._store.run, operation, frozen_now()))
            found = Sweep.read(reply)
            if queue is batch:
                report.keys += len(found)
                report.sets += sum(each.is_set for each in found)
            report.repaired += sum(bool(each.given) for each in found)
            report.removed += sum(each.left if self._dry_run else each.removed for each in found)
            queue = [target for target, each in zip(queue, found, strict=True) if each.left and not self._dry_run]

    def _asked(self, call: Callable[[], T]) -> T:
        """Make a call at the pace of the budget, and repeat it if it is not answered; see `Patience`."""

        def paced() -> T:
            with self._paced():
                return call()

        return self._patience(paced)

    @contextmanager
    def _paced(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            _pause(began, self._budget_ms, self._stop)


def _give_back(store: Store, key: str, now: int | None, asked: AskedAgain, foreign: list[str]) -> int:
    """Give back the units of leases that have ended; return how many leases these were.

    A counter with data of another program does not end the sweep: its key is added to `foreign`.
    """
    try:
        return int(asked(partial(store.run, GiveBackEnded(key), now)))
    except StoreDataError:
        if key not in foreign:  # SCAN may return a key twice
            foreign.append(key)
        return 0


def _pause(began: float, budget_ms: int, stop: threading.Event) -> None:
    """Pause after work that began then (by `perf_counter`), in proportion to how long it took, to keep to a budget."""
    stop.wait((time.perf_counter() - began) * (1_000 - budget_ms) / budget_ms)


# --- rows of a database -----------------------------------------------------------------------------------------------

ROWS_PER_CALL = 1_000
"""Rows of each table that one round deletes."""


@dataclass(slots=True)
class RowReport:
    """What a sweep of a database has deleted."""

    rows: Expired
    leases: int = 0
    """Leases of units of counters that had ended, and were given back."""
    foreign: list[str] = field(default_factory=list)
    """As in `SweepReport`."""
    is_complete: bool = False
    """Whether all expired rows were deleted."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        found = {"leases": self.leases, "foreign": self.foreign, "complete": self.is_complete, "seconds": self.seconds}
        return {**self.rows._asdict(), **found}


def sweep_rows(
    store: Tables,
    prefix: str,
    now: int,
    keep: KeptEvents,
    stop: threading.Event,
    advance: Callable[[int], object],
    budget_ms: int,
) -> RowReport:
    """Delete what has expired by `now`, and give back ended leases, until the end or until `stop` is set.

    `prefix`: that of the keys. `keep`: which events of each log stay. `advance` gets the number of deleted rows.
    `budget_ms`: how much of each second it may use the database, 1 to 1000 milliseconds. A call without an answer is
    repeated for some seconds. Raises `StoreUnavailable`.
    """
    report, began, patience = RowReport(Expired()), time.monotonic(), Patience(stop)
    while not stop.is_set():
        batch_began = time.perf_counter()
        done = patience(partial(delete_expired, store, now, keep, ROWS_PER_CALL))
        report.rows = Expired(*map(sum, zip(report.rows, done, strict=True)))
        advance(sum(done))
        report.is_complete = max(done) < ROWS_PER_CALL
        if report.is_complete:
            break
        _pause(batch_began, budget_ms, stop)
    for key in store.names(f"{pattern(prefix)}}}:{LEASED}:*", patience):
        if stop.is_set():
            report.is_complete = False
            break
        batch_began = time.perf_counter()
        report.leases += _give_back(store, key, now, patience, report.foreign)
        _pause(batch_began, budget_ms, stop)
    report.seconds = time.monotonic() - began
    return report
