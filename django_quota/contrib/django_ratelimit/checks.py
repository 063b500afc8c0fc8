"""The limits of `@ratelimit` behind the URLs, for the admin and the commands, and the system checks of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured

from django_quota.adapters import register_rule_finder, register_view_check
from django_quota.contrib.django_ratelimit.core import GroupLimit, check_key, read_rate, rule_of_group
from django_quota.core.rates import parse_rate
from django_quota.core.rules import Rule
from django_quota.exceptions import RateError
from django_quota.http.view_lookup import decorated_views


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
            rule = None if limit.is_dynamic else rule_of_group(limit, limit.rate)
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
