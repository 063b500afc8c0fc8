"""Break a Redis in every way we know while workers use it; report the result; status 1 where a promise is broken.

`python -m tests.chaos [--scene NAME] [--seconds N] [--server PROGRAM] [--json FILE] [--write]`, or `make chaos`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from django_quota.testing import server_programs
from tests.chaos.cost import cost_without_redis
from tests.chaos.driver import USUAL, Pace, Played, play
from tests.chaos.figures import broken, told_too_often
from tests.chaos.picture import picture
from tests.chaos.report import PAGE, Report, Row, written_into
from tests.chaos.scenes import SCENES, Scene, scene_named
from tests.support.stores import server_name

WIDTH = 190
"""Columns that the table takes unfolded."""
SHOWN = "killed"
"""The scene that the picture shows."""
PICTURE = PAGE.parent / "pictures" / "outage.svg"
BATCHES = 200
"""Batches of the two views that are timed."""


def main() -> None:
    """Play the scenes and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [scene.name for scene in SCENES]
    parser.add_argument("--scene", action="append", choices=names, help="only this one; may be given several times")
    parser.add_argument("--seconds", type=float, default=USUAL.fault, metavar="N", help="how long each fault lasts")
    parser.add_argument("--server", type=Path, metavar="PROGRAM", help="the redis-server; else the first that is found")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file, too")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}, and its picture")
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error("--seconds must be more than 0")
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH  # a file or a log has no width of its own
    scenes = [scene_named(name) for name in options.scene or names]
    report, drawn = run(scenes, replace(USUAL, fault=options.seconds), options.server or server_programs()[0], console)
    report.show(console)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    if options.write:
        PAGE.write_text(written_into(PAGE.read_text(encoding="utf-8"), report.markdown()), encoding="utf-8")
        if drawn:
            PICTURE.write_text(drawn, encoding="utf-8")
    sys.exit(1 if report.broken else 0)


def run(scenes: list[Scene[Any]], pace: Pace, program: Path, console: Console) -> tuple[Report, str]:
    """Play scenes one after the other, and time a view.

    Return the report, and a picture of the scene that is shown; empty where that is not played.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows, drawn = [], ""
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(scenes) + 1)
        for scene in scenes:
            progress.update(task, description=scene.title)
            played = play(scene, pace, program)
            rows.append(_row(scene, played))
            if scene.name == SHOWN:
                drawn = picture(scene.title, played.accounts, played.times)
            progress.advance(task)
        progress.update(task, description="A view without Redis")
        cost = cost_without_redis(BATCHES)
    return Report(server_name(program), pace, rows, cost), drawn


def _row(scene: Scene[Any], played: Played) -> Row:
    found = played.figures
    return Row(scene, found, [*broken(found, scene.allowance), *told_too_often(found, scene.allowance)])


if __name__ == "__main__":
    main()
