"""A pytest plugin for the tests of django-ratelimit: their package is replaced by ours.

They name caches that fail by RATELIMIT_USE_CACHE. Here the store fails instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

urlpatterns: list[Any] = []
OURS = "django_quota.contrib.django_ratelimit"
MODULES = {
    "__init__": f"from {OURS} import ALL, UNSAFE",
    "core": f"""
from {OURS}.core import address_of as _get_ip, get_usage, is_ratelimited, read_rate

def _split_rate(rate):
    found = read_rate(rate)
    return found.count, found.period // 1_000_000
""",
    "decorators": f"from {OURS}.decorators import ratelimit",
    "exceptions": f"from {OURS}.exceptions import Ratelimited",
}
"""The modules of django_ratelimit that its tests import, with the two private functions that they test."""

CANNOT_PASS = {
    "CacheFailTests::test_bad_cache": "it expects the error of a wrong RATELIMIT_USE_CACHE, which has no effect (W025)",
    "CacheFailTests::test_cache_timeout": "it expects a cache that forgets each count at once",
}
"""Tests of their caches, with the reason."""


def write_package(folder: Path, tests: bytes) -> None:
    """Write a package `django_ratelimit` that takes everything from ours, and their tests."""
    package = folder / "django_ratelimit"
    package.mkdir()
    for name, text in MODULES.items():
        (package / f"{name}.py").write_text(text)
    (package / "tests.py").write_bytes(tests)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_quota"],
        SECRET_KEY="only-for-tests",
        ROOT_URLCONF=__name__,
        QUOTA={"STORE": "memory"},
    )
    django.setup()


@pytest.fixture(autouse=True)
def emptied_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget all counts before each test; let the store fail where a test names a cache that does."""
    from django.conf import settings

    from django_quota.exceptions import StoreUnavailable
    from django_quota.limiting.registry import get_limiter

    store: Any = get_limiter().store
    store.__init__()
    run = store.run

    def run_or_fail(*args: Any) -> Any:
        if str(getattr(settings, "RATELIMIT_USE_CACHE", "")).startswith("connection-errors"):
            raise StoreUnavailable("the cache of this test fails")
        return run(*args)

    monkeypatch.setattr(store, "run", run_or_fail)
