"""What each algorithm admits of the same hits, as pictures: `python -m tests.benchmarks.algorithms` writes them.

The hits are decided by the executable specification, which the memory store runs too, so a picture shows what the code
does. docs/rules.md shows them, and a test compares both with the code.
"""

import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

HITS = (2.0, *(52 + n / 2 for n in range(14)), *(63 + n / 2 for n in range(14)), *(float(n) for n in range(80, 177, 2)))
"""When a client sends hits, in seconds: one, two bursts across the turn of a minute, then one every two seconds."""

LIMIT, WINDOW, LENGTH = 10, 60.0, 180
"""`10/m`, and how many seconds a picture shows."""

WIDTH, HEIGHT, LEFT, RIGHT, ROW, TOP, BOTTOM = 860, 236, 72, 24, 62, 96, 34

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; } .title { font-size: 15px; font-weight: 600; }
  .small { font-size: 12px; fill: #59636e; } .axis { stroke: #59636e; } .ground { fill: #fff; }
  .admitted { stroke: #1a7f4b; stroke-width: 2.5; } .refused { stroke: #b42318; stroke-width: 2.5; }
  .sum { fill: #2a78d6; fill-opacity: .25; stroke: #2a78d6; stroke-width: 1.5; }
  .limit { stroke: #b35900; stroke-dasharray: 6 4; stroke-width: 1.5; } .said { fill: #b35900; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .small { fill: #9198a1; } .axis { stroke: #9198a1; } .ground { fill: #0d1117; }
    .admitted { stroke: #3fc380; } .refused { stroke: #ff7b72; } .sum { fill: #58a6ff; stroke: #58a6ff; }
    .limit { stroke: #f0a050; } .said { fill: #f0a050; }
  }
"""


class Sent(NamedTuple):
    """A hit: when it was sent, whether it was admitted, and when it went on (after its delay)."""

    at: float
    admitted: bool
    goes_on: float


def send(algorithm: str) -> list[Sent]:
    """Send the hits to a limit of 10 a minute under an algorithm; return what became of each."""
    from tests.support.steps import SECOND, START, Spec

    limit, sent = Spec("10/m", algorithm), []
    for at in HITS:
        limit.now = START + int(at * SECOND)
        answer = limit.run()
        delay = answer.retry_after / SECOND if answer.allowed else 0.0
        sent.append(Sent(at, answer.allowed, at + delay))
    return sent


def most_in_a_minute(sent: Sequence[Sent]) -> int:
    """Return the most hits that went on within any minute."""
    went = [each.goes_on for each in sent if each.admitted]
    return max(sum(first <= at < first + WINDOW for at in went) for first in went)


def title(algorithm: str) -> str:
    """Return what the picture of an algorithm says, which is also its text for people who do not see it."""
    sent = send(algorithm)
    went = "went on" if algorithm == "leaky_bucket" else "were admitted"
    return (
        f"{algorithm}, 10/m: of {len(sent)} hits, {sum(each.admitted for each in sent)} {went}, "
        f"at most {most_in_a_minute(sent)} within any minute"
    )


def picture(algorithm: str) -> str:
    """Return what an algorithm admits of the hits, as SVG that shows in light and dark."""
    sent, words = send(algorithm), escape(title(algorithm))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">',
            f"<title>{words}</title><style>{STYLE}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            f'<text class="title" x="{LEFT}" y="24">{words}</text>',
            *_ticks(sent),
            *_sum(sent),
            *_axis(),
            "</svg>\n",
        ]
    )


def _x(seconds: float) -> float:
    return LEFT + seconds / LENGTH * (WIDTH - LEFT - RIGHT)


def _y(count: float) -> float:
    return HEIGHT - BOTTOM - count / (2 * LIMIT) * (HEIGHT - BOTTOM - TOP)


def _ticks(sent: Sequence[Sent]) -> Iterator[str]:
    yield f'<text class="small" x="{LEFT - 8}" y="{ROW - 4}" text-anchor="end">admitted</text>'
    yield f'<text class="small" x="{LEFT - 8}" y="{ROW + 13}" text-anchor="end">refused</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{ROW}" y2="{ROW}"/>'
    for each in sent:
        if each.goes_on > LENGTH:
            continue
        x, name, end = (_x(each.goes_on), "admitted", ROW - 22) if each.admitted else (_x(each.at), "refused", ROW + 14)
        yield f'<line class="{name}" x1="{x:.1f}" x2="{x:.1f}" y1="{ROW}" y2="{end}"/>'


def _sum(sent: Sequence[Sent]) -> Iterator[str]:
    """Return how many went on within the minute before each moment, as an area of steps."""
    went = [each.goes_on for each in sent if each.admitted]
    points, before = [(0.0, 0)], 0
    for at in sorted({*went, *(moment + WINDOW for moment in went)}):
        if at <= LENGTH:
            count = sum(at - WINDOW < moment <= at for moment in went)
            points += [(at, before), (at, count)]
            before = count
    outline = [*points, (LENGTH, before), (LENGTH, 0)]
    yield f'<polygon class="sum" points="{" ".join(f"{_x(at):.1f},{_y(count):.1f}" for at, count in outline)}"/>'
    yield f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(LIMIT):.1f}" y2="{_y(LIMIT):.1f}"/>'
    yield f'<text class="small said" x="{LEFT + 4}" y="{_y(LIMIT) - 5:.1f}">the limit</text>'
    yield f'<text class="small" x="{LEFT + 4}" y="{TOP + 4}">admitted within the last minute</text>'


def _axis() -> Iterator[str]:
    for count in (0, LIMIT, 2 * LIMIT):
        yield f'<text class="small" x="{LEFT - 8}" y="{_y(count) + 4:.1f}" text-anchor="end">{count}</text>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(0):.1f}" y2="{_y(0):.1f}"/>'
    for second in range(0, LENGTH + 1, 30):
        words = f"{second} s"
        yield f'<text class="small" x="{_x(second):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{words}</text>'


def path_of(algorithm: str) -> Path:
    """Return where the picture of an algorithm lies."""
    return PICTURES / f"algorithm_{algorithm}.svg"


def main() -> None:
    """Write the pictures."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.settings")
    import django

    django.setup()
    from django_quota.core.algorithms import ALGORITHMS

    for algorithm in ALGORITHMS:
        path_of(algorithm).write_text(picture(algorithm))
        print(f"![{title(algorithm)}](pictures/{path_of(algorithm).name})")


if __name__ == "__main__":
    main()
