"""How a Decision looks over HTTP: headers on every reply, and the answer to who is refused. It decides nothing.

The one place that writes them, so that decorators, middleware and frameworks agree. Sources: RFC 9651 (structured
fields), RFC 6585 (429), RFC 9457 (problem details) and draft-ietf-httpapi-ratelimit-headers-10.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist
from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_quota.algorithms import Limit
from django_quota.algorithms.concurrency import AtOnce
from django_quota.conf import conf, current
from django_quota.decisions import AnyLimit, Decision, Outcome
from django_quota.rates import Rate

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types"
_BODIES = ("application/problem+json", "application/json", "text/html", "text/plain")


def write_headers(response: HttpResponseBase, decision: Decision) -> None:
    """Put the decision on a reply: RateLimit-Policy and RateLimit, and X-RateLimit-* where the setting asks."""
    outcomes = [outcome for outcome in decision.outcomes if not outcome.shadow]
    if not outcomes:
        return
    settings = current()
    if settings.headers:
        names, policy = _policies(tuple(outcome.of for outcome in outcomes))
        response.headers["RateLimit-Policy"] = policy
        response.headers["RateLimit"] = ", ".join(map(_state, names, outcomes))
    if settings.legacy_headers and decision.binding is not None:
        response.headers["X-RateLimit-Limit"] = str(decision.limit)
        response.headers["X-RateLimit-Remaining"] = str(decision.remaining)
        response.headers["X-RateLimit-Reset"] = str(math.ceil(decision.reset_after))


@lru_cache(maxsize=1024)
def _policies(limits: tuple[AnyLimit, ...]) -> tuple[list[str], str]:
    """Return the names of these limits, and the RateLimit-Policy that lists them."""
    names = policy_names(limits)
    return names, ", ".join(map(_policy, names, limits))


def policy_names(limits: Sequence[AnyLimit]) -> list[str]:
    """Return the public name of each limit: the last part of the rule's name, and the window where needed.

    A rule without a name of its own is called by its view's path, which is nobody else's business.
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
    name = quote(rule.rpartition(".")[2] or rule, safe=" !#$&'()*+,-./:;<=>?@[]^_`{|}~", errors="surrogatepass")
    return name if rate is None else f"{name}-{rate.window}"


def _policy(name: str, limit: AnyLimit) -> str:
    # The length of a month or a year varies: their window is left out, as the draft allows.
    window = "" if limit.window is None else f";w={limit.window}"
    unit = "" if limit.unit == Limit.unit else f';qu="{limit.unit}"'
    return f'"{name}";q={limit.capacity}{unit}{window}'


def _state(name: str, outcome: Outcome) -> str:
    return f'"{name}";r={outcome.remaining};t={math.ceil(outcome.reset_after)}'


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the answer to a refused request: 429, or 503 where it was refused because the store did not answer.

    The body is what the request accepts: problem+json, the page of the `TEMPLATE` setting, or plain text.
    """
    unavailable = decision.degraded and decision.binding is None
    status = HTTPStatus.SERVICE_UNAVAILABLE if unavailable else HTTPStatus.TOO_MANY_REQUESTS
    body, content_type = _body(request, decision, status)
    response = HttpResponse(body, status=status, content_type=content_type)
    if decision.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(decision.retry_after)))
    response.headers["Cache-Control"] = "no-store"
    response.headers["Vary"] = "Accept"
    write_headers(response, decision)
    return response


def _body(request: HttpRequest, decision: Decision, status: HTTPStatus) -> tuple[str, str]:
    accepted = request.get_preferred_type(_BODIES)
    detail = message(decision)
    if accepted == "text/html":
        context = {"decision": decision, "detail": detail, "status": int(status), "title": _title(status)}
        try:
            return render_to_string(conf.template, context, request), "text/html; charset=utf-8"
        except TemplateDoesNotExist:  # a system check says so; a refusal must not become an error page
            accepted = "text/plain"
    if accepted == "text/plain":
        return f"{detail}\n", "text/plain; charset=utf-8"
    unavailable = status == HTTPStatus.SERVICE_UNAVAILABLE
    outcomes = [outcome for outcome in decision.outcomes if not outcome.shadow]
    names = policy_names([outcome.of for outcome in outcomes])
    problem = {
        "type": f"{PROBLEM_TYPES}#{'temporary-reduced-capacity' if unavailable else 'quota-exceeded'}",
        "title": _title(status),
        "status": int(status),
        "detail": detail,
        "violated-policies": [name for name, outcome in zip(names, outcomes, strict=True) if not outcome.allowed],
    }
    return json.dumps(problem), "application/problem+json"


def _title(status: HTTPStatus) -> str:
    return _("Service unavailable") if status == HTTPStatus.SERVICE_UNAVAILABLE else _("Too many requests")


def message(decision: Decision) -> str:
    """Say to whoever is refused what the limit is and when to try again; no names of rules, views or subjects."""
    if decision.binding is None:
        return _("This cannot be served right now. Please try again shortly.")
    if decision.binding.why in ("blocked", "banned"):
        return _shut_out(decision)
    if decision.limit == 0:
        return _("This is closed at the moment.")
    limit = _("The limit is %(rate)s.") % {"rate": decision.binding.rate.in_words()}
    if decision.retry_after is None:
        return limit + " " + _("This request is larger than that, so trying again will not help.")
    seconds = max(1, math.ceil(decision.retry_after))
    return limit + " " + _("Please try again in %(wait)s.") % {"wait": _wait(seconds)}


def _shut_out(decision: Decision) -> str:
    banned = decision.binding is not None and decision.binding.why == "banned"
    why = _("There were too many refused requests.") if banned else _("Access is blocked.")
    if decision.retry_after is None:
        return why
    return why + " " + _("Please try again in %(wait)s.") % {"wait": _wait(max(1, math.ceil(decision.retry_after)))}


def _wait(seconds: int) -> str:
    if seconds < 120:  # noqa: PLR2004 — up to two minutes, seconds read well
        return ngettext("%(n)d second", "%(n)d seconds", seconds) % {"n": seconds}
    if seconds < 7_200:  # noqa: PLR2004 — up to two hours
        minutes = math.ceil(seconds / 60)
        return ngettext("%(n)d minute", "%(n)d minutes", minutes) % {"n": minutes}
    hours = math.ceil(seconds / 3_600)
    return ngettext("%(n)d hour", "%(n)d hours", hours) % {"n": hours}
