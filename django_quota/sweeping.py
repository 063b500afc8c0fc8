"""The sweep: drops what has expired from our sorted sets in Redis, in pieces so small that nobody notices.

Redis expires whole keys by itself. An entry of a sorted set only goes with its set, or when its subject comes again: a
set that stays in use, or that lives long, keeps what has expired. The sweep looks at every key of ours, by kind:

| kind | what it is | expired entries | a TTL where there is none |
|---|---|---|---|
| `r`, `b` | limits' states, refusals on the way to a ban | go, of sorted sets | until the last one goes, or 400 days |
| `m`, `n` | amounts on the way, and those that have come | go | until the last one goes, or 400 days |
| `l`, `a` | leases, who of those waiting is alive | go | until the last one goes, or an hour |
| `{!}:bans` | the index of bans | go | until the last one goes, or an hour |
| `h` | holds that are not settled | **stay**: the next decision gives them back first | 400 days |
| `q` | who waits for a lease | are none | an hour |
| `day` | the checks of a day | are none | 8 days |
| `s`, `c`, `u`, `once` | standing, counters, different values, what was seen | are none | 400 days |
| `{!}:` anything else | events, dead letters and such | are none | 400 days |

What is of no kind of ours is left alone. Everything is decided by Redis' own clock.
What transfers have left on the way is carried on; `transfers` says how.

Each call does as little as takes about `AIM`: how much that is, it learns from the time that the calls before took.
After each it pauses, so that of each second the sweep uses Redis for `budget_ms` at most. It must not know terminals.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_quota.clock import frozen_now
from django_quota.keys import KINDS, is_system, pattern, read, system_key
from django_quota.keys import field as name_field
from django_quota.operations.base import Operation, text
from django_quota.operations.sweep import Sweep, Swept
from django_quota.stores.redis import RedisStore
from django_quota.stores.walking import Walk
from django_quota.transfers import carry_on

AIM = 0.0005
"""Seconds that a call should take: a quarter of the 2 ms that none may."""

PINGS = 5
"""How often the way to Redis and back is measured, to take the shortest off what a call took."""

RESUMED_WITHIN = 3_600
"""Seconds for which a stopped sweep can be gone on with."""

SAVED_EVERY = 1.0
"""Seconds between two notes of how far it is: a killed sweep repeats so much."""

HOUR = 3_600_000
DAY = 24 * HOUR
LONG = 400 * DAY

LIFETIMES = {"l": HOUR, "a": HOUR, "q": HOUR, "day": 8 * DAY, "bans": HOUR}
"""The TTL in milliseconds for a key that has none, by kind, where it is not `LONG`."""

SWEPT = frozenset({"r", "b", "m", "n", "l", "a", "bans"})
"""The kinds whose expired entries go. Not holds: what they spent has yet to be given back."""


class Target(NamedTuple):
    """A key of ours, and what is done with it."""

    key: str
    kind: str

    @property
    def is_swept(self) -> bool:
        """Whether its expired entries go."""
        return self.kind in SWEPT

    @property
    def lifetime(self) -> int:
        """The TTL in milliseconds that it gets where it has none and no entry says how long it is needed."""
        return LIFETIMES.get(self.kind, LONG)


def target_of(prefix: str, key: str, rule: str | None = None) -> Target | None:
    """Return what to do with a key; None where it is no key of ours, or not one of this rule."""
    taken_apart = read(prefix, key)
    if taken_apart is None:
        return None
    kind, _, rest = taken_apart.what.partition(":")
    if rule is not None:
        is_of_rule = kind in ("r", "b", "h") and rest.partition(":")[0] == name_field(rule)
        return Target(key, kind) if is_of_rule else None
    if is_system(prefix, key):
        return Target(key, "bans" if taken_apart.what == "bans" else "system")
    return Target(key, kind) if kind in KINDS else None


@dataclass
class Report:
    """What a sweep has done, or, in a dry run, would do."""

    keys: int = 0
    """Keys of ours that were looked at; what Redis moves while they are listed may be seen twice."""
    sets: int = 0
    """Those of them that are sorted sets and swept."""
    removed: int = 0
    """Expired entries that went."""
    changed: int = 0
    """Sets that they went from."""
    emptied: int = 0
    """Sets that are gone, since nothing was left in them."""
    freed: int = 0
    """Bytes that came free: MEMORY USAGE of the changed sets, before less after. Redis estimates it from five entries
    where a set is large. 0 in a dry run."""
    repaired: Counter[str] = field(default_factory=Counter)
    """Keys that had no TTL and were given one, by kind."""
    missed: int = 0
    """Servers of a Cluster, or some keys together, that did not answer: the next sweep looks at them."""
    carried: int = 0
    """Amounts on the way that were carried on to their end: received, or given back."""
    on_the_way: int = 0
    """Those that could not be; the next sweep tries again."""
    resumed: bool = False
    """Whether it went on where one before had been stopped."""
    complete: bool = False
    """Whether it came to the end."""
    seconds: float = 0.0
    """How long it took."""
    slowest: float = 0.0
    """Seconds that the longest call took, the way to Redis and back included."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**self.__dict__, "repaired": dict(self.repaired)}


class _Amount:
    """How much to do in a call; learnt from how long it took."""

    def __init__(self, start: int, most: int) -> None:
        self.now = start
        self._most = most

    def learn(self, done: int, spent: float) -> None:
        """Take less where a call took too long, more where all that it might do was done quickly."""
        if spent > AIM:
            self.now = max(1, self.now // 2)
        elif done >= self.now and spent < AIM / 2:
            self.now = min(self._most, self.now + self.now // 4 + 1)


class Sweeper:
    """Sweeps the keys of a prefix. `budget_ms`: so much of a second it uses Redis at most, 1 to 1000.

    `rule`: only this rule's keys; `dry_run`: nothing is changed, not even noted.
    """

    def __init__(
        self, store: RedisStore, prefix: str, *, budget_ms: int = 100, rule: str | None = None, dry_run: bool = False
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._budget_ms = budget_ms
        self._rule = rule
        self._dry_run = dry_run
        self._listed = _Amount(100, 1_000)
        self._looked_at = _Amount(20, 200)
        self._removed = _Amount(50, 1_000)
        self._measured = _Amount(20, 100)
        self._carried = _Amount(1, 1)
        self._place_key = ""

    def sweep(self, stop: threading.Event, advance: Callable[[int], None]) -> Report:
        """Sweep once, from where the last one was stopped, until the end or until `stop` is set.

        `advance` is called with how many keys of the database, ours or not, were passed. Raises `StoreUnavailable`;
        of a Cluster, what answers is swept, and the report says that a part did not.
        """
        self._stop = stop
        self._report = report = Report()
        began = time.monotonic()
        self._walk = walk = Walk(self._store)
        for server in walk.servers:
            report.complete = False
            self._place_key = self._store.twin(system_key(self._prefix, "sweep"), server)
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

    def _sweep_server(self, client: Any, advance: Callable[[int], None]) -> None:
        """Sweep the keys of one server, until the end of them or until told to stop."""
        stop, report = self._stop, self._report
        self._round_trip = min(_timed(client.ping) for _ in range(PINGS))
        place = self._place(client)
        cursor = self._resumed_at(client, place)
        report.resumed = report.resumed or cursor != 0
        saved = time.monotonic()
        while not stop.is_set():
            count = self._listed.now
            listed, found = self._list(client, cursor, count)
            self._treat(found)
            if stop.is_set():
                break
            advance(count)
            cursor = listed
            report.complete = cursor == 0
            if report.complete:
                break
            if time.monotonic() - saved >= SAVED_EVERY:
                saved = time.monotonic()
                self._save(client, place, cursor)
        self._save(client, place, cursor)

    def total(self) -> int:
        """Return how many keys the database has: what `advance` comes to, about."""
        total, walk = 0, Walk(self._store)
        for server in walk.servers:
            with walk.past(), self._store.commands(server) as client:
                total += int(client.dbsize())
        return total

    # --- where a sweep was stopped ------------------------------------------------------------------------------------

    def _place(self, client: Any) -> str:
        """Return what a cursor holds for: this run of the server, and the keys that are looked at."""
        run = text(client.info("server")["run_id"])
        return f"{run} {'-' if self._rule is None else name_field(self._rule)}"

    def _resumed_at(self, client: Any, place: str) -> int:
        if self._dry_run or not self._place_key:
            return 0
        before, _, cursor = text(client.get(self._place_key) or "").rpartition(" ")
        return int(cursor) if before == place else 0

    def _save(self, client: Any, place: str, cursor: int) -> None:
        if self._dry_run or not self._place_key:
            return
        if cursor:
            client.set(self._place_key, f"{place} {cursor}", ex=RESUMED_WITHIN)
        else:
            client.delete(self._place_key)

    # --- the pieces ---------------------------------------------------------------------------------------------------

    def _list(self, client: Any, cursor: int, count: int) -> tuple[int, list[Target]]:
        with self._paced(self._listed, count):
            listed, keys = client.scan(cursor, match=pattern(self._prefix), count=count)
        targets = (target_of(self._prefix, text(key), self._rule) for key in keys)
        return int(listed), [target for target in targets if target is not None]

    def _treat(self, targets: Sequence[Target]) -> None:
        """Look at keys, give a TTL to those without, and drop what has expired."""
        for some in _some(targets, self._looked_at):
            if self._stop.is_set():
                return
            with self._walk.past():  # some of them may have moved to a server that does not answer
                self._treat_some(some)

    def _treat_some(self, some: Sequence[Target]) -> None:
        expired = []
        for target, found in zip(some, self._run(some, 0, self._looked_at, len(some)), strict=True):
            self._report.keys += 1
            self._report.sets += found.is_set
            if found.given:
                self._report.repaired[target.kind] += 1
            if found.left and self._dry_run:
                self._report.changed += 1
                self._report.removed += found.left
            elif found.left:
                expired.append(target)
            if target.kind == "m" and found.is_set:
                self._carry_on(target.key)
        if expired:
            self._drop(expired)

    def _carry_on(self, outbox: str) -> None:
        """Carry on what transfers have left on the way."""

        def run(operation: Operation) -> Any:
            with self._paced(self._carried, 1):
                return self._store.run(operation, frozen_now())

        for ended in carry_on(run, outbox, dry_run=self._dry_run):
            self._report.carried += ended
            self._report.on_the_way += not ended
            if self._stop.is_set():
                return

    def _drop(self, targets: Sequence[Target]) -> None:
        before = self._memory(targets)
        queue, changed = list(targets), set()
        while queue and not self._stop.is_set():
            most = self._removed.now
            some, rest = queue[: most // 4 + 1], queue[most // 4 + 1 :]
            replies = self._run(some, most, self._removed, most)
            self._report.removed += sum(found.removed for found in replies)
            changed |= {target.key for target, found in zip(some, replies, strict=True) if found.removed}
            queue = [target for target, found in zip(some, replies, strict=True) if found.left] + rest
        after = self._memory(targets)
        self._report.changed += len(changed)
        self._report.emptied += sum(size is None for size in after)
        self._report.freed += sum(was or 0 for was in before) - sum(size or 0 for size in after)

    def _run(self, targets: Sequence[Target], most: int, amount: _Amount, done: int) -> list[Swept]:
        keys, swept, lifetimes = zip(*((each.key, each.is_swept, each.lifetime) for each in targets), strict=True)
        operation = Sweep(keys, swept, lifetimes, most, repairs=not self._dry_run)
        with self._paced(amount, done):
            reply = self._store.run(operation, frozen_now())
        return Sweep.read(reply)

    def _memory(self, targets: Sequence[Target]) -> list[int | None]:
        """Return the bytes that keys take; None for what is not there."""
        sizes: list[int | None] = []
        for some in _some(targets, self._measured):
            with self._paced(self._measured, len(some)):
                sizes += self._store.of_each(("MEMORY", "USAGE"), [target.key for target in some])
        return sizes

    @contextmanager
    def _paced(self, amount: _Amount, done: int) -> Iterator[None]:
        """Measure a call that does so much, learn from it, and pause by the budget."""
        began = time.perf_counter()
        yield
        took = time.perf_counter() - began
        self._report.slowest = max(self._report.slowest, took)
        spent = max(0.0, took - self._round_trip)
        amount.learn(done, spent)
        self._stop.wait(spent * (1_000 - self._budget_ms) / self._budget_ms)


def _some(targets: Sequence[Target], amount: _Amount) -> Iterator[Sequence[Target]]:
    """Yield the targets in pieces of the amount as it then stands."""
    start = 0
    while start < len(targets):
        some = targets[start : start + amount.now]
        start += len(some)
        yield some


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
