"""Views with names and namespaces, limited and not, for rules with a `match`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_quota import quota


def seen(request: HttpRequest) -> JsonResponse:
    decision = getattr(request, "quota", None)
    return JsonResponse({"rules": [outcome.rule for outcome in decision.outcomes] if decision else []})


def plain(request: HttpRequest) -> JsonResponse:
    return seen(request)


@quota("20/m", "200/h", key="ip", name="two")
def two(request: HttpRequest) -> JsonResponse:
    return seen(request)


@quota("20/m", "200/h", key="ip", name="two")
async def two_async(request: HttpRequest) -> JsonResponse:
    return seen(request)


@dataclass
class Unhashable:
    def __call__(self, request: HttpRequest) -> JsonResponse:
        return seen(request)


class Inner:
    @staticmethod
    def nested(request: HttpRequest) -> JsonResponse:
        return seen(request)


def guarded(view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return HttpResponse(status=403) if "no" in request.GET else view(request, *args, **kwargs)

    return inner


class Plain(View):
    def get(self, request: HttpRequest) -> JsonResponse:
        return seen(request)


class AsyncPlain(View):
    async def get(self, request: HttpRequest) -> JsonResponse:
        return seen(request)


limited, limited_method = (quota("20/m", key="ip", name=name) for name in ("class", "method"))


@limited
class OfAClass(Plain): ...


@limited
class OfAnAsyncClass(AsyncPlain): ...


class WithASetup(OfAClass):
    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)


class OfAMethod(Plain):
    get = limited_method(Plain.get)
    post = Plain.get


class OfAnAsyncMethod(AsyncPlain):
    get = limited_method(AsyncPlain.get)


@method_decorator(quota("20/m", key="ip", name="by-method-decorator"), name="dispatch")
class ByMethodDecorator(Plain): ...


def twice(request: HttpRequest) -> JsonResponse:
    two(request)
    return two(request)


@quota("20/m", key="ip", name="again")
def again(request: HttpRequest, *, inner: bool = False) -> JsonResponse:
    return seen(request) if inner else again(request, inner=True)


api: tuple[list[Any], str] = (
    [
        path("search/", two, name="search"),
        path("search-async/", two_async, name="search-async"),
        path("plain/", plain, name="plain"),
        path("v1/", include(([path("items/", plain, name="items")], "v1"))),
    ],
    "api",
)
urlpatterns = [
    path("api/", include(api)),
    path("exempt-of-csrf/", csrf_exempt(two)),
    path("guarded/", guarded(two)),
    path("unhashable/", Unhashable()),
    path("partial/", partial(plain)),
    path("nested/", Inner.nested),
    path("hosting/", include(([path("list/", plain, name="list")], "host"))),
    path("guarded-class/", guarded(OfAClass.as_view())),
    path("class/", OfAClass.as_view()),
    path("class-async/", OfAnAsyncClass.as_view()),
    path("method/", OfAMethod.as_view()),
    path("method-of-post-alone/", OfAMethod.as_view(http_method_names=["post"])),
    path("method-async/", OfAnAsyncMethod.as_view()),
    path("setup/", WithASetup.as_view()),
    path("by-method-decorator/", ByMethodDecorator.as_view()),
    path("twice/", twice),
    path("again/", again),
    path("plain/", plain, name="plain"),
]
