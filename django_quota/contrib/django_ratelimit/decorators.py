"""`@ratelimit`: the limits of a view, sync or async. Decorators directly above each other are decided in one call.

Below it is what the admin, the commands and `manage.py check` know of these limits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_quota.adapters import register_rule_finder, register_view_check
from django_quota.contrib.django_ratelimit import ALL, UNSAFE
from django_quota.contrib.django_ratelimit.core import GroupLimit, check_key, count, read_rate, rule_of_group
from django_quota.contrib.django_ratelimit.exceptions import Ratelimited
from django_quota.core.rates import parse_rate
from django_quota.core.rules import Rule
from django_quota.exceptions import RateError
from django_quota.http.view_lookup import decorated_views
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


# --- for the admin, the commands and manage.py check ------------------------------------------------------------------


class GroupLimits:
    """What `@ratelimit` notes on a view: its limits, with those directly below it."""

    attribute: ClassVar[str] = "django_quota_ratelimits"

    def __init__(self, limits: tuple[GroupLimit, ...]) -> None:
        self.limits: tuple[GroupLimit, ...] = limits


def _limits(patterns: Iterable[Any]) -> Iterator[GroupLimit]:
    """Return the limits of all views."""
    for found in decorated_views(patterns, GroupLimits):
        for limit in found.mark.noted.limits:
            yield limit.in_group(found.path)


@register_rule_finder
def rules_of_ratelimits(patterns: Iterable[Any]) -> Iterator[Rule]:
    """Return the rules of all views, without those whose rate is wrong or a function."""
    for limit in _limits(patterns):
        with suppress(ImproperlyConfigured):
            rule = rule_of_group(limit, limit.rate)
            if rule is not None:
                yield rule


@register_view_check
def check_ratelimit(patterns: Sequence[Any]) -> Iterator[CheckMessage]:
    """Check the limits of `@ratelimit`, and what is left of django-ratelimit."""
    found = list(_limits(patterns))
    for limit in found:
        yield from _check_limit(limit)
    if found:
        for name, hint in WITHOUT_EFFECT.items():
            if hasattr(settings, name):
                yield CheckWarning(f"{name} has no effect: django_quota counts.", hint=hint, id="django_quota.W025")
        for place in _leftovers():
            yield CheckWarning(
                f"{place} still uses django_ratelimit itself, which counts separately.",
                hint="Use django_quota.contrib.django_ratelimit everywhere; it needs no entry in INSTALLED_APPS.",
                id="django_quota.W026",
            )


def _check_limit(limit: GroupLimit) -> Iterator[CheckMessage]:
    try:
        check_key(limit.key)
        rate = None if limit.rate is None or limit.is_dynamic else read_rate(limit.rate)
    except ImproperlyConfigured as error:
        yield Error(f"@ratelimit of {limit.group}: {error}", id="django_quota.E025")
        return
    if rate is None or not isinstance(limit.rate, str) or limit.rate.rpartition("/")[2].isdigit():
        return
    with suppress(RateError):
        if parse_rate(limit.rate).period == rate.period:
            return
    yield CheckWarning(
        f"@ratelimit of {limit.group} reads rate={limit.rate!r} as {rate.in_words()}, as django-ratelimit does.",
        hint=f"Write {str(rate)!r} if that is meant. For other windows, use @quota.",
        id="django_quota.W024",
    )


WITHOUT_EFFECT = {
    "RATELIMIT_USE_CACHE": 'Remove it. QUOTA["CACHE"] names the cache alias of the Redis that counts.',
    "RATELIMIT_CACHE_PREFIX": 'Remove it. QUOTA["PREFIX"] is the beginning of all keys.',
    "RATELIMIT_HASH_ALGORITHM": "Remove it. Secret values are stored as keyed digests.",
}
"""Settings of django-ratelimit that the drop-in does not read, and what to do."""


def _leftovers() -> Iterator[str]:
    """Return what still uses django-ratelimit itself."""
    if "django_ratelimit.middleware.RatelimitMiddleware" in settings.MIDDLEWARE:
        yield "MIDDLEWARE"
    if sys.modules.keys() & {"django_ratelimit.decorators", "django_ratelimit.core"}:
        yield "Some module"
    if any(app.partition(".")[0] == "django_ratelimit" for app in settings.INSTALLED_APPS):
        yield "INSTALLED_APPS"
