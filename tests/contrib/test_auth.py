"""Failed logins: the backend in front of Django's own, with the admin, forms, Django REST framework and JWT."""

import json
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from html import unescape
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from asgiref.sync import async_to_sync
from django import conf
from django.contrib import admin
from django.contrib.auth import aauthenticate, aget_user, authenticate, get_user, login
from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.forms import UsernameField
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.contrib.auth.tokens import default_token_generator
from django.contrib.auth.views import LoginView
from django.core.checks import run_checks
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from django.views.debug import ExceptionReporter
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rest_framework_simplejwt.serializers import TokenObtainPairSerializer
from rest_framework_simplejwt.views import TokenObtainPairView

from django_quota import check, quota
from django_quota.conf import DEFAULT_LOGIN, login_rules
from django_quota.contrib.auth import CaptchaRequired, LoginQuotaBackend, LoginRefused, unlock
from django_quota.exceptions import ConfigurationError, QuotaExceeded, RuleError
from django_quota.features.logins import with_addresses
from django_quota.operating.lookup import find_users, user_names
from django_quota.subjects.subject import login_subject, normalized
from django_quota.testing import freeze
from tests.admin.operators import superuser
from tests.contrib.hashers import CountingHasher
from tests.support.commands import PATIENCE
from tests.support.outages import no_answer
from tests.support.pages import marked, run_page
from tests.support.steps import SECOND, START
from tests.support.stores import spy

OURS = "django_quota.contrib.auth.LoginQuotaBackend"
MODEL = "django.contrib.auth.backends.ModelBackend"
HERE = "tests.contrib.test_auth"
PASSWORD = "right horse"
MINUTE, HOUR = 60 * SECOND, 3_600 * SECOND
HOME, AWAY = "203.0.113.9", "198.51.100.7"
BAN = {"after": "3/h", "for": ["10m", "1h", "1d"]}


class ByPhone(BaseBackend):
    """A backend with credentials of its own."""

    def authenticate(self, request: Any, phone: str, password: str) -> Any:  # type: ignore[override]
        return User.objects.get(username="ann") if (phone, password) == ("+49 1", PASSWORD) else None


class ByName(BaseBackend):
    """A backend that says no to one user, which ends the search, and fails for another one."""

    def authenticate(self, request: Any, username: Any = None, password: Any = None, **kwargs: Any) -> Any:
        if username == "banned":
            raise PermissionDenied
        if username == "broken":
            raise RuntimeError("the directory does not answer")


class Asked(BaseBackend):
    """A backend that keeps the addresses of the requests that it is asked about, and accepts nobody."""

    addresses: ClassVar[list[str]] = []

    def authenticate(self, request: Any, username: Any = None, password: Any = None, **kwargs: Any) -> Any:
        self.addresses.append(request.META["REMOTE_ADDR"])


class ByMail(BaseBackend):
    """A backend with users of its own."""

    def get_user(self, user_id: Any) -> Any:
        return "ann of the mails"


def made_backend() -> BaseBackend:
    """Make a backend, as Django lets a function do it."""
    return ByPhone()


class WithoutLogins:
    """A backend that only knows permissions."""


class OursByNobody(LoginQuotaBackend):
    """A subclass of ours that fails to find who logs in."""

    def user_names(self, credentials: Any) -> list[str]:
        raise RuntimeError("no names today")


@pytest.fixture(autouse=True)
def hashed(settings: Any) -> list[str]:
    """The passwords that have been hashed."""
    settings.PASSWORD_HASHERS = ["tests.contrib.hashers.CountingHasher"]
    CountingHasher.hashed.clear()
    return CountingHasher.hashed


@pytest.fixture
def ann(database: Any, hashed: list[str], settings: Any) -> User:
    settings.AUTHENTICATION_BACKENDS = [OURS, MODEL]
    user = User.objects.create_user("ann", "ann@example.org", PASSWORD, is_staff=True)
    hashed.clear()
    return user


memory = pytest.mark.usefixtures("memory_store", "ann")


def visit(address: str = HOME) -> HttpRequest:
    return RequestFactory().post("/login/", REMOTE_ADDR=address)


def attempt(password: str = "guess", name: str = "ann", address: str = HOME, log_in: Any = authenticate) -> str:
    """Try to log in; return what came of it."""
    try:
        user = log_in(visit(address), username=name, password=password)
    except QuotaExceeded:
        return "refused"
    return "in" if user is not None else "wrong"


@pytest.fixture(params=["sync", "async"])
def guess(request: pytest.FixtureRequest) -> Callable[..., str]:
    def log_in(*args: str, **given: Any) -> str:
        return attempt(*args, **{**given, "log_in": async_to_sync(aauthenticate)})

    return attempt if request.param == "sync" else log_in


@memory
class TestGuesses:
    @pytest.mark.parametrize("name", ["ann", "nobody"], ids=["a user", "an unknown name"])
    def test_the_sixth_guess_in_ten_minutes_is_refused(self, name: str, guess: Callable[..., str]) -> None:
        with freeze(START):
            answers = [guess(name=name) for _ in range(7)]

        assert answers == ["wrong"] * 5 + ["refused"] * 2

    def test_an_empty_password_is_a_guess(self, guess: Callable[..., str]) -> None:
        """Some directories accept a name with an empty password, so a list of names is tried with it."""
        with freeze(START):
            answers = [guess("") for _ in range(6)]

        assert answers == ["wrong"] * 5 + ["refused"]

    @pytest.mark.parametrize("password", ["guess", PASSWORD], ids=["a wrong one", "the right one"])
    def test_a_refused_password_is_not_hashed(
        self, password: str, guess: Callable[..., str], hashed: list[str]
    ) -> None:
        with freeze(START):
            for _ in range(5):
                guess()
            hashed.clear()

            answer = guess(password)

        assert (answer, hashed) == ("refused", [])

    @pytest.mark.parametrize(
        ("after", "answer"),
        [pytest.param(10 * MINUTE - 1, "refused", id="inside"), pytest.param(11 * MINUTE, "in", id="over")],
    )
    def test_the_right_password_is_refused_until_the_window_is_over(
        self, after: int, answer: str, guess: Callable[..., str]
    ) -> None:
        with freeze(START):
            for _ in range(7):
                guess()

        with freeze(START + after):
            assert guess(PASSWORD) == answer

    def test_success_gives_back_its_own_hit_only(self, guess: Callable[..., str]) -> None:
        with freeze(START):
            before = [guess() for _ in range(3)]
            successes = [guess(PASSWORD) for _ in range(20)]
            after = [guess() for _ in range(3)]

        assert before == ["wrong"] * 3
        assert successes == ["in"] * 20
        assert after == ["wrong", "wrong", "refused"]

    def test_an_exempt_network_is_never_locked_out(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"2/h": "username", "1/m": "ip", "exempt": ["198.51.100.0/24"]}}

        with freeze(START):
            assert [attempt(address=AWAY) for _ in range(9)] == ["wrong"] * 9

    def test_guesses_from_an_exempt_network_lock_out_nobody_else(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"2/h": "username", "1/m": "ip", "exempt": ["198.51.100.0/24"]}}

        with freeze(START):
            for _ in range(9):
                attempt(address=AWAY)
            assert [attempt() for _ in range(2)] == ["wrong", "refused"]

    def test_an_exempt_network_gets_in_while_others_are_refused(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"2/h": "username", "1/m": "ip", "exempt": ["198.51.100.0/24"]}}

        with freeze(START):
            for _ in range(3):
                attempt()
            assert attempt(PASSWORD, address=AWAY) == "in"

    def test_a_second_backend_of_ours_counts_nothing(self, guess: Callable[..., str], settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.Captcha", MODEL]

        with freeze(START):
            assert [guess() for _ in range(6)] == ["wrong"] * 5 + ["refused"]

    def test_the_other_backends_are_asked_about_the_same_request(
        self, guess: Callable[..., str], settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.Asked"]
        monkeypatch.setattr(Asked, "addresses", [])

        guess(address=AWAY)

        assert Asked.addresses == [AWAY]

    def test_without_a_request_the_limit_by_name_applies(self) -> None:
        with freeze(START):
            assert not any(authenticate(username="ann", password="guess") for _ in range(100))
            with pytest.raises(QuotaExceeded, match="login-username") as refused:
                authenticate(username="ann", password=PASSWORD)

        assert not isinstance(refused.value, LoginRefused), "no form waits for an error"

    def test_without_a_request_no_limit_by_address_applies(self) -> None:
        with freeze(START):
            assert not any(authenticate(username=f"user{number}", password="guess") for number in range(40))

    @pytest.mark.parametrize("key", [["username", "ip"], "username"], ids=["at an address", "by itself"])
    def test_every_name_among_the_credentials_is_limited(self, key: Any, settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByName"]
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {"5/10m": key}}

        with freeze(START):
            guesses = [
                authenticate(visit(), username=f"x{number}", email="ann@example.org", password="guess")
                for number in range(5)
            ]
            assert guesses == [None] * 5
            with pytest.raises(QuotaExceeded):
                authenticate(visit(), username="x9", email="ANN@example.org", password=PASSWORD)


@memory
class TestGuessesAtManyNames:
    """One address may guess at thirty names in an hour."""

    @pytest.fixture(autouse=True)
    def guessed(self, memory_store: None, ann: User, guess: Callable[..., str]) -> None:
        with freeze(START):
            for number in range(30):
                assert guess(name=f"user{number}") == "wrong"

    @pytest.mark.thorough("slow")
    def test_the_address_is_refused_for_an_hour(self, guess: Callable[..., str]) -> None:
        with freeze(START + HOUR - 1):
            assert guess(PASSWORD) == "refused"

    @pytest.mark.thorough("slow")
    def test_another_address_is_not(self, guess: Callable[..., str]) -> None:
        with freeze(START + HOUR - 1):
            assert guess(PASSWORD, address=AWAY) == "in"

    def test_the_address_gets_in_after_the_hour(self, guess: Callable[..., str]) -> None:
        with freeze(START + HOUR + MINUTE):
            assert guess(PASSWORD) == "in"


@memory
class TestGuessesFromManyAddresses:
    """A hundred wrong guesses an hour lock out a name, wherever they come from."""

    def test_a_name_gets_in_below_the_higher_limit(self) -> None:
        with freeze(START):
            found = [
                [attempt(password, address=f"198.51.100.{number}") for password in ["guess"] * 5] + [attempt(PASSWORD)]
                for number in range(19)
            ]

        assert found == [["wrong"] * 5 + ["in"]] * 19

    def test_a_name_is_refused_at_the_higher_limit(self) -> None:
        with freeze(START):
            guesses = [attempt(address=f"198.51.100.{number}") for number in range(20) for _ in range(5)]

            assert guesses == ["wrong"] * 100
            assert attempt(PASSWORD) == "refused"

    def test_another_name_is_not(self) -> None:
        with freeze(START):
            for number in range(20):
                for _ in range(5):
                    attempt(address=f"198.51.100.{number}")

            assert attempt(PASSWORD, name="bob") == "wrong"


@memory
class TestBansOfGuesses:
    @pytest.fixture(autouse=True)
    def with_bans(self, settings: Any) -> None:
        limits = {"1/m": ["username", "ip"], "3/s": "username", "ban": BAN}
        settings.QUOTA = {**settings.QUOTA, "LOGIN": limits}

    def test_bans_of_an_address_grow_to_the_longest(self, guess: Callable[..., str]) -> None:
        at, found = START, []
        for lockout in (10 * MINUTE, HOUR, 24 * HOUR, 24 * HOUR):
            with freeze(at):
                found.append([guess() for _ in range(4)])
            with freeze(at + lockout - SECOND):
                found[-1].append(guess(PASSWORD))
            at += lockout + SECOND

        assert found == [["wrong"] + ["refused"] * 4] * 4

        with freeze(at):
            assert guess(PASSWORD) == "in"

    def test_a_ban_of_an_address_leaves_the_name_to_others(self, guess: Callable[..., str]) -> None:
        with freeze(START):
            for _ in range(4):
                guess()

        with freeze(START + 10 * MINUTE - SECOND):
            assert guess(PASSWORD, address=AWAY) == "in"

    def test_a_name_alone_is_refused_but_never_banned(self, guess: Callable[..., str]) -> None:
        with freeze(START):
            answers = [guess(address=f"198.51.100.{number}") for number in range(9)]

        assert answers[-1] == "refused"
        with freeze(START + 2 * SECOND):
            assert guess(PASSWORD) == "in"

    def test_unlock_lifts_a_ban(self, guess: Callable[..., str]) -> None:
        with freeze(START):
            assert [guess() for _ in range(4)][-1] == "refused"

            unlock("ann", HOME)

            assert guess(PASSWORD) == "in"


@given(st.text(min_size=1, max_size=50))
@example(" ANN\u3000")
@example("\uff41nn")
def test_names_that_the_login_form_makes_equal_are_one_subject(name: str) -> None:
    read = UsernameField(max_length=2_000).to_python(name)
    if normalized(name):
        assert login_subject(str(read)) == login_subject(name)


SAME: dict[str, Callable[[str], str]] = {
    "upper": str.upper, "lower": str.lower, "casefold": str.casefold, "swapped": str.swapcase, "title": str.title,
    "NFC": partial(unicodedata.normalize, "NFC"), "NFKC": partial(unicodedata.normalize, "NFKC"),
}  # fmt: skip


@given(st.text(min_size=1, max_size=50))
@example("\u0131\u017fßẞ\u212a\u0130ǰᾳΣςﬁ")
@pytest.mark.parametrize("form", SAME.values(), ids=list(SAME))
def test_names_that_a_database_makes_equal_are_one_subject(form: Callable[[str], str], name: str) -> None:
    assume(name.strip())
    assert login_subject(form(name)) == login_subject(name)


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("\u0131van", "ivan"), ("\u0130VAN", "ivan"), ("I\u0307VAN", "ivan"), ("ⅳan", "ivan"),
        ("iv\u200ban", "ivan"), ("iv\xadan", "ivan"), ("iv\0an", "ivan"), (f"ivan{'x' * 1_000}", f"ivan{'x' * 2_000}"),
        (f"{' ' * 1_000}ivan", "ivan"),
    ],
)  # fmt: skip
def test_another_spelling_of_a_name_is_the_same_subject(name: str, spelt: str) -> None:
    assert login_subject(name) == login_subject(spelt)


@pytest.mark.parametrize("name", ["\u200b", "\0"])
def test_a_name_of_which_nothing_is_visible_is_a_name_of_its_own(name: str) -> None:
    assert normalized(name) == name
    assert login_subject(name) != login_subject("ivan")


@memory
def test_spelling_a_name_in_another_way_gives_no_more_guesses() -> None:
    User.objects.create_user("ivan", password=PASSWORD)
    names = ["ivan", "\u0131van", "IVAN", "\u0130van", "iv\u200ban"]
    with freeze(START):
        assert [attempt(name=name) for name in names] == ["wrong"] * 5
        assert attempt(PASSWORD, name="ivan") == "refused"


@pytest.mark.usefixtures("either_store", "ann")
class TestUnlock:
    """Three addresses are locked out of ann, and are one guess away from that for annabel."""

    ADDRESSES = (HOME, "203.0.113.10", "2001:db8::1")

    @pytest.fixture(autouse=True)
    def locked_out(self, either_store: None, ann: User) -> Iterator[None]:
        with freeze(START):
            for address in self.ADDRESSES:
                for name in ("annabel", *["ann"] * 5):
                    attempt(name=name, address=address)
                assert attempt(PASSWORD, address=address) == "refused"
            yield

    def test_unlock_with_an_address_lets_its_network_in_alone(self) -> None:
        found = unlock("ann", "2001:DB8::7")

        assert found == 2, "the pair with its network, the name alone"
        assert [attempt(PASSWORD, address=address) for address in ("2001:db8::1", HOME)] == ["in", "refused"]

    def test_unlock_without_an_address_lets_all_in(self) -> None:
        found = unlock(" ANN")

        assert found == 4, "three pairs, the name alone"
        assert [attempt(PASSWORD, address=address) for address in self.ADDRESSES] == ["in"] * 3

    def test_unlock_leaves_a_longer_name_as_it_was(self) -> None:
        unlock("ann")

        last = [[attempt(name="annabel", address=address) for _ in range(5)][-1] for address in self.ADDRESSES]

        assert last == ["refused"] * 3

    @pytest.mark.parametrize("name", ["", "  "], ids=["empty", "blanks"])
    def test_unlock_without_a_name_is_an_error(self, name: str) -> None:
        with pytest.raises(RuleError, match="An empty string is not a user name"):
            unlock(name)

    def test_unlock_reports_nothing_where_nothing_is_left(self) -> None:
        unlock("ann")

        assert unlock("ann") == 0


@memory
def test_unlock_counts_an_address_once_whatever_rates_it_has(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "LOGIN": {"5/m": ["username", "ip"], "20/h": ["username", "ip"]}}
    attempt()

    assert unlock("ann", HOME) == 1


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize(
    ("subject", "found"),
    [("login.username:ann", ["login.username:ann+ip:192.0.2.1", "login.username:ann+ip:192.0.2.2"]), ("user:7", [])],
    ids=["a user name", "another subject"],
)
def test_only_a_user_name_is_unlocked_together_with_addresses(subject: str, found: list[str]) -> None:
    for address in ("192.0.2.2", "192.0.2.1"):
        check("9/m", f"{subject}+ip:{address}")

    assert with_addresses(subject) == found


@pytest.mark.usefixtures("redis_cache", "ann")
def test_redis_gets_neither_names_nor_passwords(raw: Any) -> None:
    assert [attempt(PASSWORD), attempt("hunter2"), attempt("hunter2", name="ann@example.org")] == ["in"] + ["wrong"] * 2
    keys = list(raw.scan_iter())
    stored = b" ".join([*keys, *(raw.dump(key) for key in keys)])
    assert keys
    assert not any(secret in stored for secret in (b"ann", b"hunter2"))


@pytest.mark.usefixtures("redis_cache", "ann")
def test_of_sixty_guesses_at_once_five_are_hashed(hashed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess waits at the hasher until every other one is there too, or was refused."""
    everybody = threading.Barrier(60)

    def guess(_: int) -> None:
        try:
            if attempt() == "refused":
                everybody.wait(PATIENCE)
        finally:
            connection.close()

    monkeypatch.setattr(CountingHasher, "wait", staticmethod(lambda: everybody.wait(PATIENCE)))
    with ThreadPoolExecutor(60) as pool:
        list(pool.map(guess, range(60)))
    assert len(hashed) == 5


# --- several backends -------------------------------------------------------------------------------------------------


@memory
class TestSeveralBackends:
    @pytest.mark.parametrize(
        ("credentials", "backend"),
        [
            pytest.param({"phone": "+49 1"}, f"{HERE}.ByPhone", id="a backend with credentials of its own"),
            pytest.param({"username": "ann"}, MODEL, id="the last backend"),
        ],
    )
    def test_the_session_names_the_backend_that_accepted(
        self, credentials: dict[str, str], backend: str, settings: Any
    ) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByPhone", MODEL]
        client = Client()

        assert client.login(**credentials, password=PASSWORD)

        assert client.session["_auth_user_backend"] == backend

    @pytest.mark.parametrize("log_in", [authenticate, async_to_sync(aauthenticate)], ids=["sync", "async"])
    def test_the_session_of_a_view_names_the_backend_that_accepted(self, log_in: Any) -> None:
        request = visit()
        request.session = Client().session

        login(request, log_in(request, username="ann", password=PASSWORD))

        assert request.session["_auth_user_backend"] == MODEL

    def test_sessions_outlive_the_removal_of_our_backend(self, settings: Any) -> None:
        client, request = Client(), visit()
        assert client.login(username="ann", password=PASSWORD)
        request.session = client.session

        settings.AUTHENTICATION_BACKENDS = [MODEL]

        assert get_user(request).get_username() == "ann"

    def test_a_backend_may_end_the_search(self, guess: Callable[..., str], settings: Any, hashed: list[str]) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByName", MODEL]
        User.objects.create_user("banned", password=PASSWORD)
        hashed.clear()

        assert guess(PASSWORD, name="banned") == "wrong"

        assert hashed == []

    def test_a_guess_counts_though_a_backend_fails(self, guess: Callable[..., str], settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByName", MODEL]

        with freeze(START):
            for _ in range(5):
                with pytest.raises(RuntimeError, match="directory"):
                    guess(name="broken")
            assert guess(name="broken") == "refused"

    def test_users_of_the_other_backends_get_in(self, guess: Callable[..., str], settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByName", MODEL]

        assert guess(PASSWORD) == "in"

    def test_a_backend_with_other_credentials_is_not_asked(self, guess: Callable[..., str], settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByPhone", MODEL]

        assert guess(PASSWORD) == "in"

    def test_a_backend_that_django_has_asked_is_not_asked_again(
        self, guess: Callable[..., str], hashed: list[str], settings: Any
    ) -> None:
        settings.AUTHENTICATION_BACKENDS = [f"{HERE}.ByName", MODEL, OURS]

        assert guess() == "wrong"
        assert len(hashed) == 1

    def test_credentials_without_a_password_are_left_to_the_other_backends(self, settings: Any) -> None:
        remote = "django.contrib.auth.backends.RemoteUserBackend"
        settings.AUTHENTICATION_BACKENDS = [OURS, remote, MODEL]
        with freeze(START):
            users: list[Any] = [authenticate(visit(), remote_user="ann") for _ in range(40)]
        assert {user.backend for user in users} == {remote}

    def test_the_class_of_users_stays_as_the_site_wrote_it(self, guess: Callable[..., str]) -> None:
        assert guess(PASSWORD) == "in"
        assert not hasattr(User, "backend")

    def test_a_new_user_is_logged_in_by_the_name_of_the_backend(self) -> None:
        request, user = visit(), User.objects.create_user("new", password=PASSWORD)
        request.session = Client().session

        login(request, user, backend=MODEL)

        assert request.session["_auth_user_backend"] == MODEL

    def test_a_login_by_the_name_of_another_backend_stays_that_of_the_caller(self, settings: Any) -> None:
        settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByPhone", MODEL]
        request = visit()
        request.session = Client().session
        user: Any = authenticate(request, phone="+49 1", password=PASSWORD)

        login(request, user, backend=MODEL)

        assert request.session["_auth_user_backend"] == MODEL

    def test_a_login_without_a_session_is_signalled_as_any_other(self) -> None:
        """Packages of tokens send the signal, too."""
        user = authenticate(visit(), username="ann", password=PASSWORD)

        results = user_logged_in.send(User, request=visit(), user=user)

        assert [result for _, result in results if result is not None] == []

    def test_a_new_user_without_the_name_of_a_backend_is_an_error(self) -> None:
        request, user = visit(), User.objects.create_user("new", password=PASSWORD)
        request.session = Client().session

        with pytest.raises(ValueError, match="multiple authentication backends"):
            login(request, user)

    @pytest.mark.parametrize("find", [get_user, async_to_sync(aget_user)], ids=["sync", "async"])
    def test_a_session_that_names_ours_has_the_user_of_another_backend(self, find: Any) -> None:
        request = visit()
        request.session = Client().session
        login(request, User.objects.get(username="ann"), backend=OURS)  # as code does that has loaded the user again
        assert find(request).get_username() == "ann"

    @pytest.fixture
    def signalled(self) -> Iterator[list[Any]]:
        """The credentials of each `user_login_failed`."""
        failed: list[Any] = []

        def note(credentials: Any, **_: Any) -> None:
            failed.append(credentials)

        user_login_failed.connect(note)
        yield failed
        user_login_failed.disconnect(note)

    def test_a_wrong_password_is_signalled_once(self, signalled: list[Any]) -> None:
        assert attempt() == "wrong"

        assert signalled == [{"username": "ann", "password": "********************"}]

    def test_a_refusal_is_not_signalled(self, signalled: list[Any]) -> None:
        with freeze(START):
            assert [attempt() for _ in range(7)].count("refused") == 2

        assert len(signalled) == 5

    @pytest.mark.parametrize(
        "backends",
        [
            pytest.param([OURS, f"{HERE}.ByName"], id="another backend fails"),
            pytest.param([OURS, f"{HERE}.WithoutLogins"], id="another backend has no method for it"),
            pytest.param([f"{HERE}.OursByNobody", MODEL], id="a subclass fails to say who it is"),
        ],
    )
    def test_a_report_of_an_error_has_no_password(
        self, backends: list[str], guess: Callable[..., str], settings: Any
    ) -> None:
        settings.AUTHENTICATION_BACKENDS = backends

        with pytest.raises((RuntimeError, AttributeError)) as caught:
            guess("hunter2", name="broken")

        shown, trace = [], caught.value.__traceback__
        while trace is not None:
            if "django_quota" in trace.tb_frame.f_code.co_filename and "tests" not in trace.tb_frame.f_code.co_filename:
                shown.append(trace)
            trace = trace.tb_next
        reports = []
        for each in shown:
            each.tb_next = None
            reports.append(ExceptionReporter(visit(), caught.type, caught.value, each).get_traceback_html())
        assert reports
        assert [report for report in reports if "hunter2" in report] == []


@pytest.mark.parametrize(
    ("credentials", "names"),
    [
        pytest.param(
            {"phone": "+49 1", "email": "ann@example.org", "username": "ann", "password": "x"},
            ["ann", "ann@example.org", "+49 1"],
            id="all",
        ),
        pytest.param({"username": " ", "email": None, "phone": ""}, [], id="none"),
        pytest.param({"customer": "7"}, [], id="others"),
    ],
)
def test_the_names_of_a_login_are_those_of_its_credentials(credentials: dict[str, Any], names: list[str]) -> None:
    assert LoginQuotaBackend().user_names(credentials) == names


@pytest.mark.usefixtures("database")
def test_the_names_of_a_login_have_the_name_of_the_users_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(User, "USERNAME_FIELD", "last_name")

    assert LoginQuotaBackend().user_names({"last_name": "roe", "password": "x"}) == ["roe"]


@pytest.mark.usefixtures("database")
def test_a_user_whom_no_other_backend_has_is_nobody(ann: User, settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.WithoutLogins", f"{HERE}.ByPhone", MODEL]

    assert [LoginQuotaBackend().get_user(key) for key in (ann.pk, ann.pk + 1)] == [ann, None]


@pytest.mark.usefixtures("database")
def test_the_first_of_two_backends_that_have_a_user_is_the_one_that_finds_it(ann: User, settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = [OURS, f"{HERE}.ByMail", MODEL]

    assert LoginQuotaBackend().get_user(ann.pk) == "ann of the mails"


# --- forms and pages --------------------------------------------------------------------------------------------------


@pytest.fixture
def site(ann: User, memory_store: None, settings: Any) -> Client:
    settings.ROOT_URLCONF = HERE
    settings.SIMPLE_JWT = {"SIGNING_KEY": "only for tests, and long enough for HS256"}
    return Client(REMOTE_ADDR=HOME)


def log_in_page(request: HttpRequest) -> HttpResponse:
    """A view that asks without a form, as many APIs do."""
    user = authenticate(request, username=request.POST["username"], password=request.POST["password"])
    return HttpResponse("in" if user else "wrong", status=200 if user else 401)


async def async_log_in_page(request: HttpRequest) -> HttpResponse:
    user = await aauthenticate(request, username=request.POST["username"], password=request.POST["password"])
    return HttpResponse("in" if user else "wrong", status=200 if user else 401)


urlpatterns = [
    path("admin/", admin.site.urls),
    path("accounts/login/", LoginView.as_view(template_name="admin/login.html")),
    path("async/", async_log_in_page),
    path("jwt/", TokenObtainPairView.as_view()),
]


@dataclass
class Way:
    """A way to log in, with the statuses that it answers."""

    url: str
    right: int
    wrong: int
    without_middleware: int | None = None  # of a refusal; None where the error reaches the handler


WAYS = [
    Way("/admin/login/?next=/admin/", right=302, wrong=200, without_middleware=200),
    Way("/accounts/login/", right=302, wrong=200, without_middleware=200),
    Way("/async/", right=200, wrong=401),
    Way("/jwt/", right=200, wrong=401, without_middleware=400),
]


def send(client: Client, url: str, password: str = "guess", **more: Any) -> Any:
    return client.post(url, {"username": "ann", "password": password, **more})


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.url)
@pytest.mark.usefixtures("at_one_time")
class TestWaysToLogIn:
    def guess_too_often(self, site: Client, way: Way) -> None:
        for _ in range(6):
            send(site, way.url)

    def test_the_right_password_never_counts(self, way: Way, site: Client) -> None:
        assert [send(site, way.url, PASSWORD).status_code for _ in range(6)] == [way.right] * 6

    def test_the_sixth_guess_is_refused(self, way: Way, site: Client) -> None:
        assert [send(site, way.url).status_code for _ in range(6)] == [way.wrong] * 5 + [429]

    def test_the_right_password_is_refused_after_too_many_guesses(self, way: Way, site: Client) -> None:
        self.guess_too_often(site, way)

        assert send(Client(REMOTE_ADDR=HOME), way.url, PASSWORD).status_code == 429

    def test_another_address_gets_in(self, way: Way, site: Client) -> None:
        self.guess_too_often(site, way)

        assert send(Client(REMOTE_ADDR=AWAY), way.url, PASSWORD).status_code == way.right

    def test_a_refusal_says_until_when(self, way: Way, site: Client) -> None:
        self.guess_too_often(site, way)

        refused = send(Client(REMOTE_ADDR=HOME, HTTP_ACCEPT="text/html, */*;q=0.1"), way.url, PASSWORD)

        assert refused.headers["Retry-After"] == "600"
        assert "Please try again in 10 minutes." in refused.content.decode()

    def test_a_refusal_does_not_show_the_name(self, way: Way, site: Client) -> None:
        self.guess_too_often(site, way)

        refused = send(Client(REMOTE_ADDR=HOME, HTTP_ACCEPT="text/html, */*;q=0.1"), way.url, PASSWORD)

        assert "ann" not in refused.content.decode()


@pytest.mark.parametrize("way", [way for way in WAYS if way.without_middleware], ids=lambda way: way.url)
def test_without_the_middleware_the_form_says_until_when(way: Way, site: Client, settings: Any) -> None:
    settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "quota" not in path]
    with freeze(START):
        for _ in range(5):
            send(site, way.url)

        refused = send(site, way.url, PASSWORD)

    assert refused.status_code == way.without_middleware
    assert "Please try again in 10 minutes." in refused.content.decode()


@memory
class TestRefusalsWithoutTheMiddleware:
    def posted(self) -> HttpRequest:
        return RequestFactory().post("/", {"username": "ann", "password": "guess"})

    def test_a_decorator_answers_a_refusal(self) -> None:
        with freeze(START):
            found = [quota(None)(log_in_page)(self.posted()).status_code for _ in range(6)]

        assert found == [401] * 5 + [429]

    def test_the_error_says_why(self) -> None:
        with freeze(START):
            for _ in range(5):
                log_in_page(self.posted())

            with pytest.raises(LoginRefused, match="Rule 'login-username-ip' admits 5 per 10 minutes"):
                log_in_page(self.posted())

    def test_the_error_is_one_of_a_form_with_its_code(self) -> None:
        with freeze(START):
            for _ in range(5):
                log_in_page(self.posted())

            with pytest.raises(LoginRefused) as refused:
                log_in_page(self.posted())

        assert refused.value.code == "too_many_logins"
        assert refused.value.messages == [
            "Too many failed logins: the limit is 5 per 10 minutes. Please try again in 10 minutes."
        ]


class Captcha(LoginQuotaBackend):
    """Stands for the backend of the page."""


class AlwaysAsking(LoginQuotaBackend):
    """A backend for which each attempt needs a CAPTCHA."""

    def needs_captcha(self, request: HttpRequest, decision: Any) -> bool:
        return True


class AskingTheDatabase(LoginQuotaBackend):
    """A backend that looks into the database whether an attempt needs a CAPTCHA."""

    def needs_captcha(self, request: HttpRequest, decision: Any) -> bool:
        return not User.objects.exists()


@memory
def test_the_database_may_say_whether_an_attempt_needs_a_captcha(guess: Callable[..., str], settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = [f"{HERE}.AskingTheDatabase", MODEL]

    assert guess(PASSWORD) == "in"


@memory
@pytest.mark.parametrize("log_in", [authenticate, async_to_sync(aauthenticate)], ids=["sync", "async"])
def test_code_without_a_request_needs_no_captcha(log_in: Any, settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = [f"{HERE}.AlwaysAsking", MODEL]

    assert log_in(username="ann", password=PASSWORD).username == "ann"


class TestTheCaptchaOfThePage:
    """Above three guesses the page asks for a CAPTCHA; three guesses later it refuses."""

    URL = "/accounts/login/"

    @pytest.fixture(autouse=True)
    def guessed(self, site: Client, settings: Any, monkeypatch: Any, hashed: list[str]) -> Iterator[None]:
        with freeze(START):
            names = run_page("docs/logins.md")
            monkeypatch.setattr(f"{HERE}.Captcha", names["LoginsWithCaptcha"])
            monkeypatch.setattr(LoginView, "authentication_form", names["LoginForm"])
            settings.AUTHENTICATION_BACKENDS = [f"{HERE}.Captcha", MODEL]
            hashed.clear()
            assert [send(site, self.URL).status_code for _ in range(3)] == [200] * 3
            yield

    def test_the_form_asks_for_it(self, site: Client) -> None:
        reply = send(site, self.URL, PASSWORD)

        assert "Please solve the CAPTCHA." in reply.content.decode()
        assert "captcha" in reply.context["form"].fields

    def test_without_it_no_password_is_hashed(self, site: Client, hashed: list[str]) -> None:
        assert [send(site, self.URL, PASSWORD).status_code for _ in range(4)] == [200] * 4

        assert len(hashed) == 3

    def test_a_page_that_cannot_ask_for_it_refuses(self, site: Client) -> None:
        assert send(site, "/async/", PASSWORD).status_code == 429

    @pytest.mark.parametrize("url", [URL, "/async/"], ids=["sync", "async"])
    def test_an_attempt_without_it_does_not_count(self, url: str, site: Client) -> None:
        for _ in range(4):
            send(site, url, PASSWORD)

        assert send(site, self.URL, PASSWORD, captcha="seven").status_code == 302

    def test_the_right_password_gets_in_with_it(self, site: Client) -> None:
        assert send(site, self.URL, PASSWORD, captcha="seven").status_code == 302

    def test_the_error_that_code_gets_says_so(self, rf: RequestFactory) -> None:
        with pytest.raises(CaptchaRequired) as raised:
            authenticate(rf.post(self.URL, REMOTE_ADDR=HOME), username="ann", password=PASSWORD)

        assert str(raised.value) == f"A CAPTCHA is needed first. {raised.value.decision.explain()}"
        assert raised.value.decision.allowed

    def test_a_serializer_has_its_code(self, site: Client, rf: RequestFactory) -> None:
        request = rf.post("/jwt/", REMOTE_ADDR=HOME)
        serializer = TokenObtainPairSerializer(
            data={"username": "ann", "password": PASSWORD}, context={"request": request}
        )

        assert not serializer.is_valid()
        assert [error.code for errors in serializer.errors.values() for error in errors] == ["captcha_required"]

    def test_a_page_of_a_serializer_answers_with_400(self, site: Client) -> None:
        assert send(site, "/jwt/", PASSWORD).status_code == 400

    def test_guesses_with_it_count_to_the_second_threshold(self, site: Client) -> None:
        for _ in range(4):
            send(site, self.URL, PASSWORD)  # without it, these do not count

        found = [send(site, self.URL, captcha="seven").status_code for _ in range(3)]

        assert found == [200, 200, 429]


class TestThePageAboutLogins:
    @pytest.fixture
    def names(self, site: Client) -> dict[str, Any]:
        with freeze(START):
            return run_page("docs/logins.md")

    def test_its_settings_are_the_defaults(self, names: dict[str, Any]) -> None:
        assert names["QUOTA"]["LOGIN"] == DEFAULT_LOGIN

    def test_its_backends_are_ours_before_that_of_django(self, names: dict[str, Any]) -> None:
        assert names["AUTHENTICATION_BACKENDS"] == [OURS, MODEL]

    def test_its_ban_is_for_limits_by_address(self) -> None:
        ban = marked("docs/logins.md", "ban")["QUOTA"]["LOGIN"]

        assert [rule.ban is None for rule in login_rules(ban, "local")] == [False, True, False]

    def test_its_backend_limits_credentials_of_the_site(self, names: dict[str, Any]) -> None:
        limited, sent = names["LimitedLogins"](), {"customer_number": 7, "sms_code": "1"}

        assert limited.is_limited(sent)
        assert limited.user_names(sent) == ["7"]

    def test_its_view_unlocks_the_address_of_a_reset_by_mail(
        self, names: dict[str, Any], ann: User, site: Client, settings: Any
    ) -> None:
        view = names["UnlockingReset"].as_view(success_url="/done/")
        route = path("reset/<uidb64>/<token>/", view, name="password_reset_confirm")
        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [route]})
        words = {"new_password1": "new right horse", "new_password2": "new right horse"}
        with freeze(START):
            locked = [[attempt(address=address) for _ in range(6)][-1] for address in (HOME, AWAY)]
            assert locked == ["refused", "refused"]
            link = f"/reset/{urlsafe_base64_encode(force_bytes(ann.pk))}/{default_token_generator.make_token(ann)}/"

            page = site.get(link).headers["Location"]
            assert site.post(page, words).headers["Location"] == "/done/"

            assert [attempt("new right horse", address=address) for address in (HOME, AWAY)] == ["in", "refused"]


# --- settings and checks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name", "rates", "key"),
    [
        pytest.param(
            {"5/10m": ["ip", "username"], "20/d": ("username", "ip")},
            "login-username-ip", ["5/10m", "20/d"], ("login:username", "ip"), id="both, in either order",
        ),
        pytest.param({"30/h; 200/d": "ip"}, "login-ip", ["30/h", "200/d"], "ip", id="two rates of one string"),
        pytest.param({"100/h": ["username"]}, "login-username", ["100/h"], "login:username", id="a list of one"),
    ],
)  # fmt: skip
def test_limits_with_the_same_key_are_one_rule(given: Any, name: str, rates: list[str], key: Any) -> None:
    (rule,) = login_rules(given, "local")

    assert rule.name == name
    assert [str(rate) for rate in rule.rates] == rates
    assert rule.key == key


def test_limits_with_different_keys_are_rules_in_the_order_of_the_setting() -> None:
    given = {"5/10m": ["ip", "username"], "30/h": "ip", "20/d": ("username", "ip"), "100/h": ["username"]}

    assert [rule.name for rule in login_rules(given, "local")] == ["login-username-ip", "login-ip", "login-username"]


wrong_settings = pytest.mark.parametrize(
    ("given", "says"),
    [
        pytest.param(
            "5/10m",
            r'QUOTA\["LOGIN"\] is \'5/10m\', not a dict of limits. Use, for example, {\'5/10m\': \[',
            id="a string",
        ),
        pytest.param(
            {"on_unavailable": "deny"}, r'QUOTA\["LOGIN"\] has no limit\. Use, for example', id="options alone"
        ),
        pytest.param({"5/x": "ip"}, r"""QUOTA\["LOGIN"\]: '5/x' .*'x' is not a unit""", id="a wrong rate"),
        pytest.param({"5/10m": ["ip", "ip"]}, r"is \['ip', 'ip'\]. Use", id="a key twice"),
        pytest.param(
            {"5/10m": "ip", "on_unavailble": "deny"},
            r"has 'on_unavailble', .* Did you mean 'on_unavailable'\?",
            id="an unknown option",
        ),
        pytest.param(
            {"5/h": "ip", "on_unavailable": "perhaps"}, r'QUOTA\["LOGIN"\]: .*perhaps', id="a wrong value of an option"
        ),
        pytest.param(
            {"5/h": "ip", "exempt": "staff"},
            r"has exempt='staff', but nobody is logged in yet. Name networks",
            id="a group that is exempt",
        ),
        pytest.param(
            {"50/h": "username", "ban": BAN},
            r'QUOTA\["LOGIN"\] has "ban", but no limit by "ip"',
            id="a ban by name alone",
        ),
    ],
)


@wrong_settings
def test_a_wrong_setting_is_an_error_that_says_what_to_write(given: object, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        login_rules(given, "local")


@wrong_settings
def test_the_checks_find_a_wrong_setting(given: object, says: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "LOGIN": given}

    assert [found.id for found in run_checks(tags=["django_quota"])] == ["django_quota.E002", "django_quota.W022"]


def test_a_wrong_setting_is_found_beside_our_backend(settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = [OURS, MODEL]
    settings.QUOTA = {**settings.QUOTA, "LOGIN": {"5/x": "ip"}}

    assert [found.id for found in run_checks(tags=["django_quota"])] == ["django_quota.E002"]


class TestWhileRedisIsAway:
    """Two guesses in an hour, by name at an address."""

    LIMITS = MappingProxyType({"2/h": ["username", "ip"]})

    @pytest.mark.parametrize(
        ("on_unavailable", "expected"),
        [("allow", ["wrong"] * 3), ("deny", ["refused"] * 3), ("local", ["wrong", "wrong", "refused"])],
    )
    def test_the_option_decides_on_guesses(
        self, on_unavailable: str, expected: list[str], ann: User, settings: Any, hashed: list[str]
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {**self.LIMITS, "on_unavailable": on_unavailable}}

        with no_answer():
            assert [attempt() for _ in range(3)] == expected

        assert len(hashed) == expected.count("wrong")

    @pytest.mark.parametrize(
        ("on_unavailable", "answer", "status"),
        [("allow", "in", 200), ("deny", "refused", 503), ("local", "refused", 429)],
    )
    def test_the_option_decides_on_later_attempts(
        self, on_unavailable: str, answer: str, status: int, site: Client, settings: Any
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {**self.LIMITS, "on_unavailable": on_unavailable}}

        with no_answer():
            for _ in range(3):
                attempt()

            assert attempt(PASSWORD) == answer
            assert send(site, "/accounts/login/").status_code == status

    @pytest.mark.parametrize(
        ("setting", "expected"),
        [
            pytest.param({}, ["wrong", "wrong", "refused"], id="not set"),
            pytest.param({"ON_UNAVAILABLE": "allow"}, ["wrong", "wrong", "refused"], id="allow"),
            pytest.param({"ON_UNAVAILABLE": "deny"}, ["refused"] * 3, id="deny"),
        ],
    )
    def test_logins_count_in_the_process_unless_the_setting_denies(
        self, setting: dict[str, str], expected: list[str], ann: User, settings: Any, hashed: list[str]
    ) -> None:
        settings.QUOTA = {**settings.QUOTA, **setting, "LOGIN": dict(self.LIMITS)}

        with no_answer():
            assert [attempt() for _ in range(3)] == expected

        assert len(hashed) == expected.count("wrong")

    def test_the_right_password_asks_the_store_once(
        self, ann: User, settings: Any, guess: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing was taken, so nothing has to be given back: that would wait for the store once more."""
        settings.QUOTA = {**settings.QUOTA, "LOGIN": {**self.LIMITS, "on_unavailable": "allow"}}
        asked: list[object] = []

        with no_answer():
            spy(monkeypatch, before=asked.append, background=False)
            assert guess(PASSWORD) == "in"

        assert len(asked) == 1


@pytest.mark.parametrize(
    ("backends", "login", "found"),
    [
        pytest.param(
            [OURS, f"{HERE}.ByPhone", MODEL], {"5/10m": ["username", "ip"], "50/h": "username"}, [], id="ours is first"
        ),
        pytest.param([MODEL], None, [], id="no limits, not ours"),
        pytest.param([f"{HERE}.ByPhone", OURS, MODEL], None, ["E017"], id="ours is second"),
        pytest.param(
            [OURS, "axes.backends.AxesStandaloneBackend"], None, ["E018", "W020"], id="ours beside django-axes alone"
        ),
        pytest.param([MODEL], {"5/10m": "ip"}, ["W022"], id="limits, not ours"),
        pytest.param(
            ["axes.backends.AxesBackend", OURS, MODEL],
            None,
            ["W020"],
            id="django-axes above ours, which is no password",
        ),
        pytest.param([OURS, MODEL], {"5/10m": "username"}, ["W019"], id="a low limit by name alone"),
        pytest.param([OURS, MODEL], {"20/10m": "username"}, ["W019"], id="a limit by name that a person reaches"),
        pytest.param([OURS, MODEL], {"21/10m": "username"}, [], id="a limit by name that a person does not reach"),
        pytest.param(
            [OURS, MODEL], {"30/10m": ["username", "ip"], "30/h": "username"}, ["W019"], id="no higher limit by name"
        ),
        pytest.param([OURS, MODEL], {"30/10m": ["username", "ip"], "31/h": "username"}, [], id="a higher one by name"),
        pytest.param([OURS, MODEL], {"5/10m; 100/h": "username"}, ["W019"], id="two rates by name, one of them low"),
        pytest.param(
            [OURS, MODEL],
            {"5/10m; 50/h": ["username", "ip"], "30/h": "username"},
            [],
            id="higher by name than the lowest of two",
        ),
        pytest.param([OURS, MODEL], {"5/10m": "ip", "on_unavailable": "allow"}, ["W044"], id="fails open"),
        pytest.param([OURS, MODEL], {"5/10m": "ip", "on_unavailable": "local"}, [], id="counts in the process"),
        pytest.param([f"{HERE}.Captcha", "nowhere.Backend", MODEL], None, [], id="a subclass of ours"),
        pytest.param([OURS, f"{HERE}.made_backend"], None, [], id="a function that makes a backend"),
        pytest.param([OURS, MODEL, f"{HERE}.Captcha"], None, [], id="a second one of ours at the end"),
    ],
)
class TestChecks:
    def test_the_checks_find_what_is_wrong(
        self, backends: list[str], login: Any, found: list[str], settings: Any
    ) -> None:
        settings.AUTHENTICATION_BACKENDS = backends
        settings.QUOTA = {**settings.QUOTA, **({} if login is None else {"LOGIN": login})}

        messages = run_checks(tags=["django_quota"])

        assert [str(each.id).removeprefix("django_quota.") for each in messages] == found
        assert all(each.hint for each in messages)

    def test_w023_our_backend_has_no_middleware(
        self, backends: list[str], login: Any, found: list[str], settings: Any
    ) -> None:
        settings.AUTHENTICATION_BACKENDS = backends
        settings.QUOTA = {**settings.QUOTA, **({} if login is None else {"LOGIN": login})}
        settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if "QuotaMiddleware" not in path]

        messages = [each for each in run_checks(tags=["django_quota"]) if each.id == "django_quota.W023"]

        text = (
            "AUTHENTICATION_BACKENDS has LoginQuotaBackend, but MIDDLEWARE has no QuotaMiddleware: a refused login is "
            "an error of its form, with status 200, and an exception where there is no form."
        )
        hint = "Add 'django_quota.middleware.QuotaMiddleware' to MIDDLEWARE, below AuthenticationMiddleware."
        assert [(each.msg, each.hint) for each in messages] == [(text, hint)] * (backends != [MODEL])


@pytest.mark.parametrize(
    ("backends", "login", "code", "text", "hint"),
    [
        pytest.param(
            [f"{HERE}.ByPhone", OURS, MODEL],
            {},
            "E017",
            f"AUTHENTICATION_BACKENDS has '{HERE}.ByPhone' above '{OURS}': it checks passwords without a limit.",
            f"Put '{OURS}' first.",
            id="E017",
        ),
        pytest.param(
            [OURS],
            {},
            "E018",
            f"AUTHENTICATION_BACKENDS has no backend below '{OURS}': nobody can log in.",
            "Add, for example, 'django.contrib.auth.backends.ModelBackend'.",
            id="E018",
        ),
        pytest.param(
            ["axes.backends.AxesBackend", OURS, MODEL],
            {},
            "W020",
            "AUTHENTICATION_BACKENDS has a backend of django-axes too: both count failed logins, and the stricter one "
            "refuses.",
            "Remove django-axes, or keep it for its log alone, with AXES_LOCK_OUT_AT_FAILURE = False.",
            id="W020",
        ),
        pytest.param(
            [OURS, MODEL],
            {"LOGIN": {"20/10m": "username"}},
            "W019",
            'QUOTA["LOGIN"] limits a user name to 20 failed logins from all addresses together: anybody who knows the '
            "name can lock its owner out.",
            "Use ['username', 'ip'] for the low limit, and a higher one for 'username', for example '100/h'.",
            id="W019",
        ),
        pytest.param(
            [OURS, MODEL],
            {"LOGIN": {"5/10m": "ip", "on_unavailable": "allow"}},
            "W044",
            'QUOTA["LOGIN"] has on_unavailable="allow": it fails open. While the store does not answer, anybody may '
            "guess passwords without a limit.",
            'Remove on_unavailable: then each process counts by itself ("local"). Or use "deny".',
            id="W044",
        ),
    ],
)
def test_a_check_says_what_is_wrong_with_what_to_do(
    backends: list[str], login: dict[str, Any], code: str, text: str, hint: str, settings: Any
) -> None:
    settings.AUTHENTICATION_BACKENDS = backends
    settings.QUOTA = {**settings.QUOTA, **login}

    found = [(each.msg, each.hint) for each in run_checks(tags=["django_quota"]) if each.id == f"django_quota.{code}"]

    assert found == [(text, hint)]


@pytest.mark.parametrize(
    ("apps", "backends", "is_found"),
    [
        pytest.param([], [OURS, MODEL], True, id="axes was replaced"),
        pytest.param(["axes"], [OURS, MODEL], False, id="axes keeps its log"),
        pytest.param(["axes.apps.AppConfig"], [OURS, MODEL], False, id="axes by its config"),
        pytest.param([], [MODEL], False, id="our backend is not used"),
        pytest.param([], ["axes.backends.AxesBackend", OURS, MODEL], False, id="a backend of axes is there"),
    ],
)
def test_w048_a_setting_of_axes_without_axes_is_found(
    apps: list[str], backends: list[str], is_found: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AUTHENTICATION_BACKENDS = backends
    settings.AXES_FAILURE_LIMIT, settings.AXES_ENABLED = 5, True
    listed = [*settings.INSTALLED_APPS, *apps]
    monkeypatch.setitem(vars(conf.settings), "INSTALLED_APPS", listed)  # the check reads only the names

    messages = [each for each in run_checks(tags=["django_quota"]) if each.id == "django_quota.W048"]

    assert [each.msg for each in messages] == [
        "AXES_ENABLED, AXES_FAILURE_LIMIT: settings of django-axes, which is not installed, have no effect."
    ] * is_found
    hint = 'Remove them. QUOTA["LOGIN"] has the limits, QUOTA["TRUSTED_PROXIES"] the proxies.'
    assert [each.hint for each in messages] == [hint] * is_found


# --- what operators do ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_cache", "ann")
class TestCommands:
    """Two addresses are locked out of ann."""

    OTHER = "203.0.113.10"

    @pytest.fixture(autouse=True)
    def locked_out(self, redis_cache: Any, ann: User) -> Iterator[None]:
        with freeze(START):
            for address in (HOME, self.OTHER):
                for _ in range(6):
                    attempt(address=address)
            yield

    def test_the_status_of_an_address_shows_the_name_that_is_refused_there(self, capsys: Any) -> None:
        call_command("quota_status", HOME)

        assert f"{login_subject('ann')}+ip:{HOME} is refused by login-username-ip" in capsys.readouterr().out

    def test_a_reset_of_a_name_lists_the_name_at_each_address(self, capsys: Any) -> None:
        call_command("quota_reset", "login:username= Ann")

        done = capsys.readouterr().out.splitlines()
        assert done[0] == f"Reset login-username for {login_subject('ann')}"
        assert len(done) == 3, "the name, then the name at both addresses"

    @pytest.mark.parametrize("address", [HOME, OTHER])
    def test_a_reset_of_a_name_lets_each_address_in(self, address: str) -> None:
        call_command("quota_reset", "login:username= Ann")

        assert attempt(PASSWORD, address=address) == "in"


@memory
class TestAdmin:
    """Ann is locked out at one address."""

    URL = "/admin/django_quota/subject/"

    @pytest.fixture
    def client(self, memory_store: None, ann: User) -> Iterator[Client]:
        client = superuser()
        with freeze(START):
            for _ in range(6):
                attempt()
            yield client

    def found(self, client: Client, text: str) -> str:
        page = client.post(self.URL, {"find": text}, follow=True).content.decode()
        return unescape(re.sub(" class=[^>]*", "", page))

    @pytest.mark.parametrize(
        "text",
        [
            pytest.param("ann", id="the name"),
            pytest.param("login:username=ANN", id="the name as a key"),
            pytest.param(HOME, id="the address"),
        ],
    )
    def test_a_search_finds_the_lock_out(self, text: str, client: Client) -> None:
        shown = self.found(client, text)

        assert "?subject=" + quote(f"{login_subject('ann')}+ip:{HOME}", safe="") in shown
        assert f"Failed logins of ann at {HOME}</a>: <strong>refused by login-username-ip until" in shown

    def test_a_reset_ends_the_lock_out(self, client: Client) -> None:
        subject = f"{login_subject('ann')}+ip:{HOME}"

        client.post(f"{self.URL}action/reset/", {"subject": subject, "on": "*", "confirmed": "yes"})

        assert "refused by login-username-ip until" not in self.found(client, HOME)
        assert attempt(PASSWORD) == "in"


# --- user names that are not strings ----------------------------------------------------------------------------------


@pytest.fixture
def numbered(ann: User, memory_store: None, monkeypatch: pytest.MonkeyPatch) -> User:
    """Users log in by a number."""
    monkeypatch.setattr(User, "USERNAME_FIELD", "id")
    return ann


def test_a_number_is_one_name_however_it_is_written(numbered: User, guess: Callable[..., str]) -> None:
    number = numbered.pk
    names: list[Any] = [number, str(number), f"00{number}", f" +{number} ", chr(0x660 + number)]

    with freeze(START):
        assert [guess(name=name) for name in names] == ["wrong"] * 5
        assert guess(PASSWORD, name=str(number)) == "refused"


def test_a_number_that_no_field_holds_is_the_name_that_it_is_written_as(numbered: User) -> None:
    assert login_subject(float("inf")) == login_subject("inf")


def test_a_number_is_unlocked(numbered: User, guess: Callable[..., str]) -> None:
    with freeze(START):
        for _ in range(6):
            guess(name=str(numbered.pk))

        assert unlock(numbered.pk, HOME) == 2

        assert guess(PASSWORD, name=str(numbered.pk)) == "in"


class TestUsersWhoseNameIsANumber:
    def test_the_page_of_a_user_links_their_failed_logins(self, numbered: User) -> None:
        with freeze(START):
            attempt(name=str(numbered.pk))

            page = superuser().get("/admin/django_quota/subject/", {"subject": f"user:{numbered.pk}"})

        assert page.status_code == 200
        assert quote(login_subject(numbered.pk), safe="") in page.content.decode()

    def test_a_search_for_a_word_answers(self, numbered: User) -> None:
        page = superuser().post("/admin/django_quota/subject/", {"find": "ann"}, follow=True)

        assert page.status_code == 200

    @pytest.mark.parametrize("text", ["ann", "9" * 40], ids=["a word", "a number that is too long"])
    def test_nobody_is_found_by(self, text: str, numbered: User) -> None:
        assert find_users(text) == []

    @pytest.mark.parametrize("form", ["0{}", "ann@example.org"], ids=["the number", "the email address"])
    def test_a_user_is_found_by(self, form: str, numbered: User) -> None:
        assert find_users(form.format(numbered.pk)) == [numbered]

    def test_their_name_is_shown_as_a_string(self, numbered: User) -> None:
        assert user_names([f"user:{numbered.pk}"]) == {f"user:{numbered.pk}": str(numbered.pk)}


# --- django-allauth ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough("processes")
@pytest.mark.parametrize("middleware", ["with", "without"])
def test_allauth_is_limited_as_the_page_shows(middleware: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.contrib.login_site", middleware]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    is_limited = middleware == "with"
    assert json.loads(done.stdout) == {
        "guesses": [200] * 5 + [429],
        "page": True,
        "retry_after": "600",
        "by_name": [302, MODEL],
        "by_email": [302, "allauth.account.auth_backends.AuthenticationBackend"],
        "many": [302] * 12,
        "locked": [429] * 4,
        "reset": 302,
        "after": [302, 429, 302, 429],  # only at the address where the password was set
        # The shown rules need the middleware; allauth itself limits none of these.
        "sign_ups": [200] * 20 + [429 if is_limited else 200] * 40,  # all at once
        "looks": 200,
        "resets": [302] * 4 + [429 if is_limited else 302],
        "mails": 5 if is_limited else 6,
    }
