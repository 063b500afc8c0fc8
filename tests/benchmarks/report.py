"""What the run prints: the tables, and the same figures as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import django
import redis
from rich.table import Table

from tests.benchmarks.facts import EACH, EDGE_RATE, MEMORY_RATES, RACE_RATE, REFUSED_HITS, THREADS
from tests.benchmarks.measure import BATCH, COUNTED, Row
from tests.benchmarks.shared import hits_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

NOT_MEASURED = "—"


@dataclass(slots=True)
class Facts:
    """What one limiter did outside the table of checks."""

    package: str
    clock_held: bool = False
    race: int = 0
    worst_window: int = 0
    memory: list[int] = field(default_factory=list)
    memory_after_refusals: int = 0


@dataclass(slots=True)
class Report:
    """All of one run."""

    server: str
    checks: int
    rows: list[Row]
    facts: list[Facts]

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(f"\n[bold]{self.machine()}[/bold], Redis {self.server} over a unix socket")
        console.print(self._checks_table())
        console.print(
            f"CPU: of the calling thread, median of {self.checks // BATCH} interleaved batches of {BATCH} checks, "
            "each batch for a fresh subject; a view's own cost is in its row. Ratio: median over the batches, each "
            "over the bare batches right before and after it. Trips: requests that reached the "
            f"server; trips and queries counted over {COUNTED} checks, from a subject's second on. Bytes: MEMORY "
            "USAGE of all that one more subject takes once 100 hits under 100/m have filled it.",
            style="dim",
        )
        console.print(self._facts_table())
        console.print(
            f"Race: {THREADS} threads x {EACH} requests of one subject under {RACE_RATE}, the clock held for "
            f"{self._held()} so that no edge of its windows falls into it. Worst window: the most admitted within 60 "
            f"seconds under {EDGE_RATE}, clocks moved by hand. Bytes a subject: filled under each rate; the last "
            f"column after 100 hits and {REFUSED_HITS} more under 100/m. {NOT_MEASURED}: not measured.",
            style="dim",
        )

    def _held(self) -> str:
        return ", ".join(facts.package for facts in self.facts if facts.clock_held) or "none"

    def machine(self) -> str:
        """Say what it ran on."""
        return (
            f"{platform.python_implementation()} {platform.python_version()}, Django {django.__version__}, "
            f"redis-py {redis.__version__}, {os.cpu_count()} CPUs"
        )

    def _checks_table(self) -> Table:
        table = Table(title="A check, over one bare EVALSHA", title_justify="left")
        for column in ("", "", "rate"):
            table.add_column(column, overflow="fold")
        for column in ("CPU µs", "ratio", "wall µs", "trips", "SQL", "bytes"):
            table.add_column(column, justify="right")
        package = self.rows[0].package
        for row in self.rows:
            if row.package != package:
                table.add_section()
            table.add_row(*_cells(row, repeated=row.package == package and row is not self.rows[0]))
            package = row.package
        return table

    def _facts_table(self) -> Table:
        table = Table(title="Who is right", title_justify="left")
        table.add_column("")
        table.add_column(f"race\n(right: {hits_of(RACE_RATE)})", justify="right")
        table.add_column(f"worst window\n(right: {hits_of(EDGE_RATE)})", justify="right")
        for rate in MEMORY_RATES:
            table.add_column(f"bytes\n{rate}", justify="right")
        table.add_column(f"100/m and\n{REFUSED_HITS} refused", justify="right")
        for facts in self.facts:
            memory = [f"{size:,}" for size in facts.memory]
            memory += [NOT_MEASURED] * (len(MEMORY_RATES) - len(memory))
            table.add_row(
                facts.package,
                _judged(facts.race, hits_of(RACE_RATE)),
                _judged(facts.worst_window, hits_of(EDGE_RATE)),
                *memory,
                f"{facts.memory_after_refusals:,}",
            )
        return table

    def save(self, path: Path) -> None:
        """Write the same figures as JSON."""
        path.write_text(json.dumps(self._as_json(), indent=2) + "\n", encoding="utf-8")

    def _as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine(),
            "redis": self.server,
            "checks": self.checks,
            "rows": [_row_as_json(row) for row in self.rows],
            "facts": [_facts_as_json(facts) for facts in self.facts],
        }


def _cells(row: Row, *, repeated: bool) -> list[str]:
    return [
        "" if repeated else row.package,
        row.label,
        " ".join(row.rates) or NOT_MEASURED,
        f"{row.cpu:.1f}",
        f"{row.ratio:.2f}",
        f"{row.wall:.1f}",
        f"{row.trips:.2f}".rstrip("0").rstrip("."),
        f"{row.queries:.2f}".rstrip("0").rstrip("."),
        NOT_MEASURED if row.memory is None else f"{row.memory:,}",
    ]


def _judged(admitted: int, right: int) -> str:
    colour = "green" if admitted == right else "red"
    return f"[{colour}]{admitted}[/{colour}]"


def _row_as_json(row: Row) -> dict[str, Any]:
    names = ("package", "label", "rates", "cpu", "wall", "ratio", "trips", "queries", "memory")
    return {name: getattr(row, name) for name in names}


def _facts_as_json(facts: Facts) -> dict[str, Any]:
    return {
        "package": facts.package,
        "race": {"rate": RACE_RATE, "requests": THREADS * EACH, "admitted": facts.race},
        "worst_window": {"rate": EDGE_RATE, "admitted": facts.worst_window},
        "memory": dict(zip(MEMORY_RATES, facts.memory, strict=False)),
        "memory_after_refusals": facts.memory_after_refusals,
    }
