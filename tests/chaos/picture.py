"""The picture of docs/reliability.md: what happened to requests over time, under each `on_unavailable`."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.chaos.figures import Account, Record, Times
from tests.chaos.site import ALLOW, DENY, LOCAL, Policy
from tests.support import svg

STEP = 0.2
"""Seconds that a column stands for."""
KINDS = {
    "by-redis": ("admitted by Redis", "#2a78d6", "#3987e5"),
    "refused": ("refused by Redis", "#eda100", "#c98500"),
    "without": ("admitted without Redis", "#1baf7a", "#199e70"),
    "denied": ("refused without Redis", "#e34948", "#e66767"),
}
"""What may become of a request, from the bottom of a column to its top, and its colours in light and dark."""
WIDTH, LEFT, RIGHT, PLOT, GAP, TOP, HEIGHT = 860, 96, 16, 96, 34, 58, 444


def picture(title: str, accounts: Sequence[Account], times: Times) -> str:
    records = [record for account in accounts for record in account.records if not record.error]
    light, dark = (" ".join(f".{kind} {{ fill: {of[n]}; }}" for kind, of in KINDS.items()) for n in (1, 2))
    styles = (f" {light} .fault {{ fill: #59636e; opacity: .12; }}", f" {dark} .fault {{ fill: #f0f6fc; }}")
    words = f"{title}: what became of requests under each on_unavailable"
    return svg.picture(words, WIDTH, HEIGHT, styles, _parts(title, records, times))


def _parts(title: str, records: list[Record], times: Times) -> Iterator[str]:
    begins, ends = min(record.ended for record in records), max(record.ended for record in records)
    across = (WIDTH - LEFT - RIGHT) / (ends - begins)
    broken, well = (LEFT + (moment - begins) * across for moment in times)
    yield svg.text(LEFT, 22, title)
    yield svg.rect("fault", broken, TOP, well - broken, HEIGHT - TOP - 30)
    for number, (kind, (meaning, *_)) in enumerate(KINDS.items()):
        yield svg.rect(kind, LEFT + number * 180, 33, 11, 11)
        yield svg.text(LEFT + number * 180 + 16, 43, meaning, "small")
    for number, policy in enumerate((ALLOW, DENY, LOCAL)):
        of_policy = [record for record in records if record.policy == policy.name]
        yield from _columns(policy, of_policy, begins, STEP * across, TOP + number * (PLOT + GAP) + PLOT)
    for second in range(int(begins - times.broken), int(ends - times.broken) + 1, 2):
        yield svg.text(broken + second * across, HEIGHT - 10, f"{second} s", "small", "middle")


def _columns(policy: Policy, records: list[Record], begins: float, wide: float, base: int) -> Iterator[str]:
    yield svg.text(LEFT - 10, base - PLOT / 2, f'"{policy.without}"', anchor="end")
    yield svg.text(LEFT - 10, base - PLOT / 2 + 16, f"{policy.limit} in {policy.window} s", "small", "end")
    columns: dict[int, Counter[str]] = {}
    for record in records:
        kinds = ("denied", "without") if record.degraded else ("refused", "by-redis")
        columns.setdefault(int((record.ended - begins) / STEP), Counter())[kinds[record.allowed]] += 1
    up = (PLOT - 4) / max(column.total() for column in columns.values())
    for step, column in columns.items():
        y = float(base)
        for kind in filter(column.get, KINDS):
            y -= column[kind] * up
            yield svg.rect(kind, LEFT + step * wide, y, wide - 1, column[kind] * up)
    yield svg.line("axis", LEFT, base, WIDTH - RIGHT, base)
