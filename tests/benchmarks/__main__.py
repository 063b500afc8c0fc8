"""Measure a check beside a bare EVALSHA and six other limiters, on private Redis servers.

`python -m tests.benchmarks`, or `make bench ARGS="..."`. docs/comparison.md shows two of its tables.
"""

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from django_quota.testing import server_programs
from tests.benchmarks import postgresql, processes, report
from tests.benchmarks.measure import EACH

WIDTH = 150
"""Columns that the tables take unfolded."""
STARTS = 8
"""How often Django starts with us, and without."""


def main() -> None:
    """Measure, print, and write what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laps", type=int, default=40, metavar="N", help="batches of 120 checks a row (default 40)")
    parser.add_argument("--quick", action="store_true", help="the goals and their rows, on one Redis with hiredis")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/comparison.md")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write needs all rows: leave --quick out")
    console = Console(stderr=True)
    found = measure(options, console)
    printed = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    printed.print(f"\n[bold]{found['machine']}[/bold]")
    for sheet in report.sheets(found):
        sheet.show(printed)
    if options.write:
        report.write_docs(found)


def measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Take all measurements that the options ask for."""
    programs, parsers = server_programs(), list(processes.PARSERS)
    if options.quick:
        programs, parsers = programs[:1], parsers[:1]
    found: dict[str, Any] = {"machine": report.machine(), "laps": options.laps, "runs": []}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    # Drawn between the laps only: a drawing thread would take time from what is measured.
    with (
        processes.awake_cores(),
        Progress(*columns, console=console, auto_refresh=False, transient=True) as progress,
    ):
        task = progress.add_task("", total=len(programs) * len(parsers) * options.laps)

        def tick() -> None:
            progress.advance(task)
            progress.refresh()

        def tell(words: str) -> None:
            progress.update(task, description=words, refresh=True)

        for program in programs:
            for parser in parsers:
                tell(f"{program}, replies read by {parser}")
                with processes.redis_over_tcp(program) as url:
                    first = not found["runs"]
                    given = (url, options.laps, not options.quick, first and not options.quick, EACH)
                    run = processes.in_process("tests.benchmarks.processes:rows", *given, parser=parser, tick=tick)
                found.setdefault("facts", run.pop("facts"))
                found["runs"].append({"parser": parser, **run})
        tell("PostgreSQL")
        found["postgresql"] = postgresql.beside_redis(4 if options.quick else 40)
        tell("starting")
        found["start"] = processes.start(2 if options.quick else STARTS)
    return found


if __name__ == "__main__":
    main()
