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
