"""A stream that nobody reads gives back its slot and settles its reservation when its request ends."""

import asyncio
import gc
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.utils.decorators import async_only_middleware

from django_quota import areserve, concurrency, counter, peek, quota, reserve, reserve_all
from django_quota import slot as slot_of
from tests.support.commands import wait_until
from tests.support.selection import thorough


def parts() -> Iterator[bytes]:
    yield b"a"


async def aparts() -> AsyncIterator[bytes]:
    yield b"a"


def tagged(content: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(content, headers={"ETag": '"a"'})


def held(name: str) -> int:
    return len(slot_of(name, 1).holders())


@concurrency(1, name="export")
def slot(request: Any) -> Any:
    return tagged(parts())


@concurrency(1, name="export")
async def aslot(request: Any) -> Any:
    return tagged(aparts())


@concurrency(1, name="export", renew=True)
async def arenewed(request: Any) -> Any:
    return tagged(aparts())


def response(request: Any) -> Any:
    return reserve("1000/h", "user:1", 400, name="tokens").stream(tagged(parts()), used=lambda: 7)


async def aresponse(request: Any) -> Any:
    return (await areserve("1000/h", "user:1", 400, name="tokens")).stream(tagged(aparts()), used=lambda: 7)


def iterator(request: Any) -> Any:
    return tagged(reserve("1000/h", "user:1", 400, name="tokens").stream(parts(), used=lambda: 7))


async def aiterator(request: Any) -> Any:
    reservation = await areserve("1000/h", "user:1", 400, name="tokens")
    return tagged(reservation.stream(aparts(), used=lambda: 7))


@quota("1000/h", key="global", name="settled", cost=400, settle=lambda request, response: 7)
def settled(request: Any) -> Any:
    return tagged(parts())


@quota("1000/h", key="global", name="settled", cost=400, settle=lambda request, response: 7)
async def asettled(request: Any) -> Any:
    return tagged(aparts())


def credit(request: Any) -> Any:
    reservation = reserve_all([(counter("credits"), "user:1", 400)])
    return reservation.stream(tagged(parts()), used=lambda: 7)


VIEWS = [slot, response, iterator, settled, credit]
ASYNC_VIEWS = [aslot, arenewed, aresponse, aiterator, asettled]

urlpatterns = [path(f"{view.__name__}/", view) for view in [*VIEWS, *ASYNC_VIEWS]]


def taken() -> dict[str, int]:
    """Return what is in use, by what the views take."""
    return {
        "slots": held("export"),
        "tokens": 1_000 - peek("1000/h", "user:1", name="tokens").remaining,  # type: ignore[operator]
        "settled": 1_000 - peek("1000/h", "global", name="settled").remaining,  # type: ignore[operator]
        "credits": 1_000 - counter("credits").get("user:1"),
    }


def taken_after_collection() -> dict[str, int]:
    gc.collect()
    return taken()


def once(view: Any) -> dict[str, int]:
    """Return what a request has used whose stream had no part."""
    name = view.__name__.removeprefix("a")
    used = {"response": "tokens", "iterator": "tokens", "settled": "settled", "credit": "credits"}.get(name)
    return dict.fromkeys(("slots", "tokens", "settled", "credits"), 0) | ({used: 7} if used else {})


@pytest.fixture(scope="module", autouse=True)
def a_collection_is_quick() -> None:
    """Let no collection look at what earlier tests have left: it would take longer than the test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def site(settings: Any, either_store: Any) -> None:
    settings.ROOT_URLCONF = __name__
    counter("credits").incr("user:1", 1_000)


def replaces(get_response: Any) -> Any:
    def middleware(request: Any) -> HttpResponse:
        get_response(request)
        return HttpResponse("another")

    return middleware


def fails(get_response: Any) -> Any:
    def middleware(request: Any) -> HttpResponse:
        get_response(request)
        raise ValueError

    return middleware


LOSES_STREAMS = {
    "not modified": "django.middleware.http.ConditionalGetMiddleware",
    "another response": f"{__name__}.replaces",
    "an error": f"{__name__}.fails",
}


@pytest.mark.parametrize("middleware", LOSES_STREAMS.values(), ids=LOSES_STREAMS)
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_middleware_that_drops_a_stream_ends_it(view: Any, middleware: str, settings: Any) -> None:
    settings.MIDDLEWARE = [middleware]
    found = Client(raise_request_exception=False).get(f"/{view.__name__}/", headers={"If-None-Match": '"a"'})
    assert found.status_code in (200, 304, 500)
    assert not found.streaming
    assert taken() == once(view)


@async_only_middleware
def waits(get_response: Any) -> Any:
    async def middleware(request: Any) -> Any:
        await get_response(request)
        request.scope["has_returned"].set()
        await asyncio.Event().wait()

    return middleware


@pytest.mark.parametrize("view", [*VIEWS, *ASYNC_VIEWS], ids=lambda view: view.__name__)
def test_a_client_that_leaves_before_its_stream_begins_ends_it(view: Any, settings: Any) -> None:
    settings.MIDDLEWARE = [f"{__name__}.waits"]

    async def serve() -> None:
        messages, has_returned = [{"type": "http.request", "body": b""}], asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await has_returned.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody listens")

        scope = AsyncRequestFactory().get(f"/{view.__name__}/").scope
        await ASGIHandler()({**scope, "has_returned": has_returned}, receive, send)

    asyncio.run(serve())
    assert taken() == once(view)


async def fail(message: Any) -> None:
    raise OSError


async def cancel(message: Any) -> None:
    (application,) = (task for task in asyncio.all_tasks() if task.get_name() == "application")
    application.cancel()
    await asyncio.Event().wait()


async def serve(view: Any, send: Any) -> None:
    """Run the application of an ASGI server; the client stays."""
    messages = [{"type": "http.request", "body": b""}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    scope: Any = AsyncRequestFactory().get(f"/{view.__name__}/").scope
    with suppress(OSError, asyncio.CancelledError):
        await asyncio.create_task(ASGIHandler()(scope, receive, send), name="application")


@pytest.mark.parametrize("send", [fail, thorough("variants", cancel)], ids=["cannot send", "cancels the application"])
@pytest.mark.parametrize("view", [*VIEWS, *ASYNC_VIEWS], ids=lambda view: view.__name__)
def test_a_stream_ends_whose_asgi_server_gives_up(view: Any, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Django does not close the file of the body then, and Python would warn of it.
    monkeypatch.setattr("django.core.handlers.asgi.tempfile.SpooledTemporaryFile", lambda **_: io.BytesIO())
    asyncio.run(serve(view, send))
    wait_until(lambda: taken_after_collection() == once(view))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_a_stream_ends_that_a_wsgi_server_drops(view: Any) -> None:
    for path_info in (f"/{view.__name__}/", "/missing/"):
        WSGIHandler()(RequestFactory().get(path_info).environ, lambda *_: list[bytes]().append)
    wait_until(lambda: taken_after_collection() == once(view))


def test_the_end_of_another_request_ends_no_stream() -> None:
    client = Client()
    content: Any = client.get("/slot/").streaming_content  # type: ignore[attr-defined]
    assert client.get("/slot/").status_code == 429
    assert held("export") == 1
    assert list(content) == [b"a"]
    assert held("export") == 0
