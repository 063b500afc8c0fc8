"""The page for people who are refused: what its template is told. It must not know how a refusal is sent.

A refusal comes in a moment of trouble, so the page needs nothing else: no static files, no scripts, no database.
"""

from __future__ import annotations

import math
import secrets
import time
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypedDict, cast

from django.core.signals import setting_changed
from django.http import HttpRequest
from django.template import Context, Template, TemplateDoesNotExist
from django.template.loader import get_template
from django.utils import timezone
from django.utils.html import escape
from django.utils.http import escape_leading_slashes
from django.utils.translation import get_language

from django_quota.clock import SECOND, frozen_now
from django_quota.decisions import Decision, Outcome
from django_quota.wording import rate_in_words, wait_in_words, whole_wait

LONGEST_BAR = 3_600
"""Seconds of the longest wait that is worth watching a bar for."""

LONGEST_UNTIL = 10 * 366 * 86_400
"""Seconds of the longest wait whose end is named as a moment."""


class LimitShown(TypedDict):
    """A limit that refuses, as the page shows it."""

    rate: str
    """In words: `"10 per minute"`."""
    limit: int
    remaining: int
    used: int
    """Never above the limit."""
    cost: int
    """How much of it the request asked for."""
    wait: str
    """In words; empty where no time helps."""


def page_context(request: HttpRequest, decision: Decision, status: HTTPStatus) -> dict[str, object]:
    """Return what the template gets beside the words: see `429.html`, whose head lists it."""
    wait = whole_wait(decision)
    until = None if wait is None or decision.binding is None or wait > LONGEST_UNTIL else _moment_in(wait)
    return {
        "decision": decision,
        "status": int(status),
        "wait": wait,
        "until": until,
        "is_today": until is not None and until.date() == _moment_in(0).date(),
        "bar": wait if until is not None and wait is not None and 1 < wait <= LONGEST_BAR else None,
        "limits": [_shown(outcome) for outcome in decision.outcomes if _is_shown(outcome)],
        "try_again": _try_again(request, decision),
        "is_safe": request.method in ("GET", "HEAD"),
        "csp_nonce": _nonce(request),
    }


def render_page(name: str, context: dict[str, object], request: HttpRequest) -> str:
    """Return the page of this template. Raises `TemplateDoesNotExist`.

    Our own template needs nothing of the request but its address and its nonce. So pages that differ in nothing else
    are rendered once, and a refusal costs about as much as a request that is let in.
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
    """Say whether the template of this name is our own, which asks no database."""
    try:
        return _own(get_template(name)) is not None
    except TemplateDoesNotExist:
        return False


def _own(found: Any) -> Template | None:
    template = getattr(found, "template", None)
    return template if isinstance(template, Template) and template.origin.name == _OURS else None


_OURS = str(Path(__file__).parent / "templates" / "429.html")
_MARK = secrets.token_hex(16)
_TOKENS = {name: f"{_MARK}-{name}" for name in ("try_again", "csp_nonce")}
"""What stands in a page for what differs from request to request."""


@lru_cache(maxsize=128)
def _rendered(template: Template, _language: str | None, _zone: str, shown: tuple[tuple[str, Any], ...]) -> str:
    context = dict(shown)
    context["limits"] = [dict(limit) for limit in context["limits"]]
    return str(template.render(Context(context, autoescape=template.engine.autoescape)))


def _forget(**_: object) -> None:
    _rendered.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_quota.page")


def _moment_in(seconds: int) -> datetime:
    """Return the moment so many seconds from now, in the visitor's time zone, rounded up to the second."""
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
    """Return where to try again: the same address; empty where that would do no good, or would not be the same."""
    may_help = decision.retry_after is not None or decision.limit == 0
    if request.method not in ("GET", "HEAD") or not may_help:
        return ""
    return escape_leading_slashes(request.get_full_path())  # "//elsewhere/" would lead there


def _nonce(request: HttpRequest) -> str:
    """Return the nonce of the request's Content-Security-Policy: django-csp's, or Django's own (6.0); else empty."""
    for name in ("csp_nonce", "_csp_nonce"):
        nonce = getattr(request, name, None)
        if nonce is not None:  # its truth value is false until it is asked for
            return str(nonce)
    return ""
