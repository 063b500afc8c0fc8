"""An SVG picture of one scene: what happened to its requests over time, under each `on_unavailable`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from tests.chaos.figures import Times
from tests.chaos.records import Account, Record
from tests.chaos.site import ALLOW, DENY, LOCAL, Policy

SHOWN = (ALLOW, DENY, LOCAL)

STEP = 0.2
"""Seconds that a column stands for."""

KINDS = (
    ("by-redis", "admitted by Redis"), ("refused", "refused by Redis"),
    ("without", "admitted without Redis"), ("denied", "refused without Redis"),
)  # fmt: skip
"""What may become of a request, from the bottom of a column to its top."""

WIDTH, LEFT, RIGHT = 860, 96, 16
PLOT, GAP, TOP, BOTTOM = 96, 34, 58, 30

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; } .small { font-size: 11px; fill: #59636e; }
  .by-redis { fill: #2a78d6; } .refused { fill: #eda100; } .without { fill: #1baf7a; } .denied { fill: #e34948; }
  .fault { fill: #59636e; opacity: .12; } .axis { stroke: #59636e; stroke-width: 1; } .ground { fill: #fff; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .small { fill: #9198a1; } .axis { stroke: #9198a1; } .ground { fill: #0d1117; }
    .fault { fill: #f0f6fc; } .by-redis { fill: #3987e5; } .refused { fill: #c98500; }
    .without { fill: #199e70; } .denied { fill: #e66767; }
  }
"""


def kind_of(record: Record) -> str:
    """Return what became of a request, as `KINDS` has it."""
    if record.degraded:
        return "without" if record.allowed else "denied"
    return "by-redis" if record.allowed else "refused"


def columns(records: Iterable[Record], begins: float) -> dict[int, Counter[str]]:
    """Return how many requests of each kind ended in each step from `begins` on."""
    found: dict[int, Counter[str]] = {}
    for record in records:
        found.setdefault(int((record.ended - begins) / STEP), Counter())[kind_of(record)] += 1
    return found


def picture(title: str, accounts: Sequence[Account], times: Times) -> str:
    """Return a scene as SVG; it shows in light and dark."""
    records = [record for account in accounts for record in account.records if not record.error]
    begins, ends = min(record.ended for record in records), max(record.ended for record in records)
    across = (WIDTH - LEFT - RIGHT) / (ends - begins)
    height = TOP + len(SHOWN) * (PLOT + GAP) + BOTTOM - GAP
    words = escape(f"{title}: what became of requests under each on_unavailable")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{words}">',
        f"<title>{words}</title><style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text x="{LEFT}" y="22">{escape(title)}</text>',
        *_legend(),
    ]
    broken, well = (LEFT + (moment - begins) * across for moment in times)
    lines.append(
        f'<rect class="fault" x="{broken:.1f}" y="{TOP}" width="{well - broken:.1f}" height="{height - TOP - BOTTOM}"/>'
    )
    for number, policy in enumerate(SHOWN):
        of_policy = [record for record in records if record.policy == policy.name]
        lines += _plot(policy, columns(of_policy, begins), TOP + number * (PLOT + GAP), across)
    for second in range(int(begins - times.broken), int(ends - times.broken) + 1, 2):
        x = LEFT + (times.broken + second - begins) * across
        lines.append(f'<text class="small" x="{x:.1f}" y="{height - 10}" text-anchor="middle">{second} s</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    for number, (kind, words) in enumerate(KINDS):
        x = LEFT + number * 180
        yield f'<rect class="{kind}" x="{x}" y="33" width="11" height="11" rx="2"/>'
        yield f'<text class="small" x="{x + 16}" y="43">{words}</text>'


def _plot(policy: Policy, found: dict[int, Counter[str]], top: float, across: float) -> Iterator[str]:
    most = max((column.total() for column in found.values()), default=1)
    up = (PLOT - 4) / most
    yield f'<text x="{LEFT - 10}" y="{top + PLOT / 2}" text-anchor="end">"{escape(policy.without)}"</text>'
    rate = f"{policy.limit} in {policy.window} s"
    yield f'<text class="small" x="{LEFT - 10}" y="{top + PLOT / 2 + 16}" text-anchor="end">{rate}</text>'
    for step, column in sorted(found.items()):
        base = top + PLOT
        for kind, _ in KINDS:
            if column[kind]:
                tall = column[kind] * up
                base -= tall
                x, wide = LEFT + step * STEP * across, STEP * across - 1
                yield f'<rect class="{kind}" x="{x:.1f}" y="{base:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top + PLOT}" y2="{top + PLOT}"/>'
