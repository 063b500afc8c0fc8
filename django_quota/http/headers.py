"""The headers of a limited response, as in draft-ietf-httpapi-ratelimit-headers-11 and RFC 9651 (structured fields)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote

from django.http import HttpRequest, HttpResponseBase

from django_quota.conf import current
from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.concurrency import AtOnce
from django_quota.core.algorithms.stock import UnitsLeft
from django_quota.core.decisions import AnyLimit, Decision, Outcome
from django_quota.core.rates import Rate
from django_quota.http.refusal_log import log_refusal
from django_quota.http.wording import refusal_status

R = TypeVar("R")


def decision_of(request: HttpRequest) -> Decision | None:
    """Return the decision on a request so far."""
    decision = getattr(request, "quota", None)
    return decision if isinstance(decision, Decision) else None


def add_headers(request: HttpRequest, response: R, *, is_cached: bool) -> R:
    """Write the headers of the decision on a request to its response; see `set_headers`."""
    decision = decision_of(request)
    if decision is not None and isinstance(response, HttpResponseBase):
        set_headers(response, decision, is_cached=is_cached)
    return response


def _is_stored(response: HttpResponseBase) -> bool:
    """Return whether Django's cache may store a response and show it to others."""
    cacheable = response.status_code in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED)
    return cacheable and "private" not in response.headers.get("Cache-Control", "")


def _is_public(response: HttpResponseBase) -> bool:
    """Return whether a response says that any cache, such as a CDN, may show it to others.

    The headers of a 304 replace those that a cache keeps, and often Cache-Control was only on the response it keeps.
    """
    control = response.headers.get("Cache-Control", "").lower()
    if "public" in control or "s-maxage" in control:
        return True
    return response.status_code == HTTPStatus.NOT_MODIFIED and not ("private" in control or "no-store" in control)


_MAX_INTEGER = 999_999_999_999_999
"""The largest integer of a structured field."""

OWN_HEADERS = "_django_quota_own_headers"
"""The attribute of a response from the `RESPONSE` setting that names its own headers. They are kept."""


def set_headers(response: HttpResponseBase, decision: Decision, *, is_cached: bool = False) -> None:
    """Write RateLimit-Policy and RateLimit, and X-RateLimit-* if the setting says so. Log a refusal.

    A response that a cache may show to others gets none: the remaining quota is the caller's alone. `is_cached`:
    whether Django's cache stores what it can.
    """
    if decision.enforced and response.status_code == refusal_status(decision):
        log_refusal(response, decision)
    settings = current()
    if not (settings.headers or settings.legacy_headers) or (is_cached and _is_stored(response)):
        return  # before the outcomes are read, which costs time
    outcomes = [outcome for outcome in decision.outcomes if not outcome.shadow and outcome.remaining is not None]
    if not outcomes or _is_public(response):
        return
    headers, own = response.headers, getattr(response, OWN_HEADERS, ())
    if settings.headers and not ("ratelimit" in own or "ratelimit-policy" in own):
        names, headers["RateLimit-Policy"] = policies(tuple([outcome.of for outcome in outcomes]))
        headers["RateLimit"] = ", ".join(map(_state, names, outcomes))
    if settings.legacy_headers and decision.binding is not None:
        legacy = {"Limit": decision.limit, "Remaining": decision.remaining, "Reset": math.ceil(decision.reset_after)}
        for name, value in legacy.items():
            if f"x-ratelimit-{name.lower()}" not in own:
                headers[f"X-RateLimit-{name}"] = str(value)


@lru_cache(maxsize=1024)
def policies(limits: tuple[AnyLimit, ...]) -> tuple[list[str], str]:
    """Return the public names of limits, and their RateLimit-Policy."""
    names = policy_names(limits)
    return names, ", ".join(map(_policy, names, limits))


def policy_names(limits: Sequence[AnyLimit]) -> list[str]:
    """Return the public name of each limit: the last part of the rule's name, with the window if a rule has several.

    A rule without a name has the path of its view and the arguments of `as_view()`. These arguments stay private.
    """
    taken: dict[str, None] = {}
    rules = [limit.rule for limit in limits]
    for limit in limits:
        name = base = _label(limit.rule, limit.rate if rules.count(limit.rule) > 1 else None)
        number = 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken[name] = None
    return list(taken)


def _label(rule: str, rate: Rate | AtOnce | UnitsLeft | None) -> str:
    public = _ARGUMENTS.sub("", rule)
    name = quote(public.rpartition(".")[2] or rule, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="surrogatepass")
    return name if rate is None else f"{name}-{rate.window}"


_ARGUMENTS = re.compile(r"(?<=\w)\(.*\)(?=#\d+\Z|\Z)", re.DOTALL)
"""The arguments of `as_view()` in the name of a rule."""


def _policy(name: str, limit: AnyLimit) -> str:
    # A month and a year have no fixed length, so their window is left out, as the draft allows.
    window = "" if limit.window is None else f";w={limit.window}"
    unit = "" if limit.unit == Limit.unit else f';qu="{limit.unit}"'
    return f'"{name}";q={limit.capacity}{unit}{window}'


def _state(name: str, outcome: Outcome) -> str:
    remaining, wait = outcome.remaining or 0, outcome.next_after
    if remaining < 0 or (not outcome.allowed and outcome.is_shut_out):
        remaining = 0
    elif remaining > _MAX_INTEGER:
        remaining = _MAX_INTEGER
    if wait is None:  # nothing is used
        return f'"{name}";r={remaining}'
    return f'"{name}";r={remaining};t={min(math.ceil(wait), _MAX_INTEGER)}'
