"""What the suite prints, the same as JSON, and the table that goes into docs/reliability.md."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import django
import redis
from rich.console import Console
from rich.table import Table

import django_quota
from tests.chaos.cost import Cost
from tests.chaos.driver import Pace
from tests.chaos.figures import Figures
from tests.chaos.scenes import Scene
from tests.chaos.site import ALLOW, DEFAULT, DENY, LOCAL, PAIR

PAGE = Path(django_quota.__file__).parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- make chaos: begin -->", "<!-- make chaos: end -->"

DEAREST = 2.0
"""A limited view may cost up to this many times a view that does nothing, while Redis is gone."""

NONE = "—"

COLUMNS = (
    "tried", "exceptions", "over, Redis answering", "over, after a loss", "allow", "deny", "local, worst window",
    "left behind", "longest ms", "p99 ms", "first s", "all s", "outages reported", "ends reported",
)  # fmt: skip

IN_DOCS = ("tried", "exceptions", "over, Redis answering", "over, after a loss", "longest ms", "all s")
"""The columns of the page; the others are printed."""


RULES = (
    f"Rules: {ALLOW.limit} in {ALLOW.window} s (allow), {DENY.limit} a second (deny), {LOCAL.limit} a second (local, "
    f"{LOCAL.limit // 2} for each of two workers), and a plan over two subjects: {PAIR.limit} a second (deny) for one, "
    "beside a limit that never refuses for the other. "
    f"And {DEFAULT.limit} a second where the rule does not say: like local on a full Redis, else like allow."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One scene, what came of it, and what it has broken."""

    scene: Scene[Any]
    figures: Figures
    broken: Sequence[str]

    def cells(self) -> list[str]:
        """Return what stands in the columns."""
        found = self.figures
        return [
            f"{found.tried:,}", f"{found.failed}", f"{found.over}",
            f"{found.after_loss}" if self.scene.allowance.losses else NONE,
            f"{found.without.get('allow', 0)}", f"{found.without.get('deny', 0)}",
            f"{found.local_worst} of {found.local_bound}",
            f"{found.kept}" if self.scene.allowance.gives_back else NONE,
            f"{found.longest * 1_000:.0f}", f"{found.p99 * 1_000:.1f}",
            _seconds(found.first_normal), _seconds(found.all_normal),
            " + ".join(map(str, found.lost)), " + ".join(map(str, found.back)),
        ]  # fmt: skip


def _seconds(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.2f}"


@dataclass(frozen=True, slots=True)
class Report:
    """All of one run."""

    server: str
    pace: Pace
    rows: Sequence[Row]
    cost: Cost | None

    @property
    def broken(self) -> list[str]:
        """Every promise that was broken, in words."""
        found = [f"{row.scene.name}: {words}." for row in self.rows for words in row.broken]
        if self.cost is not None and self.cost.ratio >= DEAREST:
            found.append(f"Without Redis a limited view costs {self.cost.ratio:.2f} times the bare one.")
        return found

    def words(self) -> list[str]:
        """Return what stands below the table of the page: how it was taken, and the cost of a view."""
        pace = self.pace
        taken = (
            f"{platform.python_implementation()} {platform.python_version()}, Django {django.__version__}, "
            f"redis-py {redis.__version__}, {self.server}, {os.cpu_count()} CPUs; a sync and an async worker of "
            f"{pace.rate} requests a second each; {pace.fault:g} s broken, more where a failover takes it."
        )
        said = [taken]
        if self.cost is not None:
            said.append(
                f"With Redis gone, a limited view costs **{self.cost.ratio:.2f}** times the bare view through Django's "
                "handler, in CPU and without any middleware."
            )
        return said

    def show(self, console: Console) -> None:
        """Print it."""
        table = Table(title="What came of it", title_justify="left")
        table.add_column("scene", overflow="fold")
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for row in self.rows:
            table.add_row(row.scene.title, *row.cells(), style="red" if row.broken else None)
        below = (RULES, *(words.replace("**", "") for words in self.words()))
        console.print(table, *below, sep="\n", soft_wrap=True)
        for words in self.broken:
            console.print(f"[red]Broken[/red] {words}")

    def markdown(self) -> str:
        """Return the table as it stands in the docs."""
        lines = ["| | " + " | ".join(IN_DOCS) + " |", "|---|" + "---:|" * len(IN_DOCS)]
        for row in self.rows:
            cells = dict(zip(COLUMNS, row.cells(), strict=True))
            lines.append(f"| {row.scene.title} | {' | '.join(cells[name] for name in IN_DOCS)} |")
        return "\n".join(lines) + "\n\n" + "\n\n".join(self.words())

    def as_json(self) -> dict[str, Any]:
        """Return all figures."""
        return {
            "redis": self.server,
            "pace": asdict(self.pace),
            "scenes": {row.scene.name: {**asdict(row.figures), "broken": list(row.broken)} for row in self.rows},
            "view_without_redis": None if self.cost is None else self.cost._asdict(),
        }


def written_into(page: str, table: str) -> str:
    """Return a page with the table between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"The page lacks the markers {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"
