"""`make demo`: starts the example site on a real Redis, sends it real requests, prints what happened.

Every scene of the registry is played by a real client against the real server process, and what came back is held to
what its rule promises. Exits 0 where all of it is as promised, else 1, naming the scenes that differ.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from time import monotonic, sleep
from uuid import uuid4

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from example_project.act import Act, promised_by_bucket
from example_project.client import Reply, Visitor
from example_project.scenes import SCENES, Scene
from example_project.stage import Site, StageError, ended_by_signals, running_site

PREFIX = "quota-example-demo"
INTERRUPTED = 130

Play = Callable[[Scene, Site], Iterator[Act]]


# --- how a scene is played --------------------------------------------------------------------------------------------


def play(scene: Scene, site: Site) -> Iterator[Act]:
    """Send a scene's requests: one after another, or all at once; what its rule promises is in the registry."""
    if scene.at_once:
        yield Act(scene, "all at once", at_once(scene, site), scene.admits)
        return
    with Visitor(site.port) as visitor:
        yield Act(scene, "one after another", [visitor.get(scene.url) for _ in range(scene.sends)], scene.admits)


def at_once(scene: Scene, site: Site) -> list[Reply]:
    """Send a scene's requests from as many threads, all let go at the same moment; the replies as they came."""
    together = threading.Barrier(scene.sends)
    headers = {scene.header: uuid4().hex} if scene.header else {}  # somebody whom the limit has never seen

    def send(_: int) -> Reply:
        with Visitor(site.port) as visitor:
            together.wait(timeout=10)
            return visitor.get(scene.url, headers)

    with ThreadPoolExecutor(scene.sends) as pool:
        return sorted(pool.map(send, range(scene.sends)), key=lambda reply: reply.at)


def play_sms(scene: Scene, site: Site) -> Iterator[Act]:
    """Ask for codes as the page does: with its cookie and CSRF token, first for one number, then for another."""
    with Visitor(site.port) as visitor:
        visitor.get("/")
        one, other = {scene.field: "+1 555 0100"}, {scene.field: "+1 555 0199"}
        act = Act(scene, "one number", [visitor.post(scene.url, one) for _ in range(scene.sends)], scene.admits)
        act.expect("the second code", act.refusals[0].retry_after if act.refusals else 0, range(1, 61))
        act.expect("codes left that day", act.replies[-1].left, [[0, 4]])
        yield act
        yield Act(scene, "another number", [visitor.post(scene.url, other)], 1)


def play_members(scene: Scene, site: Site) -> Iterator[Act]:
    """Come as a guest, then sign in and send the same again."""
    with Visitor(site.port) as visitor:
        yield Act(scene, "a guest", [visitor.get(scene.url) for _ in range(scene.sends)], scene.admits)
        visitor.get("/")
        visitor.post("/sign-in/")
        act = Act(scene, "signed in", [visitor.get(scene.url) for _ in range(scene.sends)], scene.sends)
        act.expect("the rate's count", json.loads(act.replies[-1].body).get("of"), [100])
        yield act


def play_bursts(scene: Scene, site: Site) -> Iterator[Act]:
    """Use up the burst, then wait for as long as the refusal says and be let in again."""
    with Visitor(site.port) as visitor:
        start = monotonic()
        replies = [visitor.get(scene.url) for _ in range(scene.sends)]
        act = Act(scene, "one after another", replies, promised_by_bucket(scene.full, 30 / 60, replies[-1].at - start))
        yield act
        sleep(act.refusals[-1].retry_after if act.refusals else 0)
        yield Act(scene, "after Retry-After", [visitor.get(scene.url)], 1)


def play_queue(scene: Scene, site: Site) -> Iterator[Act]:
    """Come all at once, and leave evenly."""
    start = monotonic()
    replies = at_once(scene, site)
    refused_by = max((reply.at for reply in replies if not reply.admitted), default=start)
    act = Act(scene, "all at once", replies, promised_by_bucket(scene.full, 2, refused_by - start))
    waits = sorted(json.loads(reply.body)["waited"] for reply in replies if reply.admitted)
    act.expect("the longest wait, to the half second", round(waits[-1] * 2) / 2, [2.0, 1.5])
    act.says = "let go after " + ", ".join(f"{wait:.1f}" for wait in waits) + " s"
    yield act


def play_stacked(scene: Scene, site: Site) -> Iterator[Act]:
    """Be refused by the first of three limits, and see that the others were not used."""
    with Visitor(site.port) as visitor:
        act = Act(scene, "one after another", [visitor.get(scene.url) for _ in range(scene.sends)], scene.admits)
    act.expect("what the three have left", act.replies[-1].left, [[0, 5, 97]])
    yield act


PLAYS: dict[str, Play] = {
    "sms": play_sms,
    "members": play_members,
    "bursts": play_bursts,
    "queue": play_queue,
    "stacked": play_stacked,
}
"""Scenes that take more than sending the same request a number of times."""


# --- showing it -------------------------------------------------------------------------------------------------------


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


def _play_one(scene: Scene, site: Site, console: Console) -> list[str]:
    """Play a scene and print its acts; return what differs from its promises."""
    differing = []
    console.print(f"\n[bold]{escape(scene.title)}[/]")
    try:
        for act in PLAYS.get(scene.slug, play)(scene, site):
            console.print(_row(act))
            differing += act.differences
    except (OSError, HTTPException, threading.BrokenBarrierError) as error:
        differing.append(f"the site does not answer ({type(error).__name__}: {error})")
    except (LookupError, ValueError) as error:
        differing.append(f"a reply was not what it should be ({type(error).__name__}: {error})")
    for difference in differing:
        console.print(f"  [red]✗ {escape(difference)}[/]", soft_wrap=True)
    return differing


def _row(act: Act) -> Table:
    mark = "[red]✗[/]" if act.differences else "[green]✓[/]"
    refused = len(act.refusals)
    table = _table()
    table.add_row(
        f"{mark} {escape(act.name)}",
        str(len(act.replies)),
        f"[green]{act.admitted}[/]",
        f"[red]{refused}[/]" if refused else "[dim]0[/]",
        escape(act.says) if refused else "[dim]there was none[/]",
    )
    return table


def _table(*, headed: bool = False) -> Table:
    """Return an empty table: each act is printed as one of its own when it is over, all with the same columns."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=headed, header_style="dim", expand=True)
    table.add_column("Scene", width=19)
    for name in ("Sent", "Admitted", "Refused"):
        table.add_column(name, justify="right", width=len(name))
    table.add_column("What the refusal says", ratio=1, overflow="fold")
    return table


def main() -> int:
    """Play the demo; return the exit status."""
    console = Console(highlight=False)
    started = monotonic()
    try:
        with ended_by_signals(), ExitStack() as stack:
            with console.status("Starting Redis and the site ..."):
                site = stack.enter_context(running_site(prefix=PREFIX, keep_log=True))
            console.print(f"The site is a real server at {site.url}, on {escape(site.redis)}.\n", soft_wrap=True)
            differing = play_all(console, site)
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
        console.print(f"\n[green]All {len(SCENES)} scenes did what their rules promise[/], in {seconds:.1f} s.")
        console.print("See it in a browser: [bold]make serve[/]")
        return 0
    console.print("\n[red]Not as promised:[/]")
    for difference in differing:
        console.print(f"  {escape(difference)}", soft_wrap=True)
    console.print(f"The server wrote:\n{escape(wrote)}", soft_wrap=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
