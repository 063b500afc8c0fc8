"""What each algorithm admits of the same hits, as pictures: `python -m tests.benchmarks.algorithms` writes them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support import svg

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

HITS = (2.0, *(52 + n / 2 for n in range(14)), *(63 + n / 2 for n in range(14)), *(float(n) for n in range(80, 177, 2)))
"""When a client sends hits, in seconds: one, two bursts across the turn of a minute, then one every two seconds."""

LIMIT, WINDOW, LENGTH = 10, 60.0, 180
"""`10/m`, and how many seconds a picture shows."""

WIDTH, HEIGHT, LEFT, RIGHT, ROW, TOP, BOTTOM = 860, 236, 72, 836, 62, 96, 202

LIGHT = """
  .title { font-size: 15px; font-weight: 600; } .said { fill: #b35900; }
  .admitted { stroke: #1a7f4b; stroke-width: 2.5; } .refused { stroke: #b42318; stroke-width: 2.5; }
  .sum { fill: #2a78d6; fill-opacity: .25; stroke: #2a78d6; stroke-width: 1.5; }
  .limit { stroke: #b35900; stroke-dasharray: 6 4; stroke-width: 1.5; }"""
DARK = """
    .admitted { stroke: #3fc380; } .refused { stroke: #ff7b72; } .sum { fill: #58a6ff; stroke: #58a6ff; }
    .limit { stroke: #f0a050; } .said { fill: #f0a050; }"""


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
        sent.append(Sent(at, answer.allowed, at + answer.retry_after / SECOND if answer.allowed else at))
    return sent


def title(algorithm: str) -> str:
    """Return what the picture of an algorithm says, which is also its text for people who do not see it."""
    sent = send(algorithm)
    went = [each.goes_on for each in sent if each.admitted]
    most = max(sum(first <= at < first + WINDOW for at in went) for first in went)
    verb = "went on" if algorithm == "leaky_bucket" else "were admitted"
    return f"{algorithm}, 10/m: of {len(sent)} hits, {len(went)} {verb}, at most {most} within any minute"


def picture(algorithm: str) -> str:
    words, sent = title(algorithm), send(algorithm)
    parts = [svg.text(LEFT, 24, words, "title"), *_ticks(sent), *_sum(sent), *_axis()]
    return svg.picture(words, WIDTH, HEIGHT, (LIGHT, DARK), parts)


def _x(seconds: float) -> float:
    return LEFT + seconds / LENGTH * (RIGHT - LEFT)


def _y(count: float) -> float:
    return BOTTOM - count / (2 * LIMIT) * (BOTTOM - TOP)


def _ticks(sent: Sequence[Sent]) -> Iterator[str]:
    yield svg.text(LEFT - 8, ROW - 4, "admitted", "small", "end")
    yield svg.text(LEFT - 8, ROW + 13, "refused", "small", "end")
    yield svg.line("axis", LEFT, ROW, RIGHT, ROW)
    for each in sent:
        if each.goes_on <= LENGTH:
            kind, end = ("admitted", ROW - 22) if each.admitted else ("refused", ROW + 14)
            yield svg.line(kind, _x(each.goes_on), ROW, _x(each.goes_on), end)


def _sum(sent: Sequence[Sent]) -> Iterator[str]:
    """Return how many went on within the minute before each moment, as an area of steps."""
    went = [each.goes_on for each in sent if each.admitted]
    points, count = [(0.0, 0)], 0
    for at in sorted({*went, *(moment + WINDOW for moment in went)}):
        if at <= LENGTH:
            before, count = count, sum(at - WINDOW < moment <= at for moment in went)
            points += [(at, before), (at, count)]
    outline = [*points, (LENGTH, count), (LENGTH, 0)]
    yield f'<polygon class="sum" points="{" ".join(f"{_x(at):.1f},{_y(most):.1f}" for at, most in outline)}"/>'
    yield svg.line("limit", LEFT, _y(LIMIT), RIGHT, _y(LIMIT))
    yield svg.text(LEFT + 4, _y(LIMIT) - 5, "the limit", "small said")
    yield svg.text(LEFT + 4, TOP + 4, "admitted within the last minute", "small")


def _axis() -> Iterator[str]:
    for count in (0, LIMIT, 2 * LIMIT):
        yield svg.text(LEFT - 8, _y(count) + 4, count, "small", "end")
    yield svg.line("axis", LEFT, BOTTOM, RIGHT, BOTTOM)
    for second in range(0, LENGTH + 1, 30):
        yield svg.text(_x(second), HEIGHT - 12, f"{second} s", "small", "middle")


def path_of(algorithm: str) -> Path:
    return PICTURES / f"algorithm_{algorithm}.svg"


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.settings")
    import django

    django.setup()
    from django_quota.core.algorithms import ALGORITHMS

    for algorithm in ALGORITHMS:
        path_of(algorithm).write_text(picture(algorithm))
        print(f"![{title(algorithm)}](pictures/{path_of(algorithm).name})")


if __name__ == "__main__":
    main()
