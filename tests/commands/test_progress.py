"""Progress of long commands, on a terminal only, and signals that stop them."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management.base import OutputWrapper

from django_quota.management.console import progress
from tests.support.commands import ROOT, managing


def test_progress_is_drawn_on_a_terminal_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal, total, last in (
        (True, 2000, f"\rSweeping {'█' * 20} 2,000 of 2,000\n"),
        (True, None, "\rSweeping 2,000\n"),
        (False, 2000, ""),
    ):
        written = io.StringIO()
        monkeypatch.setattr(written, "isatty", lambda found=is_terminal: found)
        wrapper = OutputWrapper(written)  # as commands have it
        wrapper.style_func = lambda text: f"<red>{text}</red>"
        with progress(wrapper, "Sweeping", total) as advance:
            advance(2000)
        assert written.getvalue().endswith(last)
        assert (bool(written.getvalue()), "red" in written.getvalue()) == (bool(last), False)


IN_A_WAIT = """
import django, signal
django.setup()
from django_quota.management.console import stopping
with stopping() as stop:
    with stop._cond:
        signal.raise_signal(signal.SIGTERM)
    assert stop.wait(60)
"""


def test_a_signal_that_comes_within_a_wait_stops_a_command(tmp_path: Path) -> None:
    """The handler runs in the thread that waits, and that may hold the lock of what it waits for."""
    with managing(tmp_path, {}) as manage:
        subprocess.run([sys.executable, "-c", IN_A_WAIT], check=True, timeout=60, env=manage.environment, cwd=ROOT)
