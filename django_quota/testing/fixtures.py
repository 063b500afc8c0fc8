"""The pytest fixture that keeps counts from leaking from one test to the next.

Put `pytest_plugins = ["django_quota.testing.fixtures"]` into the `conftest.py` at the root of your tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_quota import overrides
from django_quota.testing import clear


@pytest.fixture(autouse=True)
def quota_is_clear(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end each test with no counts in this process's memory; Redis keeps what it has.

    The background thread that looks whether Redis still has all overrides stays off: it would ask the database in
    tests that may not.
    """
    monkeypatch.setattr(overrides, "on_due", None)
    clear()
    yield
    clear()
