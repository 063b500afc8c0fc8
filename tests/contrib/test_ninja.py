"""Limits on the operations of Django Ninja, with the real package: sync and async, and its throttles."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from ninja import NinjaAPI, Router
from ninja.security import APIKeyHeader, HttpBearer, django_auth
from ninja.testing import TestClient

from django_quota import QuotaExceeded, RuleError, StoreUnavailable, check, peek
from django_quota.contrib import ninja as contrib
from django_quota.contrib.ninja import OperationRefused, install, limits
from django_quota.services.known_rules import known_rules
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.pages import run_page

pytestmark = pytest.mark.usefixtures("memory_store")

# Ninja allows one API of a name in a process.
api = NinjaAPI(urls_namespace="quota-tests")
own = NinjaAPI(urls_namespace="quota-tests-own")


class Token(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> str | None:
        return token if token != "wrong" else None


class Account:
    def __init__(self, pk: int) -> None:
        self.pk = pk


class AccountKey(APIKeyHeader):
    param_name = "X-Account"

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return Account(int(key)) if key else None


@api.get("/above", auth=Token())
@limits("2/m", name="above")
def above(request: HttpRequest, number: int = 0) -> dict[str, int]:
    return {"number": number}


@limits("2/m", name="below")
@api.get("/below", auth=Token())
def below(request: HttpRequest) -> str:
    return "ok"


@api.get("/async", auth=Token())
@limits("2/m", name="async")
async def in_the_loop(request: HttpRequest, number: int = 0) -> dict[str, int]:
    return {"number": number}


@api.get("/stacked")
@limits("5/m", key="ip", name="wide")
@limits("2/m", "9/h", key="global", name="narrow")
def stacked(request: HttpRequest) -> str:
    return "ok"


@api.get("/accounts", auth=AccountKey())
@limits("1/m", name="accounts")
def accounts(request: HttpRequest) -> str:
    return "ok"


@api.get("/users", auth=django_auth)
@limits("1/m", name="users")
def users(request: HttpRequest) -> str:
    return "ok"


@api.get("/named", auth=None)
@limits(rule="search")
def named(request: HttpRequest) -> str:
    return "ok"


router = Router()


@router.get("/mounted")
@limits("1/m", key="ip", name="mounted")
def mounted(request: HttpRequest) -> str:
    return "ok"


api.add_router("/one", router)
own.add_router("/two", router)


@own.get("/refused")
@limits("1/m", key="ip", name="refused")
def refused(request: HttpRequest) -> str:
    return "ok"


@own.get("/inside")
def inside(request: HttpRequest) -> str:
    check("0/m", request, key="ip", name="inside").raise_if_refused()
    raise AssertionError


@own.get("/away")
def away(request: HttpRequest) -> str:
    raise StoreUnavailable("away")


install(own)

throttled = NinjaAPI(urls_namespace="quota-tests-throttles")


@throttled.get("/both", auth=Token(), throttle=[contrib.AuthRateThrottle("2/m"), contrib.AuthRateThrottle("9/h")])
def both(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/again", auth=Token(), throttle=contrib.AuthRateThrottle("2/m"))
def again(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/anonymous", throttle=contrib.AnonRateThrottle("1/m"))
def anonymous(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/visitors", throttle=contrib.UserRateThrottle("1/m"))
def visitors(request: HttpRequest) -> str:
    return "ok"


PAID: Any = {"key": "ip", "cost": 100, "settle": lambda request, response: response.status_code}


@api.get("/paid")
@limits("1000/h", name="paid", **PAID)
def paid(request: HttpRequest, divisor: int = 1) -> float:
    return 1 / divisor


@api.get("/paid-async")
@limits("1000/h", name="paid", **PAID)
async def paid_async(request: HttpRequest, divisor: int = 1) -> float:
    return 1 / divisor


urlpatterns = [path("api/", api.urls), path("own/", own.urls), path("throttled/", throttled.urls)]


@pytest.fixture(autouse=True)
def these_urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "1/m", "key": "ip"}}}


def get(url: str, token: str | None = None, **headers: str) -> Any:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if "async" in url:
        return asyncio.run(_aget(url, headers))
    return Client().get(url, headers=headers)


async def _aget(url: str, headers: dict[str, str]) -> Any:
    return await AsyncClient().get(url, headers=headers)


# --- @limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middleware", [True, False])
@pytest.mark.parametrize("url", ["/api/paid", "/api/paid-async"])
def test_what_an_operation_took_is_settled_by_its_response(url: str, middleware: bool, settings: Any) -> None:
    if not middleware:
        settings.MIDDLEWARE = []
    assert get(f"{url}?divisor=none").status_code == 422
    assert peek("1000/h", "ip:127.0.0.1", name="paid").remaining == 1_000 - 422
    with pytest.raises(ZeroDivisionError):
        get(f"{url}?divisor=0")
    assert peek("1000/h", "ip:127.0.0.1", name="paid").remaining == 1_000 - 422 - 500


@pytest.mark.parametrize("url", ["/api/above", "/api/below", "/api/async"])
@pytest.mark.parametrize("middleware", [True, False])
def test_an_operation_is_limited_by_who_has_authenticated(url: str, middleware: bool, settings: Any) -> None:
    if not middleware:
        settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if "django_quota" not in each]
    replies = [get(url, "ann"), get(url, "ann"), get(url, "ann"), get(url, "bob")]
    assert [reply.status_code for reply in replies] == [200, 200, 429, 200]
    assert [reply["RateLimit"].partition(";t")[0] for reply in replies] == [
        f'"{url.removeprefix("/api/")}";r={left}' for left in (1, 0, 0, 1)
    ]
    assert 0 < int(replies[2]["Retry-After"]) <= 60
    assert replies[2].json()["detail"].startswith("The limit is 2 per minute. Please try again in ")


@pytest.mark.parametrize("url", ["/api/above", "/api/async"])
def test_an_invalid_request_counts_and_one_without_authentication_does_not(url: str) -> None:
    replies = [
        get(url, "wrong"),
        get(url),
        get(f"{url}?number=x", "ann"),
        get(url, "ann"),
        get(f"{url}?number=x", "ann"),
    ]
    assert [reply.status_code for reply in replies] == [401, 401, 422, 200, 429]


def test_several_limits_of_an_operation_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch)
    replies = [get("/api/stacked") for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert len(calls) == 3
    assert replies[0]["RateLimit-Policy"] == '"wide";q=5;w=60, "narrow-m";q=2;w=60, "narrow-h";q=9;w=3600'


def test_the_key_auth_takes_an_object_by_its_primary_key() -> None:
    statuses = [get("/api/accounts", **{"X-Account": pk}).status_code for pk in ("1", "1", "2")]
    assert statuses == [200, 429, 200]


@pytest.mark.django_db
def test_the_key_auth_takes_a_user(client: Client) -> None:
    client.force_login(User.objects.create_user("ann"))
    assert [client.get("/api/users").status_code for _ in range(2)] == [200, 429]
    assert check("1/m", User.objects.get(), name="users").remaining == 0


def test_an_authentication_that_identifies_nobody_is_an_error() -> None:
    request = HttpRequest()
    request.auth = object()  # type: ignore[attr-defined]
    with pytest.raises(RuleError, match="identifies nobody"):
        contrib.auth(request)


def test_no_token_reaches_a_subject() -> None:
    request = HttpRequest()
    request.auth = "secret-token"  # type: ignore[attr-defined]
    assert "secret" not in contrib.auth(request)


def test_a_rule_of_the_settings_goes_by_its_name() -> None:
    assert [get("/api/named").status_code for _ in range(2)] == [200, 429]


def test_a_router_that_is_mounted_twice_is_limited_at_both_places() -> None:
    assert [get(url).status_code for url in ("/api/one/mounted", "/own/two/mounted")] == [200, 429]


def test_a_rule_beside_rates_is_refused_at_import() -> None:
    with pytest.raises(RuleError, match="accepts no other arguments"):
        limits("1/m", rule="search")


def test_the_schema_of_the_api_is_as_before() -> None:
    assert get("/api/openapi.json").status_code == 200


# --- the API's own answers --------------------------------------------------------------------------------------------


def test_install_answers_in_the_form_of_the_api() -> None:
    get("/own/refused")
    for url in ("/own/refused", "/own/inside"):
        reply = get(url)
        assert reply.status_code == 429
        assert reply.json().keys() == ({"detail", "retry_after"} if url == "/own/refused" else {"detail"})
        assert reply["Content-Type"].startswith("application/json")
        assert reply["Cache-Control"] == "no-store"
        assert "RateLimit" in reply
    assert get("/own/away").status_code == 503


def test_an_exception_handler_of_the_api_gets_the_decision() -> None:
    other = NinjaAPI(urls_namespace="quota-tests-handler")
    other.get("/handled")(limits("0/m", key="ip", name="handled")(lambda request: "ok"))

    @other.exception_handler(OperationRefused)
    def answer(request: HttpRequest, error: OperationRefused) -> HttpResponse:
        assert isinstance(error, QuotaExceeded)
        return HttpResponse(error.decision.rule, status=error.status_code)

    (view,) = [cast("Any", each.callback) for each in other.urls[0] if str(each.pattern) == "handled"]
    reply = view(RequestFactory().get("/"))
    assert (reply.status_code, reply.content) == (429, b"handled")


# --- throttles --------------------------------------------------------------------------------------------------------


def test_throttles_of_other_rates_do_not_share_what_they_count() -> None:
    """With Ninja's own, two rates of one class count each request twice."""
    statuses = [get("/throttled/both", "ann").status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert get("/throttled/both", "bob").status_code == 200


def test_throttles_of_one_rate_and_scope_share_it_as_with_ninja() -> None:
    get("/throttled/both", "ann")
    assert [get("/throttled/again", "ann").status_code for _ in range(2)] == [200, 429]


def test_a_throttle_says_when_to_try_again() -> None:
    replies = [get("/throttled/anonymous") for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert 0 < int(replies[1]["Retry-After"]) <= 60
    assert replies[1].json() == {"detail": "Too many requests."}


def test_a_forged_header_gives_no_new_address() -> None:
    statuses = [get("/throttled/visitors", **{"X-Forwarded-For": f"198.51.100.{n}"}).status_code for n in (1, 2)]
    assert statuses == [200, 429]


def test_the_page_prints_what_it_shows() -> None:
    with freeze(datetime(2026, 11, 22, 12, tzinfo=UTC)):
        names = run_page("docs/ninja.md")
    client = TestClient(names["shop"], headers={"Authorization": "Bearer token-2"})
    replies = [client.get("/export") for _ in range(3)]
    assert replies[0]["RateLimit-Policy"] == '"export#2";q=2;w=60, "export";q=20;w=60'
    assert replies[2].json()["error"] == "too_many"


class TestTheSite:
    def test_the_rules_of_operations_are_known(self, settings: Any) -> None:
        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("api/", api.urls)]})
        assert {"above", "below"} <= set(known_rules())

    @pytest.mark.parametrize("is_installed", [True, False])
    @pytest.mark.parametrize("with_middleware", [True, False])
    def test_w027_an_api_that_answers_no_refusal(
        self, is_installed: bool, with_middleware: bool, settings: Any
    ) -> None:
        bare = NinjaAPI(urls_namespace=f"quota-tests-{is_installed}-{with_middleware}", title="Shop")
        bare.get("/search")(limits("2/m", name="bare")(lambda request: "ok"))
        if is_installed:
            install(bare)
        settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"] * with_middleware
        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("api/", bare.urls)]})
        found = [each.msg for each in run_checks(tags=["django_quota"]) if each.id == "django_quota.W027"]
        assert len(found) == (not is_installed and not with_middleware)
        assert all(message.startswith("The API Shop (quota-tests-") for message in found)

    def test_e024_a_name_of_no_rule(self, settings: Any) -> None:
        misspelt = NinjaAPI(urls_namespace="quota-tests-misspelt")
        settings.QUOTA = {**settings.QUOTA, "RULES": {"search": {"rate": "2/m"}}}

        @misspelt.get("/search")
        @limits(rule="serch")
        @limits(rule="search")
        async def search(request: HttpRequest) -> str:
            return "ok"

        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("api/", misspelt.urls)]})
        (found,) = [each for each in run_checks(tags=["django_quota"]) if each.id == "django_quota.E024"]
        assert found.msg.startswith("@limits(rule='serch') on ")
        assert found.hint == "Add it to QUOTA[\"RULES\"]. Did you mean 'search'?"
