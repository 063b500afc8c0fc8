"""How a Decision looks over HTTP: headers on every reply, and the answer to who is refused. It decides nothing.

The one place that writes them, so that decorators, middleware and frameworks agree. Sources: RFC 9651 (structured
fields), RFC 6585 (429), RFC 9110 (Accept, Retry-After), RFC 9457 (problem details) and
draft-ietf-httpapi-ratelimit-headers-11.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from inspect import iscoroutine
from typing import Any, cast
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.http.request import MediaType
from django.template import TemplateDoesNotExist

from django_quota.algorithms import Limit
from django_quota.algorithms.concurrency import AtOnce
from django_quota.conf import conf, current
from django_quota.decisions import AnyLimit, Decision, Outcome
from django_quota.exceptions import ConfigurationError
from django_quota.page import is_our_page, page_context, render_page
from django_quota.rates import Rate
from django_quota.wording import message, title, whole_wait

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types"

PROBLEM = "application/problem+json"

_BODIES = (PROBLEM, "application/json", "text/html", "text/plain")

_MOST = 999_999_999_999_999
"""The largest integer of a structured field."""

_LONGEST_ACCEPT = 256
"""Characters of an Accept header that are read: browsers send about 140."""

_MOST_RANGES = 8
"""Media ranges of it that are weighed, of those that may name one of our types: browsers send two."""

_MAY_NAME_OURS = frozenset({*_BODIES, "application/*", "text/*", "*/*"})

_KEPT = "_django_quota_kept"
"""The mark of a refusal that the site wrote itself: which headers it brought, and so keeps."""


_LOGGED = "_has_been_logged"
"""The mark by which Django knows that a reply has been logged."""


def write_headers(response: HttpResponseBase, decision: Decision) -> None:
    """Put the decision on a reply: RateLimit-Policy and RateLimit, and X-RateLimit-* where the setting asks."""
    outcomes = [outcome for outcome in decision.outcomes if not outcome.shadow]
    if not outcomes:
        return
    settings = current()
    kept = getattr(response, _KEPT, ())
    if settings.headers and not ("ratelimit" in kept or "ratelimit-policy" in kept):
        names, policy = _policies(tuple([outcome.of for outcome in outcomes]))
        response.headers["RateLimit-Policy"] = policy
        response.headers["RateLimit"] = ", ".join(map(_state, names, outcomes))
    if settings.legacy_headers and decision.binding is not None:
        legacy = {"Limit": decision.limit, "Remaining": decision.remaining, "Reset": math.ceil(decision.reset_after)}
        for name, value in legacy.items():
            if f"x-ratelimit-{name.lower()}" not in kept:
                response.headers[f"X-RateLimit-{name}"] = str(value)


@lru_cache(maxsize=1024)
def _policies(limits: tuple[AnyLimit, ...]) -> tuple[list[str], str]:
    """Return the names of these limits, and the RateLimit-Policy that lists them."""
    names = policy_names(limits)
    return names, ", ".join(map(_policy, names, limits))


def policy_names(limits: Sequence[AnyLimit]) -> list[str]:
    """Return the public name of each limit: the last part of the rule's name, and the window where needed.

    A rule without a name of its own is called by its view's path, and maybe what `as_view()` was given: that is nobody
    else's business.
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


def _label(rule: str, rate: Rate | AtOnce | None) -> str:
    public = _ARGUMENTS.sub("", rule)
    name = quote(public.rpartition(".")[2] or rule, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="surrogatepass")
    return name if rate is None else f"{name}-{rate.window}"


_ARGUMENTS = re.compile(r"(?<=\w)\(.*\)(?=#\d+\Z|\Z)", re.DOTALL)
"""What `as_view()` was given, in the name of a rule."""


def _policy(name: str, limit: AnyLimit) -> str:
    # The length of a month or a year varies: their window is left out, as the draft allows.
    window = "" if limit.window is None else f";w={limit.window}"
    unit = "" if limit.unit == Limit.unit else f';qu="{limit.unit}"'
    return f'"{name}";q={limit.capacity}{unit}{window}'


_SHUT_OUT = ("blocked", "banned")


def _state(name: str, outcome: Outcome) -> str:
    remaining = min(max(outcome.remaining, 0), _MOST)
    if outcome.why and not outcome.allowed and outcome.why in _SHUT_OUT:  # whatever the limit has left
        remaining = 0
    if outcome.next_after is None:  # there is no more to wait for
        return f'"{name}";r={remaining}'
    return f'"{name}";r={remaining};t={min(math.ceil(outcome.next_after), _MOST)}'


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the answer to a refused request: 429, or 503 where it was refused because the store did not answer.

    The body is what the function of the `RESPONSE` setting returns, else what the request accepts: problem+json, the
    page of the `TEMPLATE` setting, or plain text. Raises `ConfigurationError` where that function returns no response.
    """
    response = _of_the_site(request, decision)
    if response is None:
        response = _ours(request, decision)
    kept = getattr(response, _KEPT, ())
    wait = whole_wait(decision)
    if wait is not None and "retry-after" not in kept:
        response.headers["Retry-After"] = str(wait)
    if "cache-control" not in kept:
        response.headers["Cache-Control"] = "no-store"
    write_headers(response, decision)
    if _is_unavailable(decision):
        # An outage is told once: Django would log each of these as an error, and mail it to ADMINS within the request.
        setattr(response, _LOGGED, True)
    return response


async def arefusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the answer to a refused request without blocking the event loop; see `refusal`.

    What the site wrote itself, its function or its template, may ask the database (who is signed in, say).
    """
    settings = current()
    is_page = preferred_type(request.headers.get("Accept")) == "text/html"
    if settings.response is None and (not is_page or is_our_page(settings.template)):
        return refusal(request, decision)
    return await sync_to_async(refusal)(request, decision)


def _of_the_site(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Return what the `RESPONSE` setting answers, marked with the headers it brings; None: the default answer."""
    respond = current().response
    response: Any = None if respond is None else respond(request, decision)
    if response is None:
        return None
    if not isinstance(response, HttpResponseBase):
        if iscoroutine(response):
            response.close()
        raise ConfigurationError(
            f'QUOTA["RESPONSE"] returned {type(response).__name__}, not a response.',
            "A plain function that returns an HttpResponse, or None for the default answer, would do.",
        )
    if not getattr(response, "is_rendered", True):
        response = cast("Any", response).render()  # whoever refuses before the view is not rendered by Django
    if not hasattr(response, _KEPT):
        setattr(response, _KEPT, frozenset(name.lower() for name in response.headers))
    return cast("HttpResponse", response)


def _ours(request: HttpRequest, decision: Decision) -> HttpResponse:
    status = HTTPStatus.SERVICE_UNAVAILABLE if _is_unavailable(decision) else HTTPStatus.TOO_MANY_REQUESTS
    body, content_type = _body(request, decision, status)
    return HttpResponse(body, status=status, content_type=content_type, headers={"Vary": "Accept"})


def _is_unavailable(decision: Decision) -> bool:
    return decision.degraded and decision.binding is None


def _body(request: HttpRequest, decision: Decision, status: HTTPStatus) -> tuple[str, str]:
    accepted = preferred_type(request.headers.get("Accept"))
    detail = message(decision)
    if accepted == "text/html":
        context = {"title": title(status), "detail": detail, **page_context(request, decision, status)}
        try:
            return render_page(conf.template, context, request), "text/html; charset=utf-8"
        except TemplateDoesNotExist:  # a system check says so; a refusal must not become an error page
            accepted = "text/plain"
    if accepted == "text/plain":
        return f"{detail}\n", "text/plain; charset=utf-8"
    return json.dumps(problem(decision, status, detail)), PROBLEM


def problem(decision: Decision, status: HTTPStatus, detail: str) -> dict[str, object]:
    """Return the problem details of a refusal: the members of RFC 9457 and of the type, and our `retry_after`.

    `retry_after`: whole seconds, as the header has them; browsers do not show that one to scripts of other origins.
    """
    outcomes = [outcome for outcome in decision.outcomes if not outcome.shadow]
    names, _ = _policies(tuple([outcome.of for outcome in outcomes]))
    wait = whole_wait(decision)
    return {
        "type": f"{PROBLEM_TYPES}#{_problem_type(decision, status)}",
        "title": title(status),
        "status": int(status),
        "detail": detail,
        "violated-policies": [name for name, outcome in zip(names, outcomes, strict=True) if not outcome.allowed],
        **({} if wait is None else {"retry_after": wait}),
    }


def _problem_type(decision: Decision, status: HTTPStatus) -> str:
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return "temporary-reduced-capacity"
    banned = decision.binding is not None and decision.binding.why == "banned"
    return "abnormal-usage-detected" if banned else "quota-exceeded"


def preferred_type(accept: str | None) -> str:
    """Return which of our bodies suits an Accept header best, by RFC 9110: problem+json where none does.

    The quality of a type is that of the most specific range that names it (0: not acceptable), so that
    `text/html;q=0, text/*` is text/plain. Of equals, the one that is named more specifically, then ours first. Only the
    beginning of a long header is read.
    """
    if accept is None:
        return PROBLEM
    # What is cut off in the middle of a range is left out.
    return _preferred(accept if len(accept) <= _LONGEST_ACCEPT else accept[:_LONGEST_ACCEPT].rpartition(",")[0])


@lru_cache(maxsize=512)
def _preferred(accept: str) -> str:
    parts = [part for part in accept.split(",") if part.partition(";")[0].strip().lower() in _MAY_NAME_OURS]
    ranges = [MediaType(part) for part in parts[:_MOST_RANGES]]
    best, chosen = (0.0, 0), PROBLEM
    for offered in _BODIES:
        naming = [given for given in ranges if _names(given, offered)]
        if naming:
            closest = max(naming, key=_specificity)
            rank = (closest.quality, _specificity(closest))
            if rank[0] > 0 and rank > best:
                best, chosen = rank, offered
    return chosen


def _specificity(given: MediaType) -> int:
    return given.specificity


def _names(given: MediaType, offered: str) -> bool:
    """Say whether a media range names a type; all our bodies are UTF-8, and have no other parameters."""
    if any((name, str(value).lower()) != ("charset", "utf-8") for name, value in given.range_params.items()):
        return False
    main, _, sub = offered.partition("/")
    return (given.main_type, given.sub_type) in ((main, sub), (main, "*"), ("*", "*"))
