"""`settle` and `count_when`: what a request took is settled by its response, with and without the middleware."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.views import View

from django_quota import Rule, check, peek, quota
from django_quota.adapters import apply_decision, decide, settle
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.counts import checks_of, count_what_waits, units_of
from tests.support.overridden import override
from tests.support.steps import START

IP = "ip:127.0.0.1"
MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]


def size(request: HttpRequest, response: HttpResponse) -> int:
    return len(response.content)


async def asize(request: HttpRequest, response: HttpResponse) -> int:
    return size(request, response)


ERRORS: dict[str, Any] = {"missing": Http404, "denied": PermissionDenied, "broken": ZeroDivisionError}


def answer(request: HttpRequest) -> HttpResponse:
    what = request.GET.get("what", "")
    if what in ERRORS:
        raise ERRORS[what]
    if what == "refused":
        check("0/m", IP).raise_if_refused()
    return HttpResponse(b"x" * int(request.GET.get("size", 0)), status=int(request.GET.get("status", 200)))


BYTES: Any = {"name": "bytes", "settle": size}
FAILED: Any = {"name": "failed", "count_when": lambda response: response.status_code in (401, 403, 404, 500)}


async def aanswer(request: HttpRequest) -> HttpResponse:
    return answer(request)


def parts(request: HttpRequest) -> Iterator[bytes]:
    request.sent = 0  # type: ignore[attr-defined]
    for _ in range(3):
        request.sent += 100  # type: ignore[attr-defined]
        yield b"x" * 100


async def aparts(request: HttpRequest) -> AsyncIterator[bytes]:
    for part in parts(request):
        yield part


of_parts: Any = quota("1000/h", name="bytes", settle=lambda request, response: getattr(request, "sent", 0))


async def astreaming(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(aparts(request))


has_begun: list[asyncio.Event] = []


@quota("1000/h", **BYTES, cost=100)
async def endless(request: HttpRequest) -> HttpResponse:
    has_begun.pop().set()
    return await asyncio.Future()


counted = [quota("5/h", **FAILED), quota("1000/h", **BYTES)]
class_view: Any = counted[1](counted[0](type("ClassView", (View,), {"get": lambda self, request: answer(request)})))
urlpatterns = [
    path("class/", class_view.as_view()),
    path("endless/", endless),
    path("sync/", counted[1](counted[0](answer))),
    path("async/", quota("1000/h", name="bytes", settle=asize)(quota("5/h", **FAILED)(aanswer))),
    path("settings/", quota(rule="bytes-of-settings")(answer)),
    path("plain/", answer),
    path("stream/", of_parts(lambda request: StreamingHttpResponse(parts(request)))),
    path("astream/", of_parts(astreaming)),
]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.usefixtures("memory_store")]


@pytest.fixture(params=["middleware", "alone"], autouse=True)
def site(request: pytest.FixtureRequest, memory_store: None, settings: Any) -> Iterator[None]:
    settings.MIDDLEWARE = MIDDLEWARE if request.param == "middleware" else []
    rules = {"bytes-of-settings": {"rate": "1000/h", "settle": f"{__name__}.size"}}
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}
    with freeze(START):
        yield


def ask(where: str, **query: Any) -> Any:
    if where.startswith("a"):

        async def wait() -> Any:
            return await AsyncClient(raise_request_exception=False).get(f"/{where}/", query)

        return asyncio.run(wait())
    return Client(raise_request_exception=False).get(f"/{where}/", query)


def left(name: str = "bytes", rate: str = "1000/h") -> int | None:
    return peek(rate, IP, name=name).remaining


@pytest.mark.parametrize("where", ["sync", "async", "class"])
def test_the_real_cost_replaces_the_estimate_and_what_does_not_count_is_given_back(where: str) -> None:
    response = ask(where, size=300)
    assert (response.status_code, left()) == (200, 700)
    assert '"bytes";r=700' in response.headers["RateLimit"]
    queries: list[tuple[dict[str, Any], int, int]] = [
        *(({"status": status}, status, 5) for status in (200, 302, 400)),
        ({"what": "refused"}, 429, 5), ({"what": "missing"}, 404, 4), ({"what": "denied"}, 403, 3),
        ({"what": "broken"}, 500, 2), ({"status": 401}, 401, 1), ({"status": 401}, 401, 0), ({}, 429, 0),
    ]  # fmt: skip
    for query, status, remaining in queries:  # an error counts as its status
        assert (ask(where, **query).status_code, left("failed", "5/h")) == (status, remaining)


def test_a_stream_is_settled_at_its_end_and_a_client_that_left_pays_the_estimate() -> None:
    response = ask("stream")
    assert left() == 999
    assert b"".join(response.streaming_content) == b"x" * 300
    assert left() == 700
    response.close()
    assert left() == 700
    response = ask("stream")
    assert next(iter(response)) == b"x" * 100
    response.close()
    assert left() == 600

    async def leave() -> None:
        response: Any = await AsyncClient().get("/astream/")
        assert [part async for part in response] == [b"x" * 100] * 3
        assert left() == 300
        has_begun.append(begun := asyncio.Event())
        task = asyncio.create_task(AsyncClient().get("/endless/"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert left() == 200


def test_rules_of_the_settings_take_dotted_paths_and_two_calls_of_the_store(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left()
    calls = calls_of(monkeypatch)
    ask("settings", size=40)
    assert len(calls) == 2
    assert peek("bytes-of-settings", IP).remaining == 960
    if settings.MIDDLEWARE:  # which also applies rules of its own
        rule = {"rate": "1000/h", "settle": f"{__name__}.size", "match": "/"}
        settings.QUOTA = {**settings.QUOTA, "RULES": {"everywhere": rule}}
        assert '"everywhere";r=960' in ask("plain", size=40).headers["RateLimit"]


def test_a_wrong_cost_is_an_error_stays_spent_and_leaves_no_other_unsettled(caplog: pytest.LogCaptureFixture) -> None:
    request = RequestFactory().get("/")
    for name, cost in (("wrong", 1.5), ("right", 3)):
        made = Rule.make(name, "100/h", cost=10, settle=lambda request, response, cost=cost: cost)
        apply_decision(request, decide(request, made))
    with pytest.raises(RuleError, match=r"settle= of rule 'wrong' returned 1.5. Return a whole number"):
        settle(request, HttpResponse())
    assert (left("wrong", "100/h"), left("right", "100/h")) == (90, 97)
    view: Any = quota("1000/h", name="stream", settle=lambda request, response: -1)(
        lambda request: StreamingHttpResponse([b"x"])
    )
    view(request).close()
    assert "the estimate stays spent" in caplog.text
    assert left("stream") == 999


def test_a_body_read_late_gives_all_back_in_both_steps_and_a_refused_one_nothing() -> None:
    free = {"count_when": lambda response: False}
    rules: Any = [Rule.make("ip", "10/h", **free), Rule.make("phone", "10/h", key="post:phone", **free)]
    request = RequestFactory().post("/", {"phone": "123"})
    decision = decide(request, rules)
    assert [outcome.remaining for outcome in decision.outcomes] == [9, 9]
    settle(request, HttpResponse())
    assert peek(rules[1], decision.outcomes[1].subject).remaining == left("ip", "10/h") == 10
    for key in ("post:phone", "ip"):
        request = RequestFactory().post("/", {"phone": "123"})
        assert not decide(request, [rules[0], Rule.make("shut", "0/h", key=key)])
        settle(request, HttpResponse(status=429))
        assert left("ip", "10/h") == 10


def test_a_request_that_its_second_step_refuses_leaves_the_day_of_an_exempt_subject_alone() -> None:
    override("x 0 0 ", "free", IP)
    rules = [Rule.make("free", "10/h", daily=True), Rule.make("shut", "0/h", key="post:phone")]
    assert decide(RequestFactory().get("/"), rules[:1])
    assert not decide(RequestFactory().post("/", {"phone": "123"}), rules)
    assert count_what_waits()
    assert checks_of(IP) == {"free": (1, 0)}


@pytest.mark.parametrize(("block", "remaining"), [(True, 9), (False, 10)])
def test_a_request_that_its_second_step_refuses_stays_counted_where_refusals_count(block: bool, remaining: int) -> None:
    first = Rule.make("first", "10/h", count_refused=True, block=block)
    request = RequestFactory().post("/", {"phone": "123"})
    assert not decide(request, [first, Rule.make("shut", "0/h", key="post:phone")])
    assert peek(first, IP).remaining == remaining


def test_rules_of_one_name_of_an_exempt_subject_are_given_back_to_its_day_once() -> None:
    options: Any = {"daily": True, "count_when": lambda response: response.status_code == 200}
    rules = [Rule.make("same", rate, **options) for rate in ("10/m", "100/h")]
    override("x 0 0 ", "same", IP)
    for status in (200, 200, 404):
        request = RequestFactory().get("/")
        assert decide(request, rules)
        settle(request, HttpResponse(status=status))
    assert count_what_waits()
    assert (checks_of(IP), units_of(IP)) == ({"same": (2, 0)}, {"same": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settle": 5}, "settle=5 is not a function. Use, for example, lambda request, response"),
        ({"count_when": "path.to"}, "count_when='path.to' is not a function. Use, for example, lambda resp"),
        ({"count_when": bool, "distinct": True}, "count_when= cannot be combined with distinct="),
        ({"settle": asize}, r"settle=.*asize is async, but the view is not"),
        ({"name": "same", "count_when": bool}, "same"),
    ],
)
def test_wrong_options_are_named_at_import(options: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        quota("9/h", **options)(quota("1/m", name="same")(answer))
