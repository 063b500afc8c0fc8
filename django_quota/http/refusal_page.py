"""The 429 page. Many refusals come at times of high load, so it needs no static files, no scripts and no database."""

from __future__ import annotations

import math
import secrets
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from django.http import HttpRequest
from django.template import Context, Engine, Template, TemplateDoesNotExist
from django.template.loader import get_template
from django.utils import timezone
from django.utils.html import escape

from django_quota.core.algorithms.stock import Held
from django_quota.core.clock import SECOND, now
from django_quota.core.decisions import Decision, Outcome
from django_quota.http.wording import message, rate_in_words, title, wait_in_words, whole_wait
from django_quota.runtime import runtime

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


class Shown(NamedTuple):
    """What an answer shows of a refusal. Equal ones have equal answers in one language."""

    status: int
    outcomes: tuple[Outcome, ...]
    """In whole seconds, and without the subjects."""
    binds: int | None
    """The index of the outcome that refuses; None if no limit does."""
    language: str | None

    @property
    def decision(self) -> Decision:
        """A decision with as much as the answer shows."""
        binding = None if self.binds is None else self.outcomes[self.binds]
        if binding is None:
            return Decision.without_limit(allowed=False, degraded=True, outcomes=self.outcomes)
        return Decision(False, _given=self.outcomes, _bound=binding)


class _Visit(NamedTuple):
    """What a page shows besides the refusal."""

    until: datetime | None
    zone: str | None
    """The time zone of `until`, by its name and its offset: equal moments of two zones are shown in two ways."""
    is_today: bool
    is_safe: bool
    """Whether the request is a GET or HEAD."""
    nonce: str

    @classmethod
    def of(cls, request: HttpRequest, decision: Decision) -> _Visit:
        wait = whole_wait(decision)
        until = None if wait is None or decision.binding is None or wait > MAX_UNTIL else _moment_in(wait)
        is_today = until is not None and until.date() == _moment_in(0).date()
        zone = None if until is None else f"{until:%Z%z}"
        return cls(until, zone, is_today, request.method in ("GET", "HEAD"), _nonce(request))


def page_context(request: HttpRequest, decision: Decision, status: int) -> dict[str, object]:
    """Return the context of the template; `429.html` lists it at its top."""
    return _context(_Visit.of(request, decision), decision, status)


def _context(visit: _Visit, decision: Decision, status: int) -> dict[str, object]:
    wait, until = whole_wait(decision), visit.until
    return {
        "decision": decision,
        "status": status,
        "title": title(decision, status),
        "detail": message(decision),
        "wait": wait,
        "until": until,
        "is_today": visit.is_today,
        "bar": wait if until is not None and wait is not None and 1 < wait <= MAX_BAR else None,
        "limits": [_shown(outcome) for outcome in decision.outcomes if _is_shown(outcome)],
        "try_again": visit.is_safe and (decision.retry_after is not None or decision.limit == 0),
        "is_safe": visit.is_safe,
        "csp_nonce": visit.nonce,
    }


def render_page(name: str, request: HttpRequest, decision: Decision, shown: Shown) -> str:
    """Return the page of this template. Raises `TemplateDoesNotExist`.

    The template of a site may show anything of the request, so it is rendered for each refusal. The default template
    gets no context processors of the site, which may ask the database. It shows nothing of the request but the nonce,
    so pages that are alike are rendered once.
    """
    found: Any = get_template(name)
    template = _own(found)
    if template is None:
        return str(found.render(page_context(request, decision, shown.status), request))
    visit = _Visit.of(request, decision)
    if _is_watched():
        return _rendered(template, visit, shown)
    page = _kept_pages.get()(name, template.engine, visit._replace(nonce=visit.nonce and _NONCE), shown)
    return page.replace(_NONCE, escape(visit.nonce)) if visit.nonce else page


def _rendered(template: Template, visit: _Visit, shown: Shown) -> str:
    context = Context(_context(visit, shown.decision, shown.status), autoescape=template.engine.autoescape)
    return str(template.render(context))


def _page(name: str, engine: Engine, visit: _Visit, shown: Shown) -> str:
    return _rendered(engine.get_template(name), visit, shown)


_kept_pages = runtime.part(lambda: lru_cache(maxsize=128)(_page))
"""A flood gets the same page for a second."""


_NONCE = secrets.token_hex(16)
"""What stands for the nonce in a page that is rendered once."""


def _is_watched() -> bool:
    """Return whether each rendering is observed, as by Django's `assertTemplateUsed` or a debug toolbar."""
    render: Any = Template._render  # type: ignore[attr-defined]  # noqa: SLF001 — they replace it
    return bool(render.__module__ != Template.__module__)


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
    return timezone.localtime(datetime.fromtimestamp(math.ceil(now() / SECOND) + seconds, UTC))


def _is_shown(outcome: Outcome) -> bool:
    refuses = not outcome.allowed and not outcome.shadow and outcome.of.capacity > 0
    return refuses and outcome.why not in ("banned", "blocked") and not isinstance(outcome.of, Held)


def _shown(outcome: Outcome) -> LimitShown:
    wait = outcome.retry_after
    return {
        "rate": rate_in_words(outcome.rate),
        "limit": outcome.of.capacity,
        "remaining": outcome.remaining or 0,
        "used": outcome.of.capacity - (outcome.remaining or 0),
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
