"""The calendar window whose weeks, months and years begin on a day of the subject: `starts=`.

See `subscription.lua`. It is chosen by `starts=`, and people know it as `calendar`.

A subject's day may change while units are in use. They stay counted until the first beginning of a period, under the
day of then, that is not before the end of their own period as it was when that was opened, and is after the last hit.
So counts begin at least a period apart, and no window as long as a period sees hits of more than two: as with periods
that never change. For that, a count is remembered for longer than it counts, even when all of it was given back.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from typing import NamedTuple

from django_quota.core.algorithms.base import MAX_USED, Options, Parameters, Verdict
from django_quota.core.algorithms.calendar import Calendar, edges
from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.clock import DAY
from django_quota.core.rates import Rate

UNITS_WITH_START = frozenset({"week", "month", "year"})
"""The units whose periods may begin on any day."""

FIRST_DAY = date(2001, 1, 1)
"""A Monday that begins a month and a year: periods from this day are those of the calendar."""

SLACK = 5 * DAY
"""How much longer the longest period of a unit is at most than the shortest, in microseconds."""


class PeriodCount(NamedTuple):
    """What was used in a period; its times are in microseconds."""

    used: int
    end: int
    """When the period ends, by the day on which it was opened."""
    begin: int
    last: int
    """When something was last counted."""


class Subscription(Calendar):
    """Parameters: a, b, c, d = the edges of the period around now, and the ends of the next two, in microseconds."""

    code = "sub"

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the edges around `now`."""
        key = rate.unit, rate.multiple, options.tz, options.starts
        found = _latest.get(key)
        if found is None or not found[0] <= now < found[1]:
            a, b, c = edges(*key[:3], now, options.starts)
            found = a, b, c, edges(*key[:3], c, options.starts)[1]
            if len(_latest) >= MAX_LATEST:
                _latest.clear()
            _latest[key] = found
        a, b, c, d = found
        return Parameters(rate.count, a, b, c, d=d)

    def encode(self, p: Parameters) -> tuple[str, ...]:
        """Name the module of the script, which is not the name of the algorithm, and add the last edge."""
        return "subscription", *super().encode(p)[1:], str(p.d)

    def is_outside(self, p: Parameters, now: int) -> bool:
        """Return whether `now` is not in the first of the periods that were sent."""
        return not p.a <= now < p.b

    def peek(self, state: WindowCount | PeriodCount | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit if count + cost stays within the limit; else wait for the end of the count."""
        found = _open(state, p)
        return super().peek(None if found is None else WindowCount(found.used, _end(found, p)), p, cost, now)

    def consume(  # type: ignore[override]
        self, state: PeriodCount | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[PeriodCount, Verdict]:
        """Count the cost; open the period around `now` if none is open."""
        found = _open(state, p) or PeriodCount(0, p.b, p.a, now)
        full = MAX_USED if over else max(p.capacity, found.used)
        after = found._replace(used=min(found.used + cost, full), last=max(found.last, now))
        reset = _end(after, p) - now
        return after, Verdict(allowed=True, remaining=p.capacity - after.used, retry_after=0, reset=reset, more=reset)

    def refund(  # type: ignore[override]
        self, state: PeriodCount | None, p: Parameters, cost: int, now: int
    ) -> PeriodCount | None:
        """Subtract the cost from the open count, which stays remembered at 0."""
        found = _open(state, p)
        return state if found is None else found._replace(used=max(0, found.used - cost))

    def give_back(  # type: ignore[override]
        self, state: PeriodCount | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> PeriodCount | None:
        """Subtract the units from the count, if the hit was counted in it."""
        found = _open(state, p)
        return state if found is None or found.begin > moment else self.refund(state, p, units, now)

    def expiry(self, state: PeriodCount) -> int:  # type: ignore[override]
        """Return when a period must have begun since, whatever the subject's day is then."""
        return max(state.end, state.last) + (state.end - state.begin) + SLACK


MAX_LATEST = 4_096
"""For how many kinds of periods a process keeps the present edges."""

_latest: dict[tuple[str, int, str | None, date | None], tuple[int, int, int, int]] = {}
"""The edges that were last found, by unit, multiple, time zone and day."""


def _open(state: PeriodCount | WindowCount | None, p: Parameters) -> PeriodCount | None:
    """Return the count that is open; None if a period has begun since, or if there is none."""
    if not isinstance(state, PeriodCount) or (state.end <= p.a and state.last < p.a):
        return None
    return state


def _end(state: PeriodCount, p: Parameters) -> int:
    """Return until when an open count counts: that is at most two periods away."""
    return p.b if state.end <= p.b else p.c if state.end <= p.c else p.d


@lru_cache(maxsize=4_096)
def same_periods(day: date) -> date:
    """Return the day of the years 2000 to 2027 that gives the same weeks, months and years: there are 2,562 of them."""
    for year in range(2000, 2028):
        is_missing = (day.month, day.day) == (2, 29) and year % 4
        if not is_missing and day.replace(year=year).weekday() == day.weekday():
            return day.replace(year=year)
    raise AssertionError(day)  # the weekdays repeat every 28 years
