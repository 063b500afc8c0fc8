"""The calendar window: one counter for each period of the calendar in a time zone. See `calendar.lua`.

A period is a day from midnight to midnight (23, 24 or 25 hours), an ISO week, a month, a year, or a clock-aligned
part of an hour or a day (`10/15m`, `100/6h`). The store knows no time zones, so the caller sends the edges of the
current and of the next period. If the clock of the store is in neither, the reply says so, and the caller sends the
edges for that time. Daily counts have days of the same calendar.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django_quota.core.algorithms.base import Options, Parameters
from django_quota.core.algorithms.fixed_window import FixedWindow
from django_quota.core.clock import SECOND
from django_quota.core.errors import RateError, RuleError, Translatable
from django_quota.core.rates import UNITS, Rate

Edge = Callable[[int], datetime]
"""Where the period of this index begins: a naive wall-clock time."""

_ALIGNED_WITHIN = {"second": UNITS["minute"], "minute": UNITS["hour"], "hour": UNITS["day"]}
_EPOCH = date(1970, 1, 1)
_EPOCH_MIDNIGHT = datetime(1970, 1, 1)  # noqa: DTZ001 — on the wall clock of any zone
_MICROSECOND = timedelta(microseconds=1)


class Calendar(FixedWindow):
    """At most the limit in each period.

    Parameters: a, b, c = the edges of the current and the next period, in microseconds: [a, b) and [b, c).
    """

    name = "calendar"
    code = "cal"
    takes = frozenset({"tz", "starts"})
    timeless = False

    def validate(self, rate: Rate, options: Options) -> None:
        """Check that the window fits the calendar and that the zone exists."""
        fits = rate.multiple == 1
        if rate.unit in _ALIGNED_WITHIN:
            fits = _ALIGNED_WITHIN[rate.unit] % rate.period == 0
        elif rate.unit == "month":
            fits = 12 % rate.multiple == 0
        if not fits:
            raise RateError(
                str(rate),
                str(rate).index("/") + 1,
                Translatable("its window does not fit the calendar"),
                Translatable(
                    "Seconds must divide a minute, minutes an hour, hours a day and months a year; days, weeks and "
                    "years come one at a time. Use, for example, '10/15m', '100/6h', '1000/day' or '5000/month'."
                ),
            )
        _zone(options.tz)

    def state_id(self, rate: Rate, options: Options) -> str:
        """Return a name that contains the length of the period and the time zone."""
        return f"{self.code}.{rate.multiple}{rate.unit}.{options.tz or 'UTC'}"

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the edges around `now`."""
        return Parameters(rate.count, *edges(rate.unit, rate.multiple, options.tz, now, options.starts))

    def encode(self, p: Parameters) -> tuple[str, ...]:
        """Add the end of the next period."""
        return *super().encode(p), str(p.c)

    def end(self, p: Parameters, now: int) -> int:
        """Return the end of the period around `now`."""
        return p.b if now < p.b else p.c

    def begin(self, p: Parameters, end: int) -> int:
        """Return when the period that ends at `end` began."""
        return p.b if end > p.b else p.a

    def is_outside(self, p: Parameters, now: int) -> bool:
        """Return whether `now` is in neither of the periods whose edges were sent."""
        return not p.a <= now < p.c


@lru_cache(maxsize=64)
def _zone(name: str | None) -> ZoneInfo:
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RuleError(f"tz={name!r} is not a known time zone. Use, for example, 'UTC' or 'Europe/Berlin'.") from None


def is_zone(name: str) -> bool:
    """Return whether this Python knows a time zone of this name."""
    try:
        _zone(name)
    except RuleError:
        return False
    return True


def edges(unit: str, multiple: int, tz: str | None, now: int, starts: date | None = None) -> tuple[int, int, int]:
    """Return where the period around `now` begins, where it ends, and where the next one ends (microseconds).

    `starts`: a day on which one of the periods begins; only for weeks, months and years.
    """
    zone = _zone(tz)
    period = UNITS[unit] * multiple
    if period <= UNITS["hour"]:
        offset = _offset(zone, now)
        return _short_edges(period, zone, offset, (now + offset) // period * period - offset)
    return _wall_edges(unit, multiple, zone, now, starts)


@lru_cache(maxsize=256)
def _short_edges(period: int, zone: ZoneInfo, offset: int, start: int) -> tuple[int, int, int]:
    """Return the edges of a period of at most an hour, which begins at `start` on a wall clock with this offset.

    The period is cut where the clock jumps: an hour that the clock repeats is two periods, and a jump by half an hour
    ends the period before the jump. So no two periods overlap.
    """
    begin, end = _cut(zone, offset, start, start + period)
    offset = _offset(zone, end)
    start = (end + offset) // period * period - offset
    return begin, end, _cut(zone, offset, start, start + period)[1]


def _cut(zone: ZoneInfo, offset: int, start: int, end: int) -> tuple[int, int]:
    """Return the part of a span in which the clock of a zone has this offset from UTC."""
    if _offset(zone, start) != offset:
        return _jump(zone, start, end), end
    return start, end if _offset(zone, end) == offset else _jump(zone, start, end)


def _offset(zone: ZoneInfo, now: int) -> int:
    """Return how far the clock of a zone is ahead of UTC."""
    return int((datetime.fromtimestamp(now // SECOND, zone).utcoffset() or timedelta()).total_seconds()) * SECOND


def _jump(zone: ZoneInfo, before: int, after: int) -> int:
    """Return the moment, between these two, at which the clock of a zone jumps."""
    low, high = before // SECOND, after // SECOND
    offset = _offset(zone, before)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle * SECOND) == offset else (low, middle)
    return high * SECOND


def _wall_edges(unit: str, multiple: int, zone: ZoneInfo, now: int, starts: date | None = None) -> tuple[int, int, int]:
    local = datetime.fromtimestamp(now // SECOND, zone)
    index, wall = _index(unit, multiple, local) if starts is None else _index_from(starts, unit, multiple, local)

    def edge(number: int) -> int:
        local = wall(number)
        first, second = (zone.utcoffset(local.replace(fold=fold)) or timedelta() for fold in (0, 1))
        moment = (local - _EPOCH_MIDNIGHT - first) // _MICROSECOND  # the first of two midnights
        if first < second:  # the clock skips it, so it is the moment of the jump
            return _jump(zone, (local - _EPOCH_MIDNIGHT - second) // _MICROSECOND, moment)
        return moment

    # A clock that jumps over an edge shows a period that has not begun; a clock that is set back, an ended one.
    while edge(index) > now:
        index -= 1
    while edge(index + 1) <= now:
        index += 1
    begin, end, after = edge(index), edge(index + 1), index + 2
    while edge(after) <= end:  # the clock skips the whole period: a country moved across the date line
        after += 1
    return begin, end, edge(after)


def _index(unit: str, multiple: int, local: datetime) -> tuple[int, Edge]:
    """Return the number of the period on the wall clock, and a function that says where a period begins."""
    days = (local.date() - _EPOCH).days
    if unit == "hour":
        per_day = 24 // multiple
        return (
            days * per_day + local.hour // multiple,
            lambda n: _midnight(n // per_day) + timedelta(hours=n % per_day * multiple),
        )
    if unit == "day":
        return days, _midnight
    if unit == "week":
        return (days + 3) // 7, lambda n: _midnight(n * 7 - 3)  # 1970-01-01 was a Thursday
    if unit == "year":
        return local.year, lambda n: datetime(n, 1, 1)  # noqa: DTZ001 — edge() adds the zone
    months = (local.year * 12 + local.month - 1) // multiple
    return months, lambda n: datetime(n * multiple // 12, n * multiple % 12 + 1, 1)  # noqa: DTZ001


def _index_from(starts: date, unit: str, multiple: int, local: datetime) -> tuple[int, Edge]:
    """Return the same as `_index`, for periods of which one begins on the day `starts`.

    The number may be one too high. A month without that day begins on its last day, and the next one on the day again.
    """
    if unit == "week":
        first = (starts - _EPOCH).days
        return ((local.date() - _EPOCH).days - first) // 7, lambda n: _midnight(first + n * 7)
    step, base = multiple * (12 if unit == "year" else 1), starts.year * 12 + starts.month - 1

    def wall(number: int) -> datetime:
        year, month = divmod(base + number * step, 12)
        return datetime(year, month + 1, min(starts.day, monthrange(year, month + 1)[1]))  # noqa: DTZ001

    return (local.year * 12 + local.month - 1 - base) // step, wall


def _midnight(days: int) -> datetime:
    return datetime.combine(_EPOCH + timedelta(days=days), datetime.min.time())


# --- days -------------------------------------------------------------------------------------------------------------
#
# The clock of the store decides the day. A caller sends the day of its own clock with its begin and end. If the store's
# time is outside that day, the store says so, and the caller asks again with the right day.


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
