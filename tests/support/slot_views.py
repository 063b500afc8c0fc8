"""Views that say how many hold the slots "view" and "exports", and a site with them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from django.views import View

from django_quota import concurrency, slot
from tests.support.calls import fetch

SITE_SLOT = {"at_once": 1, "match": "/export/"}
one = concurrency(1, name="view")


def held(name: str = "view", subject: str | None = None) -> int:
    return len(slot(name, 1, subject=subject).holders())


def plain(request: Any) -> HttpResponse:
    return HttpResponse(str(held() + held("exports")))


async def plain_async(request: Any) -> HttpResponse:
    return plain(request)


def says_async(request: Any) -> Any:
    """Return a coroutine, as a sync wrapper of an async view does."""
    return plain_async(request)


def asks_nothing(request: Any) -> HttpResponse:
    return HttpResponse("ok")


class Own(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return plain(request)


class OwnAsync(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return plain(request)


def of_class(base: type[View]) -> Any:
    """Return a class of its own: a decorator changes it."""
    return type(base.__name__, (base,), {})


def parts() -> Iterator[bytes]:
    yield b"a"
    yield b"%d" % (held() + held("exports"))


async def aparts() -> AsyncIterator[bytes]:
    for part in parts():
        yield part


def stream(request: HttpRequest) -> Any:
    return StreamingHttpResponse(parts())


async def astream(request: HttpRequest) -> Any:
    return StreamingHttpResponse(aparts())


def send_file(request: HttpRequest) -> Any:
    return FileResponse(Path(__file__).open("rb"))


urlpatterns = [
    path("export/", plain),
    path("export/async/", plain_async),
    path("export/stream/", stream),
    path("export/astream/", astream),
    path("other/", plain),
    path("stream/", one(stream)),
    path("astream/", one(astream)),
    path("twice/", concurrency(1, name="inner")(one(stream))),
]


@pytest.fixture
def slot_site(settings: Any, request: pytest.FixtureRequest) -> None:
    in_memory = {} if "either_store" in request.fixturenames else {"STORE": "memory"}
    settings.ROOT_URLCONF = __name__
    settings.QUOTA = {**settings.QUOTA, **in_memory, "RULES": {"exports": SITE_SLOT}}


def with_rules(settings: Any, **rules: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}


def statuses(url: str, kind: str = "sync", times: int = 1) -> list[int]:
    return [response.status_code for response in fetch(kind, url, times)]
