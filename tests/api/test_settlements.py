"""`settle` and `count_when`: what a request took is settled by its response, with and without the middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import Rule, check, peek, quota
from django_quota.adapters import adecide, apply_decision, asettle, decide, settle
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.steps import START

IP = "ip:127.0.0.1"
MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]


def size(request: HttpRequest, response: HttpResponse) -> int:
    return len(response.content)


async def asize(request: HttpRequest, response: HttpResponse) -> int:
    return len(response.content)


def answer(request: HttpRequest) -> HttpResponse:
    """Answer as the query says."""
    what = request.GET.get("what", "")
    if what == "missing":
        raise Http404
    if what == "denied":
        raise PermissionDenied
    if what == "broken":
        raise ZeroDivisionError
    if what == "refused":
        check("0/m", IP).raise_if_refused()
    return HttpResponse(b"x" * int(request.GET.get("size", 0)), status=int(request.GET.get("status", 200)))


BYTES: Any = {"name": "bytes", "settle": size}
FAILED: Any = {"name": "failed", "count_when": lambda response: response.status_code in (401, 403, 404, 500)}


async def aanswer(request: HttpRequest) -> HttpResponse:
    return answer(request)


class MethodView(View):
    @method_decorator([quota("1000/h", **BYTES), quota("5/h", **FAILED)])
    def get(self, request: HttpRequest) -> HttpResponse:
        return answer(request)


def parts(request: HttpRequest) -> Iterator[bytes]:
    request.sent = 0  # type: ignore[attr-defined]
    for _ in range(3):
        request.sent += 100  # type: ignore[attr-defined]
        yield b"x" * 100


async def aparts(request: HttpRequest) -> AsyncIterator[bytes]:
    for part in parts(request):
        yield part


@quota("1000/h", name="bytes", settle=lambda request, response: getattr(request, "sent", 0))
def streaming(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(parts(request))


@quota("1000/h", name="bytes", settle=lambda request, response: getattr(request, "sent", 0))
async def astreaming(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(aparts(request))


has_begun: list[asyncio.Event] = []


@quota("1000/h", **BYTES, cost=100)
async def endless(request: HttpRequest) -> HttpResponse:
    has_begun.pop().set()
    await asyncio.Event().wait()
    return HttpResponse()


counted = [quota("5/h", **FAILED), quota("1000/h", **BYTES)]
class_view: Any = counted[1](counted[0](type("ClassView", (View,), {"get": lambda self, request: answer(request)})))
urlpatterns = [
    path("class/", class_view.as_view()),
    path("endless/", endless),
    path("sync/", counted[1](counted[0](answer))),
    path("async/", quota("1000/h", name="bytes", settle=asize)(quota("5/h", **FAILED)(aanswer))),
    path("method/", MethodView.as_view()),
    path("settings/", quota(rule="bytes-of-settings")(answer)),
    path("plain/", answer),
    path("stream/", streaming),
    path("astream/", astreaming),
]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.usefixtures("memory_store")]


@pytest.fixture(params=["middleware", "alone"], autouse=True)
def site(request: pytest.FixtureRequest, memory_store: None, settings: Any) -> Iterator[None]:
    settings.MIDDLEWARE = MIDDLEWARE if request.param == "middleware" else []
    settings.QUOTA = {
        **settings.QUOTA,
        "RULES": {"bytes-of-settings": {"rate": "1000/h", "settle": f"{__name__}.size"}},
    }
    with freeze(START):
        yield


def ask(where: str, **query: Any) -> Any:
    """Ask a view; an error that leaves it is a 500."""
    if where.startswith("a"):

        async def wait() -> Any:
            return await AsyncClient(raise_request_exception=False).get(f"/{where}/", query)

        return asyncio.run(wait())
    return Client(raise_request_exception=False).get(f"/{where}/", query)


def left(name: str = "bytes", rate: str = "1000/h") -> int | None:
    return peek(rate, IP, name=name).remaining


VIEWS = ["sync", "async", "class", "method"]


@pytest.mark.parametrize("where", VIEWS)
class TestEveryView:
    def test_the_real_cost_replaces_the_estimate_and_may_exceed_the_limit(self, where: str) -> None:
        response = ask(where, size=300)
        assert response.status_code == 200
        assert left() == 700
        assert '"bytes";r=700' in response.headers["RateLimit"]
        ask(where, size=5_000)
        assert ask(where).status_code == 429
        assert left() == 0

    def test_what_does_not_count_is_given_back(self, where: str) -> None:
        for status in (200, 204, 302, 400):
            assert ask(where, status=status).status_code == status
        assert left("failed", "5/h") == 5
        for number in range(5):
            assert ask(where, status=401).status_code == 401
            assert left("failed", "5/h") == 4 - number
        assert ask(where, status=200).status_code == 429

    @pytest.mark.parametrize(("what", "status"), [("missing", 404), ("denied", 403), ("broken", 500), ("refused", 429)])
    def test_an_error_in_the_view_counts_as_the_status_that_it_becomes(
        self, where: str, what: str, status: int
    ) -> None:
        assert ask(where, what=what).status_code == status
        assert left("failed", "5/h") == (5 if what == "refused" else 4)


class TestStreams:
    def test_a_stream_is_settled_when_it_ends(self) -> None:
        response = ask("stream")
        assert left() == 999
        assert b"".join(response.streaming_content) == b"x" * 300
        assert left() == 700
        response.close()
        assert left() == 700

    def test_async_too(self) -> None:
        async def read() -> None:
            response: Any = await AsyncClient().get("/astream/")
            assert [part async for part in response] == [b"x" * 100] * 3

        asyncio.run(read())
        assert left() == 700

    def test_one_that_nobody_reads_to_its_end_is_settled_when_it_is_closed(self) -> None:
        response = ask("stream")
        assert next(iter(response)) == b"x" * 100
        response.close()
        assert left() == 900


def test_rules_of_the_settings_take_dotted_paths_and_two_calls_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    left()
    calls = calls_of(monkeypatch)
    ask("settings", size=40)
    assert len(calls) == 2
    assert peek("bytes-of-settings", IP).remaining == 960


def test_a_rule_that_only_the_middleware_applies_is_settled_too(settings: Any) -> None:
    if not settings.MIDDLEWARE:
        return
    rule = {"rate": "1000/h", "settle": f"{__name__}.size", "match": "/"}
    settings.QUOTA = {**settings.QUOTA, "RULES": {"everywhere": rule}}
    assert '"everywhere";r=960' in ask("plain", size=40).headers["RateLimit"]
    assert peek("everywhere", IP).remaining == 960


def test_an_integration_settles_what_it_decided(settings: Any) -> None:
    rule = Rule.make("mine", "1000/h", settle=size)
    request = RequestFactory().get("/")
    for number, is_async in enumerate((False, True), start=1):
        apply_decision(request, asyncio.run(adecide(request, [rule])) if is_async else decide(request, [rule]))
        response = HttpResponse(b"x" * 40)
        if is_async:
            asyncio.run(asettle(request, response))
        else:
            settle(request, response)
        assert peek(rule, IP).remaining == 1_000 - 40 * number


def test_the_estimate_of_a_client_that_went_away_stays_spent() -> None:
    async def leave() -> None:
        begun = asyncio.Event()
        has_begun.append(begun)
        task = asyncio.create_task(AsyncClient().get("/endless/"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert left() == 900


def test_a_wrong_cost_is_an_error_stays_spent_and_leaves_no_other_unsettled() -> None:
    request = RequestFactory().get("/")
    for name, cost in (("wrong", 1.5), ("right", 3)):
        made = Rule.make(name, "100/h", cost=10, settle=lambda request, response, cost=cost: cost)
        apply_decision(request, decide(request, made))
    with pytest.raises(RuleError, match=r"settle= of rule 'wrong' returned 1.5. Return a whole number"):
        settle(request, HttpResponse())
    assert peek("100/h", IP, name="wrong").remaining == 90
    assert peek("100/h", IP, name="right").remaining == 97


def test_a_wrong_cost_of_a_stream_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    view: Any = quota("1000/h", name="wrong", settle=lambda request, response: -1)(
        lambda request: StreamingHttpResponse([b"x"])
    )
    view(RequestFactory().get("/")).close()
    assert "the estimate stays spent" in caplog.text
    assert left("wrong") == 999


def test_a_refused_request_gives_nothing_back() -> None:
    rules = [Rule.make("wide", "10/h", count_when=lambda response: False), Rule.make("shut", "0/h")]
    request = RequestFactory().get("/")
    decide(request, rules)
    settle(request, HttpResponse(status=429))
    assert left("wide", "10/h") == 10


def test_a_body_that_is_read_late_gives_all_back_in_both_steps() -> None:
    rules = [
        Rule.make("ip", "10/h", count_when=lambda response: False),
        Rule.make("phone", "10/h", key="post:phone", count_when=lambda response: False),
    ]
    request = RequestFactory().post("/", {"phone": "123"})
    decision = decide(request, rules)
    assert [outcome.remaining for outcome in decision.outcomes] == [9, 9]
    settle(request, HttpResponse())
    assert left("ip", "10/h") == 10
    assert peek(rules[1], decision.outcomes[1].subject).remaining == 10
    shut = [rules[0], Rule.make("shut", "0/h", key="post:phone")]
    request = RequestFactory().post("/", {"phone": "123"})
    assert not decide(request, shut)
    assert left("ip", "10/h") == 10


NUMBER: Any = 5
TEXT: Any = "path.to"


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda: quota("9/h", settle=NUMBER), "settle=5 is not a function. Use, for example, lambda request, response"),
        (
            lambda: quota("9/h", count_when=TEXT),
            "count_when='path.to' is not a function. Use, for example, lambda resp",
        ),
        (lambda: quota("9/h", settle=size, distinct="header:X-Device"), "settle= does not go with distinct="),
        (lambda: quota("9/h", count_when=bool, distinct=True), "count_when= does not go with distinct="),
        (lambda: quota("9/h", settle=asize)(answer), r"settle=.*asize is async, but the view is not"),
        (lambda: quota("1/m", name="same", count_when=bool)(quota("9/h", name="same")(answer)), "same"),
    ],
)
def test_wrong_options_are_named_at_import(decorate: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        decorate()
