"""A pytest fixture that keeps the counts of one test out of the next.

Put `pytest_plugins = ["django_quota.testing.fixtures"]` into the `conftest.py` at the root of your tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_quota.services.flusher import flusher
from django_quota.testing import clear


@pytest.fixture(autouse=True)
def quota_is_clear(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start and end each test with no counts in the memory of this process; Redis keeps its counts.

    The flusher's thread stays off: it would ask Redis and the database between tests.
    """
    monkeypatch.setattr(flusher, "wake", lambda: None)
    clear()
    yield
    clear()
