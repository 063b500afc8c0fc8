"""`{% quota_limits %}` shows the caller's own limits; `{{ request.quota|of_rule:"api" }}` is what one rule has left."""

from __future__ import annotations

from typing import Any

from django import template

from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import RuleError
from django_quota.http.limits import limit_in_words, own_limits
from django_quota.http.wording import rate_in_words

register = template.Library()


@register.inclusion_tag("django_quota/limits.html", takes_context=True)
def quota_limits(context: Any) -> dict[str, Any]:
    """Show the limits of the configured rules that are about the request's caller."""
    request = context.get("request")
    return {"limits": map(_shown, own_limits(request).outcomes) if request is not None else ()}


def _shown(outcome: Outcome) -> dict[str, Any]:
    return {
        "rule": outcome.rule,
        "rate": "" if outcome.remaining is None else rate_in_words(outcome.rate),
        "left": limit_in_words(outcome),
        "remaining": 0 if outcome.is_shut_out else 1 if outcome.remaining is None else outcome.remaining,
        "limit": outcome.limit or 1,
    }


@register.filter
def of_rule(decision: Any, name: str) -> Outcome | None:
    """Return the outcome of a rule, as `Decision.of_rule` does; None if the request was not limited by it."""
    try:
        return decision.of_rule(name) if isinstance(decision, Decision) else None
    except RuleError:
        return None
