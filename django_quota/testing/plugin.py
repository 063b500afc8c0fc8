"""The pytest plugin, which pytest finds by itself: limits that start at zero in each test, and the fixture `quota`.

Each test starts at zero and counts in the memory of its process, whatever the settings say and however the test changes
them: so no count stays for the next test, and none reaches your store. That holds in fixtures of classes, modules and
the session, too, which share a memory of their own. To count where the settings say, write `quota_store = settings`
into the pytest configuration, or mark a test with `@pytest.mark.quota(store="settings")`.
`@pytest.mark.quota(off=True)` allows everything in a test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_quota.limiting.registry import force_store
from django_quota.stores.memory import MemoryStore
from django_quota.testing.kit import QuotaKit, isolated, quota_kit

STORES = ("memory", "settings")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("quota_store", "where tests count: 'memory', starting at zero, or 'settings'", default="memory")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and keep what is counted outside of tests out of your store."""
    config.addinivalue_line(
        "markers", "quota(off=False, store='memory'): allow everything, or count where the settings say"
    )
    if _checked(config.getini("quota_store")) == "memory":
        after = ExitStack()
        after.callback(force_store, force_store(MemoryStore()))
        config.add_cleanup(after.close)


def pytest_report_header(config: pytest.Config) -> str:
    if config.getini("quota_store") == "memory":
        return "django_quota: each test counts in memory, starting at zero"
    return "django_quota: tests are not isolated, they count where the settings say (quota_store = settings)"


@pytest.fixture(autouse=True)
def _quota_is_isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the counts of each test out of the next."""
    store, off = _options(request)
    with isolated(memory=store == "memory", enabled=False if off else None):
        yield


@pytest.fixture(name="quota")
def quota_fixture(_quota_is_isolated: None) -> Iterator[QuotaKit]:
    """Say what the limits of this test are: the time, what is used up, how much is used. See `QuotaKit`."""
    with quota_kit() as kit:
        yield kit


def _options(request: pytest.FixtureRequest) -> tuple[str, bool]:
    marker = request.node.get_closest_marker("quota")
    given: dict[str, Any] = {} if marker is None else marker.kwargs
    if marker is not None and (marker.args or given.keys() - {"off", "store"}):
        raise pytest.UsageError(f"{request.node.nodeid}: @pytest.mark.quota takes off=True and store='settings'.")
    return _checked(given.get("store", request.config.getini("quota_store"))), bool(given.get("off", False))


def _checked(store: str) -> str:
    if store not in STORES:
        raise pytest.UsageError(f"quota_store is {store!r}. Use 'memory' or 'settings'.")
    return store
