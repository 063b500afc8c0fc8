"""The adapter for django-allauth beside a stand-in for it; `make test-all` runs the pages of the package itself."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.dispatch import Signal
from django.test import RequestFactory

from django_quota.exceptions import QuotaExceeded
from django_quota.testing import freeze
from tests.support.modules import read_again
from tests.support.outages import no_answer
from tests.support.steps import START

PASSWORD, HOME, AWAY = "right horse", "203.0.113.9", "198.51.100.7"


class Adapter:
    """What allauth's own adapter does."""

    def authenticate(self, request: Any, **credentials: Any) -> Any:
        return authenticate(request, **credentials)

    def pre_authenticate(self, request: Any, **credentials: Any) -> None:
        raise AssertionError("the limit of allauth itself is asked")


class ImmediateHttpResponse(Exception):  # noqa: N818 — its name in allauth
    def __init__(self, response: Any) -> None:
        self.response = response


@pytest.fixture
def allauth(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The adapter of a site, and the signal of a password reset.

    The module is not imported by its name: so no other test finds the one that knows the stand-ins.
    """
    reset = Signal()
    stand_ins: dict[str, dict[str, Any]] = {
        "allauth": {},
        "allauth.account": {},
        "allauth.account.adapter": {"DefaultAccountAdapter": Adapter},
        "allauth.account.signals": {"password_reset": reset},
        "allauth.core": {},
        "allauth.core.exceptions": {"ImmediateHttpResponse": ImmediateHttpResponse},
    }
    for name, members in stand_ins.items():
        stand_in = ModuleType(name)
        vars(stand_in).update(members)
        monkeypatch.setitem(sys.modules, name, stand_in)
    module = read_again("django_quota.contrib.allauth")
    return SimpleNamespace(adapter=module.LoginQuotaAdapter(), reset=reset)


@pytest.fixture(autouse=True)
def ann(memory_store: None, database: Any, settings: Any) -> Iterator[Any]:
    settings.AUTHENTICATION_BACKENDS = [
        "django_quota.contrib.auth.LoginQuotaBackend",
        "django.contrib.auth.backends.ModelBackend",
    ]
    user: Any = User.objects.create_user("ann", "ann@example.org", PASSWORD)
    user.emailaddress_set = SimpleNamespace(values_list=lambda *_, **__: ["ann@work.example"])
    with freeze(START):
        yield user


def request_from(address: str) -> Any:
    return RequestFactory().post("/accounts/login/", REMOTE_ADDR=address, headers={"Accept": "text/plain"})


def guess(allauth: Any, times: int, name: str = "ann", address: str = HOME) -> None:
    for _ in range(times):
        assert allauth.adapter.authenticate(request_from(address), username=name, password="guess") is None


def is_refused(name: str, address: str) -> bool:
    try:
        authenticate(request_from(address), username=name, password=PASSWORD)
    except QuotaExceeded:
        return True
    return False


def test_the_right_password_logs_in(allauth: Any, ann: User) -> None:
    assert allauth.adapter.authenticate(request_from(HOME), username="ann", password=PASSWORD) == ann


def test_the_limit_of_allauth_itself_is_off(allauth: Any) -> None:
    allauth.adapter.pre_authenticate(request_from(HOME), username="ann")


class TestTheSixthGuess:
    @pytest.fixture
    def sixth(self, allauth: Any) -> SimpleNamespace:
        """The request of the sixth guess, and the response that refuses it."""
        guess(allauth, 5)
        request = request_from(HOME)
        with pytest.raises(ImmediateHttpResponse) as refused:
            allauth.adapter.authenticate(request, username="ann", password="guess")
        return SimpleNamespace(request=request, response=refused.value.response)

    def test_is_answered_with_a_429(self, sixth: SimpleNamespace) -> None:
        assert sixth.response.status_code == 429

    def test_may_be_made_again_after_ten_minutes(self, sixth: SimpleNamespace) -> None:
        assert sixth.response.headers["Retry-After"] == "600"

    def test_has_the_decision_on_its_request(self, sixth: SimpleNamespace) -> None:
        assert sixth.request.quota.rule == "login-username-ip"


class TestAPasswordResetByMail:
    @pytest.mark.parametrize("name", ["ann", "ann@example.org", "ann@work.example"])
    def test_it_unlocks_each_name_of_the_user(self, name: str, allauth: Any, ann: User) -> None:
        guess(allauth, 5, name)
        assert is_refused(name, HOME)

        allauth.reset.send(User, request=request_from(HOME), user=ann)

        assert not is_refused(name, HOME)

    def test_it_unlocks_no_other_address(self, allauth: Any, ann: User) -> None:
        guess(allauth, 5, address=AWAY)

        allauth.reset.send(User, request=request_from(HOME), user=ann)

        assert is_refused("ann", AWAY)

    def test_it_goes_on_while_the_store_does_not_answer(
        self, allauth: Any, ann: User, caplog: pytest.LogCaptureFixture
    ) -> None:
        with no_answer():
            allauth.reset.send(User, request=request_from(HOME), user=ann)

        (record,) = [each for each in caplog.records if each.name == "django_quota.logins"]
        assert record.getMessage() == (
            f"The failed logins of user {ann.pk} stay counted after a password reset: "
            "The quota store is unavailable: it is gone"
        )
