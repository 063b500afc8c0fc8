"""Line charts as SVG, readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 330, 64, 20, 84, 56

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; } .title { font-size: 15px; font-weight: 600; }
  .small { font-size: 12px; fill: #59636e; } .grid { stroke: #59636e; opacity: .2; } .ground { fill: #fff; }
  polyline[class] { fill: none; stroke-width: 2; }
  .c0 { stroke: #2a78d6; fill: #2a78d6; } .c1 { stroke: #b35900; fill: #b35900; }
  .c2 { stroke: #1a7f4b; fill: #1a7f4b; } .c3 { stroke: #b42318; fill: #b42318; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .small { fill: #9198a1; } .grid { stroke: #9198a1; } .ground { fill: #0d1117; }
    .c0 { stroke: #58a6ff; fill: #58a6ff; } .c1 { stroke: #f0a050; fill: #f0a050; }
    .c2 { stroke: #3fc380; fill: #3fc380; } .c3 { stroke: #ff7b72; fill: #ff7b72; }
  }
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines from zero up. The places stand by their logarithms where the last is 100 times the first or more."""

    title: str
    across: str
    """What the places are."""
    up: str
    """What the lines show, with its unit."""
    places: Sequence[int]
    lines: Mapping[str, Sequence[float]]

    def svg(self) -> str:
        """Return the picture."""
        title = escape(self.title)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">\n'
            f"<title>{title}</title><style>{STYLE}</style>\n"
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>\n'
            f'<text class="title" x="{LEFT}" y="24">{title}</text>\n'
        )
        return head + "\n".join([*self._axes(), *self._lines()]) + "\n</svg>\n"

    def _top(self) -> float:
        """Return a round number above all values."""
        most = max(max(values) for values in self.lines.values())
        step = 10.0 ** math.floor(math.log10(most))
        return next(step * factor for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * factor >= most)

    def _x(self, place: int) -> float:
        first, last = self.places[0], self.places[-1]
        share = math.log(place / first, last / first) if last >= 100 * first else (place - first) / (last - first or 1)
        return LEFT + 30 + share * (WIDTH - LEFT - RIGHT - 60)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self._top() * (HEIGHT - TOP - BOTTOM)

    def _axes(self) -> Iterator[str]:
        for part in range(5):
            value = self._top() * part / 4
            y = self._y(value)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text class="small" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.4g}</text>'
        yield f'<text class="small" x="{LEFT}" y="{TOP - 14}">{escape(self.up)}</text>'
        below = [(self._x(place), HEIGHT - BOTTOM + 20, f"{place:,}") for place in self.places]
        for x, y, words in [*below, ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.across)]:
            yield f'<text class="small" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(words)}</text>'

    def _lines(self) -> Iterator[str]:
        at = LEFT
        for number, (name, values) in enumerate(self.lines.items()):
            points = [(self._x(place), self._y(value)) for place, value in zip(self.places, values, strict=True)]
            yield f'<polyline class="c{number}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
            for (x, y), value in zip(points, values, strict=True):
                yield f'<circle class="c{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{value:,.3g}</title></circle>'
            yield f'<rect class="c{number}" x="{at}" y="40" width="11" height="11" rx="2"/>'
            yield f'<text class="small" x="{at + 16}" y="50">{escape(name)}</text>'
            at += 40 + 7 * len(name)
