"""`QUOTA["EXEMPT"]`: networks whose requests nothing limits."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import AnonymousUser
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from rest_framework.response import Response
from rest_framework.views import APIView

from django_quota import check, concurrency, limits_of, quota
from django_quota.adapters import SlotRule, is_exempt
from django_quota.conf import QuotaSettings
from django_quota.contrib.django_ratelimit.decorators import ratelimit
from django_quota.contrib.rest_framework import AnonRateThrottle, QuotaThrottle
from django_quota.exceptions import ConfigurationError
from tests.support.calls import both, get, run

OFFICE, VISITOR = "10.1.2.3", "192.0.2.1"

pytestmark = pytest.mark.usefixtures("memory_store", "office")


@pytest.fixture
def office(memory_store: None, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EXEMPT": ["10.0.0.0/8", "2001:db8::/32"], "LOGIN": {"1/h": "ip"}}


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def apage(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class ByUser(APIView):
    authentication_classes = ()
    throttle_classes: Any = (AnonRateThrottle,)

    def get(self, request: Any) -> Response:
        return Response()


class ByRule(ByUser):
    throttle_classes = (QuotaThrottle,)
    throttle_scope = "drf"


def request_from(address: str) -> Any:
    request = get(REMOTE_ADDR=address)
    request.user = AnonymousUser()
    return request


@pytest.fixture(
    params=[
        pytest.param(quota("1/m", key="ip")(page), id="a decorator"),
        pytest.param(quota("1/m", key="user")(page), id="a decorator by user"),
        pytest.param(quota("1/m", key="global")(apage), id="an async decorator"),
        pytest.param(ratelimit(key="ip", rate="1/m", block=True)(page), id="ratelimit"),
        pytest.param(ByUser.as_view(), id="a throttle of REST framework"),
        pytest.param(ByRule.as_view(), id="a rule of REST framework"),
    ]
)
def view(request: pytest.FixtureRequest, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(AnonRateThrottle, "THROTTLE_RATES", {"anon": "1/m"})
    settings.QUOTA = {**settings.QUOTA, "RULES": {"drf": {"rate": "1/m", "key": "global"}}}
    return request.param  # type: ignore[no-any-return]


def statuses(view: Callable[..., Any], address: str, times: int = 3) -> list[int]:
    return [run(view, request_from(address)).status_code for _ in range(times)]


@pytest.mark.parametrize("address", [OFFICE, "2001:db8::7", "::ffff:10.1.2.3"])
def test_a_request_from_an_exempt_network_is_never_refused(view: Any, address: str) -> None:
    assert statuses(view, address) == [200] * 3


def test_requests_from_exempt_networks_use_nothing_up() -> None:
    view = quota("1/m", key="global")(page)
    statuses(view, OFFICE)

    assert statuses(view, VISITOR, 2) == [200, 429]


def test_the_rules_of_the_middleware_leave_them_out(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"all": {"rate": "1/m", "key": "ip", "match": "/"}}}
    settings.ROOT_URLCONF = (path("", page),)

    found = {
        address: [Client(REMOTE_ADDR=address).get("/").status_code for _ in range(2)] for address in (OFFICE, VISITOR)
    }

    assert found == {OFFICE: [200, 200], VISITOR: [200, 429]}


@both
def test_they_need_no_slot(kind: str) -> None:
    of_kind: Any = {"sync": page, "async": apage}[kind]
    view = concurrency(1, key="global", name="exports")(of_kind)

    with SlotRule.make("exports", 1, key="global").hold(request_from(VISITOR)):
        assert [statuses(view, OFFICE, 1), statuses(view, VISITOR, 1)] == [[200], [429]]


def test_their_failed_logins_are_not_counted() -> None:
    request = request_from(OFFICE)
    backend = "django_quota.contrib.auth.LoginQuotaBackend"

    with override_settings(AUTHENTICATION_BACKENDS=[backend, f"{__name__}.Nobody"]):
        found = [authenticate(request, username="ann", password="wrong") for _ in range(3)]

    assert found == [None] * 3


class Nobody:
    def authenticate(self, request: Any, username: str, password: str) -> None:
        return None


def test_they_have_no_limits_to_show(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"all": {"rate": "1/m", "key": "ip", "match": "/"}}}

    assert [len(limits_of(request_from(address)).outcomes) for address in (OFFICE, VISITOR)] == [0, 1]


def test_a_check_in_code_counts_them() -> None:
    assert [bool(check("1/m", request_from(OFFICE))) for _ in range(2)] == [True, False]


def test_a_request_without_an_address_is_not_exempt() -> None:
    assert is_exempt(get(REMOTE_ADDR="")) is False


def test_the_address_behind_a_proxy_counts(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "TRUSTED_PROXIES": ["10.9.0.0/16"]}
    request = get(REMOTE_ADDR="10.9.0.1", HTTP_X_FORWARDED_FOR=VISITOR)

    assert not is_exempt(request)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param("10.0.0.0/8", "Use a list of networks", id="a string"),
        pytest.param(["10.0.0.1/8"], "holds '10.0.0.1/8'.*host bits", id="not a network"),
        pytest.param(["office"], r"holds 'office'.*Use a network such as '10.0.0.0/8' or an address\.", id="a name"),
        pytest.param([lambda request: True], "holds <function", id="a function"),
    ],
)
def test_a_wrong_setting_says_what_to_write(given: Any, problem: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf'QUOTA\["EXEMPT"\].*{problem}' if isinstance(given, list) else problem
    ):
        _ = QuotaSettings({"EXEMPT": given}).exempt


@pytest.mark.parametrize(
    ("networks", "version"),
    [
        pytest.param(["0.0.0.0/0"], "IPv4", id="all of IPv4"),
        pytest.param(["8000::/1", "::/1"], "IPv6", id="both halves"),
    ],
)
def test_w040_nobody_is_limited(networks: list[str], version: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "EXEMPT": networks}

    (found,) = [each for each in run_checks(tags=["django_quota"], databases=[]) if each.id == "django_quota.W040"]

    assert found.msg == f'No client with an {version} address is limited: all of them are in QUOTA["EXEMPT"].'
