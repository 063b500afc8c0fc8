"""Rules and a request become one Decision: in one store call, or in none while nobody answers. No HTTP, no models.

Where some rules are by a field of a form whose body is not read yet, and others are not, it is two calls: those others
first. So nobody makes us read a body whom an address or a ban refuses already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import cast

from django.http import HttpRequest

from django_quota.conf import current
from django_quota.decisions import Decision
from django_quota.limiter import Limiter, adecide_plan, decide_plan, limiter_of
from django_quota.outages import ongoing
from django_quota.planning import request_plan
from django_quota.rules import Rule
from django_quota.stores.redis import RedisStore
from django_quota.subjects import Flow, aanswer, answer, has_unread_body


def decide_request(rules: Sequence[Rule], request: HttpRequest) -> Decision:
    """Decide a request under these rules, in one store call; allowed, with no outcomes, where none of them holds."""
    if ongoing and (decision := _let_by(rules)):
        return decision
    if has_unread_body(request) and (flow := _in_turn(rules, request)) is not None:
        return cast("Decision", answer(flow))
    return decide_plan(answer(request_plan(rules, request)), "check")


async def adecide_request(rules: Sequence[Rule], request: HttpRequest) -> Decision:
    """Decide a request under these rules; see `decide_request`."""
    if ongoing and (decision := _let_by(rules)):
        return decision
    if has_unread_body(request) and (flow := _in_turn(rules, request)) is not None:
        return cast("Decision", await aanswer(flow))
    return await adecide_plan(await aanswer(request_plan(rules, request)), "check")


def _in_turn(rules: Sequence[Rule], request: HttpRequest) -> Flow | None:
    """Return a flow of the decision that asks rules which need no body first; None where all need it, or none does."""
    reading = [rule for rule in rules if rule.needs_body]
    if not reading or len(reading) == len(rules):
        return None
    settings = current()
    if not settings.enabled:
        return None
    others = [rule for rule in rules if not rule.needs_body]
    return _decided(limiter_of(settings), others, reading, request)


def _decided(limiter: Limiter, others: Sequence[Rule], reading: Sequence[Rule], request: HttpRequest) -> Flow:
    first = yield from request_plan(others, request)
    return (yield from limiter.in_turn(first, partial(request_plan, reading, request)))


def _let_by(rules: Sequence[Rule]) -> Decision | None:
    """Return the decision on a request while the store is not asked at all, and every rule then allows.

    Nothing about the request is looked at: while Redis is gone, limits should cost next to nothing. So the Decision has
    no subject. None where the request must be decided as any other.
    """
    settings = current()
    if not rules or not settings.enabled:
        return None
    limiter, default = limiter_of(settings), settings.on_unavailable
    store = limiter.store
    if not limiter.outages.is_on or not isinstance(store, RedisStore) or not store.breaker.is_shut():
        return None
    for rule in rules:
        if (rule.on_unavailable or default) != "allow":
            return None
    return _allowed_unseen(rules[0].name)


@lru_cache(maxsize=256)
def _allowed_unseen(rule: str) -> Decision:
    return Decision(allowed=True, rule=rule, subject="", degraded=True)
