"""What the bench prints, and writes into docs/: tables and goals. All of it comes from the figures as JSON."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import django
import redis
from rich.console import Console
from rich.table import Table

from tests.benchmarks.facts import EACH, EDGE, RACE, THREADS
from tests.benchmarks.measure import Figures
from tests.support.pages import ROOT, write_part

PAGE = ROOT / "docs" / "comparison.md"
NONE = "—"

Found = Mapping[str, Any]
"""What was measured: of a row, of a run, or all of it."""


def machine() -> str:
    return (
        f"{platform.python_implementation()} {platform.python_version()}, Django {django.__version__}, "
        f"redis-py {redis.__version__}, {os.cpu_count()} cores"
    )


# --- the goals --------------------------------------------------------------------------------------------------------


class Run:
    """The rows of one Redis and parser, by id, and what was measured once."""

    def __init__(self, run: Found, found: Found) -> None:
        self.name = f"{run['redis']}, {run['parser']}"
        self.rows: list[Found] = run["rows"]
        self.by_id = {row["id"]: Figures(**{name: row[name] for name in Figures._fields}) for row in self.rows}
        self.found = found

    def __getitem__(self, row: str) -> Figures:
        return self.by_id[row]


class Goal(NamedTuple):
    """A ratio, the most that it may be, and what must have been measured for it."""

    words: str
    most: float
    ratio: Callable[[Run], float]
    needs: str = ""


GOALS = (
    Goal("`check()` over limits' moving window: client CPU", 1.0, lambda run: run["check"].cpu / run["limits"].cpu),
    Goal("the same: wall", 1.05, lambda run: run["check"].wall / run["limits"].wall),
    Goal("the same: CPU in Redis", 1.5, lambda run: run["check"].redis / run["limits"].redis),
    Goal("three limits in one call over three hits of limits: client CPU", 0.4,
         lambda run: run["check3"].cpu / run["limits3"].cpu),
    Goal("the same: wall", 0.5, lambda run: run["check3"].wall / run["limits3"].wall),
    Goal("the same: CPU in Redis", 1.0, lambda run: run["check3"].redis / run["limits3"].redis),
    Goal("a limited view over (the bare view + one bare `EVALSHA`): client CPU", 1.5,
         lambda run: run["view"].cpu / (run["bare view"].cpu + run["bare"].cpu)),
    Goal("`acheck()` by 100 tasks over limits' async hit: client CPU", 0.6,
         lambda run: run["acheck"].cpu / run["limits async"].cpu),
    Goal("a refusal from memory (`cache_refusals`) over an allowed check: client CPU", 0.15,
         lambda run: run["flooded"].cpu / run["check"].cpu),
    Goal("the same: trips to Redis", 0.05, lambda run: run["flooded"].trips),
    Goal("a check that is spent of what was taken ahead (`prefetch`) over limits: client CPU", 0.1,
         lambda run: run["ahead"].cpu / run["limits"].cpu),
    Goal("the same: trips to Redis", 0.05, lambda run: run["ahead"].trips),
    Goal("a blocked subject: trips to Redis", 0.0, lambda run: round(run["blocked"].trips, 2)),
    Goal("starting Django with `django_quota`, over without: CPU", 1.2,
         lambda run: run.found["start"]["with"] / run.found["start"]["without"]),
    Goal("`check()` on PostgreSQL: trips to the server", 2.0,
         lambda run: float(run.found["postgresql"]["trips"]), "postgresql"),
    Goal("the same, over `check()` on Redis: wall", 10.0,
         lambda run: float(run.found["postgresql"]["ratio"]), "postgresql"),
)  # fmt: skip


def reached(goal: Goal, run: Run) -> str:
    ratio = goal.ratio(run)
    return f"{ratio:.2f} {'yes' if ratio <= goal.most else 'no'}"


# --- the tables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: printed, or as Markdown. The first `texts` columns are words."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str
    texts: int = 1

    def show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left", title_style="bold")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number < self.texts else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)
        console.print(self.note, style="dim")

    def markdown(self) -> str:
        """Return it as the docs have it."""
        rule = "|" + "---|" * self.texts + "---:|" * (len(self.columns) - self.texts)
        lines = ["| " + " | ".join(row) + " |" for row in (self.columns, *self.rows)]
        return "\n".join([lines[0], rule, *lines[1:]])


def sheets(found: Found) -> Iterator[Sheet]:
    runs = [Run(run, found) for run in found["runs"]]
    goals = [goal for goal in GOALS if not goal.needs or found.get(goal.needs)]
    rows = [[goal.words, f"{goal.most:g}", *(reached(goal, run) for run in runs)] for goal in goals]
    note = "Ratios of lower quartiles of one run. What needs no Redis is measured once."
    yield Sheet("Goals", ["ratio", "at most", *(run.name for run in runs)], rows, note)
    columns = ["", "", "client CPU µs", "÷ limits", "wall µs", "÷ limits", "in Redis µs", "÷ limits", "trips", "bytes"]
    note = "÷ limits: over limits' moving window. Bytes: what one more subject takes once 1000/m is full."
    for run in runs:
        yield Sheet(f"A check: {run.name}", columns, [_check(run, row) for row in run.rows], note, texts=2)


def _check(run: Run, row: Found) -> list[str]:
    took, cells = run[row["id"]], [row["package"], row["label"]]
    for one, of_base in zip(took[:3], run["limits"][:3], strict=True):
        cells += [f"{one:.1f}", f"{one / of_base:.2f}"]
    return [*cells, f"{took.trips:.2f}".rstrip("0").rstrip("."), _shown(row["bytes"])]


def _shown(number: int | None) -> str:
    return NONE if number is None else f"{number:,}"


def instructions(counted: Sequence[Found]) -> Sheet:
    """Return the table of the instructions of all rows, with those that they are compared with."""
    by_id = {row["id"]: row for row in counted}
    rows, missed = [], []
    for row in counted:
        base = sum(by_id[one]["instructions"] for one in row["over"])
        over = " + ".join(f"{by_id[one]['package'].partition(' ')[0]} {by_id[one]['label']}" for one in row["over"])
        cells = [f"{row['instructions'] / base:.2f}", f"{row['most']:g}"] if base else [NONE, NONE]
        if base and row["instructions"] > row["most"] * base:
            missed.append(f"{row['label']} ({cells[0]} for {cells[1]})")
        rows.append([row["package"], row["label"], over or NONE, f"{row['instructions'] / 1000:.0f}", *cells])
    columns = ["", "", "over", "thousand instructions", "ratio", "goal: at most"]
    note = (
        f"Instructions of the client a call, by callgrind, on {machine()}, hiredis. Neither Redis nor the kernel, "
        "which sends and receives, is counted. "
    ) + (f"These rows miss their goal: {'; '.join(missed)}." if missed else "Every row reaches its goal.")
    return Sheet("Instructions", columns, rows, note, texts=3)


# --- into the docs ----------------------------------------------------------------------------------------------------

COMPARED = (
    ("check", "check3", "view"),
    ("limits", "limits3", ""),
    ("throttled", "", ""),
    ("pyrate", "", ""),
    ("smart", "smart view3", "smart view"),
    ("drf", "drf view3", "drf view"),
    ("ratelimit", "ratelimit view3", "ratelimit view"),
)
"""The rows of each limiter at a glance, in the order of the races: one limit, three, and a view under one."""


def write_instructions(counted: Sequence[Found], page: Path = PAGE) -> None:
    sheet = instructions(counted)
    write_part(page, "make bench, instructions", f"### {sheet.title}\n\n{sheet.markdown()}\n\n{sheet.note}")


def write_docs(found: Found, page: Path = PAGE) -> None:
    """Write one row for each limiter into docs/comparison.md; the other tables are printed only."""
    run = Run(found["runs"][0], found)
    sizes = {row["id"]: row["bytes"] for row in run.rows}
    rows = []
    for (one, three, view), fact in zip(COMPARED, found["facts"], strict=True):
        cells = [f"{value:.0f}" for value in run[one][:3]]
        cells += [f"{run[three][figure]:.0f}" if three else NONE for figure in (0, 1, 3)]
        cells += [f"{run[view].cpu:.0f}" if view else NONE, str(fact["race"]), _shown(fact["worst"])]
        rows.append([fact["package"], *cells, _shown(sizes[one])])
    columns = ["", "client CPU", "wall", "CPU in Redis", "three limits: client CPU", "wall", "trips"]
    columns += ["a limited view: client CPU", f"{THREADS * EACH:,} racing for {RACE}", f"most in a window, {EDGE}/m"]
    bare = run["bare"]
    note = (
        f"Microseconds a check, on {found['machine']}, {run.name}. A bare `EVALSHA` of a three-line counter takes "
        f"{bare.cpu:.0f} of client CPU, {bare.wall:.0f} wall and {bare.redis:.0f} in Redis. {NONE}: not measured. "
        "Compare rows, not machines."
    )
    sheet = Sheet("At a glance", [*columns, "bytes a subject, 1000/m"], rows, note)
    write_part(page, "make bench", f"### {sheet.title}\n\n{sheet.markdown()}\n\n{sheet.note}")
