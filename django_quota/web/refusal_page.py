"""The 429 page. A refusal comes at a bad moment, so it needs no static files, no scripts and no database."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from django.http import HttpRequest
from django.template import Context, Template, TemplateDoesNotExist
from django.template.loader import get_template
from django.utils import timezone

from django_quota.core.algorithms.stock import Held
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Decision, Outcome
from django_quota.web.wording import rate_in_words, wait_in_words, whole_wait

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
    wait, is_safe = whole_wait(decision), request.method in ("GET", "HEAD")
    until = None if wait is None or decision.binding is None or wait > MAX_UNTIL else _moment_in(wait)
    return {
        "decision": decision,
        "status": status,
        "wait": wait,
        "until": until,
        "is_today": until is not None and until.date() == _moment_in(0).date(),
        "bar": wait if until is not None and wait is not None and 1 < wait <= MAX_BAR else None,
        "limits": [_shown(outcome) for outcome in decision.outcomes if _is_shown(outcome)],
        "try_again": is_safe and (decision.retry_after is not None or decision.limit == 0),
        "is_safe": is_safe,
        "csp_nonce": _nonce(request),
    }


def render_page(name: str, context: dict[str, object], request: HttpRequest) -> str:
    """Return the page of this template. Raises `TemplateDoesNotExist`.

    The default template gets no context processors of the site, which may ask the database.
    """
    found: Any = get_template(name)
    template = _own(found)
    if template is None:
        return str(found.render(context, request))
    return str(template.render(Context(context, autoescape=template.engine.autoescape)))


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


def _moment_in(seconds: int) -> datetime:
    """Return the time after some seconds, in the visitor's time zone, rounded up to the second."""
    frozen = frozen_now()
    now = time.time() if frozen is None else frozen / SECOND
    return timezone.localtime(datetime.fromtimestamp(math.ceil(now) + seconds, UTC))


def _is_shown(outcome: Outcome) -> bool:
    refuses = not outcome.allowed and not outcome.shadow and outcome.limit > 0
    return refuses and outcome.why not in ("banned", "blocked") and not isinstance(outcome.of, Held)


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


def _nonce(request: HttpRequest) -> str:
    """Return the nonce of the Content-Security-Policy, from django-csp or Django 6.0; empty if there is none."""
    for name in ("csp_nonce", "_csp_nonce"):
        nonce = getattr(request, name, None)
        if nonce is not None:  # it is false until it is used
            return str(nonce)
    return ""
