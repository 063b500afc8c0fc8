"""The picture of `quota_replay`: how much one subject asked for at most, against the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from django.template import Context, Engine

from django_quota.core.algorithms import Limit
from django_quota.core.clock import in_words, moment_of
from django_quota.management.console import printable
from django_quota.management.replaying import Results
from django_quota.services.replay import Traffic
from django_quota.services.tightest import Demand

POINTS = 240
"""Spans of time that the picture shows."""

STEP = 3
"""Pixels of a span."""

HEIGHT = 120
"""Pixels of a panel's plot, and of all of it."""
PANEL = 190
LEFT, TOP = 60, 56
ROOM = 14
"""Pixels above a line that its text needs."""


class Line(NamedTuple):
    """A limit in a panel."""

    y: float
    text_y: float
    """Above the line, or below it at the top of the panel."""
    text: str
    is_second: bool


class Panel(NamedTuple):
    """One limit of a rule: its demand as the `d` of SVG paths, and the limits of each set of rules."""

    y: int
    title: str
    below: str
    """What all limits of the panel admit."""
    above: str
    """What the lowest of them does not."""
    limits: list[Line]
    highest: str
    """The text of the axis at the top."""


def picture(traffic: Traffic, results: Sequence[Results]) -> str:
    """Return the picture as SVG: a panel for each limit of each rule that had requests."""
    span = max(1, -(-(traffic.ends - traffic.begins + 1) // POINTS))
    panels: list[Panel] = []
    shown: set[tuple[str, str]] = set()
    for at, result in enumerate(results):
        for demand in result.demands.values():
            for limit in demand.limits:
                if demand.requests and (demand.name, limit.state_id) not in shown:
                    shown.add((demand.name, limit.state_id))
                    highest = demand.highest(limit, traffic.begins, span, POINTS)
                    others = [_same(other.demands.get(demand.name), limit) for other in results[at + 1 :]]
                    panels.append(_panel(len(panels), demand, limit, highest, [each for each in others if each]))
    text = (Path(__file__).parents[1] / "templates/django_quota/replay.svg").read_text(encoding="utf-8")
    begins, ends = (moment_of(time) for time in (traffic.begins, traffic.ends))
    context = {
        "panels": panels,
        "width": LEFT + POINTS * STEP + 20,
        "height": TOP + max(1, len(panels)) * PANEL,
        "plot": {"x": LEFT, "width": POINTS * STEP, "height": HEIGHT},
        "begins": f"{begins:%Y-%m-%d %H:%M}",
        "ends": f"{ends:%Y-%m-%d %H:%M} UTC",
        "titles": [printable(each.rules.title) for each in results],
    }
    return Engine().from_string(text).render(Context(context, use_l10n=False))


def _same(demand: Demand | None, limit: Limit) -> Limit | None:
    """Return the limit of another set over the same window."""
    limits = () if demand is None else demand.limits
    return next((other for other in limits if other.state_id == limit.state_id and other != limit), None)


def _panel(number: int, demand: Demand, limit: Limit, highest: Sequence[int], others: Sequence[Limit]) -> Panel:
    counts = [limit.rate.count, *(other.rate.count for other in others)]
    top = max(*highest, *counts, 1)
    lowest = min(counts)

    def y(value: int) -> float:
        return round(HEIGHT - HEIGHT * value / top, 1)

    below = "".join(_bar(at, y(min(value, lowest)), HEIGHT) for at, value in enumerate(highest) if value)
    above = "".join(_bar(at, y(value), y(lowest)) for at, value in enumerate(highest) if value > lowest)
    lines = [
        Line(y(count), y(count) + (13 if y(count) < ROOM else -3), str(each.rate), bool(at))
        for at, (count, each) in enumerate(zip(counts, [limit, *others], strict=True))
    ]
    window = in_words(limit.rate.period)
    title = f"{printable(demand.name)}: the most that one subject asked for in {window}: {max(highest):,}"
    return Panel(TOP + number * PANEL, title, below, above, lines, f"{top:,}")


def _bar(at: int, top: float, bottom: float) -> str:
    return f"M{at * STEP} {bottom}V{top}h{STEP}V{bottom}z"
