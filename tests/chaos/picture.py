"""The picture of docs/reliability.md: what happened to requests over time, under each `on_unavailable`."""

from collections import Counter
from collections.abc import Sequence

from tests.chaos.figures import Account, Times
from tests.chaos.site import ALLOW, DENY, LOCAL

STEP = 0.2
"""Seconds that a column stands for."""
KINDS = {
    "by-redis": "admitted by Redis",
    "refused": "refused by Redis",
    "without": "admitted without Redis",
    "denied": "refused without Redis",
}
"""What may become of a request, from the bottom of a column to its top."""
WIDTH, LEFT, RIGHT, PLOT, GAP, TOP = 860, 96, 16, 96, 34, 58
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


def picture(title: str, accounts: Sequence[Account], times: Times) -> str:
    """Return a scene as SVG; it shows in light and dark."""
    records = [record for account in accounts for record in account.records if not record.error]
    begins, ends = min(record.ended for record in records), max(record.ended for record in records)
    across, height = (WIDTH - LEFT - RIGHT) / (ends - begins), TOP + 3 * (PLOT + GAP) - 4
    words = f"{title}: what became of requests under each on_unavailable"
    broken, well = (LEFT + (moment - begins) * across for moment in times)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{words}">',
        f"<title>{words}</title><style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="6"/><text x="{LEFT}" y="22">{title}</text>',
        f'<rect class="fault" x="{broken:.1f}" y="{TOP}" width="{well - broken:.1f}" height="{height - TOP - 30}"/>',
    ]
    for number, (kind, meaning) in enumerate(KINDS.items()):
        x = LEFT + number * 180
        lines.append(f'<rect class="{kind}" x="{x}" y="33" width="11" height="11" rx="2"/>')
        lines.append(f'<text class="small" x="{x + 16}" y="43">{meaning}</text>')
    for number, policy in enumerate((ALLOW, DENY, LOCAL)):
        base = TOP + number * (PLOT + GAP) + PLOT
        middle = base - PLOT // 2
        columns: dict[int, Counter[str]] = {}
        for record in records:
            if record.policy == policy.name:
                kinds = ("denied", "without") if record.degraded else ("refused", "by-redis")
                columns.setdefault(int((record.ended - begins) / STEP), Counter())[kinds[record.allowed]] += 1
        up = (PLOT - 4) / max(column.total() for column in columns.values())
        lines.append(f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">"{policy.without}"</text>')
        rate = f"{policy.limit} in {policy.window} s"
        lines.append(f'<text class="small" x="{LEFT - 10}" y="{middle + 16}" text-anchor="end">{rate}</text>')
        for step, column in sorted(columns.items()):
            y, begin, wide = float(base), LEFT + step * STEP * across, STEP * across - 1
            for kind in KINDS:
                y -= column[kind] * up
                place = f'x="{begin:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{column[kind] * up:.1f}"'
                lines += [f'<rect class="{kind}" {place}/>'] if column[kind] else []
        lines.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    for second in range(int(begins - times.broken), int(ends - times.broken) + 1, 2):
        at = LEFT + (times.broken + second - begins) * across
        lines.append(f'<text class="small" x="{at:.1f}" y="{height - 10}" text-anchor="middle">{second} s</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"
