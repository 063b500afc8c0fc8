"""What the limiter adds to a response: `request.quota`, the headers, and the answer to a refused request.

Decorators, middleware and the integrations call these functions, so that all of them agree. Sources: RFC 9651
(structured fields), RFC 6585 (429), RFC 9110 (Accept, Retry-After), RFC 9457 (problem details) and
draft-ietf-httpapi-ratelimit-headers-11.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from inspect import iscoroutine
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast
from urllib.parse import quote

from asgiref.sync import sync_to_async
from django.core.signals import setting_changed
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import Context, Template, TemplateDoesNotExist
from django.template.loader import get_template
from django.utils import timezone
from django.utils.html import escape
from django.utils.http import escape_leading_slashes
from django.utils.translation import get_language

from django_quota.conf import current
from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.concurrency import AtOnce
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import AnyLimit, Decision, Left, Outcome
from django_quota.core.errors import ConfigurationError
from django_quota.core.rates import Rate
from django_quota.core.rules import Rule
from django_quota.services.request_decisions import adecide_request, decide_request, note_decided
from django_quota.services.request_state import state_of
from django_quota.web.wording import message, rate_in_words, refusal_status, title, wait_in_words, whole_wait

R = TypeVar("R", bound=HttpResponseBase)


class QuotaRequest(HttpRequest):
    """For annotations: a request with a Decision."""

    quota: Decision
    """The decision on the request."""


def limit_request(request: HttpRequest, rules: Sequence[Rule], *, is_noted: bool = False) -> HttpResponse | None:
    """Decide rules; return the response if they refuse the request.

    `is_noted`: whether decorators that name one of these rules, which are of the settings, must not count it again.
    """
    if not rules:
        return None
    decision = decide_request(rules, request)
    if is_noted:
        note_decided(request, rules, decision)
    combined = add_decision(request, decision)
    return refusal(request, combined) if decision.enforced else None


async def alimit_request(request: HttpRequest, rules: Sequence[Rule], *, is_noted: bool = False) -> HttpResponse | None:
    """Decide rules without blocking the event loop; see `limit_request`."""
    if not rules:
        return None
    decision = await adecide_request(rules, request)
    if is_noted:
        note_decided(request, rules, decision)
    combined = add_decision(request, decision)
    return await arefusal(request, combined) if decision.enforced else None


def write_headers(request: HttpRequest, response: R) -> R:
    """Write the headers of the decision on a request to its response, unless the middleware does it later."""
    if state_of(request).is_in_middleware:
        return response
    decision = decision_of(request)
    if decision is not None and isinstance(response, HttpResponseBase):  # Django complains about anything else
        set_headers(response, decision)
    return response


def decision_of(request: HttpRequest) -> Decision | None:
    """Return the decision on a request so far."""
    decision = getattr(request, "quota", None)
    return decision if isinstance(decision, Decision) else None


def add_decision(request: HttpRequest, decision: Decision) -> Decision:
    """Put a decision on `request.quota`, combined with earlier ones; return the combined one."""
    earlier = decision_of(request)
    combined = decision if earlier is None else earlier.combined_with(decision)
    cast("QuotaRequest", request).quota = combined
    return combined


# --- errors that leave a view -----------------------------------------------------------------------------------------


def refuse(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a `QuotaExceeded` that left a view."""
    return refusal(request, _refused(request, decision))


def refuse_in_view(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a `QuotaExceeded` that a decorator caught, and roll back the view's transaction."""
    _roll_back()
    return refuse(request, decision)


async def arefuse_in_view(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response without blocking the event loop; see `refuse_in_view`."""
    _roll_back()
    return await arefusal(request, _refused(request, decision))


def unavailable(request: HttpRequest) -> HttpResponse:
    """Return the response to a `StoreUnavailable` that left a view: the 503 of `on_unavailable="deny"`."""
    return refusal(request, add_decision(request, _UNDECIDED))


_UNDECIDED = Decision(allowed=False, rule="", subject="", degraded=True, enforced=True)


def _refused(request: HttpRequest, decision: Decision) -> Decision:
    """Return the decision to answer with: all decisions on the request, if they refuse it."""
    earlier = decision_of(request)
    known = earlier is not None and set(decision.outcomes) <= set(earlier.outcomes)
    combined = earlier if earlier is not None and known else add_decision(request, decision)
    return decision if combined.allowed else combined


def _roll_back() -> None:
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)  # as Django does when an exception leaves the view


# --- headers ----------------------------------------------------------------------------------------------------------

_MAX_INTEGER = 999_999_999_999_999
"""The largest integer of a structured field."""

_OWN_HEADERS = "_django_quota_own_headers"
"""The attribute of a response from the `RESPONSE` setting: the headers that it brings, which are kept."""


def set_headers(response: HttpResponseBase, decision: Decision) -> None:
    """Write RateLimit-Policy and RateLimit, and X-RateLimit-* if the setting says so."""
    left = decision.left()
    if not left:
        return
    settings = current()
    own = getattr(response, _OWN_HEADERS, ())
    if settings.headers and not ("ratelimit" in own or "ratelimit-policy" in own):
        names, policy = _policies(tuple([of for of, _, _ in left]))
        headers = response.headers
        headers["RateLimit-Policy"] = policy
        headers["RateLimit"] = ", ".join(map(_state, names, left))
    if settings.legacy_headers and decision.binding is not None:
        legacy = {"Limit": decision.limit, "Remaining": decision.remaining, "Reset": math.ceil(decision.reset_after)}
        for name, value in legacy.items():
            if f"x-ratelimit-{name.lower()}" not in own:
                response.headers[f"X-RateLimit-{name}"] = str(value)


@lru_cache(maxsize=1024)
def _policies(limits: tuple[AnyLimit, ...]) -> tuple[list[str], str]:
    """Return the public names of limits, and their RateLimit-Policy."""
    names = policy_names(limits)
    return names, ", ".join(map(_policy, names, limits))


def policy_names(limits: Sequence[AnyLimit]) -> list[str]:
    """Return the public name of each limit: the last part of the rule's name, with the window if a rule has several.

    A rule without a name is called by the path of its view, and by the arguments of `as_view()`, which stay private.
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
"""The arguments of `as_view()` in the name of a rule."""


def _policy(name: str, limit: AnyLimit) -> str:
    # A month and a year have no fixed length, so their window is left out, as the draft allows.
    window = "" if limit.window is None else f";w={limit.window}"
    unit = "" if limit.unit == Limit.unit else f';qu="{limit.unit}"'
    return f'"{name}";q={limit.capacity}{unit}{window}'


def _state(name: str, left: Left) -> str:
    _, remaining, wait = left
    if not 0 <= remaining <= _MAX_INTEGER:
        remaining = min(max(remaining, 0), _MAX_INTEGER)
    if wait is None:  # nothing is used
        return f'"{name}";r={remaining}'
    return f'"{name}";r={remaining};t={min(math.ceil(wait), _MAX_INTEGER)}'


# --- the answer to a refused request ----------------------------------------------------------------------------------

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types"

PROBLEM = "application/problem+json"
HTML, TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"

_LOGGED = "_has_been_logged"
"""The attribute by which Django knows that a response has been logged."""


def refusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a refused request: 429, or 503 if it was refused because the store did not answer.

    The `RESPONSE` setting may return it. Otherwise the Accept header chooses: problem+json, the page of the `TEMPLATE`
    setting, or plain text. Raises `ConfigurationError` if `RESPONSE` returns something else than a response.
    """
    status = refusal_status(decision)
    response = _of_the_site(request, decision)
    if response is None:
        response = _ours(request, decision, status)
    else:
        _set_refusal_headers(response, decision)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        # An outage is logged once. Django would log each of these as an error, and mail it to ADMINS.
        setattr(response, _LOGGED, True)
    return response


async def arefusal(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the response to a refused request without blocking the event loop; see `refusal`.

    A function or a template of the site may ask the database, so it runs in a thread.
    """
    settings = current()
    is_page = preferred_type(request.META.get("HTTP_ACCEPT")) == HTML
    if settings.response is None and (not is_page or is_our_page(settings.template)):
        return refusal(request, decision)
    return await sync_to_async(refusal)(request, decision)


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
    if not hasattr(response, _OWN_HEADERS):
        setattr(response, _OWN_HEADERS, frozenset(name.lower() for name in response.headers))
    return cast("HttpResponse", response)


def _set_refusal_headers(response: HttpResponse, decision: Decision) -> None:
    own = getattr(response, _OWN_HEADERS, ())
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
    shown = status, tuple([_rounded(outcome) for outcome in outcomes]), binds, language
    if accepted == HTML:
        detail = message(decision)
        context = {"title": title(status), "detail": detail, **page_context(request, decision, status)}
        try:
            page = render_page(current().template, context, request)
        except TemplateDoesNotExist:  # a system check reports it
            accepted = TEXT
        else:
            _, headers = _answer(accepted, *shown)
            return HttpResponse(page, status=status, headers=headers)
    body, headers = _answer(accepted, *shown)
    return HttpResponse(body, status=status, headers=headers)


def _rounded(outcome: Outcome) -> Outcome:
    """Return what an answer shows of an outcome: whole seconds, and not the subject."""
    of, _, cost, allowed, remaining, wait, reset, more, _, shadow, enforced, why = outcome
    return Outcome(
        of,
        "",
        cost,
        allowed,
        remaining,
        None if wait is None else math.ceil(wait),
        math.ceil(reset),
        None if more is None else math.ceil(more),
        0.0,
        shadow,
        enforced,
        why,
    )


@lru_cache(maxsize=512)  # a flood gets the same answer for a second
def _answer(
    accepted: str, status: int, outcomes: tuple[Outcome, ...], binds: int | None, _language: str | None
) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a refusal. A page has the same headers and another body.

    `outcomes`: as `_rounded` returns them. `binds`: which of them binds.
    """
    binding = None if binds is None else outcomes[binds]
    decision = Decision(False, "", "", outcomes=outcomes, degraded=binding is None, binding=binding)
    is_text = accepted in (HTML, TEXT)
    response = HttpResponse(content_type=accepted if is_text else PROBLEM)
    response.headers["Vary"] = "Accept"
    _set_refusal_headers(response, decision)
    detail, wait = message(decision), whole_wait(decision)
    body = f"{detail}\n"
    if not is_text:
        left = [outcome for outcome in outcomes if not outcome.shadow]
        names, _ = _policies(tuple([outcome.of for outcome in left]))
        violated = [name for name, outcome in zip(names, left, strict=True) if not outcome.allowed]
        body = _problem(status, decision, detail, violated, wait)
    return body.encode(), dict(response.headers)


def _problem(status: int, decision: Decision, detail: str, violated: list[str], wait: int | None) -> str:
    """Return the problem details of a refusal: those of RFC 9457 and of its type, and `retry_after`.

    `retry_after`: whole seconds, as in the header, which browsers hide from scripts of other origins.
    """
    found: dict[str, object] = {
        "type": f"{PROBLEM_TYPES}#{_problem_type(decision, status)}",
        "title": title(status),
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


# --- Accept -----------------------------------------------------------------------------------------------------------

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


# --- the page ---------------------------------------------------------------------------------------------------------
# A refusal comes at a bad moment, so the page needs no static files, no scripts and no database.

MAX_BAR = 3_600
"""Seconds: the page shows a progress bar for a wait up to this."""

MAX_UNTIL = 10 * 366 * 86_400
"""Seconds: the page names the end of a wait up to this."""


class LimitShown(TypedDict):
    """A limit that refuses, for the template."""

    rate: str
    """In words: `"10 per minute"`."""
    limit: int
    remaining: int
    used: int
    """Never above the limit."""
    cost: int
    """The units that the request needs."""
    wait: str
    """In words; empty if waiting does not help."""


def page_context(request: HttpRequest, decision: Decision, status: int) -> dict[str, object]:
    """Return the context of the template; `429.html` lists it at its top."""
    wait = whole_wait(decision)
    until = None if wait is None or decision.binding is None or wait > MAX_UNTIL else _moment_in(wait)
    return {
        "decision": decision,
        "status": status,
        "wait": wait,
        "until": until,
        "is_today": until is not None and until.date() == _moment_in(0).date(),
        "bar": wait if until is not None and wait is not None and 1 < wait <= MAX_BAR else None,
        "limits": [_shown(outcome) for outcome in decision.outcomes if _is_shown(outcome)],
        "try_again": _try_again(request, decision),
        "is_safe": request.method in ("GET", "HEAD"),
        "csp_nonce": _nonce(request),
    }


def render_page(name: str, context: dict[str, object], request: HttpRequest) -> str:
    """Return the page of this template. Raises `TemplateDoesNotExist`.

    The default template needs only the address and the nonce of the request. Pages that differ in nothing else are
    rendered once, so that a refusal costs about as much as an allowed request.
    """
    found: Any = get_template(name)
    template = _own(found)
    if template is None:
        return str(found.render(context, request))
    inserted = {token: context[token] for token in _TOKENS if context[token]}
    limits = tuple(tuple(limit.items()) for limit in cast("list[LimitShown]", context["limits"]))
    shown = {**context, **{token: _TOKENS[token] for token in inserted}, "limits": limits, "decision": None}
    page = _rendered(template, get_language(), timezone.get_current_timezone_name(), tuple(shown.items()))
    for token, value in inserted.items():
        page = page.replace(_TOKENS[token], escape(value))
    return page


def is_our_page(name: str) -> bool:
    """Return whether a name leads to the default template, which asks no database."""
    try:
        return _own(get_template(name)) is not None
    except TemplateDoesNotExist:
        return False


def _own(found: Any) -> Template | None:
    template = getattr(found, "template", None)
    return template if isinstance(template, Template) and template.origin.name == _OURS else None


_OURS = str(Path(__file__).parents[1] / "templates" / "429.html")
_TOKEN = secrets.token_hex(16)
_TOKENS = {name: f"{_TOKEN}-{name}" for name in ("try_again", "csp_nonce")}
"""Placeholders in a rendered page for the values of each request."""


@lru_cache(maxsize=128)
def _rendered(template: Template, _language: str | None, _zone: str, shown: tuple[tuple[str, Any], ...]) -> str:
    context = dict(shown)
    context["limits"] = [dict(limit) for limit in context["limits"]]
    return str(template.render(Context(context, autoescape=template.engine.autoescape)))


def _forget(**_: object) -> None:
    _rendered.cache_clear()
    _answer.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_quota.web.responses")


def _moment_in(seconds: int) -> datetime:
    """Return the time after some seconds, in the visitor's time zone, rounded up to the second."""
    frozen = frozen_now()
    now = time.time() if frozen is None else frozen / SECOND
    return timezone.localtime(datetime.fromtimestamp(math.ceil(now) + seconds, UTC))


def _is_shown(outcome: Outcome) -> bool:
    refuses = not outcome.allowed and not outcome.shadow and outcome.limit > 0
    return refuses and outcome.why not in ("banned", "blocked")


def _shown(outcome: Outcome) -> LimitShown:
    wait = outcome.retry_after
    return {
        "rate": rate_in_words(outcome.rate),
        "limit": outcome.limit,
        "remaining": outcome.remaining,
        "used": outcome.limit - outcome.remaining,
        "cost": outcome.cost,
        "wait": "" if wait is None else wait_in_words(max(1, math.ceil(wait))),
    }


def _try_again(request: HttpRequest, decision: Decision) -> str:
    """Return the address to try again; empty if that does not help, or if it would not repeat the request."""
    may_help = decision.retry_after is not None or decision.limit == 0
    if request.method not in ("GET", "HEAD") or not may_help:
        return ""
    return escape_leading_slashes(request.get_full_path())  # "//elsewhere/" would lead to another host


def _nonce(request: HttpRequest) -> str:
    """Return the nonce of the Content-Security-Policy, from django-csp or Django 6.0; empty if there is none."""
    for name in ("csp_nonce", "_csp_nonce"):
        nonce = getattr(request, name, None)
        if nonce is not None:  # it is false until it is used
            return str(nonce)
    return ""
