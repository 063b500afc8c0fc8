"""Which `@quota` stands outermost on a view: the middleware decides for it, in one call with rules of the settings.

Where another decorator, or code of the view's own, stands in front, that must run first: then the decorator decides for
itself. It must not know what is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.http import HttpRequest
from django.views import View
from django.views.decorators.csrf import csrf_exempt

from django_quota.decorators import Limited, limited
from django_quota.edge import take
from django_quota.rules import Rule


def take_rules(request: HttpRequest, view: Callable[..., Any]) -> list[Rule]:
    """Return the rules of the `@quota` that stands outermost on a view, which will not decide by itself then."""
    spec, owner = _known(view)
    if spec is None and owner is not None:
        spec = limited(_handler(owner, request.method))
    if spec is None:
        return []
    take(request, spec)
    return spec.rules(owner)


def _known(view: Any) -> tuple[Limited | None, type | None]:
    try:
        return _outermost(view)
    except TypeError:  # a view that cannot be a key of the cache, such as an instance of a dataclass
        return _outermost.__wrapped__(view)


@lru_cache(maxsize=1024)
def _outermost(view: Any) -> tuple[Limited | None, type | None]:
    """Return the decorator that a call of a view begins with, and its class; a class alone where its methods tell."""
    found = limited(view)
    if found is not None:
        return found, None
    code = getattr(view, "__code__", None)
    if code in _CHANGE_NOTHING:
        return _outermost(view.__wrapped__)
    owner = view.view_class if code is _AS_VIEW else None
    if owner is None or owner.setup is not View.setup or not _TOLD_BY_THE_CLASS.isdisjoint(view.view_initkwargs):
        return None, None
    if owner.dispatch is View.dispatch:
        return None, owner
    found = limited(owner.dispatch)
    return found, None if found is None else owner


def _handler(owner: type, method: str | None) -> Any:
    """Return the method of a class-based view that answers, as `View.dispatch` finds it."""
    name = (method or "").lower()
    if name not in getattr(owner, "http_method_names", ()):
        return None
    return getattr(owner, name, None) or (getattr(owner, "get", None) if name == "head" else None)


def _nothing(request: HttpRequest) -> None: ...


async def _nothing_async(request: HttpRequest) -> None: ...


_AS_VIEW: Any = getattr(View.as_view(), "__code__", None)
"""The code of what `as_view()` returns: wrappers copy names and attributes, and have code of their own."""

_TOLD_BY_THE_CLASS = frozenset({"dispatch", "http_method_names", "setup"})
"""What of a class says which method answers; `as_view()` may be given another."""

_CHANGE_NOTHING = {getattr(csrf_exempt(view), "__code__", None) for view in (_nothing, _nothing_async)} - {None}
"""The code of decorators that only mark a view."""
