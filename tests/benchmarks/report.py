"""What the bench prints, and writes into docs/: tables, goals, pictures. All of it comes from the figures as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
import redis
from rich.console import Console
from rich.table import Table

import django_quota
from tests.benchmarks.facts import EACH, EDGE, RACE, THREADS
from tests.benchmarks.measure import Figures
from tests.benchmarks.pictures import Chart

DOCS = Path(django_quota.__file__).parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
BEGIN, END = "<!-- make bench: begin -->", "<!-- make bench: end -->"
NONE = "—"

Found = Mapping[str, Any]
"""All that was measured, as `--json` writes it."""


def machine() -> str:
    """Say what it runs on."""
    return (
        f"{platform.python_implementation()} {platform.python_version()}, Django {django.__version__}, "
        f"redis-py {redis.__version__}, {os.cpu_count()} cores"
    )


# --- the goals --------------------------------------------------------------------------------------------------------


class Run:
    """The rows of one Redis and parser, by id, and what was measured once."""

    def __init__(self, run: Found, found: Found) -> None:
        self.name = f"Redis {run['redis']}, {run['parser']}"
        self.rows: list[Found] = run["rows"]
        self.by_id = {row["id"]: Figures(**{name: row[name] for name in Figures._fields}) for row in self.rows}
        self.found = found

    def __getitem__(self, row: str) -> Figures:
        return self.by_id[row]


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio and the most that it may be. It raises `KeyError` where a row of it was not measured."""

    words: str
    most: float
    ratio: Callable[[Run], float]


GOALS = (
    Goal("`check()` over limits' moving window: client CPU", 1.0, lambda run: run["check"].cpu / run["limits"].cpu),
    Goal("the same: wall", 1.0, lambda run: run["check"].wall / run["limits"].wall),
    Goal("the same: CPU in Redis", 2.0, lambda run: run["check"].redis / run["limits"].redis),
    Goal("three limits in one call over three hits of limits: client CPU", 0.6,
         lambda run: run["check3"].cpu / run["limits3"].cpu),
    Goal("the same: wall", 0.6, lambda run: run["check3"].wall / run["limits3"].wall),
    Goal("the same: CPU in Redis", 1.2, lambda run: run["check3"].redis / run["limits3"].redis),
    Goal("(view under one limit - bare view) over `check()`: client CPU", 1.3,
         lambda run: (run["view"].cpu - run["bare view"].cpu) / run["check"].cpu),
    Goal("(three limits, middleware and decorators on one view - bare view) over `check()` of three: client CPU", 1.5,
         lambda run: (run["view3"].cpu - run["bare view"].cpu) / run["check3"].cpu),
    Goal("`acheck()` over `check()`, in a running loop: client CPU", 1.5,
         lambda run: run["acheck"].cpu / run["check"].cpu),
    Goal("a refused request in a flood, refusals cached, over an allowed one: client CPU", 0.3,
         lambda run: run["flooded view"].cpu / run["view"].cpu),
    Goal("the same: trips to Redis", 0.05, lambda run: run["flooded view"].trips),
    Goal("a limited view while Redis is gone, over the bare view, through Django's handler: client CPU", 1.1,
         lambda run: float(run.found["view_without_redis"]["ratio"])),
    Goal("`import django_quota` and `django.setup()` with it, over without: CPU", 1.3,
         lambda run: run.found["start"]["with"] / run.found["start"]["without"]),
)  # fmt: skip


def reached(goal: Goal, run: Run) -> str:
    """Return the ratio, and whether that is the goal."""
    try:
        ratio = goal.ratio(run)
    except KeyError:
        return NONE
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
        """Print it."""
        table = Table(title=self.title, title_justify="left", title_style="bold")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number < self.texts else "right", overflow="fold")
        before = None
        for row in self.rows:
            if self.texts > 1 and before not in {None, row[0]}:
                table.add_section()
            table.add_row("" if self.texts > 1 and row[0] == before else row[0], *map(_coloured, row[1:]))
            before = row[0]
        console.print(table)
        console.print(self.note, style="dim")

    def markdown(self) -> str:
        """Return it as the docs have it."""
        lines = [
            f"### {self.title}\n\n| " + " | ".join(self.columns) + " |",
            "|" + "---|" * self.texts + "---:|" * (len(self.columns) - self.texts),
            *("| " + " | ".join(row) + " |" for row in self.rows),
        ]
        return "\n".join(lines) + f"\n\n{self.note}"


def _coloured(cell: str) -> str:
    colour = {"yes": "green", "no": "red"}.get(cell.rpartition(" ")[2])
    return f"[{colour}]{cell}[/{colour}]" if colour else cell


def sheets(found: Found) -> Iterator[Sheet]:
    """Return all tables of what was measured."""
    runs = [Run(run, found) for run in found["runs"]]
    yield _goals(runs)
    for run in runs:
        yield _checks(run)
    if found.get("facts"):
        yield _facts(found["facts"])
    if found.get("a_second"):
        yield _a_second(found["a_second"])


def _goals(runs: Sequence[Run]) -> Sheet:
    rows = [[goal.words, f"{goal.most:g}", *(reached(goal, run) for run in runs)] for goal in GOALS]
    without = "" if any("flooded view" in run.by_id for run in runs) else (
        " No row with cached refusals: this version's rules do not know `cache_refusals`."
    )  # fmt: skip
    once = f" What needs no Redis is measured once. {NONE}: not measured.{without}"
    return Sheet(
        "Goals", ["ratio", "at most", *(run.name for run in runs)], rows, "Ratios of medians of one run." + once
    )


def _checks(run: Run) -> Sheet:
    rows, base = [], run["limits"]
    for row in run.rows:
        took, size = run[row["id"]], row["bytes"]
        cells = [row["package"], row["label"]]
        for one, of_base in zip(took[:3], base[:3], strict=True):
            cells += [f"{one:.1f}", f"{one / of_base:.2f}"]
        rows.append([*cells, f"{took.trips:.2f}".rstrip("0").rstrip("."), NONE if size is None else f"{size:,}"])
    return Sheet(
        f"A check: {run.name}",
        ["", "", "client CPU µs", "÷ limits", "wall µs", "÷ limits", "in Redis µs", "÷ limits", "trips", "bytes"],
        rows,
        "÷ limits: over limits' moving window. Bytes: what one more subject takes once 1000/m is full.",
        texts=2,
    )


def _facts(facts: Sequence[Found]) -> Sheet:
    rows = [
        [each["package"], f"{each['race']}", NONE if each["worst"] is None else f"{each['worst']}"] for each in facts
    ]
    return Sheet(
        "Who is right",
        ["", f"{THREADS * EACH:,} racing for {RACE}", f"most in a window of {EDGE}/m"],
        rows,
        f"{THREADS} threads with {EACH} requests each of one subject under {RACE}/m. Most in a window: within any "
        f"60 s, the clock moved by hand. {NONE}: its clock is that of Redis.",
    )


def _a_second(points: Sequence[Found]) -> Sheet:
    rows = []
    for point in points:
        ours, limits = point["ours"], point["limits"]
        name = f"{point['x']} calling" if point["x"] else "2 sending without a pause"
        rows.append([name, *(
            cell for figure in ("a_second", "a_core")
            for cell in (f"{ours[figure]:,.0f}", f"{limits[figure]:,.0f}", f"{ours[figure] / limits[figure]:.2f}")
        )])  # fmt: skip
    return Sheet(
        "Checks a second on one Redis, by processes",
        ["processes", "django_quota", "limits", "ratio", "django_quota, a core of Redis", "limits", "ratio"],
        rows,
        "On few cores the processes that call use what Redis would need. So the right half says what Redis would serve "
        "with a core of its own, by the CPU time that it took. The last row sends, a batch at a time, what checks have "
        "sent.",
    )


# --- into the docs ----------------------------------------------------------------------------------------------------


def write_page(found: Found) -> None:
    """Write the tables between the markers of docs/benchmarks.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE.name} lacks the markers {BEGIN} and {END}.")
    tables = "\n\n".join(sheet.markdown() for sheet in sheets(found))
    PAGE.write_text(f"{before}{BEGIN}\n\nMeasured on {found['machine']}.\n\n{tables}\n\n{END}{after}", encoding="utf-8")


def write_pictures(growth: Mapping[str, Sequence[Found]], folder: Path) -> None:
    """Write a picture of each growth."""
    for name, chart in charts(growth):
        (folder / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")


def charts(growth: Mapping[str, Sequence[Found]]) -> Iterator[tuple[str, Chart]]:
    """Return the pictures by name."""

    def line(points: Sequence[Found], who: str, figure: str) -> list[float]:
        return [point[who][figure] for point in points]

    rules, limits, subjects = growth["rules"], growth["limits"], growth["subjects"]
    yield "cost_by_rules", Chart(
        "A request through the middleware does not grow with the rules of the site",
        "rules in the settings, one of which fits", "microseconds a request", [f"{point['x']:,}" for point in rules],
        {"wall time": line(rules, "ours", "wall"), "CPU time of the client": line(rules, "ours", "cpu")},
    )  # fmt: skip
    yield "cost_by_limits", Chart(
        "One call for all limits, and a hit for each",
        "limits that are checked", "microseconds", [f"{point['x']:,}" for point in limits],
        {
            "check(), client CPU": line(limits, "ours", "cpu"),
            "limits, client CPU": line(limits, "limits", "cpu"),
            "check(), in Redis": line(limits, "ours", "redis"),
            "limits, in Redis": line(limits, "limits", "redis"),
        },
    )  # fmt: skip
    yield "cost_by_subjects", Chart(
        "A check among many subjects",
        "subjects in Redis", "microseconds a check", [f"{point['x']:,}" for point in subjects],
        {
            "check(), client CPU": line(subjects, "ours", "cpu"),
            "limits, client CPU": line(subjects, "limits", "cpu"),
            "check(), in Redis": line(subjects, "ours", "redis"),
            "limits, in Redis": line(subjects, "limits", "redis"),
        },
    )  # fmt: skip
