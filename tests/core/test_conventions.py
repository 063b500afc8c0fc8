"""Conventions of the tests themselves."""

from __future__ import annotations

import re
from pathlib import Path

LONGEST = 80
TESTS = Path(__file__).parent.parent
TEXTS = {str(file.relative_to(TESTS)): file.read_text() for file in TESTS.rglob("*.py")}


def test_no_name_of_a_test_is_longer_than_80_characters() -> None:
    names = [
        (file, name)
        for file, text in TEXTS.items()
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", text, re.MULTILINE)
    ]
    assert len(names) > len(TEXTS)
    assert [each for each in names if len(each[1]) > LONGEST] == []


def test_quotes_are_straight() -> None:
    """Except in translations, and in a text that Django has translated."""
    root, kinds = TESTS.parent, ("*.py", "*.md", "*.html", "*.toml", "*.lua", "*.css", "*.js")
    files = [file for top in ("django_quota", "docs", "example_project", "tests") for file in (root / top).rglob("*.*")]
    files = [file for file in files if "_build" not in file.parts]  # the site that `make docs` makes
    texts = {file: file.read_text() for file in [*files, *root.glob("*.md")] if any(map(file.match, kinds))}
    curly = re.compile("[\u2018\u2019\u201c\u201d]")
    assert [str(file) for file, text in texts.items() if curly.search(text.replace("Yes, I\u2019m sure", ""))] == []


def test_no_file_of_tests_imports_from_another() -> None:
    """What several of them need lies in tests/support, or beside them under a name without `test_`."""
    imported = re.compile(r"^\s*from (tests\.(?:\w+\.)*test_\w+) import", re.MULTILINE)
    assert imported.findall("from tests.api.test_checks import ids") == ["tests.api.test_checks"]
    assert {file: found for file, text in TEXTS.items() if (found := imported.findall(text))} == {}
