"""Responses that Django's cache shows to others: nobody sees the RateLimit headers of another visitor."""

import asyncio
from typing import Any

import pytest
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.test import AsyncClient, Client
from django.urls import path
from django.views.decorators.cache import cache_control, cache_page, never_cache
from ninja import NinjaAPI
from rest_framework.response import Response
from rest_framework.views import APIView

from django_quota import Rule, concurrency, quota
from django_quota.contrib.ninja import limits
from django_quota.contrib.rest_framework import QuotaThrottle

pytestmark = pytest.mark.usefixtures("memory_store")

limited = quota("3/m", key="ip", name="own")
in_cache = cache_page(60)


def page(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def async_page(request: HttpRequest) -> HttpResponse:
    return page(request)


def tagged(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok", headers={"ETag": '"a"'})


async def async_tagged(request: HttpRequest) -> HttpResponse:
    return tagged(request)


def not_modified(request: HttpRequest) -> HttpResponse:
    """Answer as `condition` does, which writes no Cache-Control."""
    return HttpResponseNotModified(headers={"ETag": '"a"'})


class Throttled(APIView):  # type: ignore[misc]
    throttle_classes = (QuotaThrottle,)
    quota_rules = (Rule.make("own", "3/m", key="ip"),)

    def get(self, request: Any) -> Response:
        return Response("ok")


public = cache_control(public=True, max_age=60)


class PublicThrottled(Throttled):
    def get(self, request: Any) -> Response:
        return Response("ok", headers={"Cache-Control": "Public, max-age=60"})


operations = NinjaAPI(urls_namespace="quota-tests-cached")


@operations.get("")
@limits("3/m", key="ip", name="own")
def operation(request: HttpRequest) -> str:
    return "ok"


urlpatterns = [
    path("limited-operation/", operations.urls),
    path("below/", in_cache(limited(page))),
    path("slot/", in_cache(concurrency(3, name="own", key="ip")(page))),
    path("throttle/", in_cache(Throttled.as_view())),
    path("above/", limited(in_cache(page))),
    path("plain/", page),
    path("limited/", limited(page)),
    path("limited-throttle/", Throttled.as_view()),
    path("limited-async/", limited(async_page)),
    path("private/", limited(never_cache(page))),
    path("public/", limited(public(page))),
    path("public-async/", limited(public(async_page))),
    path("public-slot/", concurrency(3, name="own", key="ip")(public(page))),
    path("public-throttle/", PublicThrottled.as_view()),
    path("s-maxage/", limited(cache_control(s_maxage=60)(page))),
    path("public-plain/", public(page)),
    path("public-tagged/", limited(public(tagged))),
    path("public-tagged-async/", limited(public(async_tagged))),
    path("bare-304/", limited(not_modified)),
    path("private-304/", limited(cache_control(private=True)(not_modified))),
    path("no-store-304/", limited(cache_control(no_store=True)(not_modified))),
    path("max-age/", limited(cache_control(max_age=60, private=True)(page))),
]
CONDITIONAL = "django.middleware.http.ConditionalGetMiddleware"
OURS = "django_quota.middleware.QuotaMiddleware"
FIRST, LAST = "django.middleware.cache.UpdateCacheMiddleware", "django.middleware.cache.FetchFromCacheMiddleware"


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": __name__}}
    settings.QUOTA = {**settings.QUOTA, "LEGACY_HEADERS": True}
    cache.clear()


def ask(route: str, *visitors: str, method: str = "get") -> list[str | None]:
    """Return what each visitor sees of the limit `own`; None if there is no header of a limit."""
    shown = []
    for address in visitors:
        client: Any = AsyncClient() if "async" in route else Client()
        reply = getattr(client, method)(f"/{route}/", REMOTE_ADDR=address)
        headers = (asyncio.run(reply) if "async" in route else reply).headers
        assert len([name for name in headers if "RateLimit" in name]) in (0, 5)
        shown.append(headers["RateLimit"].partition(";t=")[0] if "RateLimit" in headers else None)
    return shown


ANN, BOB = "192.0.2.1", "192.0.2.2"


with_middleware = pytest.mark.parametrize("middleware", [[], [OURS]], ids=["alone", "middleware"])


@with_middleware
class TestUnderCachePage:
    @pytest.mark.parametrize("route", ["below", "slot", "throttle"])
    def test_nobody_sees_the_headers_of_another(self, route: str, middleware: list[str], settings: Any) -> None:
        settings.MIDDLEWARE = middleware
        written = '"own";r=2' if middleware else None  # the middleware writes them after the cache

        assert ask(route, ANN, BOB, ANN) == [written, None, None]

    def test_a_limit_above_the_cache_shows_each_its_own(self, middleware: list[str], settings: Any) -> None:
        settings.MIDDLEWARE = middleware

        assert ask("above", ANN, BOB, ANN) == ['"own";r=2', '"own";r=2', '"own";r=1']

    def test_methods_that_are_not_stored_have_their_headers(self, middleware: list[str], settings: Any) -> None:
        settings.MIDDLEWARE = middleware

        assert ask("below", ANN, ANN, BOB, ANN, method="post") == [
            '"own";r=2', '"own";r=1', '"own";r=2', '"own";r=0'
        ]  # fmt: skip

    def test_a_refusal_is_never_stored_in_the_cache(self, middleware: list[str], settings: Any) -> None:
        settings.MIDDLEWARE = middleware
        ask("below", ANN, ANN, BOB, ANN, method="post")
        ask("below", ANN)

        assert ask("below", BOB, ANN) == ['"own";r=1' if middleware else None, None]

    def test_a_refusal_under_the_cache_has_its_headers(self, middleware: list[str], settings: Any) -> None:
        settings.MIDDLEWARE = middleware
        ask("below", ANN, ANN, ANN, method="post")

        assert ask("below", ANN) == ['"own";r=0']


under_the_cache_of_the_site = pytest.mark.parametrize(
    "middleware", [[FIRST, OURS, LAST], [FIRST, LAST]], ids=["middleware", "alone"]
)


@under_the_cache_of_the_site
@pytest.mark.parametrize("route", ["limited", "limited-async", "limited-throttle", "limited-operation"])
def test_under_the_cache_of_the_site_a_limited_view_has_no_headers(
    route: str, middleware: list[str], settings: Any
) -> None:
    settings.MIDDLEWARE = middleware

    assert ask(route, ANN, BOB, ANN) == [None] * 3


@under_the_cache_of_the_site
def test_under_the_cache_of_the_site_a_private_view_has_headers(middleware: list[str], settings: Any) -> None:
    settings.MIDDLEWARE = middleware

    assert '"own"' in str(ask("private", BOB))


def test_a_304_that_the_cache_of_the_site_keeps_has_no_headers(settings: Any) -> None:
    settings.MIDDLEWARE = [FIRST, OURS, LAST]
    assert ask("no-store-304", ANN) == [None]


def test_a_rule_of_the_settings_shows_its_headers_on_what_comes_from_the_cache(settings: Any) -> None:
    own = {"rate": "3/m", "key": "ip", "match": "/", "exempt": "192.0.2.9"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"own": own}}
    settings.MIDDLEWARE = [FIRST, OURS, LAST]
    assert ask("plain", ANN, BOB, ANN, "192.0.2.9") == [None, '"own";r=2', '"own";r=1', None]


@with_middleware
@pytest.mark.parametrize("route", ["public", "public-async", "public-slot", "public-throttle", "s-maxage"])
def test_what_a_cdn_may_show_to_others_has_no_headers(route: str, middleware: list[str], settings: Any) -> None:
    settings.MIDDLEWARE = middleware
    assert ask(route, ANN, ANN) == [None, None]


def test_a_rule_of_the_settings_shows_no_headers_on_what_a_cdn_may_keep(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"own": {"rate": "3/m", "key": "ip", "match": "/public-plain/"}}}
    settings.MIDDLEWARE = [OURS]
    assert ask("public-plain", ANN) == [None]


def of_a_304(route: str, where: str, middleware: list[str], settings: Any) -> Any:
    """Return the headers of a 304 with the middleware that makes it above or below ours."""
    settings.MIDDLEWARE = [CONDITIONAL, *middleware] if where == "above" else [*middleware, CONDITIONAL]
    client: Any = AsyncClient() if "async" in route else Client()
    reply = client.get(f"/{route}/", headers={"If-None-Match": '"a"'})
    reply = asyncio.run(reply) if "async" in route else reply
    assert reply.status_code == 304
    return reply.headers


@with_middleware
@pytest.mark.parametrize("where", ["above", "below"])
@pytest.mark.parametrize("route", ["public-tagged", "public-tagged-async", "bare-304"])
def test_a_304_by_which_a_cdn_may_change_what_it_keeps_has_no_headers(
    route: str, where: str, middleware: list[str], settings: Any
) -> None:
    assert "RateLimit" not in of_a_304(route, where, middleware, settings)


@with_middleware
@pytest.mark.parametrize("where", ["above", "below"])
@pytest.mark.parametrize("route", ["private-304", "no-store-304"])
def test_a_304_that_no_cdn_keeps_has_headers(route: str, where: str, middleware: list[str], settings: Any) -> None:
    assert "RateLimit" in of_a_304(route, where, middleware, settings)


def test_what_only_the_caller_may_keep_has_headers() -> None:
    assert ask("max-age", ANN) == ['"own";r=2']
