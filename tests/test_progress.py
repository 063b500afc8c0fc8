"""The progress bar: on a terminal only, with rich or without, never more than one line."""

from __future__ import annotations

import io
import re
import sys

import pytest
from django.core.management.base import OutputWrapper
from hypothesis import given
from hypothesis import strategies as st

from django_quota.management import progress as module
from django_quota.management.progress import progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)


@pytest.fixture
def every_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REDRAW_EVERY", 0.0)


def lines(terminal: io.StringIO) -> list[str]:
    """Return what one would have seen, drawing by drawing."""
    return [line.rstrip() for line in terminal.getvalue().rstrip("\n").split("\r")[1:]]


def test_nothing_is_written_where_nobody_looks() -> None:
    stream = io.StringIO()
    with progress(stream, "Sweeping", 10) as advance:
        advance(5, "half")
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("without_rich", "every_drawing")
def test_the_plain_line_says_how_far_it_is() -> None:
    terminal = Terminal()
    with progress(terminal, "Sweeping", 2000) as advance:
        advance(1000, "half")
        advance(1000)
    assert lines(terminal) == [
        "Sweeping [........................]   0% 0/2,000",
        "Sweeping [############............]  50% 1,000/2,000 half",
        "Sweeping [########################] 100% 2,000/2,000 half",
        "Sweeping [########################] 100% 2,000/2,000 half",
    ]
    assert terminal.getvalue().endswith("\n")


@pytest.mark.usefixtures("without_rich", "every_drawing")
def test_an_unknown_total_shows_what_was_done() -> None:
    terminal = Terminal()
    with progress(terminal, "Sweeping", None) as advance:
        advance(1234)
    assert lines(terminal)[-1] == "Sweeping 1,234"


@pytest.mark.usefixtures("without_rich", "every_drawing")
def test_a_shorter_line_covers_the_longer_one_before_it() -> None:
    terminal = Terminal()
    with progress(terminal, "Sweeping", None) as advance:
        advance(1, "a very long note")
        advance(1, "short")
    first, second = terminal.getvalue().split("\r")[2:4]
    assert len(second) >= len(first)


@pytest.mark.usefixtures("without_rich")
def test_drawings_are_not_more_than_a_person_can_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REDRAW_EVERY", float("inf"))
    terminal = Terminal()
    with progress(terminal, "Sweeping", 10_000) as advance:
        for _ in range(10_000):
            advance(1)
    assert len(lines(terminal)) == 2  # the first and the last
    assert lines(terminal)[-1].endswith("10,000/10,000")


@pytest.mark.usefixtures("without_rich")
def test_an_error_ends_the_line_and_is_not_swallowed() -> None:
    terminal = Terminal()
    with pytest.raises(ZeroDivisionError), progress(terminal, "Sweeping", 1):
        raise ZeroDivisionError
    assert terminal.getvalue().endswith("\n")


@pytest.mark.usefixtures("without_rich", "every_drawing")
def test_a_commands_wrapper_neither_breaks_the_line_nor_paints_it() -> None:
    terminal = Terminal()
    wrapper = OutputWrapper(terminal)
    wrapper.style_func = lambda text: f"<red>{text}</red>"
    with progress(wrapper, "Sweeping", 2) as advance:
        advance(1)
    assert terminal.getvalue().count("\n") == 1
    assert "red" not in terminal.getvalue()


@given(st.text(max_size=300))
def test_a_note_stays_on_its_line_and_cannot_move_the_cursor(note: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "rich", None)
        patch.setattr(module, "REDRAW_EVERY", 0.0)
        terminal = Terminal()
        with progress(terminal, "Sweeping", 2) as advance:
            advance(1, note)
    written = terminal.getvalue()
    assert written.count("\n") == 1
    assert all(len(line) < 80 and line.isprintable() for line in lines(terminal))


def test_rich_shows_count_and_note_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    with progress(terminal, "Sweeping", 2) as advance:
        advance(1)
        advance(1, "[bold]rule\x1b[2J")
    seen = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "Sweeping" in seen
    assert "2/2" in seen
    assert "[bold]rule\\x1b[2J" in seen
    assert "\x1b[2J" not in terminal.getvalue()
