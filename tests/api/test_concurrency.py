"""`@concurrency` on every kind of view: never more requests than its limit, and each slot is released."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import QuotaRequest, check, concurrency, quota, slot
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.testing import RedisServer, clear, freeze
from tests.support.calls import get, run
from tests.support.commands import wait_until
from tests.support.outages import no_answer
from tests.support.slots import lease_lasts
from tests.support.steps import START

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")


def held(name: str = "view", limit: int = 1) -> int:
    """Return how many hold a slot."""
    return len(slot(name, limit).holders())


def plain(request: Any) -> HttpResponse:
    return HttpResponse(str(held()))


async def plain_async(request: Any) -> HttpResponse:
    return HttpResponse(str(held()))


def free(request: Any) -> HttpResponse:
    return HttpResponse("ok")


async def free_async(request: Any) -> HttpResponse:
    return HttpResponse("ok")


def failing(request: Any) -> HttpResponse:
    raise ZeroDivisionError


async def failing_async(request: Any) -> HttpResponse:
    raise ZeroDivisionError


def says_async(request: Any) -> Any:
    """Return what must be awaited, and do not say so."""
    return plain_async(request)


class Sync(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return plain(request)


class Async(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return plain(request)


def on_method(cls: type[View], decorate: Callable[[Any], Any]) -> type[View]:
    return type("On" + cls.__name__, (cls,), {"get": decorate(cls.__dict__["get"])})


def derived(cls: type[View]) -> Any:
    return type("Own" + cls.__name__, (cls,), {})


one = concurrency(1, name="view")
WAYS: dict[str, Callable[[type[View]], Callable[..., Any]]] = {
    "class": lambda cls: one(derived(cls)).as_view(),
    "method": lambda cls: on_method(cls, one).as_view(),
    "md-dispatch": lambda cls: method_decorator(one, name="dispatch")(derived(cls)).as_view(),
    "md-method": lambda cls: on_method(cls, method_decorator(one)).as_view(),
    "as_view": lambda cls: one(cls.as_view()),
}


@both_stores
class TestKindsOfViews:
    @pytest.mark.parametrize("view", [plain, plain_async, says_async])
    def test_a_function_holds_a_slot_while_it_runs(self, view: Any) -> None:
        guarded = one(view)
        for _ in range(2):
            assert run(guarded).content == b"1"  # type: ignore[attr-defined]
            assert held() == 0

    @pytest.mark.parametrize("cls", [Sync, Async])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_class_holds_a_slot_while_it_runs(self, way: str, cls: type[View]) -> None:
        guarded = WAYS[way](cls)
        for _ in range(2):
            assert run(guarded).content == b"1"  # type: ignore[attr-defined]
            assert held() == 0

    @pytest.mark.parametrize("view", [plain, plain_async, says_async, Sync.as_view(), Async.as_view()])
    def test_who_finds_no_slot_is_refused(self, view: Any) -> None:
        with freeze(START), slot("view", 1):
            refused = run(one(view))
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "30"
        assert refused.headers["RateLimit-Policy"] == '"view";q=1;qu="concurrent-requests"'
        assert refused.headers["RateLimit"] == '"view";r=0;t=30'
        assert "The limit is 1 at once. Please try again in 30 seconds." in refused.content.decode()  # type: ignore[attr-defined]

    @pytest.mark.parametrize("view", [failing, failing_async])
    def test_an_error_gives_the_slot_back(self, view: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            run(one(view))
        assert held() == 0

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_an_exceeded_quota_in_the_view_is_a_429_and_gives_the_slot_back(self, asynchronous: bool) -> None:
        def view(request: Any) -> HttpResponse:
            check("0/m", "global").raise_if_refused()
            raise AssertionError

        async def aview(request: Any) -> HttpResponse:
            return view(request)

        assert run(one(aview if asynchronous else view)).status_code == 429
        assert held() == 0

    def test_a_task_that_is_cancelled_gives_the_slot_back(self) -> None:
        async def serve() -> None:
            inside = asyncio.Event()

            async def view(request: Any) -> HttpResponse:
                inside.set()
                await asyncio.Event().wait()
                raise AssertionError

            task = asyncio.create_task(one(view)(get()))
            await inside.wait()
            assert held() == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert held() == 0

        asyncio.run(serve())

    def test_never_more_threads_are_inside_than_may(self) -> None:
        lock, inside, most = threading.Lock(), 0, 0

        @concurrency(3, name="busy", wait=60)
        def view(request: Any) -> HttpResponse:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            held("busy", 3)
            with lock:
                inside -= 1
            return HttpResponse("ok")

        with ThreadPoolExecutor(12) as threads:
            assert {response.status_code for response in threads.map(lambda _: view(get()), range(120))} == {200}
        assert 1 <= most <= 3

    def test_who_waits_gets_in(self) -> None:
        taken = slot("view", 1).acquire()
        with ThreadPoolExecutor(1) as threads:
            response = threads.submit(concurrency(1, name="view", wait=60)(plain), get())
            taken.release()
            assert response.result(60).status_code == 200


@in_memory
class TestWhoIsLimited:
    def test_subjects_have_slots_of_their_own(self) -> None:
        view = concurrency(1, key="ip", name="view")(free)
        with slot("view", 1, subject="ip:192.0.2.1"):
            assert run(view, get()).status_code == 429
            assert run(view, get(REMOTE_ADDR="192.0.2.2")).status_code == 200

    def test_a_user_is_limited_under_async_too(self) -> None:
        async def view(request: Any) -> HttpResponse:
            return HttpResponse("ok")

        request = get()
        request.user = User(pk=7)
        guarded = concurrency(1, key="user", name="view")(view)
        with slot("view", 1, subject=User(pk=7)):
            assert run(guarded, request).status_code == 429
            other = get()
            other.user = AnonymousUser()
            assert run(guarded, other).status_code == 200

    def test_an_unnamed_slot_is_called_by_the_path_of_the_view(self) -> None:
        request = get()
        concurrency(2)(plain)(request)
        assert request.quota.rule == "tests.api.test_concurrency.plain"
        assert request.quota.outcomes[0].remaining == 1

    def test_an_unnamed_slot_of_an_inherited_view_is_called_by_its_class(self) -> None:
        request = get()
        base: Any = concurrency(2)(derived(Sync))
        heir: Any = type("Heir", (base,), {"__module__": "tests.api.test_concurrency"})
        heir.as_view()(request)
        assert request.quota.rule == "tests.api.test_concurrency.Heir"

    def test_it_does_not_block_with_block_false(self) -> None:
        def view(request: QuotaRequest) -> HttpResponse:
            return HttpResponse(f"{request.quota.allowed} {request.quota.enforced} {held()}")

        with slot("view", 1):
            response: Any = run(concurrency(1, name="view", block=False)(view))
            assert (response.status_code, response.content) == (200, b"False False 1")
        assert held() == 0

    def test_turned_off_it_lets_everybody_in(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        with slot("view", 1):
            assert run(one(plain)).status_code == 200

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_it_stacks_with_quota_in_either_order(self, asynchronous: bool) -> None:
        limited = quota("2/m", name="rate")
        view = plain_async if asynchronous else plain
        for stacked in (one(limited(view)), limited(one(view))):
            clear()
            first: Any = run(stacked)
            assert first.content == b"1"
            assert set(first.headers["RateLimit-Policy"].split(", ")) == {
                '"view";q=1;qu="concurrent-requests"',
                '"rate";q=2;w=60',
            }
            with slot("view", 1):
                assert run(stacked).status_code == 429
            assert held() == 0
        clear()
        inner = one(limited(view))
        assert [run(inner).status_code for _ in range(3)] == [200, 200, 429]
        assert held() == 0


# --- streaming --------------------------------------------------------------------------------------------------------


def parts() -> Iterator[bytes]:
    yield b"a"
    yield b"%d" % held()


async def aparts() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"%d" % held()


@concurrency(1, name="view")
def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(parts())


@concurrency(1, name="view")
async def astream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(aparts())


@concurrency(1, name="view")
def send_file(request: HttpRequest) -> FileResponse:
    return FileResponse(Path(__file__).open("rb"))


@concurrency(1, name="view")
@concurrency(1, name="inner")
def stream_twice(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(parts())


urlpatterns = [
    path("stream/", stream),
    path("astream/", astream),
    path("file/", send_file),
    path("twice/", stream_twice),
]


@both_stores
@pytest.mark.urls("tests.api.test_concurrency")
class TestStreaming:
    @pytest.mark.parametrize("url", ["/stream/", "/twice/"])
    def test_a_response_keeps_its_slot_until_it_is_sent(self, url: str) -> None:
        response: Any = Client().get(url)
        content = iter(response.streaming_content)
        assert next(content) == b"a"
        assert Client().get(url).status_code == 429
        assert list(content) == [b"1"]
        assert held() == held("inner") == 0
        response.close()

    def test_a_response_that_is_closed_before_its_end_gives_its_slot_back(self) -> None:
        response: Any = stream(get())
        assert next(iter(response.streaming_content)) == b"a"
        response.close()
        assert held() == 0

    def test_a_response_that_is_never_sent_gives_its_slot_back_when_it_is_closed(self) -> None:
        for view in (stream, send_file):
            response = view(get())
            assert held() == 1
            response.close()
            assert held() == 0

    def test_an_async_response_keeps_its_slot_until_it_is_sent(self) -> None:
        async def fetch() -> None:
            client: Any = AsyncClient()
            response = await client.get("/astream/")
            content = aiter(response.streaming_content)
            assert await anext(content) == b"a"
            assert (await client.get("/astream/")).status_code == 429
            assert [part async for part in content] == [b"1"]
            assert held() == 0

        asyncio.run(fetch())

    def test_an_async_response_that_is_not_sent_to_its_end_gives_its_slot_back(self) -> None:
        async def fetch() -> None:
            response: Any = await astream(get())
            content = aiter(response)
            assert await anext(content) == b"a"
            await content.aclose()
            response.close()
            assert held() == 0

        asyncio.run(fetch())

    def test_an_async_response_that_fails_gives_its_slot_back(self) -> None:
        async def fail() -> AsyncIterator[bytes]:
            yield b"a"
            raise ZeroDivisionError

        async def view(request: Any) -> StreamingHttpResponse:
            return StreamingHttpResponse(fail())

        async def fetch() -> None:
            content = aiter(await one(view)(get()))
            assert await anext(content) == b"a"
            with pytest.raises(ZeroDivisionError):
                await anext(content)
            assert held() == 0

        asyncio.run(fetch())

    def test_an_async_response_that_is_never_sent_gives_its_slot_back_when_it_is_closed(self) -> None:
        async def fetch() -> None:
            response: Any = await astream(get())
            assert held() == 1
            response.close()
            assert held() == 0

        asyncio.run(fetch())

    def test_a_file_is_sent_as_it_is(self) -> None:
        response: Any = Client().get("/file/")
        assert response.wsgi_request is not None
        assert b"".join(response.streaming_content) == Path(__file__).read_bytes()
        assert held() == 0
        response.close()

    def test_the_server_may_still_send_the_file_itself(self) -> None:
        response = send_file(get())
        assert response.file_to_stream is not None
        response.close()

    def test_a_renewed_lease_is_renewed_while_it_streams(self, renewed_often: list[float]) -> None:
        def view(request: Any) -> StreamingHttpResponse:
            return StreamingHttpResponse(parts())

        response: Any = concurrency(1, name="view", lease=60, renew=True)(view)(get())
        for _ in range(2):
            ((token, _),) = slot("view", 1).holders()
            lease_lasts("view", token, 20)
            wait_until(lambda: slot("view", 1).holders()[0][1] > 30)
        response.close()
        assert held() == 0


# --- without the store ------------------------------------------------------------------------------------------------


class TestWithoutRedis:
    @pytest.fixture(autouse=True)
    def gone(self, redis_cache: RedisServer, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere.sock"}}

    @pytest.mark.parametrize("view", [free, free_async])
    def test_it_lets_in_by_default_and_says_so_once(self, view: Any, caplog: pytest.LogCaptureFixture) -> None:
        requests = [get(), get()]
        with caplog.at_level(logging.ERROR, "django_quota"):
            assert [run(one(view), request).status_code for request in requests] == [200, 200]
        assert all(request.quota.degraded and request.quota.allowed for request in requests)
        assert len(caplog.records) == 1

    def test_it_denies_where_the_option_says_so(self) -> None:
        response = run(concurrency(1, on_unavailable="deny")(plain))
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "1"

    def test_it_goes_by_the_setting_without_the_option(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}
        assert run(one(plain)).status_code == 503

    def test_a_view_that_may_go_on_does_though_it_is_denied(self) -> None:
        view = concurrency(1, on_unavailable="deny", block=False)(free)
        assert run(view).status_code == 200

    def test_each_process_counts_by_itself_where_the_option_says_so(self) -> None:
        @concurrency(1, name="view", on_unavailable="local")
        def view(request: Any) -> HttpResponse:
            nested = run_inside(request)
            return HttpResponse(str(nested))

        def run_inside(request: Any) -> int:
            return 0 if "HTTP_INNER" in request.META else view(get(HTTP_INNER="1")).status_code

        request = get()
        response: Any = view(request)
        assert (response.status_code, response.content) == (200, b"429")
        assert request.quota.degraded
        assert view(get(HTTP_INNER="1")).status_code == 200


@pytest.mark.usefixtures("redis_cache")
def test_a_view_whose_store_goes_away_meanwhile_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def view(request: Any) -> HttpResponse:
        stack.enter_context(no_answer())
        return HttpResponse("ok")

    with ExitStack() as stack:
        assert one(view)(get()).status_code == 200
    assert "stays taken until its lease ends" in caplog.text


@in_memory
def test_a_view_that_outlives_its_lease_is_answered_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def view(request: Any) -> HttpResponse:
        clear()
        return HttpResponse("ok")

    assert one(view)(get()).status_code == 200
    assert "longer than its lease" in caplog.text


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": 0}, "limit="),
        ({"limit": plain}, "has no limit"),
        ({"limit": 1, "lease": 0}, "lease="),
        ({"limit": 1, "wait": "5"}, "wait='5' is not a number of seconds, from 0"),
        ({"limit": 1, "name": ""}, "name of a slot"),
        ({"limit": 1, "renew": "yes"}, "renew="),
        ({"limit": 1, "key": "nonsense"}, "is not a key"),
        ({"limit": 1, "on_unavailable": "perhaps"}, "on_unavailable="),
        ({"limit": 1, "block": 1}, "block="),
    ],
)
def test_wrong_arguments_are_errors_at_import(arguments: Any, error: str) -> None:
    with pytest.raises(RuleError, match=error):
        concurrency(**arguments)


@pytest.mark.parametrize("view", [7, get()])
def test_it_stands_on_views_only(view: Any) -> None:
    with pytest.raises(RuleError, match="not on a view"):
        one(view)


def test_a_class_without_dispatch_is_no_view() -> None:
    class Nothing:
        pass

    with pytest.raises(ConfigurationError, match="@concurrency on"):
        one(Nothing)


def test_a_function_without_a_request_is_no_view() -> None:
    with pytest.raises(ConfigurationError, match="@concurrency is on a function that got no request"):
        one(lambda: None)()
