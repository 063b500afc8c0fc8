"""Progress of long commands: on a terminal only, a bar with rich and plain lines without it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest
from django.core.management.base import OutputWrapper

from django_quota.management import console
from django_quota.management.console import progress
from tests.support.commands import ROOT


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "find_spec", lambda _: None)


def coloured(stream: io.StringIO) -> OutputWrapper:
    """Return a stream as commands have it."""
    wrapper = OutputWrapper(stream)
    wrapper.style_func = lambda text: f"<red>{text}</red>"
    return wrapper


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("stream", "total", "interval", "printed"),
    [
        (Terminal, 2000, 0.0, "Sweeping: 1,000 of 2,000\nSweeping: 2,000 of 2,000\n"),
        (Terminal, None, 0.0, "Sweeping: 1,000\nSweeping: 2,000\n"),
        (Terminal, 2000, float("inf"), ""),  # no faster than people read
        (io.StringIO, 2000, 0.0, ""),  # no terminal
    ],
)
def test_plain_lines_show_count_and_total_without_colour(
    stream: type[io.StringIO], total: int | None, interval: float, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "PROGRESS_INTERVAL", interval)
    written = stream()
    with progress(coloured(written), "Sweeping", total) as advance:
        advance(1000)
        advance(1000)
    assert written.getvalue() == printed


def test_rich_shows_label_and_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    with progress(terminal, "Sweeping", 2) as advance:
        advance(1)
        advance(1)
    seen = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "Sweeping" in seen
    assert "2/2" in seen


def test_an_error_inside_the_block_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError), progress(Terminal(), "Sweeping", 1):
        raise ZeroDivisionError


def test_a_signal_that_comes_within_a_wait_stops_a_command() -> None:
    """The handler runs in the thread that waits, and that may hold the lock of what it waits for."""
    code = (
        "import django, signal\n"
        "django.setup()\n"
        "from django_quota.management.console import stopping\n"
        "with stopping() as stop:\n"
        "    with stop._cond:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    assert stop.wait(60)\n"
    )
    settings = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.support.settings"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=settings, cwd=ROOT)
