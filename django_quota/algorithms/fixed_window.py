"""The fixed window: one counter, opened by the first hit and closed a window later. Pure; `lua/fixed_window.lua` twin.

Cheap and coarse: at most twice the limit in any window. Count and end lie in one value, so that there is no INCR
without its EXPIRE. The calendar shares all of it but the end.
"""

from __future__ import annotations

from typing import NamedTuple

from django_quota.algorithms.base import MOST, NEVER, Algorithm, Options, Parameters, Verdict
from django_quota.rates import Rate


class Tally(NamedTuple):
    """How much was counted, until the window's end (microseconds)."""

    used: int
    end: int


class FixedWindow(Algorithm[Tally]):
    """Parameters: a = the window in microseconds."""

    name = "fixed_window"
    code = "fw"
    bound = "2 * limit"

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the window."""
        return Parameters(rate.count, rate.period)

    def end(self, p: Parameters, now: int) -> int:
        """Return where a window opened now ends."""
        return now + p.a

    def inspect(self, state: Tally | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit where count + cost stays within the limit; else wait for the window's end."""
        count, end = _open(state, now)
        reset = end - now if count else 0
        remaining = max(0, p.capacity - count)
        more = reset if count and p.capacity else NEVER
        if p.capacity > 0 and count + cost <= p.capacity:
            return Verdict(ok=True, remaining=remaining, wait=0, reset=reset, more=more)
        if cost > p.capacity or p.capacity == 0:
            return Verdict(ok=False, remaining=remaining, wait=NEVER, reset=reset, more=more)
        return Verdict(ok=False, remaining=remaining, wait=end - now, reset=reset, more=more)

    def spend(
        self, state: Tally | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[Tally, Verdict]:
        """Count the cost, opening a window where none is open."""
        count, end = _open(state, now)
        # A full window refuses all: counting refusals further says nothing.
        full = MOST if over else max(p.capacity, count)
        after = Tally(min(count + cost, full), end if count else self.end(p, now))
        remaining = max(0, p.capacity - after.used)
        reset = after.end - now
        return after, Verdict(ok=True, remaining=remaining, wait=0, reset=reset, more=reset)

    def refund(self, state: Tally | None, p: Parameters, cost: int, now: int) -> Tally | None:
        """Take the cost off the open window's count."""
        count, end = _open(state, now)
        return Tally(count - cost, end) if count > cost else None

    def expiry(self, state: Tally) -> int:
        """Return the window's end."""
        return state.end


def _open(state: Tally | None, now: int) -> Tally:
    """Return the tally of the window that is open now; an empty one where none is."""
    return state if state and state.end > now else Tally(0, now)
