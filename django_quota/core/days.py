"""The day that a time belongs to, and when it begins and ends.

The clock of the store decides the day. A caller sends the day of its own clock with its begin and end. If the store's
time is outside that day, the store says so, and the caller asks again with the right day.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_quota.core.algorithms.calendar import edges
from django_quota.core.clock import SECOND


class Day(NamedTuple):
    """A day in a time zone: `begins <= now < ends`, in microseconds."""

    date: date
    begins: int
    ends: int
    name: str
    """Its date, as in keys: `"2026-11-21"`."""

    @property
    def month(self) -> str:
        """Its month, as in keys: `"2026-11"`."""
        return f"{self.date:%Y-%m}"


_last: tuple[str, Day] = ("", Day(date.min, 0, 0, ""))


def day_of(now: int, zone: str) -> Day:
    """Return the day in a time zone (`"Europe/Berlin"`) that a time in microseconds belongs to."""
    global _last  # noqa: PLW0603 — the next call nearly always asks for the same day
    known, (_, begins, ends, _) = _last
    if known == zone and begins <= now < ends:
        return _last[1]
    begins, ends, _ = edges("day", 1, zone, now)
    # If the clock jumps over midnight, the day begins with the jump, so take the date from its middle.
    found = datetime.fromtimestamp((begins + ends) // 2 // SECOND, ZoneInfo(zone)).date()
    day = Day(found, begins, ends, found.isoformat())
    _last = (zone, day)
    return day
