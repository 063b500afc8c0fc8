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

from django_quota import concurrency, quota, reset_subject
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


def test_the_rules_that_are_known_beforehand_are_those_that_requests_meet() -> None:
    assert {name for route in ROUTES for name in met(route)} == set(reset_subject("user:1").rules)


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


class TestRulesThatThereAreNot:
    """A misspelt rule of the settings is found wherever its decorator stands."""

    def test_under_api_view(self, settings: Any) -> None:
        @api_view(["GET"])
        @quota(rule="typo")
        def search(request: Any) -> Response:
            return Response()

        assert self.warned(settings, search) == "search"

    def test_on_a_method_and_on_an_action_of_a_viewset(self, settings: Any) -> None:
        class Shop(ViewSet):
            @quota(rule="typo")
            def list(self, request: Any) -> Response:
                return Response()

        class Cart(ViewSet):
            @action(detail=False)
            @quota(rule="typo")
            def recent(self, request: Any) -> Response:
                return Response()

        for viewset, name in ((Shop, "Shop.list"), (Cart, "Cart.recent")):
            router = SimpleRouter()
            router.register("x", viewset, "x")
            assert self.warned(settings, *(pattern.callback for pattern in router.urls)) == name

    @pytest.mark.parametrize(("base", "name"), [(ViewSet, "list"), (View, "get"), (View, "dispatch")])
    def test_under_method_decorator(self, base: Any, name: str, settings: Any) -> None:
        def method(self: Any, request: Any) -> HttpResponse:
            return HttpResponse()

        method.__name__ = name
        shop: Any = method_decorator(quota(rule="typo"), name=name)(type("Shop", (base,), {name: method}))
        views = [shop.as_view({"get": "list"}), shop.as_view({"get": "list"})] if base is ViewSet else [shop.as_view()]
        assert self.warned(settings, *views) == ("Shop" if name == "dispatch" else f"Shop.{name}")

    def test_on_a_class(self, settings: Any) -> None:
        shop: Any = quota(rule="typo")(type("Shop", (View,), {}))
        assert self.warned(settings, shop.as_view()) == "Shop"

    def warned(self, settings: Any, *views: Any) -> str:
        """Return the path of the view that is named, of this module."""
        (found,) = findings(settings, *views)
        assert found.id == "django_quota.E010"
        before, _, rest = found.msg.partition(" on ")
        assert before == "@quota(rule='typo')"
        where = rest.removesuffix(" names no rule.")
        assert where.startswith(f"{__name__}.")
        return str(where.rpartition("<locals>.")[2].removeprefix(f"{__name__}."))


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


def test_a_decorator_that_fails_at_each_request_does_not_stop_the_checks(settings: Any) -> None:
    def fails_on_a_method(view: Any) -> Any:
        if isinstance(view, functools.partial):
            raise TypeError(view)
        return view

    shop: Any = method_decorator([quota("5/m"), fails_on_a_method], name="get")(type("Shop", (Hidden,), {}))
    assert findings(settings, shop.as_view()) == []


class Endless:
    """An object, as `unittest.mock.call`, that seems to be wrapped around another one each time."""

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":
            return Endless()
        raise AttributeError(name)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


def test_a_view_that_never_ends_does_not_stop_the_checks(settings: Any) -> None:
    assert findings(settings, Endless()) == []


def test_slots_are_known_by_the_names_that_requests_take(settings: Any) -> None:
    gated: Any = method_decorator(concurrency(5), name="dispatch")(type("Gated", (View,), {}))
    other: Any = concurrency(5)(type("Other", (ViewSet,), {"list": lambda self, request: Response()}))
    settings.ROOT_URLCONF = SimpleURLs(gated.as_view(), other.as_view({"get": "list"}))
    assert slots_of_views() == [f"{__name__}.Gated", f"{__name__}.Other"]
