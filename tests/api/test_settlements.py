"""`settle` and `count_when`: what a request took is settled by its response, with and without the middleware."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, closing
from typing import Any, ClassVar, get_args

import pytest
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.multipartparser import MultiPartParserError
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.views import View

from django_quota import Rule, check, concurrency, peek, quota, reserve
from django_quota.adapters import adecide, asettle, attach_decision, decide, settle
from django_quota.core.rule_options import OnUnavailable
from django_quota.exceptions import RuleError
from django_quota.middleware import QuotaMiddleware
from django_quota.signals import near_limit
from django_quota.testing import freeze
from tests.support.calls import calls_of, run
from tests.support.counts import checks_of, count_what_waits, units_of
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import START

IP = "ip:127.0.0.1"
MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]
SIZE = f"{__name__}.size"


def size(request: HttpRequest, response: HttpResponse) -> int:
    return len(response.content)


async def asize(request: HttpRequest, response: HttpResponse) -> int:
    return size(request, response)


ERRORS: dict[str, Any] = {
    "missing": Http404, "denied": PermissionDenied, "broken": ZeroDivisionError, "bad": BadRequest,
    "suspicious": SuspiciousOperation, "not a form": MultiPartParserError,
}  # fmt: skip


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


async def endless_alone(request: HttpRequest) -> HttpResponse:
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
    path("unjudged/", quota("5/h", name="unjudged", count_when=lambda _: pytest.fail("it is called"))(answer)),
    path("stream/", of_parts(lambda request: StreamingHttpResponse(parts(request)))),
    path("astream/", of_parts(astreaming)),
]

pytestmark = [pytest.mark.urls(__name__), pytest.mark.usefixtures("memory_store")]


@pytest.fixture(autouse=True)
def rules(memory_store: None, settings: Any) -> Iterator[None]:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"bytes-of-settings": {"rate": "1000/h", "settle": SIZE}}}
    with freeze(START):
        yield


@pytest.fixture(params=["middleware", "alone"])
def site(request: pytest.FixtureRequest, rules: None, settings: Any) -> None:
    """The views with the middleware, and with their decorators alone."""
    settings.MIDDLEWARE = MIDDLEWARE if request.param == "middleware" else []


def ask(where: str, **query: Any) -> Any:
    if where.startswith("a"):

        async def wait() -> Any:
            return await AsyncClient(raise_request_exception=False).get(f"/{where}/", query)

        return asyncio.run(wait())
    return Client(raise_request_exception=False).get(f"/{where}/", query)


def left(name: str = "bytes", rate: str = "1000/h") -> int | None:
    return peek(rate, IP, name=name).remaining


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("where", ["sync", "async", "class"])
class TestView:
    def test_the_real_cost_replaces_the_estimate(self, where: str) -> None:
        assert ask(where, size=300).status_code == 200
        assert left() == 700

    def test_the_real_cost_may_exceed_the_limit(self, where: str) -> None:
        ask(where, size=5_000)

        assert ask(where).status_code == 429
        assert left() == 0

    def test_the_headers_have_the_real_cost(self, where: str) -> None:
        assert '"bytes";r=700' in ask(where, size=300).headers["RateLimit"]

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            pytest.param({"status": 200}, 200, id="OK"),
            pytest.param({"status": 302}, 302, id="a redirect"),
            pytest.param({"status": 400}, 400, id="a bad request"),
            pytest.param({"what": "bad"}, 400, id="BadRequest"),
            pytest.param({"what": "suspicious"}, 400, id="SuspiciousOperation"),
            pytest.param({"what": "not a form"}, 400, id="MultiPartParserError"),
            pytest.param({"what": "refused"}, 429, id="a refusal within the view"),
        ],
    )
    def test_what_does_not_count_is_given_back_after(self, query: dict[str, Any], status: int, where: str) -> None:
        assert ask(where, **query).status_code == status
        assert left("failed", "5/h") == 5

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            pytest.param({"what": "missing"}, 404, id="Http404"),
            pytest.param({"what": "denied"}, 403, id="PermissionDenied"),
            pytest.param({"what": "broken"}, 500, id="an error of the view"),
            pytest.param({"status": 401}, 401, id="a response"),
        ],
    )
    def test_what_counts_stays_spent_after(self, query: dict[str, Any], status: int, where: str) -> None:
        """An error counts as its status."""
        assert ask(where, **query).status_code == status
        assert left("failed", "5/h") == 4

    def test_what_counts_uses_up_the_limit(self, where: str) -> None:
        for _ in range(5):
            ask(where, status=401)

        assert ask(where).status_code == 429
        assert left("failed", "5/h") == 0


@pytest.mark.usefixtures("site")
class TestStream:
    def test_until_its_end_the_estimate_is_spent(self) -> None:
        with closing(ask("stream")):
            assert left() == 999

    def test_it_is_settled_at_its_end(self) -> None:
        response = ask("stream")

        assert b"".join(response.streaming_content) == b"x" * 300
        assert left() == 700

    def test_it_is_settled_once(self) -> None:
        response = ask("stream")
        b"".join(response.streaming_content)

        response.close()

        assert left() == 700

    def test_a_client_that_left_pays_for_what_was_sent(self) -> None:
        response = ask("stream")
        assert next(iter(response)) == b"x" * 100

        response.close()

        assert left() == 900

    @pytest.mark.parametrize(
        "options", [{}, {"settle": size}], ids=["count_when alone", "a cost that would be read at its end"]
    )
    def test_what_does_not_count_is_given_back_before_its_end(self, options: dict[str, Any]) -> None:
        view: Any = quota("5/h", name="failed", count_when=lambda response: False, **options)(
            lambda request: StreamingHttpResponse(parts(request))
        )

        with closing(view(RequestFactory().get("/"))):
            assert left("failed", "5/h") == 5

    def test_an_async_stream_is_settled_at_its_end(self) -> None:
        async def read() -> None:
            response: Any = await AsyncClient().get("/astream/")
            assert [part async for part in response] == [b"x" * 100] * 3

        asyncio.run(read())

        assert left() == 700

    def test_a_plain_rule_beside_one_with_settle_does_not_make_it_settle_early(self) -> None:
        view: Any = quota("9/h", name="other")(of_parts(lambda request: StreamingHttpResponse(parts(request))))

        response = view(RequestFactory().get("/"))

        assert b"".join(response.streaming_content) == b"x" * 300
        assert (left(), left("other", "9/h")) == (700, 8)

    def test_a_plain_rule_beside_one_with_count_when_does_not_delay_what_goes_back(self) -> None:
        counting: Any = quota("9/h", name="other")
        view = counting(
            quota("5/h", name="failed", count_when=lambda response: False)(
                lambda request: StreamingHttpResponse(parts(request))
            )
        )

        with closing(view(RequestFactory().get("/"))):
            assert left("failed", "5/h") == 5


@pytest.mark.parametrize(
    ("says", "remaining"),
    [
        pytest.param("yes", 7, id="a string"),
        pytest.param("", 10, id="an empty string"),
        pytest.param(None, 10, id="None"),
    ],
)
def test_what_counts_stays_spent_with_its_cost_if_count_when_says_anything_true(says: Any, remaining: int) -> None:
    view: Any = quota("10/h", name="judged", cost=3, count_when=lambda response: says)(answer)

    view(RequestFactory().get("/"))

    assert left("judged", "10/h") == remaining


def test_what_is_settled_leaves_the_other_limits_on_the_request() -> None:
    request = RequestFactory().get("/")
    for name, options in (("plain", {}), ("bytes", {"settle": size})):
        attach_decision(request, decide(request, Rule.make(name, "100/h", **options)))

    settle(request, HttpResponse(b"x" * 40))

    decision: Any = request.quota  # type: ignore[attr-defined]
    assert [(each.rule, each.remaining) for each in decision.outcomes] == [("plain", 99), ("bytes", 60)]


@pytest.mark.usefixtures("site")
def test_the_response_to_an_exempt_request_is_judged_by_no_function() -> None:
    override("x 0 0 -", "*", IP)

    assert ask("unjudged").status_code == 200


def test_a_view_after_one_that_failed_is_settled_too() -> None:
    request = RequestFactory().get("/", {"size": 300})
    failing: Any = quota("1000/h", name="failing", settle=size)(lambda request: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing(request)

    counted[1](answer)(request)

    assert left() == 700


@pytest.mark.parametrize("view", [counted[1](answer), counted[1](aanswer)], ids=["sync", "async"])
def test_each_of_two_calls_of_a_view_is_settled_by_its_own_response(view: Any) -> None:
    request: Any = RequestFactory().get("/", {"size": 300})
    run(view, request)
    request.GET = {"size": 20}

    run(view, request)

    assert left() == 680


def test_what_is_settled_shows_beside_a_limit_that_only_reports() -> None:
    reports: Any = quota("0/m", name="reports", block=False)(counted[1](answer))

    response = reports(RequestFactory().get("/", {"size": 300}))

    assert '"bytes";r=700;' in response.headers["RateLimit"]


def test_what_is_settled_shows_beside_a_limit_that_refuses_in_the_view() -> None:
    limited: Any = quota("1000/h", name="bytes", settle=lambda request, response: 300)(answer)

    response = limited(RequestFactory().get("/", {"what": "refused"}))

    assert response.status_code == 429
    assert '"bytes";r=700;' in response.headers["RateLimit"]


def test_what_is_settled_after_an_outage_leaves_a_refusal_that_only_reports() -> None:
    request: Any = RequestFactory().get("/", {"size": 300})
    slot: Any = concurrency(1, name="slot", block=False, on_unavailable="deny")(answer)

    def asks_in_an_outage(request: HttpRequest) -> HttpResponse:
        with no_answer():
            return slot(request)  # type: ignore[no-any-return]

    counted[1](asks_in_an_outage)(request)

    assert (request.quota.allowed, left()) == (False, 700)


def test_what_is_no_response_of_django_is_settled_at_once() -> None:
    view: Any = quota("1000/h", name="bytes", settle=lambda request, answer: len(answer))(lambda request: "answer")

    assert view(RequestFactory().get("/")) == "answer"

    assert left() == 994


def test_a_client_that_left_before_the_response_pays_the_estimate() -> None:
    async def leave() -> None:
        has_begun.append(begun := asyncio.Event())
        task = asyncio.create_task(AsyncClient().get("/endless/"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())

    assert left() == 900


def near_when_a_client_leaves(answer: Callable[[], Coroutine[Any, Any, Any]]) -> list[str]:
    """Cancel a request to `endless_alone` when its view has begun; return the rules that are near their limits."""
    heard: list[str] = []

    async def leave() -> None:
        has_begun.append(begun := asyncio.Event())
        task = asyncio.create_task(answer())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with received(near_limit, lambda rule, **_: heard.append(rule.name)):
        asyncio.run(leave())
    return heard


def test_a_client_that_left_before_the_response_may_be_near_the_limit() -> None:
    view: Any = quota("10/h", name="bytes", settle=size, cost=9)(endless_alone)

    assert near_when_a_client_leaves(lambda: view(RequestFactory().get("/"))) == ["bytes"]


def test_a_client_that_left_may_be_near_a_limit_of_the_settings(settings: Any) -> None:
    rule = {"rate": "10/h", "settle": SIZE, "cost": 9, "match": "/"}
    settings.MIDDLEWARE, settings.QUOTA = MIDDLEWARE, {**settings.QUOTA, "RULES": {"everywhere": rule}}
    settings.ROOT_URLCONF = (path("alone/", endless_alone),)

    assert near_when_a_client_leaves(lambda: AsyncClient().get("/alone/")) == ["everywhere"]


@pytest.mark.usefixtures("site")
class TestRuleOfTheSettings:
    def test_it_takes_the_dotted_path_of_a_function(self) -> None:
        ask("settings", size=40)

        assert peek("bytes-of-settings", IP).remaining == 960

    def test_a_request_is_two_calls_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left()
        calls = calls_of(monkeypatch)

        ask("settings", size=40)

        assert len(calls) == 2


def test_a_rule_that_the_middleware_applies_is_settled(settings: Any) -> None:
    settings.MIDDLEWARE = MIDDLEWARE
    settings.QUOTA = {**settings.QUOTA, "RULES": {"everywhere": {"rate": "1000/h", "settle": SIZE, "match": "/"}}}

    assert '"everywhere";r=960' in ask("plain", size=40).headers["RateLimit"]


def wrong(request: HttpRequest, response: HttpResponse) -> int:
    return -1


@pytest.mark.parametrize("where", ["sync", "async"])
def test_a_wrong_cost_of_a_rule_that_the_middleware_applies_is_a_500(where: str, settings: Any) -> None:
    rule = {"rate": "1000/h", "settle": f"{__name__}.wrong", "match": "/"}
    settings.MIDDLEWARE, settings.QUOTA = MIDDLEWARE, {**settings.QUOTA, "RULES": {"everywhere": rule}}

    assert ask(where).status_code == 500


@pytest.mark.parametrize("how", get_args(OnUnavailable))
def test_what_is_settled_without_the_store_leaves_the_headers_as_decided(how: OnUnavailable, site: None) -> None:
    with ExitStack() as outage:

        def view(request: HttpRequest) -> HttpResponse:
            outage.enter_context(no_answer())
            return HttpResponse(b"x" * 300)

        reply = quota("1000/h", name="bytes", settle=size, on_unavailable=how)(view)(RequestFactory().get("/"))

    assert '"bytes";r=999' in reply.headers["RateLimit"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_integration_settles_what_it_decided(is_async: bool) -> None:
    rule, request = Rule.make("mine", "1000/h", settle=size), RequestFactory().get("/")
    attach_decision(request, asyncio.run(adecide(request, [rule])) if is_async else decide(request, [rule]))

    response = HttpResponse(b"x" * 40)
    asyncio.run(asettle(request, response)) if is_async else settle(request, response)

    assert peek(rule, IP).remaining == 960


def test_an_integration_leaves_settling_to_the_middleware() -> None:
    rule = Rule.make("mine", "1000/h", settle=size)

    def view(request: HttpRequest) -> HttpResponse:
        attach_decision(request, decide(request, [rule]))
        settle(request, HttpResponse())
        return HttpResponse(b"x" * 40)

    response = QuotaMiddleware(view)(RequestFactory().get("/"))

    assert peek(rule, IP).remaining == 960
    assert response.headers["RateLimit"].startswith('"mine";r=960;')


@pytest.mark.parametrize("call", [check, lambda *given: reserve(*given).settle(1)], ids=["check", "reserve"])
def test_a_call_without_a_response_settles_nothing(call: Any) -> None:
    rule = Rule.make("rule", "10/h", count_when=lambda response: False)

    call(rule, IP)

    assert peek(rule, IP).remaining == 9


class TestWrongCost:
    @pytest.fixture
    def answered(self) -> HttpRequest:
        """A request under two rules, one of which has a wrong cost."""
        request = RequestFactory().get("/")
        for name, cost in (("wrong", 1.5), ("right", 3)):
            made = Rule.make(name, "100/h", cost=10, settle=lambda request, response, cost=cost: cost)
            attach_decision(request, decide(request, made))
        return request

    def test_it_is_an_error(self, answered: HttpRequest) -> None:
        with pytest.raises(RuleError) as raised:
            settle(answered, HttpResponse())

        assert str(raised.value) == (
            "settle= of rule 'wrong' returned 1.5. Return a whole number from 0 to 1000000000000."
        )

    @pytest.mark.parametrize("cost", [-1, 10**12 + 1, True, None, "5"], ids=repr)
    def test_it_is_anything_but_a_whole_number_from_0_to_a_million_millions(self, cost: Any) -> None:
        request = RequestFactory().get("/")
        attach_decision(request, decide(request, Rule.make("one", "100/h", settle=lambda *_: cost)))

        with pytest.raises(RuleError, match=r"settle= of rule 'one' returned "):
            settle(request, HttpResponse())

    @pytest.mark.parametrize("cost", [0, 10**12], ids=["nothing", "a million millions"])
    def test_it_is_not(self, cost: int) -> None:
        request, rule = RequestFactory().get("/"), Rule.make("one", "100/h", settle=lambda *_: cost)
        attach_decision(request, decide(request, rule))

        settle(request, HttpResponse())

        assert peek(rule, IP).used == cost

    def test_of_two_the_first_is_the_error(self) -> None:
        request = RequestFactory().get("/")
        for name in ("first", "second"):
            attach_decision(request, decide(request, Rule.make(name, "100/h", settle=lambda *_: -1)))

        with pytest.raises(RuleError, match="'first'"):
            settle(request, HttpResponse())

    def test_its_estimate_stays_spent(self, answered: HttpRequest) -> None:
        with pytest.raises(RuleError):
            settle(answered, HttpResponse())

        assert left("wrong", "100/h") == 90

    def test_its_estimate_may_be_near_the_limit(self) -> None:
        request = RequestFactory().get("/")
        attach_decision(request, decide(request, Rule.make("wrong", "10/h", cost=9, settle=lambda *_: -1)))

        heard: list[str] = []

        with received(near_limit, lambda rule, **_: heard.append(rule.name)), pytest.raises(RuleError):
            settle(request, HttpResponse())

        assert heard == ["wrong"]

    def test_it_leaves_no_other_rule_unsettled(self, answered: HttpRequest) -> None:
        with pytest.raises(RuleError):
            settle(answered, HttpResponse())

        assert left("right", "100/h") == 97

    def test_that_of_a_stream_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        view: Any = quota("1000/h", name="stream", settle=lambda request, response: -1)(
            lambda request: StreamingHttpResponse([b"x"])
        )

        view(RequestFactory().get("/")).close()

        (logged,) = [each for each in caplog.records if each.name == "django_quota.reservations"]
        assert logged.getMessage() == "settle= failed after a stream had ended: the estimate stays spent."
        assert (logged.levelname, logged.exc_info is not None) == ("ERROR", True)
        assert left("stream") == 999


class TestBodyReadLate:
    """A rule by a field of the body is decided in a second step."""

    FREE: ClassVar[dict[str, Any]] = {"count_when": lambda response: False}

    def posted(self) -> HttpRequest:
        return RequestFactory().post("/", {"phone": "123"})

    def test_what_does_not_count_is_given_back_in_both_steps(self) -> None:
        of_ip = Rule.make("ip", "10/h", **self.FREE)
        of_phone = Rule.make("phone", "10/h", key="post:phone", **self.FREE)
        request = self.posted()
        decision = decide(request, [of_ip, of_phone])
        assert [outcome.remaining for outcome in decision.outcomes] == [9, 9]

        settle(request, HttpResponse())

        assert peek(of_ip, IP).remaining == 10
        assert peek(of_phone, decision.outcomes[1].subject).remaining == 10

    @pytest.mark.parametrize("key", ["post:phone", "ip"], ids=["the second step", "the first step"])
    def test_nothing_is_given_back_twice_if_it_was_refused_in(self, key: str) -> None:
        request = self.posted()
        assert not decide(request, [Rule.make("ip", "10/h", **self.FREE), Rule.make("shut", "0/h", key=key)])

        settle(request, HttpResponse(status=429))

        assert left("ip", "10/h") == 10

    def test_a_refusal_in_the_second_step_leaves_the_day_of_an_exempt_subject_alone(self) -> None:
        override("x 0 0 ", "free", IP)
        rules = [Rule.make("free", "10/h", daily=True), Rule.make("shut", "0/h", key="post:phone")]

        assert decide(RequestFactory().get("/"), rules[:1])
        assert not decide(self.posted(), rules)

        assert count_what_waits()
        assert checks_of(IP) == {"free": (1, 0)}

    @pytest.mark.parametrize(
        ("block", "remaining"), [(True, 9), (False, 10)], ids=["counted where they count", "given back elsewhere"]
    )
    def test_refusals_in_the_second_step_are(self, block: bool, remaining: int) -> None:
        first = Rule.make("first", "10/h", count_refused=True, block=block)

        assert not decide(self.posted(), [first, Rule.make("shut", "0/h", key="post:phone")])

        assert peek(first, IP).remaining == remaining


def test_rules_of_one_name_of_an_exempt_subject_are_given_back_to_its_day_once() -> None:
    options: Any = {"daily": True, "count_when": lambda response: response.status_code == 200}
    rules = [Rule.make("same", rate, **options) for rate in ("10/m", "100/h")]
    override("x 0 0 ", "same", IP)

    decided = []
    for status in (200, 200, 404):
        request = RequestFactory().get("/")
        decided.append(decide(request, rules))
        settle(request, HttpResponse(status=status))

    assert all(decided)
    assert count_what_waits()
    assert (checks_of(IP), units_of(IP)) == ({"same": (2, 0)}, {"same": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(
            {"settle": 5},
            "settle=5 is not a function. Use, for example, lambda request, response: len(response.content).",
            id="settle= is a number",
        ),
        pytest.param(
            {"count_when": "path.to"},
            ("count_when='path.to' is not a function. Use, for example, lambda response: response.status_code == 401."),
            id="count_when= is a string",
        ),
        pytest.param(
            {"count_when": bool, "distinct": True},
            (
                "count_when= cannot be combined with distinct=: a value that was counted cannot be given back. Leave "
                "out count_when=."
            ),
            id="count_when= of different values",
        ),
        pytest.param(
            {"settle": asize},
            f"settle={__name__}.asize is async, but the view is not. Use a sync function.",
            id="an async function, a sync view",
        ),
        pytest.param(
            {"name": "same", "count_when": bool},
            (
                "Two rules are named 'same' (1/m and 9/h), but their limits over one window, their costs or their "
                "options differ: they would share one count. Give one of them a name of its own."
            ),
            id="two rules of one name",
        ),
    ],
)
def test_a_wrong_option_is_an_error_at_import(options: Any, message: str) -> None:
    with pytest.raises(RuleError) as refused:
        quota("9/h", **options)(quota("1/m", name="same")(answer))

    assert str(refused.value) == message
