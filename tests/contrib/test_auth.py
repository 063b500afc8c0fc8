"""Failed logins: the backend in front of Django's own, with the admin, forms, Django REST framework and JWT."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any, ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import aauthenticate, authenticate, get_user
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.hashers import MD5PasswordHasher
from django.contrib.auth.models import Permission, User
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.checks import run_checks
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.views.debug import ExceptionReporter

from django_quota import ConfigurationError, QuotaExceeded
from django_quota.conf import current
from django_quota.contrib.auth import LoginQuotaBackend, LoginRefused
from django_quota.services.logins import unlock
from django_quota.testing import freeze
from tests.support.steps import SECOND, START

OURS = "django_quota.contrib.auth.LoginQuotaBackend"
MODEL = "django.contrib.auth.backends.ModelBackend"
PASSWORD = "right horse"
MINUTE, HOUR = 60 * SECOND, 3_600 * SECOND


class CountingHasher(MD5PasswordHasher):
    """Counts how often a password is hashed; one test lets it wait for others."""

    algorithm = "counting"
    hashed: ClassVar[list[str]] = []
    wait: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    def encode(self, password: str, salt: str | bytes) -> str:
        self.hashed.append(password)
        type(self).wait()
        return super().encode(password, salt)


class Refuses(ModelBackend):
    """A backend that says no to one user, and ends the search."""

    def authenticate(self, request: Any, username: Any = None, password: Any = None, **kwargs: Any) -> Any:
        if username == "banned":
            raise PermissionDenied
        return None


class ByPhone(ModelBackend):
    """A backend with credentials of its own."""

    def authenticate(self, request: Any, phone: str, password: str) -> Any:  # type: ignore[override]
        return User.objects.get(username="ann") if (phone, password) == ("+49 1", PASSWORD) else None


class Breaks(ModelBackend):
    def authenticate(self, request: Any, username: Any = None, password: Any = None, **kwargs: Any) -> Any:
        raise RuntimeError("the directory does not answer")


HERE = "tests.contrib.test_auth"


@pytest.fixture(autouse=True)
def hasher(settings: Any) -> Iterator[type[CountingHasher]]:
    settings.PASSWORD_HASHERS = [f"{HERE}.CountingHasher"]
    yield CountingHasher
    CountingHasher.hashed.clear()


@pytest.fixture
def ann(database: Any, hasher: type[CountingHasher], settings: Any) -> User:
    settings.AUTHENTICATION_BACKENDS = [OURS, MODEL]
    user = User.objects.create_user("ann", "ann@example.org", PASSWORD, is_staff=True)
    hasher.hashed.clear()
    return user


def visit(address: str = "203.0.113.9") -> HttpRequest:
    return RequestFactory().post("/login/", REMOTE_ADDR=address)


def attempt(password: str = "guess", name: str = "ann", address: str = "203.0.113.9") -> str:
    """Try to log in; return what came of it."""
    try:
        user = authenticate(visit(address), username=name, password=password)
    except QuotaExceeded:
        return "refused"
    return "in" if user is not None else "wrong"


async def aattempt(password: str = "guess", name: str = "ann", address: str = "203.0.113.9") -> str:
    try:
        user = await aauthenticate(visit(address), username=name, password=password)
    except QuotaExceeded:
        return "refused"
    return "in" if user is not None else "wrong"


@pytest.fixture(params=["sync", "async"])
def guess(request: pytest.FixtureRequest) -> Callable[..., str]:
    return attempt if request.param == "sync" else async_to_sync(aattempt)


@pytest.mark.usefixtures("either_store", "ann")
class TestEveryStore:
    def test_the_sixth_guess_is_refused_before_a_password_is_hashed(
        self, guess: Callable[..., str], hasher: type[CountingHasher]
    ) -> None:
        with freeze(START):
            assert [guess() for _ in range(7)] == ["wrong"] * 5 + ["refused"] * 2
            assert guess(PASSWORD) == "refused"
        assert len(hasher.hashed) == 5

    def test_the_limit_opens_again_when_the_window_is_over(self, guess: Callable[..., str]) -> None:
        with freeze(START):
            for _ in range(5):
                guess()
        with freeze(START + 10 * MINUTE - 1):
            assert guess(PASSWORD) == "refused"
        with freeze(START + 11 * MINUTE):
            assert guess(PASSWORD) == "in"

    def test_success_gives_back_its_own_hit_only(self, guess: Callable[..., str]) -> None:
        with freeze(START):
            assert [guess() for _ in range(3)] == ["wrong"] * 3
            assert [guess(PASSWORD) for _ in range(20)] == ["in"] * 20
            assert [guess() for _ in range(3)] == ["wrong", "wrong", "refused"]

    def test_nobody_is_locked_out_by_their_name_below_the_higher_limit(self) -> None:
        with freeze(START):
            for number in range(20):
                for _ in range(5):
                    last = attempt(address=f"198.51.100.{number}")
                assert last == "wrong"
                expected = "in" if number < 19 else "refused"
                assert attempt(PASSWORD, address="203.0.113.9") == expected
            assert attempt(PASSWORD, name="bob") == "wrong"

    def test_one_address_may_guess_at_thirty_names(self) -> None:
        with freeze(START):
            tries = [attempt(name=f"user{number}") for number in range(31)]
            assert tries == ["wrong"] * 30 + ["refused"]
            assert attempt(PASSWORD, address="198.51.100.1") == "in"

    def test_unlock_forgets_the_failed_logins_from_all_addresses(self) -> None:
        with freeze(START):
            for address in ("203.0.113.9", "203.0.113.10", "2001:db8::1"):
                for _ in range(5):
                    attempt(address=address)
                attempt(name="annabel", address=address)
                assert attempt(PASSWORD, address=address) == "refused"
            assert unlock(" ANN") == 4  # the pairs with three addresses, and the name alone
            for address in ("203.0.113.9", "203.0.113.10", "2001:db8::1"):
                assert attempt(PASSWORD, address=address) == "in"
                assert [attempt(name="annabel", address=address) for _ in range(5)][-1] == "refused"
            assert unlock("ann") == 0
