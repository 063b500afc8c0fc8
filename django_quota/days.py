"""Days: which one a moment belongs to, and when it begins and ends. It must not know what is counted in a day.

The store's clock decides the day. A caller sends the day that it believes in, with its edges; where the store's time
lies outside of them the store says so, and the caller asks again with the day of that time.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_quota.algorithms.calendar import edges
from django_quota.clock import SECOND
from django_quota.conf import current


class Day(NamedTuple):
    """A day in the zone of the `TIME_ZONE` setting: it holds for `begins <= now < ends`, in microseconds."""

    date: date
    begins: int
    ends: int

    @property
    def month(self) -> str:
        """Its month, as keys have it: `"2026-11"`."""
        return f"{self.date:%Y-%m}"


_last: tuple[str, Day] = ("", Day(date.min, 0, 0))


def day_of(now: int) -> Day:
    """Return the day that a moment (microseconds) belongs to."""
    global _last  # noqa: PLW0603 — the day of the last call is nearly always that of the next
    zone, (known, (_, begins, ends)) = current().time_zone, _last
    if known == zone and begins <= now < ends:
        return _last[1]
    begins, ends, _ = edges("day", 1, zone, now)
    # A clock that jumps over midnight shows a day that begins with the jump: its name is that of its middle.
    day = Day(datetime.fromtimestamp((begins + ends) // 2 // SECOND, ZoneInfo(zone)).date(), begins, ends)
    _last = (zone, day)
    return day
