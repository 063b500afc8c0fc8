"""`make demo`: starts the example site on a real Redis, sends it real requests, prints what happened.

Every scene of the registry is played by a real client against the real server process, and what came back is held to
what it promises. Exits 0 where all of it is as promised, else 1, naming the scenes that differ.
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
from example_project.act import Act
from example_project.looking import look_through
from example_project.plays import PLAYS, play
from example_project.scenes import SCENES, Scene
from example_project.stage import Site, StageError, ended_by_signals, running_site
from example_project.waiting import shown

PREFIX = "quota-example-demo"
INTERRUPTED = 130


def play_all(console: Console, site: Site) -> list[str]:
    """Play every scene and print each act when it is over; return what differs from the promises."""
    differing = []
    columns = (SpinnerColumn(), BarColumn(bar_width=30, complete_style="green"), TextColumn("[dim]{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(SCENES))
        console.print(_table(headed=True))
        for scene in SCENES:
            progress.update(task, description=scene.title)
            differing += [f"{scene.title}: {difference}" for difference in _play_one(scene, site, console)]
            progress.advance(task)
    if site.process.poll() is not None:
        differing.append(f"The server has ended by itself, with status {site.process.returncode}.")
    return differing


def look(console: Console, site: Site) -> list[str]:
    """Open the admin's pages and print how that went; return what differs from what is promised."""
    console.print(f"\n[bold]The admin, over {site.rows:,} daily counters of a year[/]")
    try:
        looks = look_through(site)
    except (OSError, HTTPException) as error:
        return [f"The admin: the site does not answer ({type(error).__name__}: {error})"]
    for seen in looks:
        mark = "[red]✗[/]" if seen.difference else "[green]✓[/]"
        console.print(f"{mark} {seen.name:<18} {seen.status} in {seen.milliseconds:.0f} ms")
    return [seen.difference for seen in looks if seen.difference]


def _play_one(scene: Scene, site: Site, console: Console) -> list[str]:
    """Play a scene and print its acts; return what differs from its promises."""
    differing = []
    console.print(f"\n[bold]{escape(scene.title)}[/]")
    try:
        for act in PLAYS.get(scene.slug, play)(scene, site):
            console.print(_row(act))
            differing += act.differences
    except (OSError, HTTPException, StoreUnavailable, threading.BrokenBarrierError) as error:
        differing.append(f"the site or its Redis does not answer ({type(error).__name__}: {error})")
    except (LookupError, ValueError) as error:
        differing.append(f"a reply was not what it should be ({type(error).__name__}: {error})")
    for difference in differing:
        console.print(f"  [red]✗ {escape(difference)}[/]", soft_wrap=True)
    return differing


def _row(act: Act) -> Table:
    mark = "[red]✗[/]" if act.differences else "[green]✓[/]"
    declined, refused = len(act.declined), len(act.refusals)
    table = _table()
    table.add_row(
        f"{mark} {escape(act.name)}",
        str(len(act.replies)),
        f"[green]{act.admitted}[/]",
        f"[yellow]{declined}[/]" if declined else "",
        f"[red]{refused}[/]" if refused else "[dim]0[/]",
        escape(act.says) or "[dim]there was none[/]",
    )
    return table


def _table(*, headed: bool = False) -> Table:
    """Return an empty table: each act is printed as one of its own when it is over, all with the same columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=headed, header_style="dim", expand=True)
    table.add_column("Scene", width=19)
    for name in ("Sent", "Admitted", "Declined", "Refused"):
        table.add_column(name, justify="right", width=len(name))
    table.add_column("What the refusal says", ratio=1, overflow="fold")
    return table


def main() -> int:
    """Play the demo; return the exit status."""
    console = Console(highlight=False)
    started = monotonic()
    try:
        with ended_by_signals(), ExitStack() as stack:
            with shown(console) as told:
                site = stack.enter_context(running_site(prefix=PREFIX, keep_log=True, told=told))
            console.print(f"The site is a real server at {site.url}, on {escape(site.redis)}.", soft_wrap=True)
            console.print(f"{escape(site.sign_ins)}\n", soft_wrap=True)
            differing = play_all(console, site) + look(console, site)
            wrote = site.wrote()
    except KeyboardInterrupt:
        console.print("Stopped. Nothing of it is left running.")
        return INTERRUPTED
    except StageError as error:
        console.print(f"[red]The demo could not start.[/] {escape(str(error))}", soft_wrap=True)
        return 1
    return _conclude(console, differing, wrote, monotonic() - started)


def _conclude(console: Console, differing: list[str], wrote: str, seconds: float) -> int:
    """Say how it went; return the exit status."""
    if not differing:
        console.print(f"\n[green]All {len(SCENES)} scenes did what they promise[/], in {seconds:.1f} s.")
        console.print("See it in a browser: [bold]make serve[/]")
        return 0
    console.print("\n[red]Not as promised:[/]")
    for difference in differing:
        console.print(f"  {escape(difference)}", soft_wrap=True)
    console.print(f"The server wrote:\n{escape(wrote)}", soft_wrap=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
