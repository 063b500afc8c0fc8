"""Which limited views the URLs lead to: the names of their rules are those that a request meets, and none is shared."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from django.core.checks import Warning as CheckWarning
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import RedirectView, TemplateView
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from django_quota import concurrency, quota
from django_quota.adapters import register_view_check
from django_quota.exceptions import ConfigurationError
from django_quota.http import rule_checks, view_lookup
from django_quota.http.view_lookup import path_of, rules_of_endpoint
from django_quota.limiting.known_rules import known_rules, known_slots

pytestmark = pytest.mark.usefixtures("memory_store")


def without_wraps(view: Any) -> Any:
    """A decorator of a project's own, which forgets functools.wraps."""
    return lambda request: view(request)  # noqa: PLW0108 — another function


def transparent(view: Any) -> Any:
    return functools.wraps(view)(lambda *given, **more: view(*given, **more))  # noqa: PLW0108 — another function


def made(word: str) -> Callable[..., Any]:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(word)

    return view


def plain(request: HttpRequest, **given: Any) -> HttpResponse:
    return HttpResponse()


def get_nothing(self: View, request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@api_view(["GET"])
@quota("5/m")
def under_api_view(request: Any) -> Response:
    return Response()


class Things(ViewSet):
    @quota("5/m")
    def list(self, request: Any) -> Response:
        return Response()

    @action(detail=False)
    @quota("5/m")
    def recent(self, request: Any) -> Response:
        return Response()


@method_decorator(quota("5/m"), name="list")
class ByName(ViewSet):
    def list(self, request: Any) -> Response:
        return Response()


@method_decorator([quota("5/m"), csrf_exempt], name="dispatch")
class Dashboard(View):
    @quota("7/m")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@quota("5/m")
class Base(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Derived(Base):
    pass


@quota("5/m")
@transparent
@quota("9/m")
@without_wraps
@quota("7/m")
def stacked(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


router = SimpleRouter()
for viewset in (Things, ByName):
    router.register(viewset.__name__.lower(), viewset, viewset.__name__)

limited: Any = quota("5/m")(made("made"))


@quota("5/m")
async def in_the_loop(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class ByMethod(View):
    @method_decorator(quota("5/m"))
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


HERE = __name__
REDIRECT = "django.views.generic.base.RedirectView"
VIEWS: dict[str, tuple[Any, list[str]]] = {
    "function": (quota("5/m")(plain), [f"{HERE}.plain"]),
    "async": (in_the_loop, [f"{HERE}.in_the_loop"]),
    "twice": (quota("5/m")(quota("9/m")(plain)), [f"{HERE}.plain", f"{HERE}.plain#2"]),
    "below-wraps": (transparent(quota("5/m")(plain)), [f"{HERE}.plain"]),
    "around-wraps": (quota("5/m")(transparent(quota("9/m")(plain))), [f"{HERE}.plain", f"{HERE}.plain#2"]),
    "below-a-partial": (functools.partial(limited), [f"{HERE}.made.<locals>.view"]),
    "of-a-partial": (quota("5/m")(functools.partial(plain, a=1)), [f"{HERE}.plain(a=1)"]),
    "of-another-partial": (quota("5/m")(functools.partial(plain, a=2)), [f"{HERE}.plain(a=2)"]),
    "below-api-view": (under_api_view, [f"{HERE}.under_api_view"]),
    "class": (Base.as_view(), [f"{HERE}.Base"]),
    "derived": (Derived.as_view(), [f"{HERE}.Derived"]),
    "around-a-class": (quota("3/m")(Base.as_view()), [f"{HERE}.Base", f"{HERE}.Base#2"]),
    "method": (ByMethod.as_view(), [f"{HERE}.ByMethod.get"]),
    "dispatch-and-method": (Dashboard.as_view(), [f"{HERE}.Dashboard", f"{HERE}.Dashboard.get"]),
    "with-arguments": (quota("5/m")(RedirectView.as_view(url="/a")), [f"{REDIRECT}(url='/a')"]),
    "around-an-action": (
        quota("5/m")(Things.as_view({"get": "list"})), [f"{HERE}.Things(get='list')", f"{HERE}.Things.list"],
    ),
}  # fmt: skip
"""By route: a view, and the names of the rules that it has."""
ACTIONS = {"things": f"{HERE}.Things.list", "things/recent": f"{HERE}.Things.recent", "byname": f"{HERE}.ByName.list"}
urlpatterns = [
    path("in/", include([path(f"{name}/", view) for name, (view, _) in VIEWS.items()])),
    path("in/again/", limited),
    path("in/stacked/", stacked),
    path("in/", include(router.urls)),
]


def met(route: str) -> list[str]:
    """Return the names of the rules that a request on a route meets."""
    decision = Client().get(f"/in/{route}/").wsgi_request.quota  # type: ignore[attr-defined]
    return sorted(outcome.rule for outcome in decision.outcomes)


NAMES = {
    **{route: names for route, (_, names) in VIEWS.items()},
    **{route: [name] for route, name in ACTIONS.items()},
    "again": [f"{HERE}.made.<locals>.view"],
}


@pytest.mark.parametrize("route", NAMES)
def test_a_rule_without_a_name_has_the_path_of_its_view(route: str, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    assert met(route) == NAMES[route]


@pytest.mark.parametrize("route", NAMES)
def test_the_rules_that_a_request_meets_are_known_beforehand(route: str, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    assert set(NAMES[route]) <= known_rules().keys()


def test_no_rule_is_known_that_no_request_meets(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    names = {name for names in NAMES.values() for name in names}
    assert set(known_rules()) == names | set(met("stacked")) - HIDDEN


HIDDEN = {f"{HERE}.stacked"}
"""It is below a decorator without functools.wraps."""


def test_a_rule_below_a_decorator_without_wraps_is_not_known(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    assert set(met("stacked")) - known_rules().keys() == HIDDEN


def test_of_several_quotas_in_one_method_decorator_the_outermost_is_known(settings: Any) -> None:
    """`method_decorator` leaves one attribute of each name on the method."""
    several: Any = type("Several", (View,), {"get": plain})
    method_decorator([quota("5/m", name="first"), quota("50/h", name="second")], name="get")(several)
    settings.ROOT_URLCONF = SimpleURLs(several.as_view())
    assert known_rules().keys() & {"first", "second"} == {"first"}


def test_a_view_that_has_answered_is_not_kept(settings: Any) -> None:
    """`method_decorator` decorates a method for each request, here a function whose name is not that of a method."""
    answered: list[weakref.ref[View]] = []

    def answer(self: View, request: HttpRequest) -> HttpResponse:
        answered.append(weakref.ref(self))
        return HttpResponse()

    kept: Any = method_decorator(quota("5/m"), name="get")(type("Kept", (View,), {"get": answer}))
    settings.ROOT_URLCONF = SimpleURLs(kept.as_view())
    assert Client().get("/0/").status_code == 200
    gc.collect()
    assert answered[0]() is None


def test_headers_name_a_view_without_its_arguments(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    assert Client().get("/in/with-arguments/").headers["RateLimit-Policy"] == '"RedirectView";q=5;w=60'


class SimpleURLs:
    def __init__(self, *views: Any) -> None:
        self.urlpatterns = [path(f"{number}/", view) for number, view in enumerate(views)]


def findings(settings: Any, *views: Any) -> list[Any]:
    settings.ROOT_URLCONF = SimpleURLs(*views)
    return run_checks(tags=["django_quota"])


def template(word: str) -> Any:
    return TemplateView.as_view(extra_context={"word": word})


def same(**members: Any) -> Any:
    """Return a class with the path of another one."""
    return type("Same", (View,), {"get": get_nothing, **members})


@pytest.mark.parametrize("decorate", [quota("5/m"), concurrency(5)], ids=["quota", "concurrency"])
class TestW013:
    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda decorate, word: decorate(made(word)), id="functions"),
            pytest.param(lambda decorate, word: decorate(template(word)), id="a class with two arguments"),
            pytest.param(lambda decorate, word: decorate(same()).as_view(), id="classes"),
            pytest.param(lambda decorate, word: same(get=decorate(get_nothing)).as_view(), id="methods"),
            pytest.param(lambda decorate, word: decorate(same().as_view()), id="views of two classes"),
        ],
    )
    def test_it_asks_for_a_name_where_views_share_one(self, make: Any, decorate: Any, settings: Any) -> None:
        (found,) = findings(settings, make(decorate, "one"), make(decorate, "other"))

        assert (found.id, "they share one count" in found.msg) == ("django_quota.W013", True)
        assert "(..., name='...')" in found.hint

    def test_it_names_three_views_once(self, decorate: Any, settings: Any) -> None:
        views = [decorate(made(word)) for word in ("one", "other", "third")]

        assert [found.id for found in findings(settings, *views)] == ["django_quota.W013"]

    def test_a_view_may_be_in_the_urls_twice(self, decorate: Any, settings: Any) -> None:
        view = decorate(made("one"))

        assert findings(settings, view, view) == []

    def test_a_class_may_be_in_the_urls_twice(self, decorate: Any, settings: Any) -> None:
        limited_class, of_method = decorate(same()), same(get=decorate(get_nothing))

        assert findings(settings, *[each.as_view() for each in (limited_class, of_method) for _ in range(2)]) == []

    def test_a_view_of_a_class_may_be_limited_twice(self, decorate: Any, settings: Any) -> None:
        views = [decorate(RedirectView.as_view(url="/a")) for _ in range(2)]

        assert findings(settings, *views) == []


@pytest.mark.parametrize(
    "views",
    [
        pytest.param([quota("5/m")(plain), quota("5/m")(transparent(plain))], id="one view, decorated twice"),
        pytest.param([quota("5/m", name="made")(made(word)) for word in ("one", "other")], id="a name that is given"),
        pytest.param([concurrency(5, name="made")(made(word)) for word in ("one", "other")], id="a slot with a name"),
        pytest.param([Base.as_view(), Derived.as_view(), quota("5/m")(Base.as_view())], id="classes that inherit"),
        pytest.param([quota("5/m")(made("one")), concurrency(1)(made("other"))], id="a rate of one, a slot of another"),
    ],
)
def test_w013_leaves_alone(views: list[Any], settings: Any) -> None:
    assert findings(settings, *views) == []


def test_a_view_may_have_actions_of_its_own(settings: Any) -> None:
    view: Any = quota("5/m")(template("one"))
    view.actions = ["export"]

    assert findings(settings, view) == []


def test_the_path_of_a_regular_expression_has_no_backslash() -> None:
    assert path_of(r"^files/a\.txt$") == "/files/a.txt"


def test_slots_are_known_by_the_names_that_requests_meet(settings: Any) -> None:
    gated: Any = method_decorator(concurrency(5), name="dispatch")(type("Gated", (View,), {}))
    other: Any = concurrency(5)(type("Other", (ViewSet,), {"list": lambda self, request: Response()}))
    method = same(get=concurrency(5)(get_nothing))
    named: Any = concurrency(5, name="named")(plain)
    settings.ROOT_URLCONF = SimpleURLs(gated.as_view(), other.as_view({"get": "list"}), method.as_view(), named)
    assert known_slots() == ["named", f"{HERE}.Gated", f"{HERE}.Other", f"{HERE}.Same.get_nothing"]


# --- the rules that a request of one method meets ---------------------------------------------------------------------


class WithHead(View):
    get = quota("5/m", name="of get")(get_nothing)
    head = quota("5/m", name="of head")(get_nothing)


@pytest.mark.parametrize(
    ("view", "method", "names"),
    [
        pytest.param(VIEWS["twice"][0], "GET", [f"{HERE}.plain#2", f"{HERE}.plain"], id="two on a function"),
        pytest.param(VIEWS["around-wraps"][0], "POST", [f"{HERE}.plain#2", f"{HERE}.plain"], id="one between them"),
        pytest.param(
            quota("3/m")(transparent(VIEWS["twice"][0])),
            "GET",
            [f"{HERE}.plain#3", f"{HERE}.plain#2", f"{HERE}.plain"],
            id="one far above two",
        ),
        pytest.param(
            quota("3/m")(quota("4/m", name="x")(VIEWS["twice"][0])),
            "GET",
            [f"{HERE}.plain#4", "x", f"{HERE}.plain#2", f"{HERE}.plain"],
            id="four, one of them named",
        ),
        pytest.param(Dashboard.as_view(), "GET", [f"{HERE}.Dashboard", f"{HERE}.Dashboard.get"], id="a method"),
        pytest.param(Dashboard.as_view(), "head", [f"{HERE}.Dashboard", f"{HERE}.Dashboard.get"], id="HEAD of a GET"),
        pytest.param(Dashboard.as_view(), "POST", [f"{HERE}.Dashboard"], id="another method"),
        pytest.param(WithHead.as_view(), "HEAD", ["of head"], id="HEAD of its own"),
        pytest.param(VIEWS["around-a-class"][0], "GET", [f"{HERE}.Base#2", f"{HERE}.Base"], id="around a class"),
        pytest.param(Things.as_view({"get": "list"}), "GET", [f"{HERE}.Things.list"], id="an action"),
        pytest.param(Things.as_view({"get": "list"}), "POST", [], id="a method without an action"),
        pytest.param(
            VIEWS["around-an-action"][0], "GET", [f"{HERE}.Things(get='list')", f"{HERE}.Things.list"], id="around it"
        ),
        pytest.param(functools.partial(limited), "GET", [f"{HERE}.made.<locals>.view"], id="in a partial"),
        pytest.param(plain, "GET", [], id="no limit"),
        pytest.param(Mock(), "GET", [], id="a mock, which has any attribute"),
    ],
)
def test_the_rules_of_a_view_are_in_the_order_in_which_they_are_met(view: Any, method: str, names: list[str]) -> None:
    assert [rule.name for rule in rules_of_endpoint(view, method)] == names


def test_a_viewset_has_no_limit_where_another_url_of_it_has_one() -> None:
    views = [quota("5/m", name="one url")(Things.as_view({"get": "list"})), Things.as_view({"get": "recent"})]

    names = [[rule.name for rule in rules_of_endpoint(view, "GET")] for view in views]

    assert names == [["one url", f"{HERE}.Things.list"], [f"{HERE}.Things.recent"]]


# --- the checks of integrations ---------------------------------------------------------------------------------------


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The checks of integrations: none but those of the test."""
    own: list[Any] = []
    monkeypatch.setattr(view_lookup, "view_checks", own)
    monkeypatch.setattr(rule_checks, "view_checks", own)
    return own


@pytest.mark.usefixtures("checks")
class TestCheckOfAnIntegration:
    def test_it_gets_the_urls(self, settings: Any) -> None:
        @register_view_check
        def check(patterns: Any) -> Any:
            return [CheckWarning(str(len(patterns)), id="shop.W001")]

        assert [found.msg for found in findings(settings, plain, made("one"))] == ["2"]

    def test_it_stays_the_function_that_it_is(self) -> None:
        def check(patterns: Any) -> Any:
            return []

        assert register_view_check(check) is check

    def test_a_message_about_several_views_is_reported_once(self, settings: Any) -> None:
        @register_view_check
        def check(patterns: Any) -> Any:
            return [CheckWarning(text, id=f"shop.W00{number}") for number, text in enumerate(["one", "one", "other"])]

        assert [found.id for found in findings(settings, plain)] == ["shop.W000", "shop.W002"]

    def test_a_wrong_setting_ends_it_and_no_other(self, settings: Any) -> None:
        @register_view_check
        def fails(patterns: Any) -> Any:
            yield CheckWarning("before", id="shop.W001")
            raise ConfigurationError("It is wrong.")

        @register_view_check
        def check(patterns: Any) -> Any:
            return [CheckWarning("other", id="shop.W002")]

        assert [found.msg for found in findings(settings, plain)] == ["before", "other"]
