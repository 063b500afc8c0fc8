"""The pytest fixture that keeps counts from leaking from one test to the next.

Put `pytest_plugins = ["django_quota.testing.fixtures"]` into the `conftest.py` at the root of your tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_quota.testing import clear


@pytest.fixture(autouse=True)
def quota_is_clear() -> Iterator[None]:
    """Begin and end each test with no counts in this process's memory; Redis keeps what it has."""
    clear()
    yield
    clear()
