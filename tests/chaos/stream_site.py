"""The site that clients leave before their stream begins: each stream holds a slot, an estimate and credits.

It runs in a server of its own, on the Redis of `FLOOD_REDIS`. A middleware above it takes a moment, and replaces the
response or raises an error if the client asks for that.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import async_only_middleware, sync_only_middleware

PARTS = 4
PAUSE = 0.01
"""Seconds between two parts, and that the view and the middleware above take."""
ESTIMATE = 400
CREDITS = 10**9
IS_ASYNC = os.environ.get("STREAM_SITE") == "async"

settings.configure(
    SECRET_KEY="streams",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_quota"],
    MIDDLEWARE=[
        f"{__name__}.{'a' * IS_ASYNC}dropping",
        "django.middleware.http.ConditionalGetMiddleware",
        "django_quota.middleware.QuotaMiddleware",
    ],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ.get("FLOOD_REDIS", "")}},
    QUOTA={
        "RULES": {
            "tokens": {"rate": f"{CREDITS}/d"},
            "site-slots": {"at_once": 100_000, "lease": "1h", "renew": True, "match": "/stream/"},
        },
    },
    LOGGING_CONFIG=None,
    USE_TZ=True,
)
django.setup()

from django_quota import areserve_all, concurrency, counter, peek, reserve_all, slot  # noqa: E402

SEEN: Counter[str] = Counter()
"""What streams have really used, and how many views have returned one."""


def _instead(request: HttpRequest) -> HttpResponse | None:
    how = request.GET.get("how")
    if how == "raise":
        raise ValueError(how)
    return HttpResponse("another") if how == "replace" else None


@sync_only_middleware
def dropping(get_response: Callable[..., Any]) -> Callable[..., Any]:
    def middleware(request: HttpRequest) -> Any:
        response = get_response(request)
        time.sleep(PAUSE)
        return _instead(request) or response

    return middleware


@async_only_middleware
def adropping(get_response: Callable[..., Any]) -> Callable[..., Any]:
    async def middleware(request: HttpRequest) -> Any:
        response = await get_response(request)
        await asyncio.sleep(PAUSE)
        return _instead(request) or response

    return middleware


class _Used:
    """Counts the parts that were sent, and tells once how many."""

    def __init__(self) -> None:
        self.parts = 0

    def __call__(self) -> int:
        SEEN["used"] += self.parts
        return self.parts


def _entries() -> Any:
    return [("tokens", "user:1", ESTIMATE), (counter("credits"), "user:1", ESTIMATE)]


_OF_SLOT: Any = {"name": "streams", "lease": "1h", "renew": True}
_TAG = {"ETag": '"tag"'}


@concurrency(100_000, **_OF_SLOT)
def stream(request: HttpRequest) -> Any:
    time.sleep(PAUSE)
    used = _Used()

    def parts() -> Iterator[bytes]:
        for _ in range(PARTS):
            time.sleep(PAUSE)
            used.parts += 1
            yield b"part\n"

    reservation = reserve_all(_entries())
    SEEN["streams"] += 1
    return reservation.stream(StreamingHttpResponse(parts(), headers=_TAG), used=used)


@concurrency(100_000, **_OF_SLOT)
async def astream(request: HttpRequest) -> Any:
    await asyncio.sleep(PAUSE)
    used = _Used()

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(PARTS):
            await asyncio.sleep(PAUSE)
            used.parts += 1
            yield b"part\n"

    reservation = await areserve_all(_entries())
    SEEN["streams"] += 1
    return StreamingHttpResponse(reservation.stream(parts(), used=used), headers=_TAG)


def seen(request: HttpRequest) -> JsonResponse:
    """Say what streams hold now: slots, and units beyond what they have used."""
    found = {
        "slots": sum(len(slot(name, 100_000).holders()) for name in ("streams", "site-slots")),
        "tokens": CREDITS - (peek("tokens", "user:1").remaining or 0) - SEEN["used"],
        "credits": CREDITS - counter("credits").get("user:1") - SEEN["used"],
        "streams": SEEN["streams"],
    }
    return JsonResponse(found, headers={"Content-Length": str(len(JsonResponse(found).content))})


urlpatterns = [path("stream/", astream if IS_ASYNC else stream), path("seen", seen), path("aseen", seen)]


def _open() -> None:
    counter("credits").incr("user:1", CREDITS)


def asgi() -> Any:
    from django.core.handlers.asgi import ASGIHandler

    _open()
    return ASGIHandler()


def wsgi() -> Any:
    from django.core.handlers.wsgi import WSGIHandler

    _open()
    return WSGIHandler()
