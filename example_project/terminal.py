"""What the demo and the site print: lines that fit the terminal, with colors and a progress bar if rich is there."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from example_project.runner import ProgressCallback

Part = str | tuple[str, str]
"""A piece of a line: a string, or a string with its style, such as `("10", "green")`."""


class Terminal:
    """Prints lines to stdout, or to stderr."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._stream = sys.stderr if stderr else sys.stdout
        self._console: Any = None
        if find_spec("rich"):
            from rich.console import Console  # noqa: PLC0415 — optional

            self._console = Console(file=self._stream, highlight=False)
        self.width = shutil.get_terminal_size((80, 24)).columns

    def line(self, *parts: Part) -> None:
        """Print one line as it is."""
        if self._console is None:
            print("".join(part if isinstance(part, str) else part[0] for part in parts), file=self._stream, flush=True)
            return
        from rich.text import Text  # noqa: PLC0415 — optional

        self._console.print(Text.assemble(*parts), soft_wrap=True)

    def paragraph(self, text: str, style: str = "", *, indent: int = 0, hanging: int = 0) -> None:
        """Print a string in lines that fit. Values stay whole. `hanging`: the further indent of later lines."""
        margins = " " * indent, " " * (indent + hanging)
        for line in textwrap.wrap(
            text,
            self.width,
            initial_indent=margins[0],
            subsequent_indent=margins[1],
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self.line((line, style))

    @contextmanager
    def progress(self, *, only_bar: bool = False) -> Iterator[ProgressCallback]:
        """Show the progress of the block, if this is a terminal: a bar with rich, else a line for each task.

        `only_bar`: no lines either, because the block prints its own.
        """
        if not self._stream.isatty() or (only_bar and self._console is None):
            yield lambda _task, _done, _total: None
        elif self._console is None:
            yield self._plain_progress()
        else:
            from rich import progress  # noqa: PLC0415 — optional

            columns = (
                progress.SpinnerColumn(),
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=30),
                progress.TaskProgressColumn(),
            )
            with progress.Progress(*columns, console=self._console, transient=True) as bar:
                task = bar.add_task("", total=None)
                yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total or None)

    def _plain_progress(self) -> ProgressCallback:
        last = ""

        def report(task: str, _done: int, _total: int) -> None:
            nonlocal last
            if task != last:
                last = task
                self.line(f"{task} ...")

        return report
