"""Conventions of the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

LONGEST = 80
TESTS = Path(__file__).parent.parent


def test_no_name_of_a_test_is_longer_than_80_characters() -> None:
    names = [
        f"{file.relative_to(TESTS)}: {node.name}"
        for file in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.name) > LONGEST
    ]
    assert names == []


def test_no_file_of_tests_imports_from_another() -> None:
    """What several of them need lies in tests/support, or beside them under a name without `test_`."""
    imported = [
        f"{file.relative_to(TESTS)}: {node.module}"
        for file in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert imported == []
