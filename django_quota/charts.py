"""Charts: figures of days in, SVG out. Pure: it must not know where figures come from, nor the page that they stand on.

What is drawn carries classes and no styles, so that a site's strict content policy lets it pass and a style sheet makes
it light or dark. Nothing is told by colour alone: what was refused is dotted and outlined, what is live is hatched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from typing import NamedTuple

LEVELS = 5
"""Shades of a heat map, with that of no checks at all."""

WEEK = 7
CELL, PITCH = 12, 15
LEFT, TOP = 36, 20
PLOT = 160
"""Height of the tallest bar."""
EDGE, AXIS = 20, 56
"""Room on both sides of the bars: the axis is on the right, beside the latest days, which are in sight on a phone."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The checks of a day: how many were allowed and refused in all, and how many of these are live."""

    allowed: int = 0
    refused: int = 0
    live_allowed: int = 0
    live_refused: int = 0

    @property
    def checks(self) -> int:
        """All checks."""
        return self.allowed + self.refused

    @property
    def live(self) -> int:
        """The checks that are live: counted in Redis and not rolled up yet."""
        return self.live_allowed + self.live_refused

    def __add__(self, other: Figure) -> Figure:
        return Figure(
            self.allowed + other.allowed,
            self.refused + other.refused,
            self.live_allowed + other.live_allowed,
            self.live_refused + other.live_refused,
        )


NOTHING = Figure()


@dataclass(frozen=True, slots=True)
class Words:
    """What a chart says, in the reader's language."""

    title: str
    summary: str
    describe: Callable[[date, Figure], str]
    """What is said of a day."""
    number: Callable[[int], str] = str
    months: Sequence[str] = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    weekdays: Sequence[str] = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    """From Monday on, whatever the first day of the week."""


# --- the heat map -----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a day lies in a heat map: the column of its week, and the row of its weekday."""

    day: date
    column: int
    row: int


def places(year: int, first_weekday: int = 0) -> Iterator[Place]:
    """Find the place of each day of a year; `first_weekday`: whose row is the first, 0 (Monday) to 6."""
    first = date(year, 1, 1)
    offset = (first.weekday() - first_weekday) % WEEK
    for number in range(date(year, 12, 31).toordinal() - first.toordinal() + 1):
        column, row = divmod(number + offset, WEEK)
        yield Place(date.fromordinal(first.toordinal() + number), column, row)


def bounds(counts: Iterable[int]) -> list[int]:
    """Return the highest count of each shade but the first and the last: the quartiles of the days with any checks."""
    busy = sorted(count for count in counts if count > 0)
    parts = LEVELS - 1
    return [busy[max(0, len(busy) * part // parts - 1)] for part in range(1, parts)] if busy else []


def level(count: int, highest: Sequence[int]) -> int:
    """Return the shade of a count: 0 for none, 1 to 4 for more and more; `highest` is what `bounds` has returned."""
    return 0 if count <= 0 else 1 + bisect_left(highest, count)


def heat_map(
    year: int, figures: Mapping[date, Figure], words: Words, *, last: date | None = None, first_weekday: int = 0
) -> str:
    """Return the heat map of a year as SVG: a column a week, a row a weekday; days after `last` are yet to come."""
    highest = bounds(figure.checks for day, figure in figures.items() if day.year == year)
    found = list(places(year, first_weekday))
    width, height = LEFT + (found[-1].column + 1) * PITCH, TOP + WEEK * PITCH
    return "".join(
        (
            _opening("quota-heat", width, height, words),
            _defs("heat"),
            *_month_labels(found, words),
            *_weekday_labels(first_weekday, words),
            *(
                _cell(place, figures.get(place.day, NOTHING), highest, words)
                if last is None or place.day <= last
                else _square(place, "cell future")
                for place in found
            ),
            "</svg>",
        )
    )


def _month_labels(found: Iterable[Place], words: Words) -> Iterator[str]:
    for place in found:
        if place.day.day == 1:
            # A month that begins within a week is named above its first whole one, lest names run into each other.
            column = place.column + (place.row > 0 and place.day.month > 1)
            yield _label(LEFT + column * PITCH, TOP - 7, words.months[place.day.month - 1])


def _weekday_labels(first_weekday: int, words: Words) -> Iterator[str]:
    for row in range(0, WEEK, 2):
        yield _label(0, TOP + row * PITCH + CELL - 2, words.weekdays[(first_weekday + row) % WEEK])


def _cell(place: Place, figure: Figure, highest: Sequence[int], words: Words) -> str:
    marks = ""
    if figure.live:
        marks += _square(place, "live", fill="url(#quota-heat-live)")
    if figure.refused:
        x, y = _corner(place)
        marks += f'<circle class="refused" cx="{x + CELL / 2:g}" cy="{y + CELL / 2:g}" r="2.5"/>'
    shade = level(figure.checks, highest)
    square = _square(place, f"cell level-{shade}")
    return f"<g><title>{_text(words.describe(place.day, figure))}</title>{square}{marks}</g>"


def _square(place: Place, kind: str, fill: str | None = None) -> str:
    x, y = _corner(place)
    filled = f' fill="{fill}"' if fill else ""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="2"{filled}/>'


def _corner(place: Place) -> tuple[int, int]:
    return LEFT + place.column * PITCH, TOP + place.row * PITCH


# --- the bars ---------------------------------------------------------------------------------------------------------


def bars(figures: Sequence[tuple[date, Figure]], words: Words) -> str:
    """Return a bar for each day as SVG: allowed below, refused on top of it, and of each the live part above."""
    pitch = next(pitch for most, pitch in ((31, 20), (100, 9), (10**9, 3)) if len(figures) <= most)
    top = ceiling(max((figure.checks for _, figure in figures), default=0))
    width, height = EDGE + len(figures) * pitch + AXIS, TOP + PLOT + 24
    return "".join(
        (
            _opening("quota-bars", width, height, words),
            _defs("bars"),
            *_grid(top, width, words),
            *(
                _bar(EDGE + index * pitch, pitch, day, figure, top, words)
                for index, (day, figure) in enumerate(figures)
            ),
            *_day_labels([day for day, _ in figures], pitch, words),
            "</svg>",
        )
    )


def ceiling(most: int) -> int:
    """Return the next round number (1, 2 or 5 and zeros; at least 2) from `most` on: what the axis ends with."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power >= max(most, 2):
                return step * power
        power *= 10


def _grid(top: int, width: int, words: Words) -> Iterator[str]:
    for value in (0, top // 2, top):
        y = _number(TOP + PLOT - PLOT * value / top)
        yield f'<line class="grid" x1="{EDGE}" x2="{width - AXIS + 4}" y1="{y}" y2="{y}"/>'
        yield _label(width - AXIS + 8, float(y) + 4, words.number(value))


def _bar(x: float, pitch: int, day: date, figure: Figure, top: int, words: Words) -> str:
    parts = (
        ("allowed", figure.allowed - figure.live_allowed, None),
        ("allowed live", figure.live_allowed, "url(#quota-bars-live)"),
        ("refused", figure.refused - figure.live_refused, "url(#quota-bars-refused)"),
        ("refused live", figure.live_refused, "url(#quota-bars-refused-live)"),
    )
    gap = 1 if pitch < 5 else 2  # noqa: PLR2004 — a year's bars are thin
    # The whole column can be pointed at, not only the bar: a day with few checks says its figures too.
    drawn = [f'<rect class="column" x="{x:g}" y="{TOP}" width="{pitch}" height="{PLOT}"/>']
    y = float(TOP + PLOT)
    for kind, count, fill in parts:
        if count > 0:
            tall = max(1.0, PLOT * count / top)
            y -= tall
            filled = f' fill="{fill}"' if fill else ""
            drawn.append(
                f'<rect class="{kind}" x="{x + gap / 2:g}" y="{_number(y)}" width="{pitch - gap}" '
                f'height="{_number(tall)}"{filled}/>'
            )
    return f"<g><title>{_text(words.describe(day, figure))}</title>{''.join(drawn)}</g>"


def _day_labels(days: Sequence[date], pitch: int, words: Words) -> Iterator[str]:
    is_long = pitch < 5  # noqa: PLR2004 — a year's bars are thin
    for index, day in enumerate(days):
        if day.day == 1 if is_long else (len(days) - 1 - index) % (WEEK if len(days) <= 31 else 2 * WEEK) == 0:  # noqa: PLR2004
            month = words.months[day.month - 1]
            x = EDGE + index * pitch + pitch / 2
            yield f'<line class="tick" x1="{x:g}" x2="{x:g}" y1="{TOP + PLOT}" y2="{TOP + PLOT + 4}"/>'
            yield _label(
                x, TOP + PLOT + 17, month if is_long else f"{day.day} {month}", "start" if is_long else "middle"
            )


# --- the pieces -------------------------------------------------------------------------------------------------------

KEYS = {
    "allowed": None,
    "refused": "url(#quota-bars-refused)",
    "allowed live": "url(#quota-bars-live)",
    "refused live": "url(#quota-bars-refused-live)",
}
"""What a bar is made of, and how it is filled."""


def bar_key(kind: str) -> str:
    """Return a sample of a part of the bars, for a legend beside them; `kind`: one of `KEYS`."""
    fill = KEYS[kind]
    filled = f' fill="{fill}"' if fill else ""
    return _sample("quota-bars", f'<rect class="{kind}" x="1" y="1" width="12" height="12"{filled}/>')


def heat_key(shade: int, kind: str = "") -> str:
    """Return a sample of a shade, for a legend beside a heat map; `kind`: "", "live" or "refused"."""
    mark = {
        "": "",
        "live": '<rect class="live" x="1" y="1" width="12" height="12" rx="2" fill="url(#quota-heat-live)"/>',
        "refused": '<circle class="refused" cx="7" cy="7" r="2.5"/>',
    }[kind]
    return _sample("quota-heat", f'<rect class="cell level-{shade}" x="1" y="1" width="12" height="12" rx="2"/>{mark}')


def _sample(kind: str, drawn: str) -> str:
    return f'<svg class="{kind} sample" width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">{drawn}</svg>'


def _opening(kind: str, width: int, height: int, words: Words) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" aria-labelledby="{kind}-title {kind}-summary">'
        f'<title id="{kind}-title">{_text(words.title)}</title>'
        f'<desc id="{kind}-summary">{_text(words.summary)}</desc>'
    )


def _defs(chart: str) -> str:
    """Return the patterns of a chart. A pattern's classes are those of a style sheet; its name is that of its chart."""
    hatch = '<path class="hatch" d="M-1 1L1 -1M0 5L5 0M4 6L6 4"/>'
    ids = f"quota-{chart}"
    live = _pattern(f"{ids}-live", hatch)
    if chart == "heat":
        return f"<defs>{live}</defs>"
    dots = '<circle class="dot" cx="2.5" cy="2.5" r="1.1"/>'
    red = hatch.replace("hatch", "hatch refused-hatch")
    return f"<defs>{live}{_pattern(f'{ids}-refused', dots)}{_pattern(f'{ids}-refused-live', dots + red)}</defs>"


def _pattern(name: str, drawn: str) -> str:
    ground = '<rect class="ground" width="5" height="5"/>'
    return f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse">{ground}{drawn}</pattern>'


def _label(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{_text(words)}</text>'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(words: str) -> str:
    """Return text as XML may hold it: some characters have no place there, not even escaped."""
    return escape("".join(sign if _is_xml(sign) else "\ufffd" for sign in words))


def _is_xml(sign: str) -> bool:
    return sign in "\t\n\r" or " " <= sign <= "\ud7ff" or "\ue000" <= sign <= "\ufffd" or sign >= "\U00010000"
