"""`@ratelimit`: the limits of a view, sync or async. Decorators directly above each other are decided in one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.utils.module_loading import import_string

from django_quota.contrib.django_ratelimit import ALL, UNSAFE
from django_quota.contrib.django_ratelimit.checks import GroupLimits
from django_quota.contrib.django_ratelimit.core import GroupLimit, count
from django_quota.contrib.django_ratelimit.exceptions import Ratelimited
from django_quota.http.views import is_async, mark, own, path_of_view

__all__ = ["ratelimit"]

V = TypeVar("V", bound=Callable[..., Any])


def ratelimit(
    group: str | None = None, key: Any = None, rate: Any = None, method: Any = ALL, block: bool = True
) -> Callable[[V], V]:
    """Limit a view. `request.limited` says whether a limit was reached; with `block` the view raises `Ratelimited`.

    `group`: views of one group count together; by default each view by itself. `key`: `"ip"`, `"user"`,
    `"user_or_ip"`, `"header:x-name"`, `"get:name"`, `"post:name"`, a function `(group, request)` or its dotted path.
    `rate`: `"5/m"`, `(5, 60)`, None for unlimited, a function `(group, request)` or its dotted path. `method`: the
    methods of HTTP that are limited.
    """

    def decorate(view: V) -> V:
        bare: Any = view
        found = own(view, GroupLimits)
        inner = () if found is None else found.limits
        if any(other.block != block for other in inner):
            inner = ()  # one refuses the request, and the other only says so: each decides for itself
        elif inner:
            bare = cast("Any", view).__wrapped__
        limits = (GroupLimit(group, key, rate, method, block), *inner)
        path = path_of_view(bare)
        wrapper = _wrap(bare, tuple(limit.in_group(path) for limit in limits))
        mark(wrapper, bare, path, GroupLimits(limits))
        return cast("V", wrapper)

    return decorate


ratelimit.ALL = ALL  # type: ignore[attr-defined]
ratelimit.UNSAFE = UNSAFE  # type: ignore[attr-defined]


def _wrap(view: Callable[..., Any], limits: tuple[GroupLimit, ...]) -> Callable[..., Any]:
    @wraps(view)
    async def alimited_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        await sync_to_async(_limit)(request, limits)
        return await view(request, *args, **kwargs)

    @wraps(view)
    def limited_view(request: Any, *args: Any, **kwargs: Any) -> Any:
        _limit(request, limits)
        return view(request, *args, **kwargs)

    return alimited_view if is_async(view) else limited_view


def _limit(request: Any, limits: tuple[GroupLimit, ...]) -> None:
    """Count a request, set `request.limited`, and raise if the request is refused."""
    decision = count(request, limits)
    is_limited = decision is not None and not decision.allowed
    request.limited = is_limited or getattr(request, "limited", False)
    if is_limited and limits[0].block:
        given: Any = getattr(settings, "RATELIMIT_EXCEPTION_CLASS", Ratelimited)
        error = (import_string(given) if isinstance(given, str) else given)()
        if isinstance(error, Ratelimited):
            error.decision = decision
        raise error
