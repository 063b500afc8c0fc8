"""Measure a check beside a bare EVALSHA and six other limiters, on private Redis servers.

`python -m tests.benchmarks`, or `make bench ARGS="..."`. docs/comparison.md shows one of its tables, and the one that
`ARGS="--instructions"` counts: figures that no other load on the machine moves.
"""

import argparse
import sys
from typing import Any

from rich.console import Console

from django_quota.testing import server_programs
from tests.benchmarks import instructions, postgresql, processes, report
from tests.benchmarks.measure import EACH

LAPS = 40
"""Batches of 120 checks a row."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the goals and their rows, on one Redis with hiredis")
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions instead, by callgrind: some minutes"
    )
    parser.add_argument("--write", action="store_true", help="write a table into docs/comparison.md")
    options = parser.parse_args()
    if options.quick and options.write:
        parser.error("--write needs all rows: leave --quick out")
    console = Console() if sys.stdout.isatty() else Console(width=150)
    if options.instructions:
        count_instructions(console, writes=options.write)
        return
    found = measure(is_quick=options.quick)
    console.print(f"\n[bold]{found['machine']}[/bold]")
    for sheet in report.sheets(found):
        sheet.show(console)
    if options.write:
        report.write_docs(found)


def count_instructions(console: Console, *, writes: bool) -> None:
    if not instructions.are_countable():
        console.print("Instructions are not counted: that needs callgrind, of the package valgrind.")
        return
    counted = instructions.count()
    report.instructions(counted).show(console)
    if writes:
        report.write_instructions(counted)


def measure(*, is_quick: bool) -> dict[str, Any]:
    programs, parsers = server_programs(), list(processes.PARSERS)
    if is_quick:
        programs, parsers = programs[:1], parsers[:1]
    found: dict[str, Any] = {"machine": report.machine(), "runs": []}
    with processes.awake_cores():
        for program in programs:
            for parser in parsers:
                print(f"{program}, replies read by {parser} ...", file=sys.stderr)
                with processes.redis_over_tcp(program) as url:
                    given = (url, LAPS, not is_quick, not is_quick and not found["runs"], EACH)
                    run = processes.in_process("tests.benchmarks.processes:rows", *given, parser=parser)
                found.setdefault("facts", run.pop("facts"))
                found["runs"].append({"parser": parser, **run})
        print("PostgreSQL, and starting ...", file=sys.stderr)
        found["postgresql"] = postgresql.beside_redis(4 if is_quick else LAPS)
        found["start"] = processes.start(2 if is_quick else 8)
    return found


if __name__ == "__main__":
    main()
