"""`is_ratelimited` and `get_usage`: what a group has used, decided by django_quota in one call.

The rate of a group is a rule of its own, named after the group and the rate (`shop.views.search 5/m`), with a fixed
window that its first hit opens.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.module_loading import import_string

from django_quota import Decision, Rule, check_all, peek
from django_quota.adapters import attach_decision, decide, digest
from django_quota.contrib.django_ratelimit import ALL, UNSAFE
from django_quota.core.flow import run_sync
from django_quota.core.rates import Rate, parse_rate
from django_quota.core.rule_options import OnUnavailable
from django_quota.exceptions import ConfigurationError, RuleError
from django_quota.http.views import path_of_view
from django_quota.limiting.api import django_request
from django_quota.subjects.addresses import MAX_LENGTH, canonical, client_address, own_prefixes, subject_of_network
from django_quota.subjects.keys import compile_key, subject_flow
from django_quota.subjects.subject import user_subject
from django_quota.types import Outcome

__all__ = ["get_usage", "is_ratelimited"]


class Usage(TypedDict):
    """What a group has used."""

    count: int
    """How many hits, this one included; `limit + 1` if it is refused."""
    limit: int
    should_limit: bool
    """Whether the request is limited."""
    time_left: int
    """Seconds until the window ends; -1 if the store does not answer."""


class GroupLimit(NamedTuple):
    """The arguments of a `@ratelimit`, or of a call."""

    group: str | None
    """The views of one group count together; None: the path of the view."""
    key: Any
    rate: Any
    method: Any = ALL
    block: bool = False

    def in_group(self, path: str) -> GroupLimit:
        """Return the limit with the path of its view as its group, unless it has one."""
        return self if self.group is not None else self._replace(group=path)

    @property
    def methods(self) -> tuple[str, ...] | None:
        """The methods of HTTP that are limited; None: all."""
        if self.method in (ALL, None):
            return None
        given = self.method if isinstance(self.method, (list, tuple)) else [self.method]
        return tuple(sorted({method.upper() for method in given}))

    @property
    def is_dynamic(self) -> bool:
        """Whether the rate is a function, or the dotted path of one."""
        return callable(self.rate) or (isinstance(self.rate, str) and "." in self.rate)


def is_ratelimited(request: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether a request is limited; see `get_usage`."""
    usage = get_usage(request, *args, **kwargs)
    return usage is not None and usage["should_limit"]


def get_usage(
    request: Any,
    group: str | None = None,
    fn: Callable[..., Any] | None = None,
    key: Any = None,
    rate: Any = None,
    method: Any = ALL,
    increment: bool = False,
) -> Usage | None:
    """Return what a group has used; None if nothing limits the request.

    `increment`: whether to count the request. If not, the result is what an earlier decorator or call found when it
    counted the request, or else what counting would find.

    Raises `ImproperlyConfigured` if there is neither a `group` nor a view `fn`, or if the key or the rate is wrong.
    """
    if group is None and fn is None:
        raise ImproperlyConfigured("A limit needs a group or the view that it is for: pass group= or fn=.")
    limit = GroupLimit(path_of_view(fn) if group is None else group, key, rate, method)
    if increment:
        decision = count(request, [limit])
        return None if decision is None else _usage(decision.outcomes, is_limited=not decision.allowed)
    pair = _pair(request, limit)
    if pair is None:
        return None
    rule, subject = pair
    counted = getattr(getattr(request, "quota", None), "outcomes", ())
    own = [each for each in counted if (each.rule, each.subject) == (rule.name, subject)]
    if own:
        return _usage(own[-1:], is_limited=not own[-1].allowed)
    decision = peek(rule, subject)
    if decision.degraded:  # without increment, nobody is limited while the store does not answer
        return Usage(count=0, limit=rule.limits[0].rate.count, should_limit=False, time_left=-1)
    return _usage(decision.outcomes, is_limited=not decision.allowed)


for _function in (get_usage, is_ratelimited):
    cast("Any", _function).ALL = ALL
    cast("Any", _function).UNSAFE = UNSAFE


def count(request: Any, limits: Sequence[GroupLimit]) -> Decision | None:
    """Count a request under some limits, in one call; return None if none of them applies."""
    pairs = [pair for limit in limits if (pair := _pair(request, limit)) is not None]
    if not pairs:
        return None
    if django_request(request) is None:  # a stand-in with META and method, which django-ratelimit accepts too
        return check_all(pairs)
    decision = decide(request, pairs)
    attach_decision(request, decision)
    return decision


def _usage(outcomes: Sequence[Outcome], *, is_limited: bool) -> Usage | None:
    if not outcomes:  # limits are off, or the store does not answer
        return Usage(count=0, limit=0, should_limit=True, time_left=-1) if is_limited else None
    outcome = outcomes[0]
    return Usage(
        count=outcome.of.capacity + 1 if is_limited else outcome.used,
        limit=outcome.of.capacity,
        should_limit=is_limited,
        time_left=math.ceil(outcome.reset_after) or outcome.window or 0,
    )


def _pair(request: Any, limit: GroupLimit) -> tuple[Rule, str] | None:
    """Return the rule of a limit and the subject of a request; None if the limit does not apply."""
    if not getattr(settings, "RATELIMIT_ENABLE", True):
        return None
    if limit.methods is not None and request.method not in limit.methods:
        return None
    rate = limit.rate
    if limit.is_dynamic:
        rate = (rate if callable(rate) else import_string(rate))(limit.group, request)
    rule = rule_of_group(limit, rate)
    return None if rule is None else (rule, _subject(request, limit))


# --- the rule ---------------------------------------------------------------------------------------------------------


def rule_of_group(limit: GroupLimit, rate: Any) -> Rule | None:
    """Return the rule of a limit with this rate; None if that is unlimited.

    Raises `ImproperlyConfigured` if the rate is wrong.
    """
    if rate is None:
        return None
    # django-ratelimit fails closed unless RATELIMIT_FAIL_OPEN is set.
    on_unavailable: OnUnavailable = "allow" if getattr(settings, "RATELIMIT_FAIL_OPEN", False) else "deny"
    key = limit.key if isinstance(limit.key, str) and not _is_function(limit.key) else "user_or_ip"
    if key == "ip" and masks() != own_prefixes():  # so the admin and the commands know the networks
        key = "ip/{},{}".format(*masks())
    return _rule(limit.group, limit.methods or (), read_rate(rate), key, limit.block, on_unavailable)


@lru_cache(maxsize=1024)
def _rule(
    group: str, methods: tuple[str, ...], rate: Rate, key: str, block: bool, on_unavailable: OnUnavailable
) -> Rule:
    name = " ".join(filter(None, (group, "+".join(methods), str(rate))))
    return Rule.make(name, rate, key=key, algorithm="fixed_window", block=block, on_unavailable=on_unavailable)


def read_rate(rate: Any) -> Rate:
    """Return a rate as django-ratelimit reads it: of the unit only the first letter, seconds if there is none.

    Raises `ImproperlyConfigured` if it cannot be read.
    """
    try:
        return _read(tuple(rate) if isinstance(rate, (tuple, list)) else rate)
    except (RuleError, TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{rate!r} is not a rate. Use, for example, '5/m', '100/h' or (5, 60).") from error


@lru_cache(maxsize=1024)
def _read(rate: str | tuple[int, int]) -> Rate:
    if isinstance(rate, str):
        found = _RATE.match(rate)
        if found is None:
            raise ValueError(rate)
        rate = int(found[1]), _SECONDS[found[3] or "s"] * int(found[2] or 1)
    number, seconds = map(operator.index, rate)
    unit, length = next((unit, length) for unit, length in reversed(_SECONDS.items()) if seconds % length == 0)
    return parse_rate(f"{number}/{seconds // length}{unit}")


_RATE = re.compile(r"(\d+)/(\d*)([smhd])?", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


# --- the subject ------------------------------------------------------------------------------------------------------


def _subject(request: Any, limit: GroupLimit) -> str:
    """Return the subject of a request. What a request does not have falls back to its address."""
    key = limit.key
    check_key(key)
    if _is_function(key):
        value = (key if callable(key) else import_string(key))(limit.group, request)
        return f"ratelimit:{digest(str(value))}"  # what a function returns may be a secret
    bare: Any = django_request(request) or request
    user = getattr(bare, "user", None)
    if key in ("user", "user_or_ip") and getattr(user, "is_authenticated", False):
        return user_subject(user)
    return address_subject(bare) if key in ("ip", "user", "user_or_ip") else str(run_sync(subject_flow(key, bare)))


def _is_function(key: Any) -> bool:
    """Say whether a key is a function `(group, request)`, or the dotted path of one. `get:user.name` is a field."""
    return callable(key) or (":" not in key and "." in key)


def check_key(key: Any) -> None:
    """Raise `ImproperlyConfigured` if a key is missing or wrong."""
    if not key:
        raise ImproperlyConfigured("@ratelimit has no key. Use, for example, key='ip' or key='user_or_ip'.")
    if not callable(key):
        try:
            compile_key(key)
        except RuleError as error:
            raise ImproperlyConfigured(str(error)) from error


def address_subject(request: HttpRequest) -> str:
    """Return the subject of the client's address, or of its network by the masks: that of `key="ip/24"`."""
    return subject_of_network(address_of_request(request))


def masks() -> tuple[int, int]:
    """Return how many bits of an IPv4 and an IPv6 address count, as the settings of django-ratelimit say, or ours."""
    four, six = own_prefixes()
    return getattr(settings, "RATELIMIT_IPV4_MASK", four), getattr(settings, "RATELIMIT_IPV6_MASK", six)


def address_of_request(request: HttpRequest) -> str:
    """Return the client's address or its network, as `RATELIMIT_IP_META_KEY` and the masks say.

    Without that setting it is the address that `key="ip"` of django_quota finds, behind `TRUSTED_PROXIES`. Raises
    `ImproperlyConfigured` if there is no address.
    """
    prefixes = masks()
    source: Any = getattr(settings, "RATELIMIT_IP_META_KEY", None)
    if not source:
        try:
            return client_address(request, prefixes)
        except ConfigurationError as error:
            raise ImproperlyConfigured(str(error)) from error
    if isinstance(source, str) and "." in source:
        source = import_string(source)
    given = str(source(request) if callable(source) else request.META.get(source, ""))
    address = canonical(given, prefixes) if len(given) <= MAX_LENGTH else None
    if address is None:
        raise ImproperlyConfigured(
            f"RATELIMIT_IP_META_KEY={source!r} returned {given[:99]!r}, which is not an IP address."
        )
    return address
