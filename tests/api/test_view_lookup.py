"""Which limited views the URLs lead to: the names of their rules are those that a request meets, and none is shared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.generic import RedirectView, TemplateView
from rest_framework.decorators import action, api_view
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_quota import Rule, concurrency, quota, reset_subject
from django_quota.limiting.known_rules import known_rules
from tests.support.inspection import slots_of_views

pytestmark = pytest.mark.usefixtures("memory_store")


def without_wraps(view: Any) -> Any:
    """A decorator of a project's own, which forgets functools.wraps."""

    def inner(*args: Any) -> Any:
        return view(*args)

    return inner


def transparent(view: Any) -> Any:
    @functools.wraps(view)
    def inner(*args: Any) -> Any:
        return view(*args)

    return inner


@api_view(["GET"])
@quota("5/m")
def under_api_view(request: Any) -> Response:
    return Response()


@quota("5/m")
@api_view(["GET"])
def over_api_view(request: Any) -> Response:
    return Response()


@quota("5/m")
@api_view(["GET"])
def over_another_api_view(request: Any) -> Response:
    return Response()


@quota("5/m")
class OfAnAPI(APIView):
    def get(self, request: Any) -> Response:
        return Response()


class Things(ViewSet):
    @quota("5/m")
    def list(self, request: Any) -> Response:
        return Response()

    @action(detail=False)
    @quota("5/m")
    def recent(self, request: Any) -> Response:
        return Response()


@method_decorator([quota("5/m"), quota("50/h")], name="list")
class ByName(ViewSet):
    def list(self, request: Any) -> Response:
        return Response()


@quota("5/m")
class OfAViewSet(ViewSet):
    def list(self, request: Any) -> Response:
        return Response()


@method_decorator([quota("5/m"), quota("50/h")], name="dispatch")
class Dashboard(View):
    @quota("7/m")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


@method_decorator(quota("5/m"), name="get")
class ByMethod(View):
    @quota("7/m")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Hidden(View):
    @without_wraps
    @quota("5/m")
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


def plain(request: HttpRequest, **given: Any) -> HttpResponse:
    return HttpResponse()


def made(word: str) -> Callable[..., Any]:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(word)

    return view


def made_class(word: str) -> type[View]:
    class Made(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(word)

    return Made


router = SimpleRouter()
for viewset in (Things, ByName, OfAViewSet):
    router.register(viewset.__name__.lower(), viewset, viewset.__name__)

urlpatterns = [
    path("under/", under_api_view),
    path("over/", over_api_view),
    path("another/", over_another_api_view),
    path("api/", OfAnAPI.as_view()),
    path("dashboard/", Dashboard.as_view()),
    path("by-method/", ByMethod.as_view()),
    path("hidden/", Hidden.as_view()),
    path("base/", Base.as_view()),
    path("derived/", Derived.as_view()),
    path("over-a-limited-class/", quota("3/m")(Base.as_view())),
    path("stacked/", stacked),
    path("about/", quota("5/m")(TemplateView.as_view(template_name="429.html"))),
    path("moved/", quota("5/m")(RedirectView.as_view(url="/a"))),
    path("moved-too/", quota("5/m")(RedirectView.as_view(url="/b", permanent=True))),
    path("partial/", quota("5/m")(functools.partial(plain, a=1))),
    path("partial-too/", quota("5/m")(functools.partial(plain, a=OfAnAPI))),
    path("viewset/", quota("5/m")(Things.as_view({"get": "list"}))),
    path("viewset-too/", quota("5/m")(Things.as_view({"get": "recent"}))),
    path("", include(router.urls)),
]
ROUTES = [str(pattern.pattern) for pattern in urlpatterns[:-1]]
ROUTES += ["things/", "things/recent/", "byname/", "ofaviewset/"]


@pytest.fixture(autouse=True)
def urls(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__


def met(route: str) -> list[str]:
    """Return the names of the rules that a request on a route meets."""
    decision = Client().get(f"/{route}").wsgi_request.quota  # type: ignore[attr-defined]
    return sorted(outcome.rule for outcome in decision.outcomes)


def test_the_rules_known_beforehand_are_those_that_requests_meet_but_hidden_ones() -> None:
    hidden = {f"{__name__}.Hidden.get", f"{__name__}.stacked"}  # below a decorator without functools.wraps
    assert {name for route in ROUTES for name in met(route)} - hidden == set(reset_subject("user:1").rules)


def test_no_two_views_are_called_alike() -> None:
    names = [name for route in ROUTES for name in met(route)]
    twice = {name for name in names if names.count(name) > 1}
    here = f"{__name__}."
    # These views stand in the URLs once more, behind a limit of their own.
    assert twice == {f"{here}Base", f"{here}Things.list", f"{here}Things.recent"}


@pytest.mark.parametrize(
    ("route", "name"),
    [
        ("under/", "under_api_view"),
        ("over/", "over_api_view"),
        ("api/", "OfAnAPI"),
        ("derived/", "Derived"),
        ("byname/", "ByName.list"),
        ("ofaviewset/", "OfAViewSet"),
        ("things/recent/", "Things.recent"),
    ],
)
def test_a_view_is_called_by_its_path(route: str, name: str) -> None:
    assert f"{__name__}.{name}" in met(route)


def test_views_of_one_class_differ_by_their_as_view_options_unseen_by_clients(settings: Any) -> None:
    path_of_class = "django.views.generic.base.RedirectView"
    assert met("moved/") == [f"{path_of_class}(url='/a')"]
    assert met("moved-too/") == [f"{path_of_class}(url='/b', permanent=True)"]
    assert Client().get("/moved/").headers["RateLimit-Policy"] == '"RedirectView";q=5;w=60'
    settings.ROOT_URLCONF = SimpleURLs(quota("5/m")(RedirectView.as_view(url="/" + "a" * 100)))
    assert reset_subject("user:1").rules == [f"{path_of_class}(url=builtins.str)"]


class SimpleURLs:
    """A URLconf that is no module."""

    def __init__(self, *views: Any) -> None:
        self.urlpatterns = [path(f"{number}/", view) for number, view in enumerate(views)]


def findings(settings: Any, *views: Any) -> list[Any]:
    settings.ROOT_URLCONF = SimpleURLs(*views)
    return [found for found in run_checks(tags=["django_quota"]) if not str(found.id).endswith("W007")]


class TestViewsThatShareAName:
    @pytest.mark.parametrize(
        ("decorate", "words"),
        [(quota("5/m"), "@quota(..., name='...')"), (concurrency(5), "@concurrency(..., name='...')")],
    )
    @pytest.mark.parametrize("kind", ["function", "class", "template"])
    def test_w013_asks_for_a_name_where_views_share_one(
        self, kind: str, decorate: Any, words: str, settings: Any
    ) -> None:
        views = {
            "function": lambda word: decorate(made(word)),
            "class": lambda word: decorate(made_class(word)).as_view(),
            "template": lambda word: decorate(TemplateView.as_view(extra_context={"word": word})),
        }
        (found,) = findings(settings, views[kind]("one"), views[kind]("other"))
        assert found.id == "django_quota.W013"
        assert "they share one count" in found.msg
        assert words in found.hint

    def test_one_view_on_two_routes_and_views_with_a_name_are_fine(self, settings: Any) -> None:
        view = quota("5/m")(made("one"))
        again = [quota("5/m")(plain), quota("5/m")(transparent(plain))]
        classes = [quota("5/m")(TemplateView.as_view(template_name="a")) for _ in range(2)]
        shared = [quota("5/m", name="made")(made(word)) for word in ("one", "other")]
        assert findings(settings, view, view, *again, *classes, *shared) == []
        assert findings(settings, Base.as_view(), Derived.as_view(), quota("5/m")(Base.as_view())) == []


@pytest.mark.parametrize(
    ("base", "method", "on_class", "name"),
    [
        (APIView, "get", False, "Shop.get"), (ViewSet, "list", False, "Shop.list"), (View, "get", False, "Shop.get"),
        (View, "dispatch", False, "Shop"), (View, "get", True, "Shop"), (ViewSet, "list", True, "Shop"),
    ],
)  # fmt: skip
def test_a_misspelt_rule_is_found_wherever_its_decorator_is(
    base: Any, method: str, on_class: bool, name: str, settings: Any
) -> None:
    def answer(self: Any, request: Any) -> HttpResponse:
        return HttpResponse()

    answer.__name__ = method
    shop: Any = type("Shop", (base,), {method: answer})
    misspelt: Any = quota(rule="typo")
    shop = misspelt(shop) if on_class else method_decorator(misspelt, name=method)(shop)
    (found,) = findings(settings, shop.as_view({"get": "list"}) if base is ViewSet else shop.as_view())
    assert found.id == "django_quota.E010"
    assert found.msg == f"@quota(rule='typo') on {__name__}.{name} names no rule."


def test_the_user_is_known_where_rest_framework_calls_a_limited_view(settings: Any) -> None:
    """It finds the user by itself, also without Django's middleware."""

    @api_view(["GET"])
    @quota("5/m", key="user")
    def mine(request: Any) -> Response:
        return Response()

    settings.MIDDLEWARE = ["django_quota.middleware.QuotaMiddleware"]
    assert findings(settings, mine) == []
    found = findings(settings, quota("5/m", key="user")(OfAnAPI.as_view()))
    assert [each.id for each in found] == ["django_quota.W005", "django_quota.W017"]


def test_a_view_that_never_ends_does_not_stop_the_checks(settings: Any) -> None:
    class Endless:
        """An object, as `unittest.mock.call`, that seems to be wrapped around another one each time."""

        def __getattr__(self, name: str) -> Any:
            if name == "__wrapped__":
                return Endless()
            raise AttributeError(name)

        def __call__(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    assert findings(settings, Endless()) == []


def test_decorators_of_methods_are_named_as_requests_name_them(settings: Any) -> None:
    def listed(*ways: Any) -> Any:
        shop: Any = type("Shop", (ViewSet,), {"list": quota("9/m")(lambda self, request: Response())})
        for way in ways:
            shop = method_decorator(way, name="list")(shop)
        return shop.as_view({"get": "list"})

    for view in (
        listed([quota("5/m"), quota("7/m")]),
        listed(quota("7/m"), quota("5/m")),
        listed(quota("7/m"), transparent, quota("5/m")),
    ):
        settings.ROOT_URLCONF = SimpleURLs(view)
        outcomes = Client().get("/0/").wsgi_request.quota.outcomes  # type: ignore[attr-defined]
        assert len(outcomes) == 3
        assert {each.rule: str(each.rate) for each in outcomes} == {
            name: str(rule.rates[0]) for name, rule in known_rules().items() if isinstance(rule, Rule)
        }


def test_slots_are_known_by_the_names_that_requests_take(settings: Any) -> None:
    gated: Any = method_decorator(concurrency(5), name="dispatch")(type("Gated", (View,), {}))
    other: Any = concurrency(5)(type("Other", (ViewSet,), {"list": lambda self, request: Response()}))
    settings.ROOT_URLCONF = SimpleURLs(gated.as_view(), other.as_view({"get": "list"}))
    assert slots_of_views() == [f"{__name__}.Gated", f"{__name__}.Other"]
