"""The fixed window: one counter, from the first hit until one window later. See `fixed_window.lua`.

It is cheap and coarse: it admits at most twice the limit in any window. One value holds the count and the end, so
neither is ever written without the other. The calendar window differs only in the end.
"""

from __future__ import annotations

from typing import NamedTuple

from django_quota.core.algorithms.base import MAX_USED, NEVER, Algorithm, Parameters, Verdict


class WindowCount(NamedTuple):
    """The count of a window, and its end (microseconds)."""

    used: int
    end: int


class FixedWindow(Algorithm[WindowCount]):
    """At most twice the limit in any window. Parameters: a = the window in microseconds."""

    name = "fixed_window"
    code = "fw"

    def end(self, p: Parameters, now: int) -> int:
        """Return when a window that opens now ends."""
        return now + p.a

    def begin(self, p: Parameters, end: int) -> int:
        """Return when the window that ends at `end` began."""
        return end - p.a

    def peek(self, state: WindowCount | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit if count + cost stays within the limit; else wait for the end of the window."""
        count, end = _open(state, now)
        reset = end - now if count else 0
        allowed = p.ever_admits(cost) and count + cost <= p.capacity
        wait = 0 if allowed else reset if p.ever_admits(cost) else NEVER
        return Verdict(allowed, p.capacity - count, wait, reset, reset if count and p.capacity else NEVER)

    def consume(
        self, state: WindowCount | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[WindowCount, Verdict]:
        """Count the cost; open a window if none is open."""
        count, end = _open(state, now)
        # A full window refuses everything, so refusals above the limit need no count.
        full = MAX_USED if over else max(p.capacity, count)
        after = WindowCount(min(count + cost, full), end if count else self.end(p, now))
        remaining = p.capacity - after.used
        reset = after.end - now
        return after, Verdict(allowed=True, remaining=remaining, retry_after=0, reset=reset, more=reset)

    def refund(self, state: WindowCount | None, p: Parameters, cost: int, now: int) -> WindowCount | None:
        """Subtract the cost from the count of the open window."""
        count, end = _open(state, now)
        return WindowCount(count - cost, end) if count > cost else None

    def give_back(
        self, state: WindowCount | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> WindowCount | None:
        """Subtract the units from the count, if the hit was counted in this window."""
        is_same = state is not None and self.begin(p, state.end) <= moment and now < state.end
        return self.refund(state, p, units, now) if is_same else state

    def expiry(self, state: WindowCount) -> int:
        """Return the window's end."""
        return state.end


def _open(state: WindowCount | None, now: int) -> WindowCount:
    """Return the count of the open window; an empty one if none is open."""
    return state if state and state.end > now else WindowCount(0, now)
