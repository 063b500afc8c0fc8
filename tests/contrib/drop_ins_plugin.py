"""A pytest plugin for the tests of Django REST framework: its throttles are replaced by ours."""

from __future__ import annotations

from typing import Any

import pytest

urlpatterns: list[Any] = []
REPLACED = ("AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "UserRateThrottle")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_quota", "rest_framework"],
        SECRET_KEY="only-for-tests",
        ROOT_URLCONF=__name__,
        QUOTA={"STORE": "memory"},
    )
    django.setup()
    from rest_framework import throttling

    from django_quota.contrib import rest_framework as ours

    for name in REPLACED:
        setattr(throttling, name, getattr(ours, name))


@pytest.fixture(autouse=True)
def emptied_store() -> None:
    """Forget all counts before each test; the framework's tests empty the cache."""
    from django_quota.limiting.registry import get_limiter

    store: Any = get_limiter().store
    store.__init__()
