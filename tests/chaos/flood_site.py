"""The site that a flood meets: a limited view, a login as shipped, and a view that three may be in at once.

It runs in a server of its own, uvicorn or gunicorn, on the Redis of `FLOOD_REDIS`.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import django
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.contrib.auth import aauthenticate, authenticate
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

SEEN: Counter[str] = Counter()
"""What the site saw: passwords that were checked, decisions without Redis, outages, the most requests in a view."""

settings.configure(
    SECRET_KEY="flood",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_quota"],
    MIDDLEWARE=[
        "django.middleware.common.CommonMiddleware",
        f"{__name__}.Watch",
        "django_quota.middleware.QuotaMiddleware",
    ],
    AUTHENTICATION_BACKENDS=["django_quota.contrib.auth.LoginQuotaBackend", f"{__name__}.NobodysPassword"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["FLOOD_REDIS"]}},
    LOGGING_CONFIG=None,
    USE_TZ=True,
)
django.setup()

from django_quota import concurrency, quota  # noqa: E402
from django_quota.signals import store_lost  # noqa: E402


class Watch:
    """Counts the decisions that were made without Redis."""

    async_capable = sync_capable = True

    def __init__(self, get_response: Callable[..., Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._acall(request)
        return self._noted(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> Any:
        return self._noted(request, await self.get_response(request))

    def _noted(self, request: Any, response: Any) -> Any:
        SEEN["degraded"] += getattr(getattr(request, "quota", None), "degraded", False)
        return response


class NobodysPassword:
    """Counts the passwords that it has to check; none is right."""

    def authenticate(self, request: HttpRequest, username: str, password: str) -> None:
        SEEN["checked"] += 1

    async def aauthenticate(self, request: HttpRequest, username: str, password: str) -> None:
        SEEN["checked"] += 1


@store_lost.connect
def _lost(**_: Any) -> None:
    SEEN["outages"] += 1


def _enter() -> None:
    SEEN["inside"] += 1
    SEEN["at once"] = max(SEEN["at once"], SEEN["inside"])


@quota("5/h", key="ip")
def limited(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


@quota("5/h", key="ip")
async def alimited(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def login(request: HttpRequest) -> HttpResponse:
    authenticate(request, username="ann", password="guess")
    return HttpResponse("no")


async def alogin(request: HttpRequest) -> HttpResponse:
    await aauthenticate(request, username="ann", password="guess")
    return HttpResponse("no")


@concurrency(3)
def slot(request: HttpRequest) -> HttpResponse:
    _enter()
    time.sleep(0.05)
    SEEN["inside"] -= 1
    return HttpResponse("ok")


@concurrency(3)
async def aslot(request: HttpRequest) -> HttpResponse:
    _enter()
    await asyncio.sleep(0.05)
    SEEN["inside"] -= 1
    return HttpResponse("ok")


async def aseen(request: HttpRequest) -> HttpResponse:
    return JsonResponse(SEEN)


def seen(request: HttpRequest) -> HttpResponse:
    return JsonResponse(SEEN)


urlpatterns = [
    path("limited", limited),
    path("alimited", alimited),
    path("login", login),
    path("alogin", alogin),
    path("slot", slot),
    path("aslot", aslot),
    path("seen", seen),
    path("aseen", aseen),
]


def asgi() -> Any:
    from django.core.handlers.asgi import ASGIHandler

    return ASGIHandler()


def wsgi() -> Any:
    from django.core.handlers.wsgi import WSGIHandler

    return WSGIHandler()
