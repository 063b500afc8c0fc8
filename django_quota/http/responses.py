"""What a client gets: the answer to a refused request, and the headers of every limited response.

Decorators, middleware and the integrations call these, so that all of them agree. Sources: RFC 6585 (429), RFC 9110
(Accept, Retry-After), RFC 9457 (problem details), draft-ietf-httpapi-ratelimit-headers-11, and RFC 9651 (structured
fields).
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from inspect import iscoroutine
from typing import Any, TypeVar, cast
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist
from django.utils.translation import get_language

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.stock import UnitsLeft
from django_quota.core.clock import SECOND
from django_quota.core.decisions import AnyLimit, AtOnce, Decision, Outcome
from django_quota.core.errors import ConfigurationError
from django_quota.core.rates import Rate
from django_quota.http.refusal_page import Shown, is_our_page, render_page
from django_quota.http.wording import message, refusal_status, title, whole_wait
from django_quota.runtime import runtime

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types"

PROBLEM = "application/problem+json"

HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"


def answer_refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a refused request: 429, or 503 if it was refused because the store did not answer.

    The `RESPONSE` setting may return it. Otherwise the Accept header chooses: problem+json, the page of the `TEMPLATE`
    setting, or plain text. Raises `ConfigurationError` if `RESPONSE` returns anything other than a response.
    """
    status = refusal_status(decision)
    response = _of_the_site(request, decision)
    if response is None:
        response = _ours(request, decision, status)
    else:
        set_refusal_headers(response, decision)
    log_refusal(response, decision)
    return response


async def aanswer_refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a refused request without blocking the event loop; see `answer_refusal`.

    A function or a template of the site may ask the database, so it runs in a thread.
    """
    settings = current()
    is_page = preferred_type(request.META.get("HTTP_ACCEPT")) == HTML
    if settings.response is None and (not is_page or is_our_page(settings.template)):
        return answer_refusal(request, decision)
    return await sync_to_async(answer_refusal)(request, decision)


def _of_the_site(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Return the response of the `RESPONSE` setting; None for the default one."""
    respond = current().response
    response: Any = None if respond is None else respond(request, decision)
    if response is None:
        return None
    if not isinstance(response, HttpResponseBase):
        if iscoroutine(response):
            response.close()
        raise ConfigurationError(
            f'QUOTA["RESPONSE"] returned {type(response).__name__}, not a response.',
            "Return an HttpResponse, or None for the default response.",
        )
    if not getattr(response, "is_rendered", True):
        response = cast("Any", response).render()  # Django renders only what a view returns
    if not hasattr(response, OWN_HEADERS):
        setattr(response, OWN_HEADERS, frozenset(name.lower() for name in response.headers))
    return cast("HttpResponse", response)


def set_refusal_headers(response: HttpResponse, decision: Decision) -> None:
    """Write Retry-After, a Cache-Control that lets nobody store the answer, and the RateLimit headers."""
    own = getattr(response, OWN_HEADERS, ())
    wait = whole_wait(decision)
    if wait is not None and "retry-after" not in own:
        response.headers["Retry-After"] = str(wait)
    if "cache-control" not in own:
        response.headers["Cache-Control"] = "no-store"
    set_headers(response, decision)


def _ours(request: HttpRequest, decision: Decision, status: int) -> HttpResponse:
    outcomes, binding, language = decision.outcomes, decision.binding, get_language()
    accepted = preferred_type(request.META.get("HTTP_ACCEPT"))
    binds = None if binding is None else outcomes.index(binding)
    shown = Shown(status, tuple([_rounded(outcome) for outcome in outcomes]), binds, language)
    if accepted == HTML:
        try:
            page = render_page(current().template, request, decision, shown)
        except TemplateDoesNotExist:  # a system check reports it
            accepted = TEXT
        else:
            _, headers = _kept_answers.get()(accepted, shown)
            return HttpResponse(page, status=status, headers=headers)
    body, headers = _kept_answers.get()(accepted, shown)
    return HttpResponse(body, status=status, headers=headers)


def _rounded(outcome: Outcome) -> Outcome:
    """Return what an answer shows of an outcome: whole seconds, and not the subject."""
    wait, more = outcome.retry_after, outcome.next_after
    return outcome._replace(
        subject="",
        retry_after=None if wait is None else math.ceil(wait),
        reset_after=math.ceil(outcome.reset_after),
        next_after=None if more is None else math.ceil(more),
        delay=0.0,
    )


def _answer(accepted: str, shown: Shown) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a refusal. A page has the same headers and another body."""
    decision = shown.decision
    is_text = accepted in (HTML, TEXT)
    response = HttpResponse(content_type=accepted if is_text else PROBLEM)
    response.headers["Vary"] = "Accept"
    set_refusal_headers(response, decision)
    detail, wait = message(decision), whole_wait(decision)
    body = f"{detail}\n"
    if not is_text:
        left = [outcome for outcome in shown.outcomes if not outcome.shadow and outcome.remaining is not None]
        names, _ = policies(tuple([outcome.of for outcome in left]))
        violated = [name for name, outcome in zip(names, left, strict=True) if not outcome.allowed]
        body = _problem(shown.status, decision, detail, violated, wait)
    return body.encode(), dict(response.headers)


_kept_answers = runtime.part(lambda: lru_cache(maxsize=512)(_answer))
"""A flood gets the same answer for a second."""


def _problem(status: int, decision: Decision, detail: str, violated: list[str], wait: int | None) -> str:
    """Return the problem details of a refusal: those of RFC 9457 and of its type, and `retry_after`.

    `retry_after`: whole seconds, as in the header, which browsers hide from scripts of other origins.
    """
    found: dict[str, object] = {
        "type": f"{PROBLEM_TYPES}#{_problem_type(decision, status)}",
        "title": title(decision, status),
        "status": status,
        "detail": detail,
        "violated-policies": violated,
        **({} if wait is None else {"retry_after": wait}),
    }
    return json.dumps(found)


def _problem_type(decision: Decision, status: int) -> str:
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return "temporary-reduced-capacity"
    banned = decision.binding is not None and decision.binding.why == "banned"
    return "abnormal-usage-detected" if banned else "quota-exceeded"


MAX_ACCEPT, MAX_RANGES = 256, 12
"""Characters and media ranges of an Accept header that are read: browsers send about 140 and 8."""


_OFFERED = [f"{PROBLEM}; charset=utf-8", "application/json; charset=utf-8", HTML, TEXT]
"""What a media range may name. Both kinds of JSON get a problem document."""


def preferred_type(accept: str | None) -> str:
    """Return which of our types an Accept header prefers; problem+json if it accepts none of them."""
    if accept is None:
        return PROBLEM
    return _preferred(",".join(accept[:MAX_ACCEPT].lower().split(",")[:MAX_RANGES]))


@lru_cache(maxsize=512)
def _preferred(accept: str) -> str:
    request = HttpRequest()
    request.META["HTTP_ACCEPT"] = accept
    return request.get_preferred_type(_OFFERED) or PROBLEM


# --- headers ----------------------------------------------------------------------------------------------------------


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


# --- the log line -----------------------------------------------------------------------------------------------------


_LOGGED = "_has_been_logged"
"""The attribute by which Django knows that a response has been logged."""

MAX_LOGGED = 200
"""Characters of a subject or the name of a rule in the log."""

logger = logging.getLogger("django.request")


def log_refusal(response: HttpResponseBase, decision: Decision) -> None:
    """Log a refusal, once a second for each rule. Django itself would log every refusal, with the whole path.

    An outage is logged once. Django would log each 503 as an error, and mail it to ADMINS.
    """
    if getattr(response, _LOGGED, False):
        return
    setattr(response, _LOGGED, True)
    last, now = _last_logged(decision.rule), clock.now()
    if refusal_status(decision) != HTTPStatus.SERVICE_UNAVAILABLE and not 0 <= now - last[0] < SECOND:
        last[0] = now
        extra = {"status_code": response.status_code, "request": None}  # what Django's own lines have
        rule, subject = decision.rule[:MAX_LOGGED], decision.subject[:MAX_LOGGED]
        logger.warning("Too many requests: rule %r refuses %r.", rule, subject, extra=extra)


@lru_cache(maxsize=1024)
def _last_logged(_rule: str) -> list[int]:
    """Return a list with one item: when a refusal of a rule was last logged, in microseconds."""
    return [0]
