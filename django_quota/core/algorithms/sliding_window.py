"""The sliding window: never more than the limit in any window, in bounded memory. See `sliding_window.lua`.

A log of all hits is exact, but grows with the limit. This window keeps at most `precision + 1` entries, each with its
expiry and a running total. What is used is the difference of two totals, never a scan:

* limit <= precision: an entry is one hit, exact to the microsecond.
* limit > precision: an entry is a slice of `window / precision`. It expires with the *last* hit that could fall into
  it. So a hit counts for at most one slice too long, never too short, and the limit always holds.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from django_quota.core.algorithms.base import MAX_USED, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.core.errors import RuleError
from django_quota.core.rates import Rate

DEFAULT_PRECISION = 100
"""Slices per window: with one entry more, Redis still keeps the set packed (up to 128 entries)."""

HUGE = 10**9
HUGE_PRECISION = 64
"""Slices per window for counts above `HUGE`: fewer, because their entries are longer; a subject stays within 3.2 KB."""

MAX_PRECISION = 1_000
"""The most entries that a subject may take."""

WRAP = 2**51
"""A running total that reaches twice this number is lowered by it. So the total stays exact in a double, even if the
subject never pauses. A total that has wrapped is above any cost."""


class WindowEntry(NamedTuple):
    """Hits that expire together: `total` is the running total after them, `cost` their own."""

    total: int
    cost: int
    expiry: int


class SlidingWindow(Algorithm[tuple[WindowEntry, ...]]):
    """At most the limit in any window.

    Parameters: a = the window, b = the width of a slice (0: every hit is an entry), both in microseconds.
    """

    name = "sliding_window"
    code = "sw"
    takes = frozenset({"precision"})

    def validate(self, rate: Rate, options: Options) -> None:
        """Check that the precision is from 1 to 1,000."""
        super().validate(rate, options)
        if options.precision is not None and not 1 <= options.precision <= MAX_PRECISION:
            raise RuleError(f"precision={options.precision!r} is not from 1 to {MAX_PRECISION}. Use, for example, 100.")

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the window, and the slice if the limit is above the precision."""
        precision = options.precision or (DEFAULT_PRECISION if rate.count <= HUGE else HUGE_PRECISION)
        slice_width = 0 if rate.count <= precision else -(-rate.period // precision)
        return Parameters(rate.count, rate.period, slice_width)

    def peek(self, state: tuple[WindowEntry, ...] | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit if used + cost stays within the limit; else wait for the entry whose end makes room."""
        live = _live(state, now)
        used = _used(live)
        missing = used + cost - p.capacity
        allowed = p.ever_admits(cost) and missing <= 0
        wait = 0 if allowed else _until_free(live, missing, now) if p.ever_admits(cost) else NEVER
        reset = live[-1].expiry - now if live else 0
        return Verdict(allowed, p.capacity - used, wait, reset, _until_more(live, p, now))

    def consume(
        self, state: tuple[WindowEntry, ...] | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[tuple[WindowEntry, ...], Verdict]:
        """Add the cost to the entry that expires with this hit, or as a new one."""
        live = _live(state, now)
        expiry, used = self.ends(p, now), _used(live)
        cost = min(cost, max(0, MAX_USED - used))
        total = live[-1].total if live else 0
        merged = 0
        is_full = p.b == 0 and len(live) > p.capacity
        if live and (is_full or live[-1].expiry >= expiry):
            # The same slice, or a clock that stepped back: entries must stay in the order of their totals. If each
            # hit is an entry, hits over the limit add no more entries than the limit has hits.
            expiry, merged = max(live[-1].expiry, expiry), live[-1].cost
            live = live[:-1]
        after = (*live, WindowEntry(_wrapped(total + cost), merged + cost, expiry))
        if not over:  # A refused hit that counts replaces the oldest hits: a full window refuses everything.
            after = _without_oldest(after, min(cost, used + cost - p.capacity))
        remaining, more = p.capacity - _used(after), _until_more(after, p, now)
        return after, Verdict(allowed=True, remaining=remaining, retry_after=0, reset=expiry - now, more=more)

    def refund(
        self, state: tuple[WindowEntry, ...] | None, p: Parameters, cost: int, now: int
    ) -> tuple[WindowEntry, ...] | None:
        """Subtract from the oldest entries: those that stay expire no earlier than the hits that still count."""
        return _without_oldest(_live(state, now), cost) or None

    def give_back(
        self, state: tuple[WindowEntry, ...] | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> tuple[WindowEntry, ...] | None:
        """Subtract the units from the slice that counted the hit, and never more than it holds."""
        live = _live(state, now)
        at = bisect_left(live, moment + p.a, key=lambda entry: entry.expiry)
        if at == len(live) or live[at].expiry > self.ends(p, moment):
            return state
        less = min(units, live[at].cost)
        lowered = [entry._replace(total=entry.total - less) for entry in live[at:]]
        lowered[0] = lowered[0]._replace(cost=lowered[0].cost - less)
        return (*live[:at], *(entry for entry in lowered if entry.cost)) or None

    @staticmethod
    def ends(p: Parameters, moment: int) -> int:
        """Return when the entry that counts a hit at this moment expires."""
        return moment + p.a if p.b == 0 else (moment // p.b + 1) * p.b - 1 + p.a

    def expiry(self, state: tuple[WindowEntry, ...]) -> int:
        """Return when the last entry expires."""
        return state[-1].expiry


def _live(state: tuple[WindowEntry, ...] | None, now: int) -> tuple[WindowEntry, ...]:
    if not state or state[0].expiry > now:
        return state or ()
    return state[bisect_left(state, now + 1, key=lambda entry: entry.expiry) :]


def _without_oldest(entries: tuple[WindowEntry, ...], units: int) -> tuple[WindowEntry, ...]:
    """Return the entries without the `units` that expire first."""
    while entries and units >= entries[0].cost:
        units -= entries[0].cost
        entries = entries[1:]
    if entries and units > 0:
        entries = (entries[0]._replace(cost=entries[0].cost - units), *entries[1:])
    return entries


def _until_free(live: tuple[WindowEntry, ...], needed: int, now: int) -> int:
    """Return how long until `needed` units are free again."""
    base = live[0].total - live[0].cost
    return live[bisect_left(live, needed, key=lambda entry: (entry.total - base) % WRAP)].expiry - now


def _until_more(live: tuple[WindowEntry, ...], p: Parameters, now: int) -> int:
    """Return how long until more is left; `NEVER` if waiting does not help."""
    return _until_free(live, max(0, _used(live) - p.capacity) + 1, now) if live and p.capacity else NEVER


def _wrapped(total: int) -> int:
    return total - WRAP if total >= 2 * WRAP else total


def _used(live: tuple[WindowEntry, ...]) -> int:
    return (live[-1].total - (live[0].total - live[0].cost)) % WRAP if live else 0
