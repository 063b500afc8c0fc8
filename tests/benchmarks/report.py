"""What the bench prints: the tables, and the same figures as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import django
import redis
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

NOT_MEASURED = "—"

RACE_RATE, THREADS, EACH = "50/m", 16, 400
EDGE_RATE = "10/m"
MEMORY_RATES = ("10/m", "100/m", "1000/m", "100000/m")
REFUSED_HITS = 900


def hits_of(rate: str) -> int:
    """Return how many hits the rate admits."""
    return int(rate.partition("/")[0])


@dataclass(slots=True)
class Facts:
    """What one limiter did outside the table of checks."""

    package: str
    clock_held: bool = False
    race: int = 0
    worst_window: int = 0
    memory: list[int] = field(default_factory=list)
    memory_after_refusals: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON takes them."""
        return asdict(self)


@dataclass(slots=True)
class Run:
    """What was measured on one Redis with one parser, in one process."""

    server: str
    parser: str
    rows: list[dict[str, Any]]
    facts: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON takes them."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Run:
        """Read the figures again."""
        return cls(**given)

    def row(self, package: str, label: str) -> dict[str, Any]:
        """Return the row of a package with this label, at its first rate."""
        return next(row for row in self.rows if row["package"].startswith(package) and row["label"] == label)


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio that is to be at most so much."""

    words: str
    figure: str
    most: float
    over: tuple[str, str]
    of: tuple[str, str]
    less: tuple[str, str] | None = None
    """What is taken off `of` first: the bare view, say."""

    def ratio(self, run: Run) -> float:
        """Return what was reached in a run."""
        value: float = run.row(*self.of)[self.figure]
        if self.less is not None:
            value -= run.row(*self.less)[self.figure]
        over: float = run.row(*self.over)[self.figure]
        return value / over


_CHECK, _THREE = ("django_quota", "check()"), ("django_quota", "check(), three limits in one call")
_LIMITS, _LIMITS_THREE = ("limits", "MovingWindow.hit()"), ("limits", "three hit()")
_BARE_VIEW = ("Django", "bare view, no limit")

GOALS = (
    Goal("check() over limits' moving window: client CPU", "cpu", 1.0, _LIMITS, _CHECK),
    Goal("the same: wall", "wall", 1.0, _LIMITS, _CHECK),
    Goal("the same: CPU in Redis", "redis_cpu", 2.0, _LIMITS, _CHECK),
    Goal("three limits in one call over three hits of limits: client CPU", "cpu", 0.6, _LIMITS_THREE, _THREE),
    Goal("the same: wall", "wall", 0.6, _LIMITS_THREE, _THREE),
    Goal("the same: CPU in Redis", "redis_cpu", 1.2, _LIMITS_THREE, _THREE),
    Goal(
        "(view under one limit - bare view) over check(): client CPU", "cpu", 1.3, _CHECK,
        ("django_quota", "@quota view"), _BARE_VIEW,
    ),
    Goal(
        "(view under three limits and middleware - bare view) over check() of three: client CPU", "cpu", 1.5, _THREE,
        ("django_quota", "view, three @quota + QuotaMiddleware"), _BARE_VIEW,
    ),
    Goal("acheck() over check(): client CPU", "cpu", 1.5, _CHECK, ("django_quota", "acheck()")),
)  # fmt: skip


@dataclass(slots=True)
class Report:
    """All that was measured."""

    laps: int
    runs: list[Run] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(f"\n[bold]{self.machine()}[/bold], Redis over TCP on this machine")
        for run in self.runs:
            console.print(_checks_table(run))
        console.print(
            f"Median of {self.laps} interleaved batches of 1,000 checks: 40 fresh subjects in turn, 25 checks each. "
            "CPU: all threads of the client. In Redis: by `commandstats`, the commands that arrive. A view's own cost "
            "is in its row. Trips: what reached the server, from a subject's second check on. Bytes: MEMORY USAGE of "
            "all that one more subject takes once 100 hits under 100/m have filled it.",
            style="dim",
        )
        console.print(self._goals_table())
        for run in self.runs[:1]:
            if run.facts:
                console.print(_facts_table(run.facts))
                console.print(_facts_words(run.facts), style="dim")

    def machine(self) -> str:
        """Say what it ran on."""
        return (
            f"{platform.python_implementation()} {platform.python_version()}, Django {django.__version__}, "
            f"redis-py {redis.__version__}, {os.cpu_count()} CPUs"
        )

    def _goals_table(self) -> Table:
        table = Table(title="Ratios", title_justify="left")
        table.add_column("")
        table.add_column("goal", justify="right")
        for run in self.runs:
            table.add_column(f"Redis {run.server}\n{run.parser}", justify="right")
        for goal in GOALS:
            reached = [goal.ratio(run) for run in self.runs]
            table.add_row(
                goal.words, f"{goal.most:.1f}", *(_judged(f"{ratio:.2f}", ratio <= goal.most) for ratio in reached)
            )
        return table

    def save(self, path: Path) -> None:
        """Write the same figures as JSON."""
        figures = {"machine": self.machine(), "laps": self.laps, "runs": [run.as_json() for run in self.runs]}
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _checks_table(run: Run) -> Table:
    table = Table(title=f"A check: Redis {run.server}, replies read by {run.parser}", title_justify="left")
    for column in ("", "", "rate"):
        table.add_column(column, overflow="fold")
    for column in ("CPU µs", "÷ bare", "wall µs", "in Redis µs", "trips", "SQL", "bytes"):
        table.add_column(column, justify="right")
    before = None
    for row in run.rows:
        if before is not None and row["package"] != before:
            table.add_section()
        table.add_row("" if row["package"] == before else row["package"], *_cells(row, run.rows[0]))
        before = row["package"]
    return table


def _cells(row: Mapping[str, Any], bare: Mapping[str, Any]) -> list[str]:
    return [
        row["label"],
        " ".join(row["rates"]) or NOT_MEASURED,
        f"{row['cpu']:.1f}",
        f"{row['cpu'] / bare['cpu']:.2f}",
        f"{row['wall']:.1f}",
        f"{row['redis_cpu']:.1f}",
        f"{row['trips']:.2f}".rstrip("0").rstrip("."),
        f"{row['queries']:.2f}".rstrip("0").rstrip("."),
        NOT_MEASURED if row["memory"] is None else f"{row['memory']:,}",
    ]


def _facts_table(all_facts: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Who is right", title_justify="left")
    table.add_column("")
    table.add_column(f"race\n(right: {hits_of(RACE_RATE)})", justify="right")
    table.add_column(f"worst window\n(right: {hits_of(EDGE_RATE)})", justify="right")
    for rate in MEMORY_RATES:
        table.add_column(f"bytes\n{rate}", justify="right")
    table.add_column(f"100/m and\n{REFUSED_HITS} refused", justify="right")
    for facts in all_facts:
        memory = [f"{size:,}" for size in facts["memory"]]
        memory += [NOT_MEASURED] * (len(MEMORY_RATES) - len(memory))
        table.add_row(
            facts["package"],
            _judged(str(facts["race"]), facts["race"] == hits_of(RACE_RATE)),
            _judged(str(facts["worst_window"]), facts["worst_window"] == hits_of(EDGE_RATE)),
            *memory,
            f"{facts['memory_after_refusals']:,}",
        )
    return table


def _facts_words(all_facts: Sequence[Mapping[str, Any]]) -> str:
    held = ", ".join(facts["package"] for facts in all_facts if facts["clock_held"]) or "none"
    return (
        f"Race: {THREADS} threads x {EACH} requests of one subject under {RACE_RATE}, the clock held for {held} so "
        f"that no edge of its windows falls into it. Worst window: the most admitted within 60 s under {EDGE_RATE}, "
        "clocks moved by hand. Bytes a subject: filled under each rate; the last column after 100 hits and "
        f"{REFUSED_HITS} more under 100/m. {NOT_MEASURED}: not measured."
    )


def _judged(words: str, is_right: bool) -> str:
    colour = "green" if is_right else "red"
    return f"[{colour}]{words}[/{colour}]"
