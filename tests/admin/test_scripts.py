"""The scripts of the admin, in a page of plain objects: the overview keeps itself new, a form shows its preview."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import django_quota

SCRIPTS = Path(django_quota.__file__).parent / "static/django_quota"
PAGES = Path(__file__).with_name("scripts.js")

ASKED = ["after 5000", 'fetch /content/ {"credentials":"same-origin","redirect":"manual","cache":"no-store"}']
SENT = ["after 400", 'fetch /preview/ form {"method":"POST","credentials":"same-origin"}']


@pytest.fixture(scope="module")
def done() -> dict[str, list[Any]]:
    """What the scripts did in each scenario; then the words, the content and how many timers run."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("No node on PATH: apt-get install nodejs")
    ended = subprocess.run([program, PAGES, SCRIPTS], capture_output=True, check=True, timeout=60)
    found: dict[str, list[Any]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize(
    ("scenario", "did"),
    [
        ("begins", ["Live", "old", 1, False, True]),
        ("is live", [*ASKED, "Live", "new", 1]),
        ("goes on", [*ASKED, *ASKED, "Live", "newer", 1]),
        ("is redirected", [*ASKED, "Out", "old", 0]),
        ("is forbidden", [*ASKED, "Out", "old", 0]),
        ("gets an error", [*ASKED, "Away", "old", 1]),
        ("gets no answer", [*ASKED, "Away", "old", 1]),
        ("is live again", [*ASKED, *ASKED, "Live", "new", 1]),
        ("is paused", ["after 5000", "Paused", "old", 1, "true"]),
        ("is paused twice", ["Live", "old", 1, "false"]),
        ("is paused while it waits", ["Paused", "old", 1]),
        ("is paused while it fails", ["Paused", "old", 1]),
        ("stays out", ["Out", "old", 0]),
        ("is hidden", ["after 5000", "Live", "old", 1]),
        ("has the focus", ["after 5000", "Live", "old", 1]),
        ("has the focus elsewhere", [*ASKED, "Live", "new", 1]),
        ("has selected words", ["after 5000", "Live", "old", 1]),
    ],
)
def test_the_overview_asks_for_its_content_until_it_is_paused_or_signed_out(
    scenario: str, did: list[Any], done: dict[str, list[Any]]
) -> None:
    assert done[f"the overview {scenario}"] == did


@pytest.mark.parametrize(
    ("scenario", "did"),
    [
        ("with a subject", [*SENT, "new", "", 0]),
        ("without a subject", ["old", "", 0]),
        ("with a preview", ["old", "", 0]),
        ("with errors", ["old", "", 0]),
        ("that is typed into", [*SENT, "new", "", 0]),
        ("that is changed", [*SENT, "new", "", 0]),
        ("that loses its subject", ["old", "", 0]),
        ("that waits", [*SENT, "old", "true", 0]),
        ("that is typed into while it waits", [*SENT, "after 400", "abort", SENT[1], "new", "", 0]),
        ("that is typed into while it waits twice", [*SENT, "after 400", "abort", SENT[1], "old", "true", 0]),
        ("that is redirected", [*SENT, "old", "", 0]),
        ("that gets an error", [*SENT, "old", "", 0]),
        ("that gets no answer", [*SENT, "old", "", 0]),
        ("without a mode", ["old", "", 1]),
    ],
)
def test_a_form_asks_for_its_preview_after_the_last_change(
    scenario: str, did: list[Any], done: dict[str, list[Any]]
) -> None:
    assert done[f"a form {scenario}"] == did


@pytest.mark.parametrize(
    ("scenario", "is_hidden"),
    [("of another rate", False), ("of a block", True), ("that becomes a block", True)],
)
def test_a_form_hides_the_rate_of_a_mode_without_one(
    scenario: str, is_hidden: bool, done: dict[str, list[Any]]
) -> None:
    assert done[f"a form {scenario}"] == [is_hidden, is_hidden]


def test_a_form_begins_when_its_page_is_there(done: dict[str, list[Any]]) -> None:
    assert done["a page that is loading"] == [0, 1]


def test_a_page_without_a_preview_asks_for_none(done: dict[str, list[Any]]) -> None:
    assert done["a page without a preview"] == ["old", "", 0]
