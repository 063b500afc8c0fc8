"""The admin's charts: where each mark goes. Each is the context of a template that draws it as SVG.

SVG elements carry classes and no styles, so the charts pass a strict Content-Security-Policy and follow the admin's
light and dark colours. No information is in colour alone: refused checks are dotted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

from django.utils.formats import date_format, get_format, number_format
from django.utils.translation import gettext as _

from django_quota.features.usage.days import Count, total
from django_quota.operating.activity import Minute


class Label(NamedTuple):
    """Words in a chart."""

    x: float
    y: float
    text: str


def grouped(value: int) -> str:
    """Return a number with the language's thousand separators."""
    return str(number_format(value, force_grouping=True))


def describe(day: date, counts: Count) -> str:
    """Return the counts of a day in words."""
    if not counts.checks:
        return _("%s: no checks") % date_format(day)
    return _("%(day)s: %(allowed)s allowed, %(refused)s refused") % {
        "day": date_format(day),
        "allowed": grouped(counts.allowed),
        "refused": grouped(counts.refused),
    }


# --- heat map ---------------------------------------------------------------------------------------------------------

WEEK = 7
CELL_PITCH = 15
"""Pixels from one cell to the next. A cell is 12 pixels wide."""
HEAT_LEFT, HEAT_TOP = 36, 20
"""Room for the names of weekdays and months."""
SHADES = 4
"""Shades of days with checks. Shade 0 is for days without."""


class HeatCell(NamedTuple):
    """A day in a heat map."""

    x: int
    y: int
    shade: int
    refused: int
    title: str
    """The counts in words; "" for a day to come."""


def shade_bounds(counts: Iterable[int]) -> list[int]:
    """Return the highest count of each shade but the last: the quartiles of the days with checks."""
    busy = sorted(count for count in counts if count > 0)
    return [busy[max(0, len(busy) * part // SHADES - 1)] for part in range(1, SHADES)] if busy else []


def shade_of(count: int, bounds: Sequence[int]) -> int:
    """Return the shade of a count: 0 for none, else 1 (few) to 4 (many)."""
    return 0 if count <= 0 else 1 + bisect_left(bounds, count)


def heat_map(year: int, days: Mapping[date, Count], last: date) -> dict[str, Any]:
    """Lay out the heat map of a year: a column for each week, a row for each weekday.

    `days` holds days of the year that have checks; days after `last` are drawn as days to come.
    """
    first_weekday = (int(get_format("FIRST_DAY_OF_WEEK")) - 1) % WEEK  # Django's 0 is Sunday
    first = date(year, 1, 1)
    offset = (first.weekday() - first_weekday) % WEEK
    bounds = shade_bounds(counts.checks for counts in days.values())
    cells, labels = [], []
    for number in range((date(year, 12, 31) - first).days + 1):
        day = date.fromordinal(first.toordinal() + number)
        column, row = divmod(number + offset, WEEK)
        x, y = HEAT_LEFT + column * CELL_PITCH, HEAT_TOP + row * CELL_PITCH
        counts = days.get(day, Count())
        title = describe(day, counts) if day <= last else ""
        cells.append(HeatCell(x, y, shade_of(counts.checks, bounds), counts.refused, title))
        if day.day == 1:
            # A month that starts within a week is named above its first whole week, so names do not overlap.
            shift = CELL_PITCH if row and day.month > 1 else 0
            labels.append(Label(x + shift, HEAT_TOP - 7, date_format(day, "M")))
    monday = date(2024, 1, 1)
    for row in range(0, WEEK, 2):
        weekday = date_format(monday + timedelta(days=(first_weekday + row) % WEEK), "D")
        labels.append(Label(0, HEAT_TOP + row * CELL_PITCH + 10, weekday))
    return {
        "width": cells[-1].x + CELL_PITCH,
        "height": HEAT_TOP + WEEK * CELL_PITCH,
        "title": _("A heat map of %(year)s") % {"year": year},
        "summary": _year_summary(days),
        "labels": labels,
        "cells": cells,
        "legend": _heat_legend(bounds, max((counts.checks for counts in days.values()), default=0)),
    }


def _year_summary(days: Mapping[date, Count]) -> str:
    sums = total(days.values())
    summary = _("Checks: %(checks)s, of them refused: %(refused)s. Days with checks: %(days)s.") % {
        "checks": grouped(sums.checks),
        "refused": grouped(sums.refused),
        "days": grouped(len(days)),
    }
    if not days:
        return summary
    busiest = max(days, key=lambda day: (days[day].checks, -day.toordinal()))
    return f"{summary} {_('The busiest day: %s.') % describe(busiest, days[busiest])}"


def _heat_legend(bounds: Sequence[int], highest: int) -> list[tuple[int, str]]:
    """Return each shade with its range of counts."""
    legend = [(0, _("none"))]
    low = 1
    for shade, high in enumerate(bounds, start=1):
        if high >= low:
            words = grouped(low) if low == high else f"{grouped(low)}\N{EN DASH}{grouped(high)}"
            legend.append((shade, words))
            low = high + 1
    if highest >= low:
        legend.append((SHADES, _("%s or more") % grouped(low)))
    return legend


# --- bar chart --------------------------------------------------------------------------------------------------------

PLOT_HEIGHT = 160
"""Pixels of the tallest bar."""
BARS_TOP = 20
BARS_LEFT, AXIS_WIDTH = 20, 56
"""Room beside the bars. The axis is on the right, by the latest days, which a phone shows first."""
DAYS_OF_WIDE_BARS, DAYS_OF_MEDIUM_BARS = 31, 100
"""Days up to which bars are 33 and 11 pixels apart, which fills a desk. A year's are 3 apart."""


def axis_maximum(count: int) -> int:
    """Return the next round number (1, 2 or 5 and zeros, at least 2), where the axis ends."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power >= max(count, 2):
                return step * power
        power *= 10


def bar_chart(days: Sequence[tuple[date, Count]]) -> dict[str, Any]:
    """Lay out a bar for each day: allowed checks below, refused ones on top.

    A bar is the left edge of its column, its title, and its parts: the kind, the top and the height of each.
    """
    count = len(days)
    is_year = count > DAYS_OF_MEDIUM_BARS  # with thin bars and the names of months below
    pitch = 33 if count <= DAYS_OF_WIDE_BARS else 3 if is_year else 11
    maximum = axis_maximum(max((counts.checks for _day, counts in days), default=0))
    sums = total(counts for _day, counts in days)
    bottom = BARS_TOP + PLOT_HEIGHT
    bars, ticks = [], []
    for index, (day, counts) in enumerate(days):
        x = BARS_LEFT + index * pitch
        bars.append((x, describe(day, counts), _bar_parts(counts, maximum)))
        if words := _tick(day, index, count):
            ticks.append(Label(x + pitch / 2, bottom, words))
    return {
        "width": BARS_LEFT + count * pitch + AXIS_WIDTH,
        "height": bottom + 24,
        "plot_top": BARS_TOP,
        "plot_width": count * pitch,
        "plot_height": PLOT_HEIGHT,
        "pitch": pitch,
        "bar_width": pitch - (1 if is_year else 2),
        "tick_anchor": "start" if is_year else "middle",  # months start below their first day
        "title": _("A bar for each day from %(first)s to %(last)s")
        % {"first": date_format(days[0][0]), "last": date_format(days[-1][0])},
        "summary": _("%(allowed)s allowed and %(refused)s refused.")
        % {"allowed": grouped(sums.allowed), "refused": grouped(sums.refused)},
        "grid": [
            Label(BARS_LEFT + count * pitch, bottom - PLOT_HEIGHT * value / maximum, grouped(value))
            for value in (0, maximum // 2, maximum)
        ],
        "ticks": ticks,
        "bars": bars,
    }


def _bar_parts(counts: Count, maximum: int) -> list[tuple[str, float, float]]:
    parts = []
    y = float(BARS_TOP + PLOT_HEIGHT)
    for kind, value in (("allowed", counts.allowed), ("refused", counts.refused)):
        if value > 0:
            height = max(1.0, PLOT_HEIGHT * value / maximum)
            y -= height
            parts.append((kind, round(y, 2), round(height, 2)))
    return parts


def _tick(day: date, index: int, count: int) -> str:
    """Return what the axis says below a day: months below a year, else the days one or two weeks apart."""
    if count > DAYS_OF_MEDIUM_BARS:
        return date_format(day, "M") if day.day == 1 else ""
    weeks = 1 if count <= DAYS_OF_WIDE_BARS else 2
    return date_format(day, "j M") if (count - 1 - index) % (weeks * WEEK) == 0 else ""


# --- sparkline --------------------------------------------------------------------------------------------------------

SPARK_HEIGHT = 28
SPARK_PITCH = 3
"""Units of a sparkline: its height, and the width of a minute."""


def sparkline(minutes: Sequence[Minute]) -> dict[str, Any]:
    """Lay out minutes, the oldest first, refused checks on top of allowed ones; empty without minutes.

    A bar is its left edge, its top and its height.
    """
    if not minutes:
        return {}
    peak = max(map(sum, minutes))
    allowed, refused = [], []
    for index, minute in enumerate(minutes):
        x, total, low = index * SPARK_PITCH, _spark_height(sum(minute), peak), _spark_height(minute.allowed, peak)
        if minute.refused:
            low = min(low, total - 1)  # keeps one refusal among thousands visible
            refused.append((x, SPARK_HEIGHT - total, total - low))
        if low > 0:
            allowed.append((x, SPARK_HEIGHT - low, low))
    title = _("Last %(minutes)d minutes: %(allowed)d allowed, %(refused)d refused; at most %(peak)d in a minute") % {
        "minutes": len(minutes),
        "allowed": sum(minute.allowed for minute in minutes),
        "refused": sum(minute.refused for minute in minutes),
        "peak": peak,
    }
    return {
        "width": len(minutes) * SPARK_PITCH,
        "height": SPARK_HEIGHT,
        "allowed": allowed,
        "refused": refused,
        "title": title,
        "peak": peak,
    }


def _spark_height(count: int, peak: int) -> int:
    """Return the height of a count: at least 2 for any, so that it is visible."""
    return max(round(count / peak * SPARK_HEIGHT), 2) if count else 0
