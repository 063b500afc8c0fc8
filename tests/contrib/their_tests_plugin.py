"""A pytest plugin for the tests of Django REST framework and django-ratelimit: what they test is replaced by ours."""

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


@pytest.fixture(autouse=True)
def the_timer_is_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The framework's tests set the time by the `timer` of a class."""
    from django_quota.contrib.rest_framework import SimpleRateThrottle
    from django_quota.testing import freeze

    allow_request = SimpleRateThrottle.allow_request

    def at_its_time(throttle: Any, request: Any, view: Any) -> bool:
        with freeze(round((1_800_000_000 + throttle.timer() % 10**9) * 1_000_000)):
            return allow_request(throttle, request, view)

    monkeypatch.setattr(SimpleRateThrottle, "allow_request", at_its_time)
