"""The throttles for Django REST framework: who is limited, in how many calls, and how a refusal is answered."""

import json
import re
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import pytest
from adrf.views import APIView as AsyncAPIView
from django.contrib.auth.models import User
from django.core.checks import run_checks
from django.http import HttpResponse
from django.http.response import ResponseHeaders
from django.test import Client, RequestFactory
from django.urls import ResolverMatch, include, path
from django.utils.module_loading import import_string
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import OpenApiResponse, extend_schema
from ninja.testing import TestClient
from rest_framework import exceptions
from rest_framework.authentication import SessionAuthentication, TokenAuthentication
from rest_framework.decorators import action, api_view, authentication_classes, throttle_classes
from rest_framework.generics import ListAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.settings import api_settings
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_quota import Rule, check, check_all, concurrency, counter, limits_of, peek, quota, slot
from django_quota.contrib.rest_framework import (
    AnonRateThrottle,
    QuotaThrottle,
    QuotaThrottled,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
    detail_response,
    with_quota_rules,
)
from django_quota.contrib.rest_framework.spectacular import AutoSchema
from django_quota.contrib.rest_framework.views import QuotaLimitsView
from django_quota.exceptions import RuleError
from django_quota.limiting.known_rules import known_rules
from django_quota.testing import freeze
from django_quota.types import Rate
from tests.support.calls import calls_of
from tests.support.outages import no_answer
from tests.support.pages import blocks, marked, run_page

pytestmark = pytest.mark.usefixtures("memory_store")

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
RULES: dict[str, Any] = {
    "search": {"rate": "2/m", "key": "user"},
    "phone": {"rate": "1/m", "key": "json:phone"},
    "form": {"rate": "1/m", "key": "post:phone"},
    "scope": {"rate": "1/m", "key": "user"},
}


class ByToken(TokenAuthentication):
    """The tokens are the primary keys of users. One of other characters is wrong."""

    def authenticate_credentials(self, key: str) -> tuple[User, str]:
        if not key.isdigit():
            raise exceptions.AuthenticationFailed("Invalid token.")
        return User(pk=int(key), username=key), key


class Limited(APIView):
    authentication_classes = (ByToken,)
    throttle_classes: Any = (QuotaThrottle,)

    def get(self, request: Request) -> Response:
        return Response()

    def post(self, request: Request) -> Response:
        return Response(request.data)


def view_of(*classes: Any, base: Any = Limited, **attributes: Any) -> Any:
    """Return a view with these throttles, or those of the base, and these attributes."""
    given = {"throttle_classes": classes} if classes else {}
    return type("View", (base,), {**given, **attributes}).as_view()  # type: ignore[attr-defined]


Search: Any = type("Search", (Limited,), {"quota_rules": ("search",)})
Unthrottled: Any = type("Unthrottled", (Limited,), {"throttle_classes": ()})
MembersOnly: Any = type("MembersOnly", (Limited,), {"permission_classes": (IsAuthenticated,)})
Exports: Any = type("Exports", (Search,), {"quota_slots": 1, "__module__": __name__})


class AsyncSearch(AsyncAPIView):
    authentication_classes = (ByToken,)
    throttle_classes = (QuotaThrottle,)
    quota_rules = ("search",)

    async def get(self, request: Any) -> Response:
        return Response()


BY_TOKEN: dict[str, Any] = {"authentication_classes": (ByToken,), "throttle_classes": (QuotaThrottle,)}
UNTHROTTLED = (api_view(["GET"]), authentication_classes([ByToken]), throttle_classes([]))
LIMITED = (api_view(["GET"]), authentication_classes([ByToken]), throttle_classes([QuotaThrottle]))


def function_of(*decorators: Any) -> Any:
    """Return a new view of REST framework under these decorators, the first one on top."""
    view: Any = lambda request: Response()  # noqa: E731
    for decorator in reversed(decorators):
        view = decorator(view)
    return view


class Things(ViewSet):
    authentication_classes = (ByToken,)
    throttle_classes = (QuotaThrottle,)
    quota_rules: Any = ()

    def list(self, request: Request) -> Response:
        return Response()

    @action(detail=False, quota_rules=["search"])
    def recent(self, request: Request) -> Response:
        return Response()

    @action(detail=False)
    @with_quota_rules("scope")
    def old(self, request: Request) -> Response:
        return Response()


over = quota("2/m", key="user", name="over")
router = SimpleRouter()
router.register("things", Things, "thing")
urlpatterns = [
    path("search/", Search.as_view()),
    path("waiting/", Limited.as_view()),
    path("unthrottled/", Unthrottled.as_view()),
    path("members/", MembersOnly.as_view()),
    path("body/", view_of(quota_rules=["phone"])),
    path("form/", view_of(quota_rules=["form"])),
    path("scope/", view_of(throttle_scope="scope")),
    path("function/", function_of(*LIMITED, with_quota_rules("search"))),
    path("function-above/", function_of(with_quota_rules("search"), *LIMITED)),
    path("class/", over(cast("Any", type("Under", (Limited,), {}))).as_view()),
    path("async/", AsyncSearch.as_view()),
    path("", include(router.urls)),
]


@pytest.fixture(autouse=True)
def site(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    with_rules(settings)


@pytest.fixture(params=[True, False], ids=["middleware", "no middleware"])
def with_middleware(request: pytest.FixtureRequest, settings: Any) -> None:
    """Have each test run with our middleware and without."""
    settings.MIDDLEWARE = settings.MIDDLEWARE if request.param else []


def with_rules(settings: Any, **rules: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {**RULES, **rules}}


def at(settings: Any, **views: Any) -> None:
    patterns = [path(f"{name}/", views[name], name=name) for name in views]
    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": patterns})


def ask(route: str, token: str = "", **given: Any) -> Any:
    headers = {"Authorization": f"Token {token}"} if token else {}
    return Client().get(f"/{route}/", headers=headers, **given)


def statuses(route: str, *tokens: str) -> list[int]:
    return [ask(route, token).status_code for token in tokens]


def post(route: str, body: Any, content_type: str = "application/json") -> Any:
    data = json.dumps(body) if isinstance(body, dict) else body
    return Client().post(f"/{route}/", data, content_type=content_type, headers={"Authorization": "Token 1"})


def called(view: Any, token: str = "1", times: int = 1) -> list[Any]:
    headers = {"Authorization": f"Token {token}"} if token else {}
    return [view(APIRequestFactory().get("/", headers=headers)) for _ in range(times)]


def codes(view: Any, token: str = "1", times: int = 1) -> list[int]:
    return [reply.status_code for reply in called(view, token, times)]


class TestWhoIsLimited:
    @pytest.mark.parametrize("route", ["search", "function", "function-above", "things/recent", "class", "async"])
    @pytest.mark.usefixtures("with_middleware")
    def test_each_user_of_a_token_has_a_count(self, route: str) -> None:
        rule = "over" if route == "class" else "search"
        with freeze(NOON):
            replies = [ask(route, token) for token in "1121"]

        assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
        assert [reply.headers["RateLimit"] for reply in replies] == [f'"{rule}";r={left};t=60' for left in (1, 0, 1, 0)]
        assert {reply.headers["RateLimit-Policy"] for reply in replies} == {f'"{rule}";q=2;w=60'}

    @pytest.mark.parametrize("route", ["search", "function", "function-above", "things/recent", "class", "async"])
    @pytest.mark.usefixtures("with_middleware")
    def test_a_refusal_is_that_of_the_framework(self, route: str) -> None:
        with freeze(NOON):
            *_, allowed, refused = [ask(route, token) for token in "1121"]

        assert [reply.headers.get("Cache-Control") for reply in (allowed, refused)] == [None, "no-store"]
        assert refused.json() == {"detail": "The limit is 2 per minute. Please try again in 60 seconds."}
        assert refused.headers["Retry-After"] == "60"

    @pytest.mark.parametrize(
        ("route", "rules", "tokens", "expected"),
        [
            # A rule by user waits until the token is read.
            ("waiting", {"each": "user"}, "1 1 2 1 2 2", [200, 200, 200, 429, 200, 429]),
            # Where no throttle waits, users of tokens share a limit.
            ("unthrottled", {"each": "user"}, "1 2 3", [200, 200, 429]),
            # A rule by address comes before the token is read; by user, wrong tokens count for the address.
            ("members", {"flood": "ip", "each": "user"}, "wrong wrong wrong 1", [401, 401, 429, 429]),
            ("members", {"each": "user"}, "wrong x wrong 1", [401, 401, 429, 200]),
            # What the middleware has decided is not counted again.
            ("search", {"search": "ip"}, "1 1 1", [200, 200, 429]),
            ("search", {"search": "ip/24"}, "1 1 1", [200, 200, 429]),
        ],
    )
    def test_a_rule_of_the_settings_is_decided_when_its_key_is_known(
        self, route: str, rules: dict[str, str], tokens: str, expected: list[int], settings: Any
    ) -> None:
        given = {name: {"rate": "2/m", "key": key, "match": f"/{route}/"} for name, key in rules.items()}
        with_rules(settings, **given)
        assert statuses(route, *tokens.split()) == expected

    @pytest.mark.parametrize(
        ("rules", "policy"),
        [(RULES, '"scope";q=1;w=60'), ({}, '"scope";q=1;w=3600')],
        ids=["a rule", "a rate of the framework"],
    )
    def test_throttle_scope_names_a_rule_or_else_a_rate_of_the_framework(
        self, rules: dict[str, Any], policy: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"scope": "1/hour"})
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}

        replies = [ask("scope", user) for user in "121"]

        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert replies[0].headers["RateLimit-Policy"] == policy

    @pytest.mark.parametrize("rules", [RULES, {}], ids=["a rule", "a rate of the framework"])
    @pytest.mark.parametrize("order", [1, -1], ids=["ours first", "ours last"])
    def test_two_throttles_count_their_scope_once(
        self, order: int, rules: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"scope": "1/hour"})
        settings.QUOTA = {**settings.QUOTA, "RULES": rules}
        classes = (QuotaThrottle, ScopedRateThrottle)[::order]

        assert codes(view_of(*classes, throttle_scope="scope"), "3", 2) == [200, 429]

    def test_a_method_names_rules_of_its_own(self) -> None:
        assert statuses("things/old", "1", "1") == [200, 429]
        assert statuses("things", "1", "1", "1") == [200, 200, 200]

    def test_a_method_may_name_no_rule_in_place_of_those_of_its_class(self) -> None:
        free = with_quota_rules()(lambda self, request: Response())

        assert codes(view_of(base=Search, get=free), "1", 3) == [200, 200, 200]

    def test_the_rules_of_a_method_are_found_below_a_decorator_without_wraps(self) -> None:
        def timed(answer: Any, zone: str = "UTC") -> Any:
            def get(self: Any, request: Request) -> Response:
                return Response(zone) if answer is None else answer(self, request)

            return get

        limited = with_quota_rules("scope")(lambda self, request: Response())

        assert codes(view_of(get=timed(limited)), "1", 2) == [200, 429]

    def test_a_method_of_the_framework_that_answers_is_limited(self) -> None:
        view = view_of(base=ListAPIView, list=lambda self, request: Response(), throttle_scope="scope", **BY_TOKEN)

        assert codes(view, "1", 2) == [200, 429]

    def test_a_view_may_answer_what_a_rule_refuses(self) -> None:
        rule = Rule.make("own answer", "1/m", key="user", block=False)
        view = view_of(quota_rules=[rule], get=lambda self, request: Response(request.quota.allowed))

        assert [reply.data for reply in called(view, "1", 2)] == [True, False]

    def test_a_single_rule_needs_no_list(self) -> None:
        view = view_of(quota_rules=Rule.make("single", "1/m", key="user"))

        assert codes(view, "1", 2) == [200, 429]

    def test_rules_that_wait_are_decided_in_the_call_for_those_of_the_view(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_rules(settings, each={"rate": "9/m", "key": "user", "match": "/search/"})
        ask("search", "1")
        calls = calls_of(monkeypatch)
        reply = ask("search", "1")
        assert len(calls) == 1
        assert reply.headers["RateLimit-Policy"] == '"each";q=9;w=60, "search";q=2;w=60'


OWN: dict[str, Any] = {
    "get_throttles": lambda self: [],
    "check_throttles": lambda self, request: None,
    "initial": lambda self, *args, **kwargs: super(Limited, self).initial(*args, **kwargs),
}


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("route", ["own", "quota"])
def test_no_rule_waits_for_a_view_that_asks_its_throttles_in_its_own_way(own: str, route: str, settings: Any) -> None:
    done: list[Any] = []

    def answer(self: Any, request: Request) -> Response:
        done.append(request.method)
        return Response()

    view = view_of(**{own: OWN[own], "get": answer, "post": answer})
    at(settings, own=view, quota=quota("2/m", key="user", name="mine")(view))
    by_phone = {"rate": "1/m", "key": "json:phone", "match": "/own/", "methods": ["POST"]}
    with_rules(settings, each={"rate": "2/m", "key": "user", "match": "/own/", "methods": ["GET"]}, body=by_phone)
    assert statuses(route, *"1111") == [200, 200, 429, 429]
    if route == "own":
        assert [post("own", {"phone": "1"}).status_code for _ in range(2)] == [200, 429]
    assert done == ["GET", "GET", "POST"][: 3 if route == "own" else 2], "a refused request does not reach the view"


@pytest.mark.parametrize(
    ("route", "waited"),
    [
        pytest.param("early", "these rules waited for it: 'each'", id="a rule waits"),
        pytest.param("slot", "a slot", id="a slot waits"),
    ],
)
def test_a_view_that_answers_before_its_throttle_is_asked_is_logged(
    route: str, waited: str, settings: Any, caplog: Any
) -> None:
    early = view_of(dispatch=lambda self, request: HttpResponse("ok"))
    at(settings, early=early, slot=concurrency(1, key="user")(early))
    with_rules(settings, each={"rate": "2/m", "key": "user", "match": "/early/"})

    assert statuses(route, "1") == [200]

    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert f"answered 200 while {waited}" in record.getMessage()


def test_a_view_that_takes_no_slot_is_logged_without_the_middleware(settings: Any, caplog: Any) -> None:
    settings.MIDDLEWARE = []
    early = concurrency(1, key="user")(view_of(dispatch=lambda self, request: HttpResponse("ok")))

    assert early(RequestFactory().get("/")).status_code == 200
    assert "answered 200 while a slot waited for it" in caplog.text


@pytest.mark.parametrize("status", [302, 400, 401, 500])
def test_slots_that_were_never_taken_are_logged_unless_the_view_refused(
    status: int, settings: Any, caplog: Any
) -> None:
    early = view_of(dispatch=lambda self, request: HttpResponse(status=status))
    at(settings, slot=concurrency(1, key="user", name=f"slot-{status}")(early))
    assert statuses("slot", "1") == [status]
    assert [each.levelname for each in caplog.records if each.name == "django_quota.web"] == ["ERROR"] * (status < 400)


# --- slots ------------------------------------------------------------------------------------------------------------


def place(subject: str) -> Any:
    return slot("running", 1, subject=subject)


def holders() -> list[str]:
    return [subject for subject in ("user:1", "user:2", "ip:127.0.0.1") if place(subject).holders()]


WAYS = ("a decorated class", "quota_slots")


def running(settings: Any, base: Any = Limited, way: str = WAYS[0], **attributes: Any) -> None:
    """Put a view behind /running/ that answers who holds its slot, one for each user."""

    def get(self: Any, request: Any) -> Response:
        return Response(holders())

    async def aget(self: Any, request: Any) -> Response:
        return Response(holders())

    if way == "quota_slots":
        attributes["quota_slots"] = {"at_once": 1, "key": "user", "name": "running"}
    else:
        base = concurrency(1, key="user", name="running")(type("Base", (base,), {}))
    method = aget if issubclass(base, AsyncAPIView) else get
    at(settings, running=view_of(base=base, **{"quota_rules": (), "get": method, **attributes}))


class TestSlots:
    @pytest.mark.usefixtures("with_middleware")
    @pytest.mark.parametrize("base", [Limited, AsyncSearch], ids=["sync", "async"])
    @pytest.mark.parametrize("way", WAYS)
    class TestOfEachUser:
        @pytest.fixture(autouse=True)
        def view(self, site: None, base: Any, way: str, settings: Any) -> None:
            running(settings, base, way)

        def test_a_user_waits_for_no_other_one(self) -> None:
            with place("user:1"), place("ip:127.0.0.1"):
                assert ask("running", "2").json() == ["user:1", "user:2", "ip:127.0.0.1"]

        def test_a_user_whose_slot_is_held_is_refused(self) -> None:
            with place("user:1"):
                refused = ask("running", "1")

            assert (refused.status_code, 1 <= int(refused.headers["Retry-After"]) <= 30) == (429, True)
            assert refused.json()["detail"].startswith("The limit is 1 at once. Please try again in ")

        def test_an_address_whose_slot_is_held_is_refused(self) -> None:
            with place("ip:127.0.0.1"):
                assert ask("running").status_code == 429

        def test_a_refused_request_leaves_the_holder_alone(self) -> None:
            with place("user:1"):
                ask("running", "1")

                assert holders() == ["user:1"]

        @pytest.mark.parametrize(("token", "subject"), [("1", "user:1"), ("", "ip:127.0.0.1")])
        def test_a_request_holds_its_slot_while_it_runs(self, token: str, subject: str) -> None:
            assert ask("running", token).json() == [subject]

        def test_a_request_gives_its_slot_back(self) -> None:
            ask("running", "1")

            assert holders() == []

    @pytest.mark.parametrize("way", WAYS)
    def test_a_refusal_gives_back_what_the_rules_took(self, way: str, settings: Any) -> None:
        running(settings, MembersOnly, way, quota_rules=("search",))

        with place("user:1"):
            assert statuses("running", *"11111") == [429] * 5

        assert peek("search", "user:1").remaining == 2

    @pytest.mark.parametrize("way", WAYS)
    def test_a_refusal_by_a_rule_asks_for_no_slot(
        self, way: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        running(settings, Limited, way, quota_rules=("search",))
        statuses("running", "1", "1")
        calls = calls_of(monkeypatch)

        assert statuses("running", "1") == [429]

        assert len(calls) == 1

    @pytest.mark.parametrize("way", WAYS)
    def test_who_is_not_let_in_takes_none(self, way: str, settings: Any) -> None:
        running(settings, MembersOnly, way)

        with place("ip:127.0.0.1"):
            assert statuses("running", "", "wrong") == [401, 401]

    @pytest.mark.parametrize("way", WAYS)
    def test_an_error_gives_the_slot_back(self, way: str, settings: Any) -> None:
        def fail(self: Any, request: Any) -> Response:
            raise exceptions.NotFound

        running(settings, Limited, way, get=fail)

        assert (statuses("running", "1"), holders()) == ([404], [])

    def test_the_slot_of_a_configured_rule_is_that_of_the_user_of_the_token(self, settings: Any) -> None:
        with_rules(settings, running={"at_once": 1, "match": "/waiting/", "key": "user"})

        with place("user:1"), place("ip:127.0.0.1"):
            assert statuses("waiting", "1", "2", "") == [429, 200, 429]

        assert holders() == []

    def test_a_401_takes_no_quota_slot(self, settings: Any) -> None:
        at(settings, exports=Exports.as_view(permission_classes=[IsAuthenticated]))

        with slot(f"{__name__}.Exports", 1):
            assert statuses("exports", "", "2") == [401, 429]

    @pytest.mark.parametrize("method", ["PATCH", "FINALIZE_RESPONSE"])
    def test_a_method_that_the_view_does_not_have_takes_no_quota_slot(self, method: str, settings: Any) -> None:
        at(settings, exports=Exports.as_view())

        with slot(f"{__name__}.Exports", 1):
            reply = Client().generic(method, "/exports/", headers={"Authorization": "Token 1"})

        assert reply.status_code == 405

    def test_a_slot_of_addresses_is_taken_before_the_view_finds_the_user(self, settings: Any) -> None:
        base = concurrency(1, key="ip", name="running")(type("Base", (Limited,), {}))
        at(settings, running=view_of(base=base))

        with place("ip:127.0.0.1"):
            assert statuses("running", "wrong") == [429]

    def test_a_method_with_throttles_of_its_own_takes_the_slot(self, settings: Any) -> None:
        def get(self: Any, request: Any) -> Response:
            return Response(holders())

        running(settings, Limited, "quota_slots", get=throttle_classes([QuotaThrottle])(get))

        assert ask("running", "1").json() == ["user:1"]

    def test_the_options_of_quota_slots_may_be_any_mapping(self, settings: Any) -> None:
        at(settings, exports=Exports.as_view(quota_slots=MappingProxyType({"at_once": 1, "name": "exports"})))

        with slot("exports", 1):
            assert statuses("exports", "1") == [429]

    def test_two_throttles_of_a_view_take_one_quota_slot(self, settings: Any) -> None:
        at(settings, exports=Exports.as_view(throttle_classes=[QuotaThrottle, Burst]))

        assert statuses("exports", "1") == [200]

    def test_quota_slots_of_an_action_are_its_own(self, settings: Any) -> None:
        books: Any = type("Books", (Things,), {"__module__": "shop", "quota_slots": 2})
        recent = books.as_view({"get": "recent"}, quota_slots=1)
        at(settings, books=books.as_view({"get": "list"}), recent=recent)

        with slot("shop.Books", 2), slot("shop.Books", 2):
            assert statuses("books", "1") + statuses("recent", "1") == [429, 200]

    def test_quota_slots_of_an_action_are_shared_by_its_requests(self, settings: Any) -> None:
        books: Any = type("Books", (Things,), {"__module__": "shop", "quota_slots": 2})
        at(settings, recent=books.as_view({"get": "recent"}, quota_slots=1))

        with slot("shop.Books.recent", 1):
            assert statuses("recent", "1") == [429]


# --- throttles --------------------------------------------------------------------------------------------------------


Anonymous: Any = type("Anonymous", (AnonRateThrottle,), {"rate": "5/min"})
Burst: Any = type("Burst", (UserRateThrottle,), {"rate": "3/min", "scope": "burst"})
Sustained: Any = type("Sustained", (UserRateThrottle,), {"rate": "9/day", "scope": "sustained"})


class Guarded(UserRateThrottle):
    """It asks nothing for one user."""

    rate, scope, asked = "3/min", "guarded", 0

    def allow_request(self, request: Any, view: Any) -> bool:
        type(self).asked += 1
        return request.user.pk == 7 or super().allow_request(request, view)


class OwnAddress(UserRateThrottle):
    rate = "9/min"

    def get_ident(self, request: Any) -> str:
        return str(request.META["REMOTE_ADDR"])


class ByTenant(SimpleRateThrottle):
    rate = "1/hour"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        tenant = request.headers.get("X-Tenant")
        return f"tenant+{tenant}" if tenant else None


def subject_of(throttle: Any, **given: Any) -> str:
    request = APIRequestFactory().get("/", **given)
    view_of(throttle)(request)
    return str(request.quota.outcomes[0].subject)


class TestTheFrameworksThrottles:
    def test_an_exception_of_a_throttle_for_one_user_holds(self) -> None:
        Guarded.asked = 0
        view = view_of(Sustained, Guarded, QuotaThrottle)
        assert codes(view, "7", 9) == [200] * 9
        assert codes(view, "8", 4) == [200] * 3 + [429]
        assert Guarded.asked == 13

    @pytest.mark.parametrize(
        ("sent", "subject"),
        [
            pytest.param({"headers": {"Authorization": "Token 1"}}, "user:1", id="a user"),
            pytest.param({"REMOTE_ADDR": "2001:db8::1"}, "ip:2001:db8::/64", id="an address"),
            pytest.param({"headers": {"X-Forwarded-For": "192.0.2.1"}}, "ip:192.0.2.1", id="behind a proxy"),
        ],
    )
    def test_the_subject_is_the_user_or_else_the_address(self, sent: dict[str, Any], subject: str) -> None:
        assert subject_of(Burst, **sent) == subject

    def test_the_subject_of_a_site_whose_visitors_are_no_objects_is_the_address(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(api_settings, "UNAUTHENTICATED_USER", None, raising=False)

        assert subject_of(Burst, REMOTE_ADDR="192.0.2.1") == "ip:192.0.2.1"

    def test_a_throttle_without_a_scope_is_a_rule_named_by_its_class(self) -> None:
        request = APIRequestFactory().get("/", headers={"X-Tenant": "a"})
        view_of(ByTenant)(request)

        assert request.quota.rule == f"{__name__}.ByTenant"

    def test_a_rule_by_user_waits_for_a_throttle_that_does_not_limit_the_user(
        self, settings: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        at(settings, visitors=view_of(Anonymous))
        with_rules(settings, each={"rate": "1/m", "key": "user", "match": "/visitors/"})

        assert statuses("visitors", *"112") == [200, 429, 200]
        assert [record for record in caplog.records if record.levelname == "ERROR"] == [], "it was not decided late"

    def test_a_throttle_may_be_asked_without_a_view_of_the_framework(self) -> None:
        request: Any = RequestFactory().get("/")
        request.user = User(pk=1)

        assert [Burst().allow_request(request, object()) for _ in range(4)] == [True, True, True, False]

    def test_a_throttle_of_visitors_allows_a_user_without_a_view_of_the_framework(self) -> None:
        request: Any = RequestFactory().get("/")
        request.user = User(pk=1)

        assert Anonymous().allow_request(request, object())

    @pytest.mark.parametrize(
        ("base", "wait"),
        [pytest.param(QuotaThrottle, None, id="without a wait"), pytest.param(Burst, "30", id="with the framework's")],
    )
    def test_a_subclass_may_refuse_by_itself(self, base: Any, wait: str | None) -> None:
        class Closed(base):
            history, now = (0.0, 0.0), 0.0  # for `wait()` of the framework

            def allow_request(self, request: Any, view: Any) -> bool:
                return False

        (refused,) = called(view_of(Closed))

        assert (refused.status_code, refused.headers.get("Retry-After")) == (429, wait)

    def test_the_subject_is_all_that_proxies_sent_without_a_number_of_proxies(self) -> None:
        several = {"X-Forwarded-For": "192.0.2.1, 192.0.2.2"}  # NUM_PROXIES is not set: the framework takes all

        assert subject_of(Burst, headers=several).startswith("throttle:")

    @pytest.mark.parametrize(
        ("sent", "subject"),
        [
            ("192.0.2.1:4711", "ip:192.0.2.1"), ("2001:db8::1", "ip:2001:db8::/64"),
            ("[2001:db8::1]:4711", "ip:2001:db8::/64"), ("192.0.2.1+user:7", "throttle:[0-9a-f]{32}"),
            ("None", "throttle:[0-9a-f]{32}"),
        ],
    )  # fmt: skip
    def test_a_port_behind_the_address_of_a_client_makes_no_new_client(self, sent: str, subject: str) -> None:
        assert re.fullmatch(subject, subject_of(Burst, headers={"X-Forwarded-For": sent}))

    @pytest.fixture
    def replies_by_tenant(self) -> list[tuple[int, Any]]:
        """The status of each of five requests, with the request."""
        sent: list[dict[str, str]] = [{}, {}, {"X-Tenant": "secret"}, {"X-Tenant": "secret"}, {"X-Tenant": "b" * 500}]
        requests: list[Any] = [APIRequestFactory().get("/", headers=headers) for headers in sent]
        view = view_of(ByTenant)
        return [(view(request).status_code, request) for request in requests]

    def test_get_cache_key_may_count_by_anything(self, replies_by_tenant: list[tuple[int, Any]]) -> None:
        assert [status for status, _ in replies_by_tenant] == [200, 200, 200, 429, 200]

    def test_get_cache_key_may_count_a_user_by_something_else(self) -> None:
        by_tenant = view_of(ByTenant)
        replies = [
            by_tenant(APIRequestFactory().get("/", headers={"Authorization": "Token 1", "X-Tenant": tenant}))
            for tenant in ("a", "b", "a")
        ]

        assert [reply.status_code for reply in replies] == [200, 200, 429]

    @pytest.mark.parametrize(
        "cache_format", ["%s-%s", "100%", "%(tenant)s"], ids=["positions", "no format", "another name"]
    )
    def test_a_cache_format_of_its_own_limits_too(self, cache_format: str) -> None:
        throttle = type("Own", (ByTenant,), {"cache_format": cache_format})

        view = view_of(throttle, authentication_classes=())
        replies = [view(APIRequestFactory().get("/", headers={"X-Tenant": "a"})) for _ in range(2)]

        assert [reply.status_code for reply in replies] == [200, 429]

    def test_what_get_cache_key_returns_is_stored_as_a_digest(self, replies_by_tenant: list[tuple[int, Any]]) -> None:
        subjects = {request.quota.outcomes[0].subject for _, request in replies_by_tenant[2:]}

        assert len(subjects) == 2
        assert all(len(subject) < 50 and "secret" not in subject for subject in subjects)

    @pytest.mark.parametrize(("seconds", "window"), [(30, 30), (30.2, 31), (60, 60)])
    def test_parse_rate_of_a_subclass_is_obeyed(self, seconds: float, window: int) -> None:
        half_minutes = type(
            "HalfMinutes",
            (UserRateThrottle,),
            {"rate": "any", "scope": "half", "parse_rate": lambda self, rate: (1, seconds)},
        )

        (reply,) = called(view_of(half_minutes))

        assert reply.headers["RateLimit-Policy"] == f'"half";q=1;w={window}'

    @pytest.mark.parametrize("rate", ["10/m", "10/min", "10/month"])
    def test_a_rate_is_read_as_the_framework_reads_it(self, rate: str) -> None:
        throttle = type("Read", (UserRateThrottle,), {"rate": rate, "scope": "read"})

        (reply,) = called(view_of(throttle))

        assert reply.headers["RateLimit-Policy"] == '"read";q=10;w=60'

    @pytest.mark.parametrize(
        ("rate", "words"),
        [
            ("1/s", "1 per second"), ("1/m", "1 per minute"), ("1/h", "1 per hour"), ("1/d", "1 per day"),
        ],
    )  # fmt: skip
    def test_a_refusal_names_the_rate_in_its_unit(self, rate: str, words: str) -> None:
        throttle = type("Read", (UserRateThrottle,), {"rate": rate, "scope": f"read-{rate[-1]}"})
        with freeze(NOON):
            _, refused = called(view_of(throttle), times=2)

        assert refused.data["detail"].startswith(f"The limit is {words}. ")

    def test_a_throttle_without_a_rate_limits_nobody(self) -> None:
        unlimited = type("Unlimited", (UserRateThrottle,), {"rate": None, "THROTTLE_RATES": {"user": None}})

        assert codes(view_of(unlimited), times=6) == [200] * 6

    def test_throttle_success_of_a_subclass_may_refuse(self) -> None:
        strict = type("Strict", (Burst,), {"scope": "strict", "throttle_success": lambda self: False})

        assert codes(view_of(strict)) == [429]

    def test_throttle_success_of_a_subclass_is_not_asked_where_nothing_is_limited(self) -> None:
        strict = type("Strict", (Anonymous,), {"throttle_success": lambda self: False})

        assert codes(view_of(strict), "1") == [200]

    def test_a_view_without_a_scope_is_not_limited_by_one(self) -> None:
        assert codes(view_of(ScopedRateThrottle), times=2) == [200, 200]

    def test_throttle_failure_of_a_subclass_may_allow(self) -> None:
        lenient = type("Lenient", (Burst,), {"scope": "lenient", "throttle_failure": lambda self: True})

        assert codes(view_of(lenient), times=4) == [200] * 4

    def test_each_hook_of_a_subclass_is_called_once_a_request(self) -> None:
        heard: list[str] = []

        class Telling(UserRateThrottle):
            rate, scope = "3/min", "telling"

            def throttle_success(self) -> bool:
                heard.append("success")
                return super().throttle_success()

            def throttle_failure(self) -> bool:
                heard.append("failure")
                return bool(super().throttle_failure())

        called(view_of(Telling), times=4)

        assert heard == ["success", "success", "success", "failure"]

    def test_wait_of_a_subclass_is_what_the_client_waits(self) -> None:
        class Patient(UserRateThrottle):
            rate, scope = "1/min", "patient"

            def wait(self) -> float | None:
                return 2 * (super().wait() or 0)

        with freeze(NOON):
            *_, refused = called(view_of(Patient), times=2)

        assert refused.headers["Retry-After"] == "120"

    @pytest.fixture
    def refused_by_another(self) -> Any:
        """The refusal of a throttle that is not ours, below one of ours that allows the request."""
        never = type("Never", (BaseThrottle,), {"allow_request": lambda self, request, view: False})
        (refused,) = called(view_of(Sustained, never))
        return refused

    def test_one_that_is_not_ours_refuses_without_a_wait(self, refused_by_another: Any) -> None:
        assert (refused_by_another.status_code, "Retry-After" in refused_by_another.headers) == (429, False)

    def test_one_that_is_not_ours_refuses_in_the_words_of_the_framework(self, refused_by_another: Any) -> None:
        assert refused_by_another.data == {"detail": "Request was throttled."}

    def test_a_refusal_of_one_that_is_not_ours_shows_ours(self, refused_by_another: Any) -> None:
        assert '"sustained";r=8' in refused_by_another.headers["RateLimit"]


# --- answers ----------------------------------------------------------------------------------------------------------


class TestAnswers:
    def test_the_exception_handler_of_the_project_gets_the_decision(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def handler(error: Exception, context: Any) -> Any:
            assert isinstance(error, QuotaThrottled)
            assert (error.decision.rule, error.get_codes()) == ("search", "throttled")
            return Response({"error": "slow down"}, status=error.status_code)

        monkeypatch.setattr(APIView, "get_exception_handler", lambda self: handler)
        *_, refused = [ask("search", "1") for _ in range(3)]
        assert (refused.status_code, refused.json()) == (429, {"error": "slow down"})

    @pytest.mark.usefixtures("with_middleware")
    def test_a_refusal_whose_handler_says_how_it_is_cached_keeps_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def handler(error: Any, context: Any) -> Any:
            return Response({}, status=error.status_code, headers={"Cache-Control": "private"})

        monkeypatch.setattr(APIView, "get_exception_handler", lambda self: handler)

        *_, refused = [ask("search", "1") for _ in range(3)]

        assert (refused.status_code, refused.headers["Cache-Control"]) == (429, "private")

    def test_an_error_that_is_no_refusal_may_be_cached(self) -> None:
        def get(self: Any, request: Request) -> Response:
            raise exceptions.NotFound

        (reply,) = called(view_of(quota_rules=["search"], get=get))

        assert reply.status_code == 404
        assert "Cache-Control" not in reply.headers

    def test_an_override_of_throttled_may_raise_what_it_likes(self) -> None:
        def throttled(self: Any, request: Any, wait: float | None) -> None:
            raise exceptions.ValidationError("Slow down.")

        *_, refused = called(view_of(Burst, throttled=throttled), times=4)

        assert (refused.status_code, "Slow down." in str(refused.data)) == (400, True)

    def test_the_exception_handler_gets_a_kind_of_throttled_that_the_view_raises(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class TooFast(exceptions.Throttled):
            """An error of the site."""

        def throttled(self: Any, request: Any, wait: float | None) -> None:
            raise TooFast(wait)

        def handler(error: Exception, context: Any) -> Any:
            return Response({"error": type(error).__name__}, status=429)

        monkeypatch.setattr(APIView, "get_exception_handler", lambda self: handler)

        *_, refused = called(view_of(Burst, throttled=throttled), times=4)

        assert refused.data == {"error": "TooFast"}

    @pytest.mark.parametrize("throttle", [QuotaThrottle, Burst])
    def test_without_the_store_a_rule_that_denies_is_a_503(self, throttle: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}
        with no_answer():
            (reply,) = called(view_of(throttle, quota_rules=["search"]))
        assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
        assert reply.data["detail"] == "This cannot be served right now. Please try again shortly."
        assert reply.data["detail"].code == "unavailable"

    def test_without_the_store_a_503_waits_for_no_other_throttle(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}
        later = type("Later", (BaseThrottle,), {"allow_request": lambda *_: False, "wait": lambda _: 60.0})

        with no_answer():
            (reply,) = called(view_of(QuotaThrottle, later, quota_rules=["search"]))

        assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")

    @pytest.mark.usefixtures("with_middleware")
    @pytest.mark.parametrize("kind", [Response, HttpResponse], ids=["of the framework", "of Django"])
    def test_a_reply_is_settled_when_it_is_rendered(self, kind: Any, settings: Any) -> None:
        length = Rule.make("bytes", "1000/h", key="user", settle=lambda request, response: len(response.content))
        at(settings, own=view_of(quota_rules=[length], get=lambda *_: kind("text")))

        reply = ask("own", "1")

        assert f"r={1000 - len(reply.content)}" in reply.headers["RateLimit"]
        assert peek(length, "user:1").used == len(reply.content) > 1

    @pytest.mark.usefixtures("with_middleware")
    def test_an_error_of_the_view_is_settled_as_a_500(self, settings: Any) -> None:
        status = Rule.make("status", "1000/h", settle=lambda request, response: response.status_code)
        at(settings, broken=view_of(quota_rules=[status], get=lambda *_: 1 / 0))

        assert Client(raise_request_exception=False).get("/broken/").status_code == 500

        assert peek(status, "ip:127.0.0.1").used == 500


@pytest.mark.parametrize(("settles", "times"), [(False, 1), (True, 2)], ids=["plain", "settled"])
def test_headers_are_written_again_only_if_settling_changed_them(
    settles: bool, times: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = {"settle": lambda request, response: len(response.content)} if settles else {}
    settings.MIDDLEWARE = []
    rule = Rule.make("bytes", "1000/h", key="user", **settle)
    at(settings, own=view_of(quota_rules=[rule], get=lambda *_: Response("text")))
    writes: list[str] = []
    put = ResponseHeaders.__setitem__

    def note(headers: Any, name: str, value: str) -> None:
        writes.append(name)
        put(headers, name, value)

    monkeypatch.setattr(ResponseHeaders, "__setitem__", note)
    reply = ask("own", "1")
    left = 1000 - len(reply.content) if settles else 999
    assert (f"r={left}" in reply.headers["RateLimit"], writes.count("RateLimit")) == (True, times)


@pytest.mark.parametrize("kind", ["detail_response", "problem_details"])
class TestTheFormatOfRefusals:
    @pytest.fixture(autouse=True)
    def chosen(self, kind: str, settings: Any) -> None:
        chosen = f"django_quota.contrib.rest_framework.{kind}"
        if kind == "detail_response":
            settings.QUOTA = {**settings.QUOTA, "RESPONSE": chosen}
        settings.REST_FRAMEWORK = {} if kind == "detail_response" else {"EXCEPTION_HANDLER": chosen}
        with_rules(settings, flood={"rate": "1/m", "key": "ip", "match": "/waiting/"})

    @pytest.mark.parametrize("route", ["search", "waiting"], ids=["of a throttle", "of the middleware"])
    def test_is_chosen_for_every_refusal(self, route: str, kind: str) -> None:
        is_detail = kind == "detail_response"
        with freeze(NOON):
            statuses("search", "1", "1")
            statuses("waiting", "1")
            reply = ask(route, "1", HTTP_ACCEPT="application/json")

        media_type = "application/json" if is_detail else "application/problem+json"
        assert (reply.status_code, reply.headers["Content-Type"]) == (429, media_type)
        said = reply.json()["detail" if is_detail else "type"]
        assert said.endswith("per minute. Please try again in 60 seconds." if is_detail else "#quota-exceeded")
        assert {"Retry-After", "RateLimit", "RateLimit-Policy", "Cache-Control"} <= set(reply.headers)

    def test_is_a_page_for_a_browser(self) -> None:
        with freeze(NOON):
            statuses("waiting", "1")
            reply = ask("waiting", "1", HTTP_ACCEPT="text/html")

        assert reply.headers["Content-Type"].startswith("text/html")

    def test_leaves_other_errors_to_the_framework(self) -> None:
        assert ask("members", "wrong").json() == {"detail": "Invalid token."}

    def test_leaves_refusals_of_other_throttles_to_the_framework(self, settings: Any) -> None:
        at(settings, closed=view_of(type("Never", (BaseThrottle,), {"allow_request": lambda *_: False})))

        reply = ask("closed")

        assert (reply.status_code, reply.json()) == (429, {"detail": "Request was throttled."})


@pytest.mark.parametrize("status", [429, 402])
def test_the_detail_without_enough_credits_has_the_status_of_the_settings(status: int, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "CREDITS_STATUS": status}
    decision = check_all([(counter("credits"), "org:7", 5)])

    reply = detail_response(RequestFactory().get("/"), decision)

    assert reply is not None
    assert reply.status_code == status
    assert json.loads(reply.content)["detail"].startswith("This request needs 5 credits, and 0 are left.")


def test_an_error_without_enough_credits_has_the_code_of_a_throttle(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "CREDITS_STATUS": 402}

    error = QuotaThrottled(check_all([(counter("credits"), "org:7", 5)]))

    assert (error.status_code, error.get_codes()) == (402, "throttled")


def test_a_view_whose_throttled_has_words_of_its_own_keeps_them() -> None:
    def throttled(view: Any, request: Any, wait: Any) -> None:
        raise exceptions.Throttled(wait, "Slow down.")

    view = view_of(throttled=throttled, throttle_scope="scope")

    _, refused = called(view, times=2)

    assert (refused.status_code, refused.data["detail"]) == (429, "Slow down. Expected available in 60 seconds.")


def test_a_503_says_so_though_throttled_of_the_view_has_words_of_its_own(settings: Any) -> None:
    def throttled(view: Any, request: Any, wait: Any) -> None:
        raise exceptions.Throttled(wait, "Slow down.")

    settings.QUOTA = {**settings.QUOTA, "ON_UNAVAILABLE": "deny"}

    with no_answer():
        (reply,) = called(view_of(throttled=throttled, throttle_scope="scope"))

    assert (reply.status_code, reply.data["detail"]) == (
        503,
        "This cannot be served right now. Please try again shortly.",
    )


def test_a_client_that_takes_anything_gets_the_detail_as_json() -> None:
    request = RequestFactory().get("/", headers={"Accept": "*/*"})

    reply = detail_response(request, check("0/m", "user:1"))

    assert reply is not None
    assert reply.headers["Content-Type"] == "application/json"


class Options(Limited):
    """A view that answers OPTIONS itself."""

    quota_rules = ("search",)

    def options(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response()


class Listed(ViewSet):
    authentication_classes = (ByToken,)
    throttle_classes = (QuotaThrottle,)
    quota_rules = ("search",)

    def list(self, request: Request) -> Response:
        return Response()


ANSWERS = {
    "OPTIONS": (Search.as_view(), "OPTIONS", 200, 2),
    "OPTIONS of a function": (function_of(*LIMITED, with_quota_rules("search")), "OPTIONS", 200, 2),
    "OPTIONS of its own": (Options.as_view(), "OPTIONS", 200, 1),
    "405": (Search.as_view(), "PUT", 405, 2),
    "405 of a view set": (Listed.as_view({"get": "list"}), "POST", 405, 2),
    "no HTTP method": (Search.as_view(), "INITIAL", 405, 2),
    "GET": (Search.as_view(), "GET", 200, 1),
}


@pytest.mark.parametrize(("view", "method", "status", "left"), ANSWERS.values(), ids=ANSWERS)
def test_a_request_that_the_framework_answers_takes_nothing(view: Any, method: str, status: int, left: int) -> None:
    headers = {"Authorization": "Token 1"}

    reply = view(APIRequestFactory().generic(method, "/", headers=headers))

    assert (reply.status_code, peek("search", "user:1").remaining) == (status, left)


class TestBodiesAndCosts:
    def test_a_key_of_json_reads_what_the_framework_has_parsed(self) -> None:
        assert post("body", {"phone": "1"}).json() == {"phone": "1"}
        assert [post("body", {"phone": phone}).status_code for phone in ("2", "1", 1)] == [200, 429, 429]

    def test_a_form_shares_the_count_of_the_same_value_in_json(self) -> None:
        form = "application/x-www-form-urlencoded"

        assert post("form", {"phone": "1"}).status_code == 200
        assert post("form", "phone=1", form).status_code == 429
        assert post("form", "phone=2", form).json() == {"phone": "2"}

    @pytest.mark.parametrize(
        ("body", "content_type", "status"), [('{"phone": ["1"]}', "application/json", 400), ("x", "text/csv", 415)]
    )
    def test_a_body_that_cannot_be_read_is_an_error_of_the_framework(
        self, body: str, content_type: str, status: int, settings: Any
    ) -> None:
        reply = post("body", body, content_type)
        assert (reply.status_code, "detail" in reply.json()) == (status, True)
        with_rules(settings, none={"rate": "0/m", "key": "user", "match": "/body/"})
        assert post("body", body, content_type).status_code == 429, "what another limit refuses is not parsed"

    def test_the_error_for_a_value_that_no_key_can_be_says_which_it_is(self) -> None:
        reply = post("body", {"phone": ["1"]})

        assert "phone" in reply.json()["detail"]

    @pytest.fixture
    def budgets(self, settings: Any) -> Any:
        """A view that costs five units of two rules that it names."""
        rules = {name: {"rate": "100/m", "key": "user"} for name in ("budget", "scope")}
        with_rules(settings, **rules, waits={"rate": "100/m", "key": "user", "match": "/own/"})
        named = {"quota_rules": ("budget",), "quota_cost": 5, "throttle_scope": "scope"}
        return type("Costly", (Things,), named)

    def test_a_view_takes_its_cost_once_of_the_rules_that_it_names(self, budgets: Any) -> None:
        called(budgets.as_view({"get": "list"}))

        assert [peek(name, "user:1").remaining for name in ("budget", "scope")] == [95, 95]

    def test_an_action_takes_its_own_cost(self, budgets: Any) -> None:
        called(budgets.as_view({"get": "recent"}, quota_cost=50))

        assert [peek(name, "user:1").remaining for name in ("budget", "scope")] == [50, 50]

    @pytest.mark.parametrize("cost", [0, "5"], ids=["nothing", "a string"])
    def test_a_cost_that_no_rule_takes_is_an_error(self, cost: Any) -> None:
        with pytest.raises(RuleError, match="cost"):
            called(view_of(quota_rules=["search"], quota_cost=cost))

    def test_the_cost_of_a_view_replaces_the_costs_of_a_rule_by_view(self, settings: Any) -> None:
        with_rules(settings, budget={"rate": "100/m", "key": "user", "costs": {"own": 7}})
        at(settings, own=view_of(QuotaThrottle, quota_rules=["budget"], quota_cost=50))

        assert statuses("own", "1") == [200]
        assert peek("budget", "user:1").remaining == 50

    def test_a_rule_of_the_site_that_a_view_names_takes_the_cost_once(self, budgets: Any, settings: Any) -> None:
        at(settings, own=view_of(QuotaThrottle, quota_rules=["waits"], quota_cost=50))

        assert statuses("own", "1") == [200]
        assert peek("waits", "user:1").remaining == 50


# --- what the site knows ----------------------------------------------------------------------------------------------


def findings(settings: Any, *views: Any, **rules: Any) -> list[Any]:
    """Return what the checks say about views at /api/0/, /api/1/ and so on."""
    inner = [path(f"{number}/", view) for number, view in enumerate(views)]
    other = path("other/", lambda request: HttpResponse())
    settings.ROOT_URLCONF = type("URLs", (), {"urlpatterns": [path("api/", include((inner, "api"))), other]})
    with_rules(settings, **rules)
    return run_checks(tags=["django_quota"])


def ids(found: list[Any]) -> list[str]:
    return sorted({str(each.id).removeprefix("django_quota.") for each in found})


ASKING: Any = type("Asking", (Limited,), OWN)
BY_SESSION: Any = type("BySession", (Unthrottled,), {"authentication_classes": (SessionAuthentication,)})


ASKING_EARLY = (
    f"{__name__}.Asking has its own initial(), so rule 'each' is decided before the framework has found the user."
)
BELIEVING = (
    "A throttle of Django REST framework believes X-Forwarded-For, so a client escapes its limits by sending another "
    "address with each request."
)


class TestChecks:
    @pytest.mark.parametrize(
        ("view", "options", "expected"),
        [
            (Unthrottled.as_view(), {}, ["W017"]),
            (Unthrottled.as_view(), {"key": "ip"}, []),
            (over(Unthrottled.as_view()), {"match": "/other/"}, ["W017"]),
            # Views with the throttle or the session are fine; a throttle that may not ask does not help.
            (function_of(*LIMITED), {}, []),
            (BY_SESSION.as_view(), {}, []),
            # What the framework calls after it has read the token knows the user.
            (function_of(*UNTHROTTLED, quota("2/m", key="user")), {"match": "/other/"}, []),
            (function_of(*UNTHROTTLED, concurrency(1, key="user")), {"match": "/other/"}, []),
            (over(function_of(*UNTHROTTLED)), {"match": "/other/"}, ["W017"]),
            (view_of(Guarded), {}, ["W017", "W018"]),
            (view_of(Guarded, QuotaThrottle), {}, ["W018"]),
            (view_of(OwnAddress), {}, []),
            # A slot of users is the same.
            (concurrency(1, key="user")(Unthrottled.as_view()), {"match": "/other/"}, ["W017"]),
            # Nor does one of a view that asks its throttles in its own way.
            (ASKING.as_view(), {}, ["W017", "W029"]),
            (ASKING.as_view(), {"key": "json:phone"}, ["W014", "W029"]),
            (ASKING.as_view(), {"key": "ip"}, []),
        ],
    )
    def test_a_rule_by_user_that_cannot_see_the_users_of_tokens_is_found(
        self, view: Any, options: dict[str, Any], expected: list[str], settings: Any
    ) -> None:
        rule = {"rate": "2/m", "key": "user", "match": "/api/", **options}
        assert ids(findings(settings, view, each=rule)) == expected

    def test_e016_a_name_of_no_rule(self, settings: Any) -> None:
        wrong = view_of(QuotaThrottle, quota_rules=["serch"])
        function = function_of(*LIMITED, with_quota_rules("fone", "form", "fon"))
        action = Things.as_view({"get": "list"}, quota_rules="adress")
        found = findings(settings, wrong, view_of(QuotaThrottle, throttle_scope="scop"), function, action)
        assert ids(found) == ["E016"]
        assert [re.findall(r"'(\w+)'", each.msg)[0] for each in found] == ["serch", "scop", "fone", "fon", "adress"]
        place = r"quota_rules of tests\.contrib\.test_rest_framework\.View"
        with pytest.raises(RuleError, match=rf"^{place}: There is no rule 'serch' in .* Did you mean 'search'\?$"):
            called(wrong)

    def test_e016_says_what_to_do_about_a_name_of_no_rule(self, settings: Any) -> None:
        views = [view_of(QuotaThrottle, **{name: "serch"}) for name in ("quota_rules", "throttle_scope")]

        hints = [each.hint for each in findings(settings, *views)]

        in_the_settings = 'Add it to QUOTA["RULES"], or to DEFAULT_THROTTLE_RATES in REST_FRAMEWORK.'
        assert hints == ["Did you mean 'search'?", in_the_settings]

    def test_e016_names_the_view(self, settings: Any) -> None:
        views = [view_of(QuotaThrottle, **{name: "serch"}) for name in ("quota_rules", "throttle_scope")]

        texts = [each.msg for each in findings(settings, *views)]

        assert texts == [
            f"quota_rules of {__name__}.View: There is no rule 'serch' in QUOTA[\"RULES\"].",
            f"throttle_scope='serch' of {__name__}.View is not the name of a rule.",
        ]

    @pytest.mark.parametrize(
        ("view", "code", "words", "hint"),
        [
            (
                Exports.as_view(quota_slots="3"),
                "E031",
                f"quota_slots of {__name__}.Exports: at_once='3' is not a whole number from 1 to 1,000,000.",
                "Use, for example, 3.",
            ),
            (
                Exports.as_view(throttle_classes=()),
                "W036",
                f"{__name__}.Exports has quota_slots, but no throttle that takes them: nothing is limited.",
                "Add 'django_quota.contrib.rest_framework.QuotaThrottle' to its throttle_classes.",
            ),
            *[
                (
                    view_of(quota_cost=cost),
                    "E034",
                    f"quota_cost={cost!r} of {__name__}.View is not a whole number from 1 to 1,000,000,000,000.",
                    "Use, for example, 50.",
                )
                for cost in (0, "5", True, Rate.max_count + 1)
            ],
            *[
                (
                    view_of(QuotaThrottle, quota_cost=1_200, **named),
                    "W051",
                    f"{__name__}.View has quota_cost=1,200, and rule 'each' a limit of 9: each request is refused.",
                    "Raise the rate, or the burst of a bucket, to the cost at least, or lower the cost.",
                )
                for named in ({"quota_rules": ["each"]}, {"throttle_scope": "each"})
            ],
            (
                ASKING.as_view(),
                "W029",
                ASKING_EARLY,
                "Remove initial(), or exclude the view from the rule.",
            ),
        ],
    )
    def test_what_a_view_says_wrongly(self, view: Any, code: str, words: str, hint: str, settings: Any) -> None:
        each = {"rate": "2/m", "key": "user", "match": "/api/"} if code == "W029" else {"rate": "9/m"}

        found = [each for each in findings(settings, view, each=each) if each.id == f"django_quota.{code}"]

        assert [(each.msg, each.hint) for each in found] == [(words, hint)]

    def test_w051_is_found_for_each_rule_that_a_view_names(self, settings: Any) -> None:
        view = view_of(QuotaThrottle, quota_cost=50, quota_rules=["first", "second"], throttle_scope="third")

        found = findings(settings, view, **{name: {"rate": "9/m"} for name in ("first", "second", "third")})

        assert [re.findall(r"rule '(\w+)'", each.msg)[0] for each in found] == ["first", "second", "third"]

    def test_w051_is_found_once_for_a_rule_that_a_view_names_twice(self, settings: Any) -> None:
        view = view_of(QuotaThrottle, quota_cost=50, quota_rules=["each"], throttle_scope="each")

        assert len(findings(settings, view, each={"rate": "9/m"})) == 1

    def test_w029_is_found_for_each_rule_that_would_wait(self, settings: Any) -> None:
        rules = {name: {"rate": "2/m", "key": "user", "match": "/api/"} for name in ("first", "second")}

        found = [each.msg for each in findings(settings, ASKING.as_view(), **rules) if each.id == "django_quota.W029"]

        assert [re.findall(r"rule '(\w+)'", text)[0] for text in found] == ["first", "second"]

    def test_w024_is_found_beside_a_throttle_whose_rate_is_right(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(api_settings, "NUM_PROXIES", 0, raising=False)
        monthly = type("Monthly", (UserRateThrottle,), {"rate": "10/month", "scope": "monthly"})

        assert ids(findings(settings, view_of(Burst, monthly))) == ["W024"]

    @pytest.mark.parametrize("rate", ["0/m", "50/m", None], ids=["a rate of nothing", "room enough", "no limit"])
    def test_w051_a_cost_that_a_rule_has_room_for_is_not_found(self, rate: Any, settings: Any) -> None:
        view = view_of(QuotaThrottle, quota_rules=["each"], quota_cost=50)

        assert ids(findings(settings, view, each={"rate": rate})) == []

    def test_slots_that_cannot_be_read_are_found_alone(self, settings: Any) -> None:
        wrong = Exports.as_view(quota_slots="3", throttle_classes=())

        assert ids(findings(settings, wrong)) == ["E031"]

    def test_all_that_a_view_says_wrongly_is_found(self, settings: Any) -> None:
        wrong = {"quota_rules": ["serch"], "throttle_scope": "scop", "quota_cost": 0, "quota_slots": 0}

        found = findings(settings, view_of(Burst, QuotaThrottle, **wrong))

        assert ids(found) == ["E016", "E031", "E034", "W018"]

    @pytest.mark.parametrize(
        "view",
        [
            pytest.param(view_of(quota_cost=1), id="the least cost"),
            pytest.param(view_of(quota_cost=Rate.max_count), id="the highest cost"),
            pytest.param(view_of(throttle_scope="scope"), id="the scope of a rule"),
            pytest.param(view_of(throttle_scope="daily"), id="the scope of a rate"),
            pytest.param(Exports.as_view(), id="slots that a throttle takes"),
            pytest.param(view_of(partial(QuotaThrottle), QuotaThrottle), id="a throttle that a function makes"),
        ],
    )
    def test_nothing_is_found_where_all_is_right(
        self, view: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"daily": "9/day"})

        assert findings(settings, view) == []

    @pytest.fixture
    def views_with_odd_rates(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """Views with rates of which the framework reads one letter, and one with a plain rate."""
        monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"sms": "5/mo"})
        monthly = type("Monthly", (UserRateThrottle,), {"rate": "10/month", "scope": "monthly"})
        return [view_of(monthly), view_of(ScopedRateThrottle, throttle_scope="sms"), view_of(Burst)]

    def test_w018_addresses_that_clients_choose(self, views_with_odd_rates: list[Any], settings: Any) -> None:
        found = findings(settings, *views_with_odd_rates)

        assert ids(found) == ["W018", "W024"]
        assert {(each.msg, each.hint) for each in found if each.id == "django_quota.W018"} == {
            (BELIEVING, "Set NUM_PROXIES in REST_FRAMEWORK: the number of your proxies, 0 for none.")
        }

    def test_w024_rates_read_by_one_letter(
        self, views_with_odd_rates: list[Any], settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(api_settings, "NUM_PROXIES", 0, raising=False)

        found = findings(settings, *views_with_odd_rates)

        assert [each.msg for each in found] == [
            f"Monthly of {__name__}.View reads '10/month' as 10 per minute, as Django REST framework does.",
            f"ScopedRateThrottle of {__name__}.View reads '5/mo' as 5 per minute, as Django REST framework does.",
        ]
        assert [each.hint for each in found] == [
            f"Write '{rate}' if that is meant. Else use a configured rule, in quota_rules." for rate in ("10/m", "5/m")
        ]


def test_rules_of_views_are_known_to_those_who_look_them_up(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule and wrong rates hide none of those after them."""
    wrong, odd = (type("Wrong", (UserRateThrottle,), {"rate": rate}) for rate in ("often", "9/xyz"))
    named = ["serch", "search", Rule.make("own", "5/m", key="user")]
    views = [
        view_of(QuotaThrottle, wrong, odd, Burst, AnonRateThrottle, quota_rules=named),
        view_of(ScopedRateThrottle, throttle_scope="twice"),
        view_of(QuotaThrottle, ScopedRateThrottle),
        view_of(QuotaThrottle, throttle_scope="thrice"),
        view_of(QuotaThrottle, Sustained, throttle_scope="scope"),
    ]
    monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"twice": "2/m", "thrice": "3/m", "anon": None})
    findings(settings, *views)

    found: dict[str, Any] = known_rules()

    known = {name: str(rule.rates[0]) for name, rule in found.items() if name not in RULES}
    assert known == {
        "own": "5/m",
        "rest_framework.burst": "3/m",
        "rest_framework.twice": "2/m",
        "rest_framework.thrice": "3/m",
        "rest_framework.sustained": "9/d",
    }


@pytest.mark.parametrize(
    ("throttle", "is_known"),
    [
        pytest.param(QuotaThrottle, False, id="takes the rule alone"),
        pytest.param(ScopedRateThrottle, True, id="takes the rate"),
    ],
)
def test_the_rate_of_a_scope_that_is_a_rule_too_is_known_where_a_throttle_takes_it(
    throttle: Any, is_known: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimpleRateThrottle, "THROTTLE_RATES", {"scope": "9/m"})
    findings(settings, view_of(throttle, throttle_scope="scope"))

    assert ("rest_framework.scope" in known_rules()) == is_known


def test_the_rules_of_an_action_are_known(settings: Any) -> None:
    share = with_quota_rules(Rule.make("shares", "5/m", key="user"))(lambda self, request: Response())
    books: Any = type("Books", (Things,), {"share": share})
    findings(settings, books.as_view({"post": "share"}))

    assert "shares" in known_rules()


def test_a_throttle_of_the_framework_is_known_as_a_limit_by_user(settings: Any) -> None:
    findings(settings, view_of(Burst))

    found: dict[str, Any] = known_rules()

    assert found["rest_framework.burst"].key == "user"


def test_limits_of_a_request_have_the_rules_of_its_view(settings: Any) -> None:
    view = view_of(QuotaThrottle, quota_rules=["search"])
    findings(settings, view)
    request: Any = APIRequestFactory().get("/")
    request.resolver_match = ResolverMatch(view, (), {})

    assert [outcome.rule for outcome in limits_of(request).outcomes] == ["search"]


@pytest.mark.usefixtures("with_middleware")
def test_the_limits_view_shows_a_token_the_limits_of_its_user(settings: Any) -> None:
    with_rules(settings, plan={"rate": "5/h", "key": "user", "match": "/api/"})
    (url,) = marked("docs/show_limits.md", "tokens")["urlpatterns"]
    assert url.callback.view_class is QuotaLimitsView
    at(settings, limits=view_of(base=QuotaLimitsView, authentication_classes=[ByToken]))
    check("plan", "user:7", 3)
    replies = [ask("limits", token) for token in "78"]
    assert [{each["rule"]: each["used"] for each in reply.json()["limits"]}["plan"] for reply in replies] == [3, 0]
    assert replies[0].headers["Cache-Control"] == "private, no-store"
    assert (ask("limits", "wrong").status_code, Client().post("/limits/").status_code) == (401, 405)
    with no_answer():
        assert ask("limits", "7").status_code == 503


def paths_of_schema(*views: Any) -> dict[str, Any]:
    """Return what the schema says about each view, by its path."""
    patterns = [path("limits", QuotaLimitsView.as_view())]
    patterns += [path(view.__name__, view.as_view(schema=AutoSchema())) for view in views]
    paths: dict[str, Any] = cast("Any", SchemaGenerator)(patterns=patterns).get_schema(public=True)["paths"]
    return paths


def responses_of_schema(view: Any) -> Any:
    """Return which responses the schema has for a GET of a view."""
    return paths_of_schema(view)[f"/{view.__name__}"]["get"]["responses"]


def test_the_schema_leaves_out_the_view_of_the_limits() -> None:
    assert list(paths_of_schema(Unthrottled, Search)) == ["/Search", "/Unthrottled"]


def test_an_operation_without_limits_has_no_429_in_the_schema() -> None:
    assert "429" not in responses_of_schema(Unthrottled)


def test_a_limited_operation_of_the_schema_has_a_429_with_headers() -> None:
    body = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    assert responses_of_schema(Search)["429"] == {
        "description": "Too many requests",
        "headers": {
            "Retry-After": {
                "schema": {"type": "integer"},
                "description": "Seconds until the same request is allowed.",
            },
            "RateLimit-Policy": {
                "schema": {"type": "string"},
                "description": 'The limits, such as "search";q=10;w=60.',
            },
            "RateLimit": {
                "schema": {"type": "string"},
                "description": 'What is left of each, such as "search";r=0;t=42.',
            },
        },
        "content": {"application/json": {"schema": body}},
    }


@pytest.mark.parametrize("throttle", [Burst, Anonymous, ScopedRateThrottle])
def test_an_operation_with_any_throttle_of_ours_has_a_429_in_the_schema(throttle: Any) -> None:
    assert "429" in responses_of_schema(type("Any", (Limited,), {"throttle_classes": (throttle,)}))


def test_an_operation_with_a_throttle_of_another_package_has_a_429_too() -> None:
    other = type("Other", (BaseThrottle,), {"allow_request": lambda self, request, view: True})

    assert "429" in responses_of_schema(type("Both", (Limited,), {"throttle_classes": (other, QuotaThrottle)}))


def test_the_429_that_a_view_describes_itself_stays(settings: Any) -> None:
    settings.REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": f"{AutoSchema.__module__}.AutoSchema"}
    described = extend_schema(responses={429: OpenApiResponse(description="Slow down.")})
    view = type("Described", (Search,), {"get": described(lambda self, request: Response())})

    assert responses_of_schema(view)["429"] == {"description": "Slow down."}


def test_an_operation_that_is_left_out_of_the_schema_stays_out(settings: Any) -> None:
    settings.REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": f"{AutoSchema.__module__}.AutoSchema"}
    hidden = extend_schema(exclude=True)(lambda self, request: Response())
    view = type("Hidden", (Search,), {"get": hidden, "http_method_names": ["get"]})

    assert paths_of_schema(view) == {}


def test_the_429_of_the_schema_has_no_headers_that_the_settings_turn_off(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "HEADERS": False}

    assert list(responses_of_schema(Search)["429"]["headers"]) == ["Retry-After"]


def test_the_page_prints_what_it_shows(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, Any] = {}
    exec(blocks("docs/rest_framework.md")[1][1], shown)
    settings.QUOTA = {**settings.QUOTA, **shown["QUOTA"]}
    (throttle,) = shown["REST_FRAMEWORK"]["DEFAULT_THROTTLE_CLASSES"]
    monkeypatch.setattr(APIView, "throttle_classes", [import_string(throttle)])
    users = {name: User(pk=pk, username=name) for pk, name in enumerate(("ann", "bob"), 1)}

    with freeze(NOON):
        names = run_page("docs/rest_framework.md", **users)

        request = APIRequestFactory().post("/", {"phone": "1"}, format="json")
        share = names["Books"].as_view({"post": "share"}, throttle_classes=[QuotaThrottle])
        assert [share(request).status_code for _ in range(2)] == [201, 429]

        assert codes(names["lookup"], "", 11)[-1] == 429
        monkeypatch.setattr(APIView, "get_exception_handler", lambda self: names["with_limit"])
        assert called(names["lookup"], "")[0].data["limit"] == "10 per minute"

        for_ninja = TestClient(names["api"], headers={"Authorization": "Bearer token-2"})
        replies = [for_ninja.get("/search") for _ in range(11)]
        policies = '"search#2-s";q=10;w=1, "search#2-h";q=500;w=3600, "search";q=1000;w=3600'
        assert replies[0]["RateLimit-Policy"] == policies
        assert replies[10].json() == {"error": "too_many", "wait": 1}

    assert issubclass(import_string(names["REST_FRAMEWORK"]["DEFAULT_SCHEMA_CLASS"]), AutoSchema)
    assert names["BurstRateThrottle"]().num_requests == 60
