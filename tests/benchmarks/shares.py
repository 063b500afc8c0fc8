"""What three kinds of requests get of one limit while the load rises, as a picture.

`python -m tests.benchmarks.shares` writes it. The hits are decided by the executable specification, which the memory
store runs too. docs/load_shedding.md shows it, and a test compares it with the code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape

from tests.benchmarks.algorithms import PICTURES, STYLE

PATH = PICTURES / "load_shedding.svg"

LIMIT = 1_000
SHARES = {"critical": 1.0, "default": 0.8, "batch": 0.5}
MINUTES = 30
BATCH_RISES, DEFAULT_RISES, CALM = 6, 14, 22
"""The minutes at which more batch requests come, at which more default requests come too, and at which both end."""

WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 860, 72, 24, 62, 92, 30
HEIGHT = TOP + len(SHARES) * ROW + BOTTOM


def asked(kind: str, minute: int) -> int:
    """Return how many requests of a kind come in a minute."""
    if kind == "critical":
        return 200
    begins = BATCH_RISES if kind == "batch" else DEFAULT_RISES
    return 900 if begins <= minute < CALM else 200


def served() -> dict[str, list[int]]:
    """Return how many requests of each kind are served in each minute."""
    from django_quota import Rule
    from tests.support.steps import MINUTE, START

    rule = Rule.make("api", f"{LIMIT}/m", key="global", share=SHARES, tier=lambda request: "default")
    state, found = None, {kind: [0] * MINUTES for kind in SHARES}
    hits = [
        (START + minute * MINUTE + number * MINUTE // asked(kind, minute), kind, minute)
        for kind in SHARES
        for minute in range(MINUTES)
        for number in range(asked(kind, minute))
    ]
    for now, kind, minute in sorted(hits):
        (limit,) = rule.tiers[kind].limits
        parameters = limit.parameters(now)
        if limit.algorithm.peek(state, parameters, 1, now).allowed:
            state, _ = limit.algorithm.consume(state, parameters, 1, now)
            found[kind][minute] += 1
    return found


def title() -> str:
    """Return what the picture says, which is also its text for people who do not see it."""
    of_kinds = [
        f"{sum(minutes):,} of {sum(asked(kind, minute) for minute in range(MINUTES)):,} {kind}"
        for kind, minutes in served().items()
    ]
    return f"{LIMIT:,}/m shared by three kinds: served {', '.join(of_kinds)} requests"


def picture() -> str:
    """Return what each kind gets, as SVG that shows in light and dark."""
    words = escape(title())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">',
            f"<title>{words}</title><style>{STYLE} .admitted, .refused {{ stroke-width: 14; }}</style>",
            f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            f'<text class="title" x="{LEFT}" y="24">{words}</text>',
            f'<text class="small" x="{LEFT}" y="44">Requests a minute. Green: served. Red: refused.</text>',
            *(line for row, kind in enumerate(SHARES) for line in _bars(kind, TOP + (row + 1) * ROW - 14)),
            *(
                f'<text class="small" x="{_x(minute):.1f}" y="{HEIGHT - 10}" text-anchor="middle">{minute} min</text>'
                for minute in range(0, MINUTES, 5)
            ),
            "</svg>\n",
        ]
    )


def _x(minute: int) -> float:
    return LEFT + (minute + 0.5) / MINUTES * (WIDTH - LEFT - RIGHT)


def _bars(kind: str, ground: int) -> Iterator[str]:
    """Return a bar for each minute: what was served, and above it what was refused."""
    yield f'<text class="small" x="{LEFT - 8}" y="{ground - 30}" text-anchor="end">{kind}</text>'
    yield f'<text class="small" x="{LEFT - 8}" y="{ground - 14}" text-anchor="end">{SHARES[kind]:.0%}</text>'
    for minute, number in enumerate(served()[kind]):
        x, low = _x(minute), ground - number * 70 / LIMIT
        high = ground - asked(kind, minute) * 70 / LIMIT
        yield f'<line class="admitted" x1="{x:.1f}" x2="{x:.1f}" y1="{ground}" y2="{low:.1f}"/>'
        if high < low:
            yield f'<line class="refused" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{ground}" y2="{ground}"/>'


def main() -> None:
    """Write the picture."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.settings")
    import django

    django.setup()
    PATH.write_text(picture())
    print(f"![{title()}](pictures/{PATH.name})")


if __name__ == "__main__":
    main()
