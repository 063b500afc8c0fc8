"""A progress bar on the terminal while the site starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

from example_project.runner import ProgressCallback


@contextmanager
def progress_bar(console: Console) -> Iterator[ProgressCallback]:
    """Show a bar during the block and yield the callback that moves it."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def report(task_name: str, done: int, total: int) -> None:
            progress.update(task, description=f"{task_name} ...", completed=done, total=total or None)

        yield report
