"""`make demo`: start the example site on a real Redis, send it real requests, print what happened.

A real client runs every scenario against a real server process and compares the replies with what the scenario
promises. The exit status is 0 if all are as promised, otherwise 1, with the list of differences.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from http.client import HTTPException
from time import monotonic

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from django_quota import StoreUnavailable
from example_project.admin_pages import open_admin_pages
from example_project.progress import progress_bar
from example_project.runner import RunnerError, Site, ended_by_signals, running_site
from example_project.scenarios import SCENARIOS, Scenario
from example_project.steps import RUNS, Step, run

PREFIX = "quota-example-demo"
INTERRUPTED = 130


def run_all(console: Console, site: Site) -> list[str]:
    """Run every scenario and print each step as it ends; return the differences from the promises."""
    differing = []
    columns = (SpinnerColumn(), BarColumn(bar_width=30, complete_style="green"), TextColumn("[dim]{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(SCENARIOS))
        console.print(_table(headed=True))
        for scenario in SCENARIOS:
            progress.update(task, description=scenario.title)
            differing += [f"{scenario.title}: {difference}" for difference in _run_one(scenario, site, console)]
            progress.advance(task)
    if site.process.poll() is not None:
        differing.append(f"The server stopped by itself, with status {site.process.returncode}.")
    return differing


def look(console: Console, site: Site) -> list[str]:
    """Open the pages of the admin and print the result; return the differences from the promises."""
    console.print(f"\n[bold]The admin, over {site.rows:,} daily counters of a year[/]")
    try:
        looks = open_admin_pages(site)
    except (OSError, HTTPException) as error:
        return [f"The admin: the site does not answer ({type(error).__name__}: {error})"]
    for seen in looks:
        mark = "[red]✗[/]" if seen.difference else "[green]✓[/]"
        console.print(f"{mark} {seen.name:<18} {seen.status} in {seen.milliseconds:.0f} ms")
    return [seen.difference for seen in looks if seen.difference]


def _run_one(scenario: Scenario, site: Site, console: Console) -> list[str]:
    """Run a scenario and print its steps; return the differences from its promises."""
    differing = []
    console.print(f"\n[bold]{escape(scenario.title)}[/]")
    try:
        for step in RUNS.get(scenario.slug, run)(scenario, site):
            console.print(_row(step))
            differing += step.differences
    except (OSError, HTTPException, StoreUnavailable, threading.BrokenBarrierError) as error:
        differing.append(f"the site or its Redis does not answer ({type(error).__name__}: {error})")
    except (LookupError, ValueError) as error:
        differing.append(f"a reply was not what it should be ({type(error).__name__}: {error})")
    for difference in differing:
        console.print(f"  [red]✗ {escape(difference)}[/]", soft_wrap=True)
    return differing


def _row(step: Step) -> Table:
    mark = "[red]✗[/]" if step.differences else "[green]✓[/]"
    declined, refused = len(step.declined), len(step.refusals)
    table = _table()
    table.add_row(
        f"{mark} {escape(step.name)}",
        str(len(step.replies)),
        f"[green]{step.admitted}[/]",
        f"[yellow]{declined}[/]" if declined else "",
        f"[red]{refused}[/]" if refused else "[dim]0[/]",
        escape(step.says) or "[dim]there was none[/]",
    )
    return table


def _table(*, headed: bool = False) -> Table:
    """Return an empty table. Each step is printed as a table of its own as it ends, with the same columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=headed, header_style="dim", expand=True)
    table.add_column("Scenario", width=19)
    for name in ("Sent", "Admitted", "Declined", "Refused"):
        table.add_column(name, justify="right", width=len(name))
    table.add_column("What the refusal says", ratio=1, overflow="fold")
    return table


def main() -> int:
    """Run the demo; return the exit status."""
    console = Console(highlight=False)
    started = monotonic()
    try:
        with ended_by_signals(), ExitStack() as stack:
            with progress_bar(console) as report:
                site = stack.enter_context(running_site(prefix=PREFIX, keep_log=True, report=report))
            console.print(f"The site is a real server at {site.url}, on {escape(site.redis)}.", soft_wrap=True)
            console.print(f"{escape(site.sign_ins)}\n", soft_wrap=True)
            differing = run_all(console, site) + look(console, site)
            output = site.output()
    except KeyboardInterrupt:
        console.print("Stopped; nothing is left running.")
        return INTERRUPTED
    except RunnerError as error:
        console.print(f"[red]The demo could not start.[/] {escape(str(error))}", soft_wrap=True)
        return 1
    return _conclude(console, differing, output, monotonic() - started)


def _conclude(console: Console, differing: list[str], output: str, seconds: float) -> int:
    """Print the result; return the exit status."""
    if not differing:
        console.print(f"\n[green]All {len(SCENARIOS)} scenarios did what they promise[/], in {seconds:.1f} s.")
        console.print("See it in a browser: [bold]make serve[/]")
        return 0
    console.print("\n[red]Not as promised:[/]")
    for difference in differing:
        console.print(f"  {escape(difference)}", soft_wrap=True)
    console.print(f"The output of the server:\n{escape(output)}", soft_wrap=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
