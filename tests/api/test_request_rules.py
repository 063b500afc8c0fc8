"""Rules that wait for a view which finds the user itself, as frameworks with tokens do."""

from io import BytesIO
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase
from django.test import RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import concurrency, peek, quota, slot
from django_quota.adapters import (
    SlotRule,
    adecide,
    arefusal_response,
    attach_decision,
    decide,
    refusal_response,
    register_late_views,
    take_waiting_rules,
    take_waiting_slots,
)
from tests.support.calls import both, fetch, run

pytestmark = pytest.mark.usefixtures("memory_store")


def by_tenant(request: HttpRequest) -> str:
    return "tenant"


def authenticate(request: HttpRequest) -> HttpResponse | None:
    """Do what a framework does: read the token, and answer a wrong one."""
    token = request.headers.get("X-Token", "")
    request.user = SimpleNamespace(is_authenticated=token.isdigit(), pk=token)  # type: ignore[assignment]
    return None if token.isdigit() else HttpResponse(status=401)


class TokenView(View):
    decides = True

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        refused = authenticate(request)
        if refused is None and self.decides:
            decision = decide(request, take_waiting_rules(request))
            combined = attach_decision(request, decision)
            refused = refusal_response(request, combined) if decision.enforced else None
        return refused or HttpResponse("ok")


class AsyncTokenView(TokenView):
    view_is_async = True

    async def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:  # type: ignore[override]
        refused = authenticate(request)
        if refused is None:
            decision = await adecide(request, take_waiting_rules(request))
            combined = attach_decision(request, decision)
            refused = await arefusal_response(request, combined) if decision.enforced else None
        return refused or HttpResponse("ok")


@register_late_views
def is_a_token_view(view: Any) -> bool:
    view_class = view if isinstance(view, type) else getattr(view, "view_class", type(view))
    return issubclass(view_class, TokenView)


def named(name: str, base: Any = TokenView) -> Any:
    return type(name, (base,), {})


paid = quota("1000/h", key="user", name="paid", cost=100, settle=lambda request, response: response.status_code)
limited = quota("2/m", key="user", name="mine")
urlpatterns = [
    path("token/", TokenView.as_view()),
    path("class/", limited(named("Limited")).as_view()),
    path("async-method/", method_decorator(limited, name="dispatch")(named("Decorated", AsyncTokenView)).as_view()),
    path("function/", limited(TokenView.as_view())),
    path("paid/", paid(named("Paid")).as_view()),
    path("async-paid/", paid(named("PaidAsync", AsyncTokenView)).as_view()),
    path("two/", quota("4/m", key="ip", name="address")(limited(TokenView.as_view()))),
]


@pytest.fixture(autouse=True)
def urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


@pytest.fixture(params=[True, False], ids=["middleware", "alone"])
def with_and_without_middleware(request: pytest.FixtureRequest, settings: Any) -> None:
    if not request.param:
        settings.MIDDLEWARE = []


def ask(kind: str, route: str, token: str) -> Any:
    return fetch(kind, f"/{route}/", 1, **{"X-Token": token})[0]


def statuses(kind: str, route: str, *tokens: str) -> list[int]:
    return [ask(kind, route, token).status_code for token in tokens]


@both
@pytest.mark.usefixtures("with_and_without_middleware")
@pytest.mark.parametrize("route", ["class", "async-method", "function"])
class TestTokens:
    def test_a_limit_knows_who_has_the_token(self, kind: str, route: str) -> None:
        assert statuses(kind, route, "1", "1", "2", "1", "2", "2") == [200, 200, 200, 429, 200, 429]

    def test_wrong_tokens_count_for_the_address(self, kind: str, route: str) -> None:
        assert statuses(kind, route, "x", "x", "x", "3") == [401, 401, 429, 200]


@both
@pytest.mark.usefixtures("with_and_without_middleware")
@pytest.mark.parametrize("route", ["paid", "async-paid"])
def test_what_is_decided_on_the_way_back_is_settled_too(kind: str, route: str) -> None:
    assert statuses(kind, route, "x") == [401]
    assert peek("1000/h", "ip:127.0.0.1", name="paid").remaining == 1_000 - 401


@pytest.mark.parametrize("decides", [True, False], ids=["it decides", "the other decides"])
@pytest.mark.parametrize("outer", [HttpRequest, TokenView], ids=["a function", "a view with tokens"])
class TestAViewThatCallsTwoLimitedOnes:
    """The first leaves its rule to the second if it does not decide it."""

    @pytest.fixture(autouse=True)
    def called(
        self,
        decides: bool,
        outer: Any,
        memory_store: None,
        with_and_without_middleware: None,
        urls: None,
        settings: Any,
    ) -> None:
        first = quota("9/m", key="user", name="first")(named("First").as_view(decides=decides))
        second = quota("9/m", key="user", name="second")(named("Second").as_view())

        def both_of_them(request: HttpRequest) -> Any:
            first(request)
            return second(request)

        class Calling(TokenView):
            def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
                return authenticate(request) or both_of_them(request)

        view = Calling.as_view() if outer is TokenView else both_of_them
        settings.QUOTA = {**settings.QUOTA, "RULES": {"site": {"rate": "9/m", "key": "user", "match": "/two/"}}}
        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("two/", view)]})
        assert ask("sync", "two", "7").status_code == 200

    @pytest.mark.parametrize("name", ["first", "second"])
    def test_each_rule_that_waits_counts_once(self, name: str) -> None:
        assert peek("9/m", "user:7", name=name).remaining == 8

    def test_a_rule_of_the_settings_counts_once(self, settings: Any) -> None:
        left = sorted(peek("site", subject).remaining or 0 for subject in ("user:7", "ip:127.0.0.1"))

        assert left == ([8, 9] if settings.MIDDLEWARE else [9, 9])


@both
def test_a_rule_of_the_settings_waits_for_the_user(kind: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"each": {"rate": "1/m", "key": "user", "match": "/token/"}}}

    assert statuses(kind, "token", "1", "2", "1", "2") == [200, 200, 429, 429]


@both
def test_a_rule_by_address_does_not_wait(kind: str) -> None:
    assert ask(kind, "two", "1").headers["RateLimit-Policy"] == '"address";q=4;w=60, "mine";q=2;w=60'
    assert statuses(kind, "two", "x", "x", "x", "x") == [401, 401, 429, 429]
    assert ask(kind, "two", "1").headers["RateLimit-Policy"] == '"address";q=4;w=60'


numbers = count()
ADVICE = "Let the view check its throttles, or remove the limits from it."


@both
@pytest.mark.usefixtures("with_and_without_middleware")
class TestAViewThatDecidesNothing:
    @pytest.fixture
    def name(self, kind: str, with_and_without_middleware: Any, settings: Any) -> str:
        """The name of a rule that waits for a view, at the URL `late`."""
        name = f"late-{kind}-{len(settings.MIDDLEWARE)}-{next(numbers)}"
        late = quota("2/m", key="user", name=name)(TokenView.as_view(decides=False))
        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("late/", late, name="late")]})
        return name

    def test_is_limited_on_the_way_back(self, kind: str, name: str) -> None:
        assert statuses(kind, "late", "x", "1", "1", "1", "2") == [401, 200, 200, 429, 200]

    def test_is_logged_once(self, kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
        statuses(kind, "late", "x", "1", "1", "1", "2")

        (logged,) = [each for each in caplog.records if each.name == "django_quota.web"]  # and none for the wrong token
        assert logged.levelname == "ERROR"
        assert logged.getMessage() == (
            f"The view 'late' answered 200 while these rules waited for it: '{name}'. They were decided after the view "
            f"had already run. {ADVICE}"
        )


@pytest.mark.parametrize(
    ("status", "is_logged"),
    [pytest.param(302, True, id="a redirect"), pytest.param(400, False, id="an error of the client")],
)
def test_only_a_view_that_succeeds_without_deciding_is_logged(
    status: int, is_logged: bool, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Answering(TokenView):
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            return HttpResponse(status=status)

    late = quota("9/m", key="user", name=f"late-{next(numbers)}")(Answering.as_view())
    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("late/", late, name=f"answers {status}")]})

    assert statuses("sync", "late", "1") == [status]

    assert [each.name for each in caplog.records if each.name == "django_quota.web"] == ["django_quota.web"] * is_logged


def test_a_view_that_is_called_without_a_url_is_logged_by_the_path(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"late-{next(numbers)}" for _ in range(2)]
    late = TokenView.as_view(decides=False)
    for name in names:
        late = quota("9/m", key="user", name=name)(late)
    route = f"/without-a-url/{names[0]}/"

    late(RequestFactory().get(route, headers={"X-Token": "7"}))

    assert caplog.messages == [
        (
            f"The view {route!r} answered 200 while these rules waited for it: '{names[1]}', '{names[0]}'. They were "
            f"decided after the view had already run. {ADVICE}"
        )
    ]


@both
def test_a_rule_that_waits_limits_a_request_beside_one_that_only_reports(kind: str, settings: Any) -> None:
    late = quota("1/m", key="user", name=f"late-{next(numbers)}")(TokenView.as_view(decides=False))
    soft = quota("0/m", key="ip", name="soft", block=False)(late)
    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("late/", soft)]})

    assert statuses(kind, "late", "1", "1", "2") == [200, 429, 200]


def test_a_refusal_after_the_view_closes_the_response_that_it_replaces() -> None:
    file = BytesIO(b"all")

    class Sending(TokenView):
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            return FileResponse(file)

    late = quota("0/m", key="user", name=f"late-{next(numbers)}")(Sending.as_view())

    refused = late(RequestFactory().get("/"))

    assert (refused.status_code, file.closed) == (429, False)
    refused.close()
    assert file.closed


@pytest.mark.parametrize(
    ("options", "waits"),
    [
        ({}, False), ({"key": ("path", "user")}, True), ({"key": "user_or_ip"}, True), ({"key": "post:phone"}, True),
        ({"key": ("ip", "header:X-Api.Key", "cookie:device", "get:token", "path")}, False),
        ({"key": "global", "methods": ["POST"], "exempt": "10.0.0.0/8"}, False),
        ({"key": f"{__name__}.by_tenant"}, True), ({"distinct": "header:X-Device"}, False),
        ({"distinct": by_tenant}, True), ({"exempt": "staff"}, True), ({"skip": by_tenant}, True),
        ({"cost": lambda request: 2}, True), ({"rate": {"anonymous": "1/m", "authenticated": "2/m"}}, True),
    ],
)  # fmt: skip
def test_a_rule_waits_for_what_only_the_view_may_know(options: dict[str, Any], waits: bool) -> None:
    class Asking(TokenView):
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            return HttpResponse(status=202 if take_waiting_rules(request) else 200)

    rate, options = options.get("rate", "10/m"), {name: options[name] for name in options if name != "rate"}
    waited = run(quota(rate, name="some", **options)(Asking.as_view())).status_code == 202

    assert waited is waits


@pytest.mark.parametrize("reads", [HttpRequest.read, lambda request: request.body])
def test_a_rule_by_the_body_is_decided_after_the_view_if_the_body_can_still_be_read(reads: Any) -> None:
    class Reader(TokenView):
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            return HttpResponse(reads(request))

    limited = quota("5/m", key="post:phone", name="phone")(quota("5/m", key="ip", name="address")(Reader))
    request: Any = RequestFactory().post("/", {"phone": "1"})
    limited.as_view()(request)
    found = ["address"] if reads is HttpRequest.read else ["address", "phone"]
    assert [outcome.rule for outcome in request.quota.outcomes] == found


class TestSlotsThatWaitForTheUser:
    """A view that reads tokens takes them itself."""

    class Holding(TokenView):
        def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            authenticate(request)
            refused = take_waiting_slots(request)
            if refused is not None:
                return refusal_response(request, refused)
            holders = [len(slot(name, 1, subject="user:7").holders()) for name in ("one", "two")]
            return HttpResponse(f"{holders}")

    @pytest.fixture
    def held(self) -> Any:
        """A view under two slots by user."""
        return concurrency(1, "user", name="one")(concurrency(1, "user", name="two")(self.Holding.as_view()))

    def request(self) -> HttpRequest:
        return RequestFactory().get("/", headers={"X-Token": "7"})

    def test_all_of_them_are_taken(self, held: Any) -> None:
        assert held(self.request()).content == b"[1, 1]"

    def test_all_of_them_are_given_back(self, held: Any) -> None:
        held(self.request())

        assert [slot(name, 1, subject="user:7").holders() for name in ("one", "two")] == [[], []]

    @pytest.mark.parametrize("name", ["one", "two"])
    def test_one_that_is_not_free_refuses(self, name: str, held: Any) -> None:
        with slot(name, 1, subject="user:7"):
            assert held(self.request()).status_code == 429

    def test_one_that_does_not_block_refuses_nobody(self) -> None:
        held: Any = concurrency(1, "user", name="one", block=False)(
            concurrency(1, "user", name="two")(self.Holding.as_view())
        )

        with slot("one", 1, subject="user:7"):
            assert held(self.request()).content == b"[1, 1]"

    def test_a_refused_request_holds_none(self, held: Any) -> None:
        with slot("two", 1, subject="user:7"):
            held(self.request())

            assert slot("one", 1, subject="user:7").holders() == []

    @pytest.mark.parametrize("place", ["view", "settings"])
    def test_a_view_that_takes_none_is_logged(
        self, place: str, caplog: pytest.LogCaptureFixture, settings: Any
    ) -> None:
        careless = TokenView.as_view()
        if place == "view":
            careless = concurrency(1, "user", name="one")(careless)
        else:
            rules = {"one": {"at_once": 1, "key": "user", "match": "/careless/"}}
            settings.QUOTA = {**settings.QUOTA, "RULES": rules}
        route = path("careless/", careless, name=f"careless {next(numbers)}")
        settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [route]})

        assert statuses("sync", "careless", "7") == [200]

        (logged,) = [each.getMessage() for each in caplog.records if each.name == "django_quota.web"]
        assert logged == (
            f"The view {route.name!r} answered 200 while a slot waited for it. Nothing limited how many ran at once. "
            f"{ADVICE}"
        )

    def test_a_view_that_takes_none_is_logged_without_a_middleware(self, caplog: pytest.LogCaptureFixture) -> None:
        route = f"/careless-{next(numbers)}/"

        concurrency(1, "user", name="one")(TokenView.as_view())(RequestFactory().get(route, headers={"X-Token": "7"}))

        assert caplog.messages == [
            (
                f"The view {route!r} answered 200 while a slot waited for it. Nothing limited how many ran at once. "
                f"{ADVICE}"
            )
        ]

    def test_one_by_address_is_taken_before_the_view(self) -> None:
        careless = concurrency(1, "ip", name="three")(TokenView.as_view())

        with slot("three", 1, subject="ip:127.0.0.1"):
            assert careless(self.request()).status_code == 429

    def test_one_without_a_name_is_that_of_its_class(self) -> None:
        limited = concurrency(1, "user")(named("Mine", self.Holding))

        with slot(f"{__name__}.Mine", 1, subject="user:7"):
            assert limited.as_view()(self.request()).status_code == 429

    def test_one_of_an_integration_that_answers_itself_does_not_wait(self) -> None:
        rule = SlotRule.make("four", 1, key="user")
        held = rule.around(TokenView.as_view(), lambda decision: HttpResponse(decision.rule, status=418))

        with slot("four", 1, subject="user:7"):
            request = self.request()
            authenticate(request)
            assert (held(request).status_code, held(request).content) == (418, b"four")

    def test_without_any_nobody_is_refused(self) -> None:
        assert take_waiting_slots(self.request()) is None
