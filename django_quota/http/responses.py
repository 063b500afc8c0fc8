"""The answer to a refused request. Decorators, middleware and the integrations call these, so that all of them agree.

Sources: RFC 6585 (429), RFC 9110 (Accept, Retry-After) and RFC 9457 (problem details).
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from http import HTTPStatus
from inspect import iscoroutine
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import TemplateDoesNotExist
from django.utils.translation import get_language

from django_quota.conf import current
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import ConfigurationError
from django_quota.http.headers import (
    OWN_HEADERS,
    policies,
    set_headers,
)
from django_quota.http.refusal_log import log_refusal
from django_quota.http.refusal_page import (
    Shown,
    is_our_page,
    render_page,
)
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
