"""The views that tests reach by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_quota import acheck, aonce, areset, check, counter, once, quota, reset, slot
from django_quota.exceptions import StoreUnavailable

if TYPE_CHECKING:
    from django_quota.types import QuotaRequest


def by_hand(request: HttpRequest) -> HttpResponse:
    """Raise QuotaExceeded by hand, in a view without a decorator."""
    check("2/m", request, name="by-hand").raise_if_refused()
    return HttpResponse("ok")


async def by_hand_async(request: HttpRequest) -> HttpResponse:
    (await acheck("2/m", request, name="by-hand-async")).raise_if_refused()
    return HttpResponse("ok")


@quota("3/m", key="ip", name="limited")
def limited(request: QuotaRequest) -> HttpResponse:
    return HttpResponse(str(request.quota.remaining))


@quota("3/m", key="ip", name="limited-async")
async def limited_async(request: QuotaRequest) -> HttpResponse:
    return HttpResponse(str(request.quota.remaining))


@quota("9/m", key="user", name="whoami-async")
async def whoami_async(request: QuotaRequest) -> HttpResponse:
    return HttpResponse(request.quota.subject)


ASKED: dict[str, tuple[Any, Any]] = {
    "counter": (lambda: counter("hits").incr("user:1"), lambda: counter("hits").aincr("user:1")),
    "once": (lambda: once("event", "1"), lambda: aonce("event", "1")),
    "slot": (lambda: slot("export", 3).acquire(), lambda: slot("export", 3).aacquire()),
    "reset": (lambda: reset("9/m", "user:1"), lambda: areset("9/m", "user:1")),
}
"""What a view may ask the store for by itself, sync and async."""


def asks(request: HttpRequest) -> HttpResponse:
    if request.GET["what"] == "by-hand":
        raise StoreUnavailable("an amount is on the way")
    ASKED[request.GET["what"]][0]()
    return HttpResponse("ok")


async def asks_async(request: HttpRequest) -> HttpResponse:
    if request.GET["what"] == "by-hand":
        raise StoreUnavailable("an amount is on the way")
    await ASKED[request.GET["what"]][1]()
    return HttpResponse("ok")


@quota("3/m", key="ip", on_unavailable="deny")
def denies(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@quota("9/m", name="writes")
def writes(request: HttpRequest) -> HttpResponse:
    User.objects.create(username="written")
    check("0/m", request).raise_if_refused()
    return HttpResponse("ok")


urlpatterns = [
    path("admin/", admin.site.urls),
    path("writes/", writes),
    path("by-hand/", by_hand),
    path("by-hand-async/", by_hand_async),
    path("limited/", limited),
    path("limited-async/", limited_async),
    path("whoami-async/", whoami_async),
    path("free/", lambda request: HttpResponse("ok")),
    path("asks/", asks),
    path("asks-async/", asks_async),
    path("denies/", denies),
]
