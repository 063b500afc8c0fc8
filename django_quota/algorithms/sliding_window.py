"""The sliding window: never more than the limit in any window, in bounded memory. Pure; `lua/sliding_window.lua` twin.

The log of hits is exact but grows with the limit. This one is kept as at most `precision + 1` entries, each with the
moment it expires and a running total, so that what is used is a difference of two totals and never a scan:

* limit <= precision: an entry is one hit, exact to the microsecond;
* limit > precision: an entry is a slice of `window / precision`. It expires when the *last* hit that could fall into it
  would, so that it is counted too long by at most a slice and never too short: the limit holds all the same.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from django_quota.algorithms.base import MOST, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.exceptions import RuleError
from django_quota.rates import Rate

DEFAULT_PRECISION = 100
"""Slices a window: with one more, Redis still keeps the set packed (up to 128 entries)."""

HUGE = 10**9
HUGE_PRECISION = 64
"""Slices a window for counts above `HUGE`, whose entries are longer: so a subject stays within the same 3.2 KB."""

MAX_PRECISION = 1_000
"""With it, even counted refusals keep the running totals of all live entries below `WRAP`."""

WRAP = 2**52
"""Running totals count modulo this, so that a subject that never pauses never leaves the integers of a double."""


class Entry(NamedTuple):
    """Hits that expire together: `total` is the running total after them, `cost` their own."""

    total: int
    cost: int
    expiry: int


class SlidingWindow(Algorithm[tuple[Entry, ...]]):
    """Parameters: a = the window, b = the width of a slice (0: every hit is an entry), both in microseconds."""

    name = "sliding_window"
    code = "sw"
    takes = frozenset({"precision"})
    bound = "limit"

    def validate(self, rate: Rate, options: Options) -> None:
        """Check that the precision is from 1 to 1,000."""
        super().validate(rate, options)
        if options.precision is not None and not 1 <= options.precision <= MAX_PRECISION:
            raise RuleError(f"precision={options.precision!r} is not from 1 to {MAX_PRECISION}; 100 would do.")

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the window, and the slice where the limit is above the precision."""
        precision = options.precision or (DEFAULT_PRECISION if rate.count <= HUGE else HUGE_PRECISION)
        exact = rate.count <= precision and not options.count_refused  # refused hits know no bound but the slices
        slice_width = 0 if exact else -(-rate.period // precision)
        return Parameters(rate.count, rate.period, slice_width)

    def inspect(self, state: tuple[Entry, ...] | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit where used + cost stays within the limit; else wait for the entry whose end makes the room."""
        live = _live(state, now)
        used = _used(live)
        reset = live[-1].expiry - now if live else 0
        remaining = max(0, p.capacity - used)
        more = _until_more(live, p, now)
        if p.capacity > 0 and used + cost <= p.capacity:
            return Verdict(ok=True, remaining=remaining, wait=0, reset=reset, more=more)
        if cost > p.capacity or p.capacity == 0:
            return Verdict(ok=False, remaining=remaining, wait=NEVER, reset=reset, more=more)
        wait = _until_back(live, used + cost - p.capacity, now)
        return Verdict(ok=False, remaining=remaining, wait=wait, reset=reset, more=more)

    def spend(
        self, state: tuple[Entry, ...] | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[tuple[Entry, ...], Verdict]:
        """Add the cost to the entry that expires with this hit, or as a new one."""
        live = _live(state, now)
        expiry = now + p.a if p.b == 0 else (now // p.b + 1) * p.b - 1 + p.a
        most = max(0, MOST - _used(live))
        total = live[-1].total if live else 0
        merged = 0
        if live and (over or live[-1].expiry >= expiry):
            # The same slice, or a clock that stepped back: entries must stay in the order of their totals. What goes
            # over the limit adds no entry either: there is no bound to how often that happens.
            expiry, merged = max(live[-1].expiry, expiry), live[-1].cost
            live = live[:-1]
        # An entry of the whole limit refuses all: more says nothing, but where it may be given back in part.
        cost = min(cost, most if over else max(0, p.capacity - merged))
        after = (*live, Entry((total + cost) % WRAP, merged + cost, expiry))
        remaining, more = max(0, p.capacity - _used(after)), _until_more(after, p, now)
        return after, Verdict(ok=True, remaining=remaining, wait=0, reset=expiry - now, more=more)

    def refund(self, state: tuple[Entry, ...] | None, p: Parameters, cost: int, now: int) -> tuple[Entry, ...] | None:
        """Take from the oldest entries: what stays expires no earlier than the hits that still count."""
        live = _live(state, now)
        while live and cost >= live[0].cost:
            cost -= live[0].cost
            live = live[1:]
        if live and cost:
            live = (live[0]._replace(cost=live[0].cost - cost), *live[1:])
        return live or None

    def expiry(self, state: tuple[Entry, ...]) -> int:
        """Return when the last entry expires."""
        return state[-1].expiry


def _live(state: tuple[Entry, ...] | None, now: int) -> tuple[Entry, ...]:
    if not state or state[0].expiry > now:
        return state or ()
    return state[bisect_left(state, now + 1, key=lambda entry: entry.expiry) :]


def _until_back(live: tuple[Entry, ...], needed: int, now: int) -> int:
    """Return how long until so much of what is used has come back."""
    base = live[0].total - live[0].cost
    return live[bisect_left(live, needed, key=lambda entry: (entry.total - base) % WRAP)].expiry - now


def _until_more(live: tuple[Entry, ...], p: Parameters, now: int) -> int:
    """Return how long until more is left; `NEVER` where no time brings more."""
    return _until_back(live, max(0, _used(live) - p.capacity) + 1, now) if live and p.capacity else NEVER


def _used(live: tuple[Entry, ...]) -> int:
    return (live[-1].total - (live[0].total - live[0].cost)) % WRAP if live else 0
