"""What Django, Django REST framework and Ninja keep private, and we use: the installed version has it as we need it.

A failing row names the package and its version. Each name is in one module of ours, so that there is one place to mend.
"""

import inspect
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import django
import pytest
from django.http import HttpRequest, HttpResponse
from django.middleware.cache import FetchFromCacheMiddleware
from django.template import Template
from django.test import RequestFactory
from django.utils.functional import SimpleLazyObject
from django.utils.log import log_response
from ninja import NinjaAPI, Router
from ninja.decorators import decorate_view
from ninja.operation import Operation, PathView
from rest_framework.decorators import api_view
from rest_framework.request import Request

import django_quota


@pytest.fixture(autouse=True)
def cache_in_memory(settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


def posted() -> HttpRequest:
    return RequestFactory().post("/", {"phone": "1"})


def read(request: Any, how: str) -> Any:
    getattr(request, how)
    return request


def logged() -> HttpResponse:
    response = HttpResponse(status=403)
    log_response("refused", response=response, request=posted())
    return response


def fetched_from_cache() -> HttpRequest:
    request = RequestFactory().get("/")
    FetchFromCacheMiddleware(lambda request: HttpResponse()).process_request(request)
    return request


def lazy(value: object) -> Any:
    return SimpleLazyObject(lambda: value)


def evaluated(value: object) -> Any:
    found = lazy(value)
    str(found)
    return found


def view(request: HttpRequest) -> str:
    return ""


def operation(*, is_async: bool = False, decorator: Any = None) -> Any:
    """Return the operation that Ninja makes of a new function."""

    async def in_the_loop(request: HttpRequest) -> str:
        return ""

    function: Any = in_the_loop if is_async else (lambda request: "")
    Router().get("/")(decorate_view(decorator)(function) if decorator else function)
    return function._ninja_operation


def path_view_of_ninja() -> Any:
    api = NinjaAPI(urls_namespace="quota-private-names")
    api.get("/only", include_in_schema=False)(view)
    route: Any
    (route,) = [each for each in api.urls[0] if "only" in str(each.pattern)]
    return inspect.getclosurevars(route.callback).nonlocals["self"]


USES: dict[tuple[str, str], Callable[[], bool]] = {
    ("Django", "_resource_closers"): lambda: isinstance(vars(HttpResponse())["_resource_closers"], list),
    ("Django", "_read_started"): lambda: not posted()._read_started and read(posted(), "body")._read_started,  # type: ignore[attr-defined]
    ("Django", "_body"): lambda: hasattr(read(posted(), "body"), "_body") and not hasattr(posted(), "_body"),
    ("Django", "_post"): lambda: hasattr(read(posted(), "POST"), "_post") and not hasattr(posted(), "_post"),
    ("Django", "_cache_update_cache"): lambda: fetched_from_cache()._cache_update_cache is True,  # type: ignore[attr-defined]
    ("Django", "_has_been_logged"): lambda: logged()._has_been_logged is True,  # type: ignore[attr-defined]
    ("Django", "_setupfunc"): lambda: callable(lazy("ann").__dict__["_setupfunc"]),
    ("Django", "_wrapped"): lambda: evaluated("ann")._wrapped == "ann",
    ("Django", "_render"): lambda: inspect.isfunction(Template._render),  # type: ignore[attr-defined]
    ("djangorestframework", "_request"): lambda: Request(request := posted())._request is request,
    ("django-ninja", "_ninja_operation"): lambda: isinstance(operation(), Operation),
    ("django-ninja", "_run_checks"): lambda: (
        inspect.iscoroutinefunction(operation(is_async=True)._run_checks)
        and not inspect.iscoroutinefunction(operation()._run_checks)
    ),
    ("django-ninja", "_run_decorators"): lambda: operation(decorator=view)._run_decorators == [view],
    ("django-ninja", "_exception_handlers"): lambda: Exception in NinjaAPI(urls_namespace="x")._exception_handlers,
}
"""By package and name: whether it is there, and is what we take it for."""


@pytest.mark.parametrize(("package", "name"), USES, ids=lambda each: each)
def test_the_installed_version_has_a_private_name_that_we_use(package: str, name: str) -> None:
    assert USES[package, name](), f"{package} {version(package)} has no {name} as we use it"


@pytest.mark.parametrize(
    ("package", "there"),
    [
        ("djangorestframework", lambda: view in closure_of(api_view(["GET"])(view).cls.get)),
        ("django-ninja", lambda: isinstance(path_view_of_ninja(), PathView)),
    ],
    ids=["the function of @api_view", "the operations of a URL of Ninja"],
)
def test_the_closure_of_a_view_has_what_nothing_else_has(package: str, there: Callable[[], bool]) -> None:
    assert there(), f"{package} {version(package)} keeps it elsewhere"


def closure_of(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in function.__closure__]


SOURCES = {path: path.read_text() for path in Path(django_quota.__file__).parent.rglob("*.py")}


@pytest.mark.parametrize("name", [name for _, name in USES if name != "_request"])
def test_a_private_name_is_used_in_one_module(name: str) -> None:
    """`_request` is documented by Django REST framework."""
    used_in = [str(path) for path, source in SOURCES.items() if re.search(rf"(?<!self)\.{name}\b|\"{name}\"", source)]
    assert len(used_in) == 1


def test_the_nonce_of_django_6_is_looked_up_where_it_keeps_it() -> None:
    if django.VERSION < (6, 0):
        pytest.skip("Django 6.0 brought the Content-Security-Policy")
    from django.middleware.csp import ContentSecurityPolicyMiddleware

    request = posted()
    ContentSecurityPolicyMiddleware(lambda request: HttpResponse()).process_request(request)
    assert hasattr(request, "_csp_nonce"), f"Django {django.__version__} has no _csp_nonce"
