"""A site of Django Ninja: an API with limits, one that answers refusals in its own form, and one with throttles."""

from types import SimpleNamespace
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path
from ninja import NinjaAPI, Router
from ninja.decorators import decorate_view
from ninja.security import APIKeyHeader, HttpBearer, django_auth

from django_quota import check
from django_quota.adapters import limits_view
from django_quota.contrib.ninja import (
    AnonRateThrottle,
    AuthRateThrottle,
    OperationRefused,
    SimpleRateThrottle,
    UserRateThrottle,
    install,
    limits,
)
from django_quota.exceptions import QuotaExceeded, StoreUnavailable

# Ninja allows one API of a name in a process.
api = NinjaAPI(urls_namespace="quota-tests-api")
own = NinjaAPI(urls_namespace="quota-tests-own")
throttled = NinjaAPI(urls_namespace="quota-tests-throttled")


class Token(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> str | None:
        return token if token != "wrong" else None


class AccountKey(APIKeyHeader):
    param_name = "X-Account"

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return SimpleNamespace(pk=int(key)) if key else None


# --- an API with limits -----------------------------------------------------------------------------------------------


@api.get("/above", auth=Token())
@limits("2/m", name="above")
def above(request: HttpRequest, number: int = 1) -> int:
    return number


@limits("2/m", name="below")
@api.get("/below", auth=Token())
def below(request: HttpRequest, number: int = 1) -> int:
    return number


@api.get("/async", auth=Token())
@limits("2/m", name="async")
async def in_the_loop(request: HttpRequest, number: int = 1) -> int:
    return number


def status_of(request: HttpRequest, response: HttpResponse) -> int:
    return response.status_code


@api.get("/paid")
@limits("1000/h", name="paid", key="ip", cost=100, settle=status_of)
def paid(request: HttpRequest, number: int = 1) -> float:
    return 1 / number


@api.get("/paid-async")
@limits("1000/h", name="paid", key="ip", cost=100, settle=status_of)
async def paid_in_the_loop(request: HttpRequest, number: int = 1) -> float:
    return 1 / number


@api.get("/stacked")
@limits("5/m", key="ip", name="wide")
@limits("2/m", "9/h", key="global", name="narrow")
def stacked(request: HttpRequest) -> str:
    return "ok"


@api.post("/stacked")
@limits("1/m", key="ip", name="posted")
def posted(request: HttpRequest) -> str:
    return "ok"


@api.get("/accounts", auth=AccountKey())
@limits("1/m", name="accounts")
def accounts(request: HttpRequest) -> str:
    return "ok"


@api.get("/users", auth=django_auth)
@limits("1/m", name="users")
def users(request: HttpRequest) -> str:
    return "ok"


@api.get("/planned", auth=Token())
@limits(rule="search")
def planned(request: HttpRequest) -> str:
    return "ok"


api.get("/limits", auth=Token())(limits_view)


# --- an API that answers refusals in its own form ---------------------------------------------------------------------


@own.get("/refused")
@limits("1/m", key="ip", name="refused")
def refused(request: HttpRequest) -> str:
    return "ok"


@own.get("/inside")
def refused_inside(request: HttpRequest) -> str:
    check("0/m", request, key="ip", name="inside").raise_if_refused()
    raise AssertionError


@own.get("/away")
def store_is_away(request: HttpRequest) -> str:
    raise StoreUnavailable("away")


install(own)


# --- an API with throttles --------------------------------------------------------------------------------------------


class ByTenant(SimpleRateThrottle):
    """A throttle as a site has it: a rate without a scope, and a key of its own."""

    def get_cache_key(self, request: HttpRequest) -> str | None:
        return request.headers.get("X-Tenant")


@throttled.get("/both", auth=Token(), throttle=[AuthRateThrottle("2/m"), AuthRateThrottle("9/h")])
def both(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/again", auth=Token(), throttle=[AuthRateThrottle("2/m"), AuthRateThrottle("3/m")])
def again(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/anonymous", throttle=AnonRateThrottle("1/m"))
def anonymous(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/visitors", throttle=UserRateThrottle("1/m"))
def visitors(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/mixed", throttle=AnonRateThrottle("9/m"))
@limits("1/m", key="ip", name="mixed")
def mixed(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/tenants", throttle=ByTenant("1/m"))
def tenants(request: HttpRequest) -> str:
    return "ok"


@throttled.get("/handled")
@limits("0/m", key="ip", name="handled")
def handled(request: HttpRequest) -> str:
    return "ok"


@throttled.exception_handler(OperationRefused)
def answer(request: HttpRequest, error: OperationRefused) -> HttpResponse:
    assert isinstance(error, QuotaExceeded)
    return HttpResponse(f"{error.decision.rule}: {error.message} {error.wait}", status=error.status_code)


# --- a router that is mounted twice, with a decorator of its own ------------------------------------------------------


def without_wraps(run: Any) -> Any:
    """A decorator of a site that forgets `functools.wraps`."""

    def decorated(request: HttpRequest, **values: Any) -> Any:
        response = run(request, **values)
        response["X-Seen"] = "yes"
        return response

    return decorated


router = Router()


@router.get("/sync")
@limits("2/m", key="ip", name="unwrapped")
@decorate_view(without_wraps)
def on_router(request: HttpRequest) -> str:
    return "ok"


api.add_router("/one", router)
own.add_router("/two", router)

urlpatterns = [path("api/", api.urls), path("own/", own.urls), path("throttled/", throttled.urls)]
