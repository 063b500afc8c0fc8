"""Shows how far setting up the site is, where somebody looks: a bar that goes away when all is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

from example_project.stage import Told


@contextmanager
def shown(console: Console) -> Iterator[Told]:
    """Show what the stage tells for as long as the block lasts. What it tells afterwards is not shown."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def told(what: str, done: int, total: int) -> None:
            progress.update(task, description=f"{what} ...", completed=done, total=total or None)

        yield told
