"""`@concurrency` on every kind of view: never more requests than its limit, and each slot is released."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import check, concurrency, peek, quota, slot
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.testing import RedisServer, freeze
from django_quota.types import QuotaRequest
from tests.support.calls import get, run
from tests.support.commands import wait_until
from tests.support.counts import checks_of
from tests.support.outages import no_answer
from tests.support.slots import forget, goes_away_after_an_answer, lease_lasts
from tests.support.steps import START

in_memory = pytest.mark.usefixtures("memory_store")


def held(name: str = "view", limit: int = 1) -> int:
    return len(slot(name, limit).holders())


def plain(request: Any) -> HttpResponse:
    return HttpResponse(str(held()))


async def plain_async(request: Any) -> HttpResponse:
    return HttpResponse(str(held()))


def free(request: Any) -> HttpResponse:
    return HttpResponse("ok")


async def free_async(request: Any) -> HttpResponse:
    return HttpResponse("ok")


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


def derived(cls: type[View], name: str = "Own") -> Any:
    return type(name, (cls,), {"__module__": __name__})


one = concurrency(1, name="view")
WAYS: list[Callable[[Any], Callable[..., Any]]] = [
    lambda cls: one(derived(cls)).as_view(),
    lambda cls: on_method(cls, one).as_view(),
    lambda cls: method_decorator(one, name="dispatch")(derived(cls)).as_view(),
    lambda cls: on_method(cls, method_decorator(one)).as_view(),
    lambda cls: one(cls.as_view()),
]
KINDS: list[tuple[Any, Any]] = [(one, view) for view in (plain, plain_async, says_async)]
KINDS += [(way, cls) for way in WAYS for cls in (Sync, Async)]


@in_memory
@pytest.mark.parametrize(("guard", "view"), KINDS)
def test_a_view_holds_a_slot_while_it_runs_and_who_finds_none_is_refused(guard: Any, view: Any) -> None:
    guarded = guard(view)
    with freeze(START), slot("view", 1):
        refused: Any = run(guarded)
    assert refused.status_code == 429
    headers = ("Retry-After", "RateLimit-Policy", "RateLimit")
    assert [refused.headers[name] for name in headers] == [
        "30", '"view";q=1;qu="concurrent-requests"', '"view";r=0;t=30'
    ]  # fmt: skip
    assert "The limit is 1 at once. Please try again in 30 seconds." in refused.text
    assert [cast("Any", run(guarded)).content for _ in range(2)] == [b"1", b"1"]
    assert held() == 0


@in_memory
@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_gives_the_slot_back_and_an_exceeded_quota_is_a_429(is_async: bool) -> None:
    def view(request: Any) -> HttpResponse:
        check("0/m", "global").raise_if_refused()
        raise AssertionError

    async def aview(request: Any) -> HttpResponse:
        return view(request)

    async def afail(request: Any) -> HttpResponse:
        raise ZeroDivisionError

    assert (run(one(aview if is_async else view)).status_code, held()) == (429, 0)
    with pytest.raises(ZeroDivisionError):
        run(one(afail if is_async else lambda request: 1 / 0))
    assert held() == 0


@pytest.mark.usefixtures("either_store")
def test_never_more_threads_are_inside_than_may() -> None:
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


@in_memory
@pytest.mark.parametrize("view", [free, free_async])
def test_subjects_have_slots_of_their_own(view: Any) -> None:
    by_ip, by_user = (concurrency(1, key, name="view")(view) for key in ("ip", "user"))
    mine, other = get(), get(REMOTE_ADDR="192.0.2.2")
    mine.user, other.user = User(pk=7), AnonymousUser()
    for limited, subject in ((by_ip, "ip:192.0.2.1"), (by_user, User(pk=7))):
        with slot("view", 1, subject=subject):
            assert [run(limited, request).status_code for request in (mine, other)] == [429, 200]


@in_memory
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: concurrency(2)(plain), "plain"),
        (lambda: derived(concurrency(2)(derived(Sync)), "Heir").as_view(), "Heir"),
        (lambda: on_method(Sync, concurrency(2)).as_view(), "OnSync.get"),
    ],
)
def test_an_unnamed_slot_is_called_by_the_path_of_its_function_class_or_method(make: Any, name: str) -> None:
    request = get()
    make()(request)
    assert (request.quota.rule, request.quota.remaining) == (f"{__name__}.{name}", 1)


@in_memory
def test_a_slot_that_does_not_block_or_is_turned_off_lets_everybody_in(settings: Any) -> None:
    def view(request: QuotaRequest) -> HttpResponse:
        return HttpResponse(f"{request.quota.allowed} {request.quota.enforced} {held()}")

    with slot("view", 1):
        response: Any = run(concurrency(1, name="view", block=False)(view))
        assert (response.status_code, response.content) == (200, b"False False 1")
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert run(one(plain)).status_code == 200


@in_memory
@pytest.mark.parametrize("is_outside", [False, True])
@pytest.mark.parametrize("view", [plain, plain_async])
def test_it_stacks_with_quota_in_either_order(view: Any, is_outside: bool) -> None:
    limited = quota("2/m", name="rate")
    stacked = one(limited(view)) if is_outside else limited(one(view))
    first: Any = run(stacked)
    assert first.content == b"1"
    policies = ['"rate";q=2;w=60', '"view";q=1;qu="concurrent-requests"']
    assert sorted(first.headers["RateLimit-Policy"].split(", ")) == policies
    with slot("view", 1):
        assert run(stacked).status_code == 429
    assert [run(stacked).status_code for _ in range(2)] == [200, 429]
    assert held() == 0


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("has_middleware", [True, False])
def test_a_refused_slot_gives_back_what_the_rules_of_the_request_took(settings: Any, has_middleware: bool) -> None:
    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"] if has_middleware else []

    @quota("1000/h", name="exports", cost=50, daily=True)
    @quota("1000/d", name="bytes", cost=50, settle=lambda request, response: 70)
    @concurrency(3, name="view")
    def export(request: HttpRequest) -> HttpResponse:
        return StreamingHttpResponse(iter([b"part"]))  # type: ignore[return-value]

    with freeze(START):
        responses = [export(get()) for _ in range(5)]
        assert [response.status_code for response in responses] == [200] * 3 + [429] * 2
        assert peek("1000/h", "ip:192.0.2.1", name="exports").remaining == 850
        assert '"exports";r=850' in responses[-1].headers["RateLimit"]
        assert checks_of("ip:192.0.2.1")["exports"] == (3, 0)
        for response in responses:
            response.close()


# --- streaming --------------------------------------------------------------------------------------------------------


def parts() -> Iterator[bytes]:
    yield b"a"
    yield b"%d" % held()


async def aparts() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"%d" % held()


@one
def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(parts())


@one
async def astream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(aparts())


@one
def send_file(request: HttpRequest) -> FileResponse:
    return FileResponse(Path(__file__).open("rb"))


@one
@concurrency(1, name="inner")
def stream_twice(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(parts())


urlpatterns = [
    path("stream/", stream),
    path("astream/", astream),
    path("file/", send_file),
    path("twice/", stream_twice),
]


@in_memory
@pytest.mark.urls(__name__)
class TestStreaming:
    @pytest.mark.parametrize("url", ["/stream/", "/twice/", "/astream/"])
    def test_a_response_keeps_its_slot_until_it_is_sent(self, url: str) -> None:
        async def fetch() -> None:
            client, is_async = AsyncClient(), url == "/astream/"
            content: Any = (await client.get(url)).streaming_content  # type: ignore[attr-defined]
            first = await anext(content) if is_async else next(content)
            assert (await client.get(url)).status_code == 429
            rest = [part async for part in content] if is_async else list(content)
            assert (first, rest) == (b"a", [b"1"])
            assert held() == held("inner") == 0

        asyncio.run(fetch())

    @pytest.mark.parametrize("view", [stream, send_file, astream])
    @pytest.mark.parametrize("has_begun", [False, True])
    def test_a_response_that_is_closed_before_its_end_gives_its_slot_back(self, view: Any, has_begun: bool) -> None:
        async def begin() -> Any:
            response = view(get())
            response = await response if view is astream else response
            assert held() == 1
            if has_begun:
                content = aiter(response) if view is astream else iter(response)
                assert (await anext(content)) if view is astream else next(content)
                if view is astream:
                    await content.aclose()
            response.close()
            assert held() == 0

        asyncio.run(begin())

    def test_a_file_is_sent_as_it_is_and_the_server_may_send_it_itself(self) -> None:
        response: Any = Client().get("/file/")
        assert b"".join(response.streaming_content) == Path(__file__).read_bytes()
        assert held() == 0
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

    def test_it_denies_where_the_option_or_the_setting_says_so(self, settings: Any) -> None:
        response = run(concurrency(1, on_unavailable="deny")(plain))
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}
        assert run(one(plain)).status_code == 503
        assert run(concurrency(1, block=False)(free)).status_code == 200  # a view that may go on does

    def test_each_process_counts_by_itself_where_the_option_says_so(self) -> None:
        @concurrency(1, name="view", on_unavailable="local")
        def view(request: Any) -> HttpResponse:
            return HttpResponse("0" if "HTTP_INNER" in request.META else str(view(get(HTTP_INNER="1")).status_code))

        request = get()
        assert view(request).content == b"429"
        assert request.quota.degraded
        assert view(get(HTTP_INNER="1")).status_code == 200


@in_memory
@pytest.mark.parametrize(
    ("method", "words"), [("get", "longer than its lease"), ("post", "stays taken until its lease ends")]
)
def test_a_view_whose_lease_is_lost_is_answered_and_the_log_says_so(
    method: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    def view(request: Any) -> HttpResponse:
        forget("view")
        if request.method == "POST":
            stack.enter_context(no_answer())
        return HttpResponse("ok")

    with ExitStack() as stack:
        assert one(view)(get(method)).status_code == 200
    assert words in caplog.text


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(("how", "status"), [("allow", 200), ("deny", 503), ("local", 200)])
@pytest.mark.parametrize("view", [free, free_async])
def test_a_request_whose_store_goes_away_during_the_wait_goes_by_on_unavailable(
    view: Any, how: Any, status: int
) -> None:
    slot("view", 1).acquire()
    with goes_away_after_an_answer():
        request = get()
        assert run(concurrency(1, name="view", wait=0.1, on_unavailable=how)(view), request).status_code == status
        assert request.quota.degraded


# --- what is wrong ----------------------------------------------------------------------------------------------------

KINDS_OF_REQUESTS = {"critical": 1.0, "batch": 0.5}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limit": 0}, "limit="), ({"limit": plain}, "has no limit"), ({"lease": 0}, "lease="),
        ({"wait": "5"}, "wait='5' is not a duration from 0 to 366 days"), ({"name": ""}, "name of a slot"),
        ({"renew": "yes"}, "renew="), ({"key": "nonsense"}, "is not a key"), ({"block": 1}, "block="),
        ({"on_unavailable": "perhaps"}, "on_unavailable="), ({"leese": 5}, "Did you mean 'lease'"),
        ({"share": {"batch": 0.5}}, "No tier= says who is in tier 'batch'"),
        ({"share": 0.5}, "share=0.5 is not a dict of shares by tier. For all requests, give a lower limit."),
        ({"share": KINDS_OF_REQUESTS, "tier": "batch"}, "tier='batch' is not a function of the request"),
        ({"tier": plain}, "needs share="),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_an_error_at_import(arguments: Any, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        concurrency(**{"limit": 1, **arguments})


def test_it_stands_on_views_only() -> None:
    for view, words in ((7, "not on a view"), (get(), "not on a view"), (type("No", (), {}), "@concurrency on No")):
        with pytest.raises((RuleError, ConfigurationError), match=words):
            one(cast("Any", view))
    with pytest.raises(ConfigurationError, match="@concurrency is on a function that got no request"):
        one(lambda: None)()
