"""Progress of long commands: on a terminal only, a bar with rich and plain lines without it."""

from __future__ import annotations

import io
import re

import pytest
from django.core.management.base import OutputWrapper

from django_quota.management import console
from django_quota.management.console import progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "find_spec", lambda _: None)
    monkeypatch.setattr(console, "PROGRESS_INTERVAL", 0.0)


def test_nothing_is_written_if_the_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    with progress(stream, "Sweeping", 10) as advance:
        advance(5)
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("plain")
def test_plain_lines_show_count_and_total() -> None:
    terminal = Terminal()
    with progress(terminal, "Sweeping", 2000) as advance:
        advance(1000)
        advance(1000)
    assert terminal.getvalue() == "Sweeping: 1,000 of 2,000\nSweeping: 2,000 of 2,000\n"


@pytest.mark.usefixtures("plain")
def test_plain_lines_show_only_the_count_if_the_total_is_unknown() -> None:
    terminal = Terminal()
    with progress(terminal, "Sweeping", None) as advance:
        advance(1234)
    assert terminal.getvalue() == "Sweeping: 1,234\n"


@pytest.mark.usefixtures("plain")
def test_plain_lines_come_no_faster_than_people_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PROGRESS_INTERVAL", float("inf"))
    terminal = Terminal()
    with progress(terminal, "Sweeping", 10_000) as advance:
        for _ in range(10_000):
            advance(1)
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("plain")
def test_the_color_of_a_commands_stream_is_left_out() -> None:
    terminal = Terminal()
    wrapper = OutputWrapper(terminal)
    wrapper.style_func = lambda text: f"<red>{text}</red>"
    with progress(wrapper, "Sweeping", 2) as advance:
        advance(1)
    assert terminal.getvalue() == "Sweeping: 1 of 2\n"


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
