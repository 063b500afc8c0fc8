"""Progress of long commands, on a terminal only, and signals that stop them."""

import io
import os
import subprocess
import sys

import pytest
from django.core.management.base import OutputWrapper

from django_quota.management.console import progress
from tests.support.commands import ROOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "total", "last"),
    [
        (Terminal, 2000, f"\rSweeping {'█' * 20} 2,000 of 2,000\n"),
        (Terminal, None, "\rSweeping 2,000\n"),
        (io.StringIO, 2000, ""),
    ],
)
def test_progress_is_drawn_on_a_terminal_without_colour(
    stream: type[io.StringIO], total: int | None, last: str
) -> None:
    written = stream()
    wrapper = OutputWrapper(written)  # as commands have it
    wrapper.style_func = lambda text: f"<red>{text}</red>"
    with progress(wrapper, "Sweeping", total) as advance:
        advance(1000)
        advance(1000)
    assert written.getvalue().endswith(last)
    assert bool(written.getvalue()) == bool(last)
    assert "red" not in written.getvalue()


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
