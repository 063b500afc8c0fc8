"""A progress bar for commands: of `rich` where it is installed, else one line that overwrites itself.

It shows itself on a terminal only: what is piped or logged holds no half-drawn bars. It must not know what is counted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from io import TextIOBase
from typing import Protocol, TextIO, cast

from django_quota.management.console import printable

REDRAW_EVERY = 0.1
"""Seconds between two drawings of the plain line."""

BAR_WIDTH = 24
"""Characters of the plain line's bar."""


class Advance(Protocol):
    """What moves a bar: by so many, and with a note to show behind it."""

    def __call__(self, n: int, note: str = "") -> None:
        """Move on by `n`; an empty note leaves the last one."""
        ...


@contextmanager
def progress(stream: TextIO | TextIOBase, label: str, total: int | None) -> Iterator[Advance]:
    """Show a bar on a stream for as long as the block lasts; yields `advance(n, note="")`.

    `stream` is a text stream, also a command's `self.stdout` or `self.stderr`; where it is no terminal nothing is
    written. `total` is how many there are, None where nobody knows: then only what was done is shown.
    """
    # Django's wrapper would put a line's end behind each drawing, and paint stderr's red.
    out = cast("TextIO", getattr(stream, "_out", stream))
    if not out.isatty():
        yield _silent
        return
    bar = _rich_bar if find_spec("rich") else _plain_bar
    with bar(out, label, total) as advance:
        yield advance


def _silent(n: int, note: str = "") -> None:
    """Show nothing."""


@contextmanager
def _rich_bar(out: TextIO, label: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console  # noqa: PLC0415 — an extra
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    # What else the command writes goes through Django's wrappers, which rich would not catch.
    bar = Progress(*columns, console=Console(file=out), redirect_stdout=False, redirect_stderr=False)
    with bar:
        task = bar.add_task(printable(label), total=total, note="")

        def advance(n: int, note: str = "") -> None:
            bar.update(task, advance=n)
            if note:
                bar.update(task, note=printable(note))

        yield advance


@contextmanager
def _plain_bar(out: TextIO, label: str, total: int | None) -> Iterator[Advance]:
    line = _PlainLine(out, label, total)
    line.draw()
    try:
        yield line.advance
    finally:
        line.draw()
        out.write("\n")
        out.flush()


class _PlainLine:
    """One line that overwrites itself."""

    def __init__(self, out: TextIO, label: str, total: int | None) -> None:
        self._out = out
        self._label = printable(label)
        self._total = total
        self._done = 0
        self._note = ""
        self._drawn_at = float("-inf")
        self._width = 0

    def advance(self, n: int, note: str = "") -> None:
        """Move on; see `Advance`."""
        self._done += n
        self._note = printable(note) or self._note
        if time.monotonic() - self._drawn_at >= REDRAW_EVERY:
            self.draw()

    def draw(self) -> None:
        """Draw it over what was drawn before."""
        line = f"{self._label} {self._bar()} {self._note}".rstrip()
        # A line that the terminal breaks could not be overwritten.
        line = line[: shutil.get_terminal_size().columns - 1]
        self._out.write(f"\r{line.ljust(self._width)}")
        self._out.flush()
        self._width = len(line)
        self._drawn_at = time.monotonic()

    def _bar(self) -> str:
        if not self._total:
            return f"{self._done:,}"
        share = min(1.0, self._done / self._total)
        filled = int(share * BAR_WIDTH)
        return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {int(share * 100):3}% {self._done:,}/{self._total:,}"
