"""Break a Redis in every way we know while workers use it; print the table; status 1 if a promise is broken.

`python -m tests.chaos [--scene NAME] [--write]`, or `make chaos`.
"""

import argparse
import itertools
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import django
import redis

from django_quota.testing import server_programs
from tests.chaos import site
from tests.chaos.driver import USUAL, play
from tests.chaos.figures import Figures
from tests.chaos.floods import FLOODS, SERVERS, play_flood, play_idle
from tests.chaos.leaving import LEAVING, play_leaving
from tests.chaos.picture import picture
from tests.chaos.scenes import SCENES, Scene
from tests.chaos.sharing import SHARING, play_sharing
from tests.support.pages import ROOT, write_part
from tests.support.stores import server_name

PAGE, PICTURE = "docs/reliability.md", "docs/pictures/outage.svg"
COLUMNS = ("tried", "exceptions", "over, Redis answering", "over, after a loss", "longest ms", "all s")
LEAVING_COLUMNS = ("streams that nobody reads", "requests", "streams", "slots and units held in the end")
SHARING_COLUMNS = (
    "workers that take units ahead (500/s)",
    "tried",
    "killed",
    "admitted",
    "without a call",
    "most in a second",
)
FLOOD_COLUMNS = ("one client's flood, Redis answering", "requests", "passed", "counted in the process", "s")
DEAREST = 2.0
"""A limited view may cost up to this many times a view that does nothing, while Redis is gone."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for of_kind in (SCENES, FLOODS, LEAVING, SHARING) for name in [each.name for each in of_kind]]
    parser.add_argument("--scene", action="append", choices=names, help="only this one; may be given several times")
    parser.add_argument("--write", action="store_true", help=f"write the table and the picture into {PAGE}")
    options = parser.parse_args()
    program = server_programs()[0]
    lines, broken = ["| | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)], []
    chosen = options.scene or names
    for scene in (scene for scene in SCENES if scene.name in chosen):
        found, accounts, times = play(scene, USUAL, program)
        lines.append(_row(scene, found))
        broken += [f"{scene.name}: {words}" for words in (*found.broken, *found.strict)]
        print(lines[-1], flush=True)
        if options.write and scene.name == "killed":
            (ROOT / PICTURE).write_text(picture(scene.title, accounts, times))
    for table in TABLES:
        more, words = _play_table(table, chosen, program)
        lines += more
        broken += words
    if not options.scene:
        for server, how in product(SERVERS, ("reset", "silence")):
            broken += [f"idle connections, {server}, {how}: {words}" for words in play_idle(server, how, program)]
    cost = _cost_without_redis()
    if cost >= DEAREST:
        broken.append(f"Without Redis a limited view costs {cost:.2f} times the bare one.")
    report = "\n".join(lines) + (
        f"\n\n{platform.python_implementation()} {platform.python_version()}, Django {django.__version__}, redis-py "
        f"{redis.__version__}, {server_name(program)}, {os.cpu_count()} CPUs; a sync and an async worker of "
        f"{USUAL.rate} requests a second each; {USUAL.fault:g} s broken, more where a failover takes it.\n\n"
        f"With Redis gone, a limited view costs **{cost:.2f}** times the bare view through Django's handler, in CPU "
        "and without any middleware."
    )
    print(report, *broken, sep="\n")
    if options.write:
        write_part(PAGE, "make chaos", report)
    sys.exit(1 if broken else 0)


class Table(NamedTuple):
    """A table of scenes of one kind, after that of the failures."""

    columns: Sequence[str]
    scenes: Sequence[Any]
    play: Callable[[Any, Path], Any]
    cells: Callable[[Any], str]
    """The cells after the title of a scene, by its figures."""


TABLES = (
    Table(
        FLOOD_COLUMNS,
        FLOODS,
        play_flood,
        lambda found: f"{found.tried:,} | {found.passed} | {found.degraded:,} | {found.seconds:.0f}",
    ),
    Table(
        LEAVING_COLUMNS,
        LEAVING,
        play_leaving,
        lambda found: f"{found.tried:,} | {found.streams:,} | {sum(found.held.values())}",
    ),
    Table(
        SHARING_COLUMNS,
        SHARING,
        play_sharing,
        lambda found: f"{found.tried:,} | {found.killed} | {found.admitted:,} | {found.spent:,} | {found.most}",
    ),
)


def _play_table(table: Table, chosen: Sequence[str], program: Path) -> tuple[list[str], list[str]]:
    """Return the lines of a table, none if none of its scenes is chosen, and which promises were broken."""
    rows, broken = list[str](), list[str]()
    for scene in table.scenes:
        if scene.name in chosen:
            found = table.play(scene, program)
            rows.append(f"| {scene.title} | {table.cells(found)} |")
            broken += [f"{scene.name}: {words}" for words in found.broken]
            print(rows[-1], flush=True)
    return [*_head(table.columns), *rows] if rows else [], broken


def _head(columns: Sequence[str]) -> list[str]:
    return ["", f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]


def _row(scene: Scene[Any], found: Figures) -> str:
    after = found.after_loss if scene.allowance.losses else "—"
    cells = f"{found.tried:,} | {found.failed} | {found.over} | {after} | {found.longest * 1_000:.0f}"
    return f"| {scene.title} | {cells} | {found.all_normal:.2f} |"


def _cost_without_redis(batches: int = 200, size: int = 100) -> float:
    """Return what a limited view costs over a bare one: the median over batches of the two, which take turns."""
    site.configure(site.one_alias("unix:///nonexistent/redis.sock"))
    from django.core.handlers.wsgi import WSGIHandler
    from django.test import RequestFactory

    logging.getLogger("django_quota").setLevel(logging.CRITICAL)
    handler, factory = WSGIHandler(), RequestFactory()

    def batch(path: str) -> int:
        environs: list[Any] = [factory._base_environ(PATH_INFO=path) for _ in range(size)]  # type: ignore[attr-defined]
        began = time.thread_time_ns()
        for environ in environs:
            handler(environ, lambda *_: None)  # type: ignore[arg-type]
        return time.thread_time_ns() - began

    paths = itertools.cycle(("/bare", "/limited", "/bare-too", "/limited"))
    for _ in range(8):  # the breaker opens with the first
        batch(next(paths))
    costs = [(batch(next(paths)), batch(next(paths))) for _ in range(batches)]
    return median(limited / bare for bare, limited in costs)


if __name__ == "__main__":
    main()
