"""Which limited views the URLs lead to: the names of their rules are those that a request meets, and none is shared."""

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
from rest_framework.viewsets import ViewSet

from django_quota import concurrency, quota
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


@method_decorator([quota("5/m"), quota("50/h")], name="list")
class ByName(ViewSet):
    def list(self, request: Any) -> Response:
        return Response()


@method_decorator([quota("5/m"), quota("50/h")], name="dispatch")
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

VIEWS: dict[str, Any] = {
    "under": under_api_view, "dashboard": Dashboard.as_view(), "base": Base.as_view(), "derived": Derived.as_view(),
    "over-a-limited-class": quota("3/m")(Base.as_view()), "stacked": stacked,
    "moved": quota("5/m")(RedirectView.as_view(url="/a")),
    "moved-too": quota("5/m")(RedirectView.as_view(url="/b", permanent=True)),
    "partial": quota("5/m")(functools.partial(plain, a=1)), "partial-too": quota("5/m")(functools.partial(plain, a=2)),
    "viewset": quota("5/m")(Things.as_view({"get": "list"})),
}  # fmt: skip
urlpatterns = [*(path(f"{name}/", view) for name, view in VIEWS.items()), path("", include(router.urls))]


def met(route: str) -> list[str]:
    """Return the names of the rules that a request on a route meets."""
    decision = Client().get(f"/{route}/").wsgi_request.quota  # type: ignore[attr-defined]
    return sorted(outcome.rule for outcome in decision.outcomes)


def test_the_rules_known_beforehand_are_those_that_requests_meet_called_by_path(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    names = [name for route in (*VIEWS, "things", "things/recent", "byname") for name in met(route)]
    hidden = {f"{__name__}.stacked"}  # below a decorator without functools.wraps
    assert set(names) - hidden == set(known_rules())
    # These views stand in the URLs once more, behind a limit of their own; no others are called alike.
    twice = {f"{__name__}.{name}" for name in ("Base", "Things.list")}
    assert {name for name in names if names.count(name) > 1} == twice
    for route, name in (("under", "under_api_view"), ("derived", "Derived"), ("byname", "ByName.list")):
        assert f"{__name__}.{name}" in met(route)
    redirect = "django.views.generic.base.RedirectView"  # the options are for us, not for clients
    assert [met("moved"), met("moved-too")] == [[f"{redirect}(url='/a')"], [f"{redirect}(url='/b', permanent=True)"]]
    assert Client().get("/moved/").headers["RateLimit-Policy"] == '"RedirectView";q=5;w=60'


class SimpleURLs:
    def __init__(self, *views: Any) -> None:
        self.urlpatterns = [path(f"{number}/", view) for number, view in enumerate(views)]


def findings(settings: Any, *views: Any) -> list[Any]:
    settings.ROOT_URLCONF = SimpleURLs(*views)
    return run_checks(tags=["django_quota"])


@pytest.mark.parametrize("decorate", [quota("5/m"), concurrency(5)], ids=["quota", "concurrency"])
def test_w013_asks_for_a_name_where_views_share_one(decorate: Any, settings: Any) -> None:
    for make in (made, lambda word: TemplateView.as_view(extra_context={"word": word})):
        (found,) = findings(settings, decorate(make("one")), decorate(make("other")))
        assert (found.id, "they share one count" in found.msg) == ("django_quota.W013", True)
        assert "(..., name='...')" in found.hint
    view = decorate(made("one"))
    again = [quota("5/m")(plain), quota("5/m")(transparent(plain))]
    shared = [quota("5/m", name="made")(made(word)) for word in ("one", "other")]
    classes = [Base.as_view(), Derived.as_view(), quota("5/m")(Base.as_view())]
    assert [findings(settings, *views) for views in ([view, view, *again, *shared], classes)] == [[], []]


def test_slots_are_known_by_the_names_that_requests_meet(settings: Any) -> None:
    gated: Any = method_decorator(concurrency(5), name="dispatch")(type("Gated", (View,), {}))
    other: Any = concurrency(5)(type("Other", (ViewSet,), {"list": lambda self, request: Response()}))
    settings.ROOT_URLCONF = SimpleURLs(gated.as_view(), other.as_view({"get": "list"}))
    assert known_slots() == [f"{__name__}.Gated", f"{__name__}.Other"]
