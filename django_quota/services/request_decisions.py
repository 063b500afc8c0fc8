"""The decision on a request: its rules become one plan, and the plan is decided in one call to the store.

A body is read only when it is needed. If some rules limit by a field of it that is not read yet, the other rules
are decided first, in a call of their own. So a request that an address limit or a ban refuses costs no parsing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import cast

from django.http import HttpRequest

from django_quota.conf import current, time_zone
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Decision
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.core.rules import Rule
from django_quota.engine.codec import Reservation
from django_quota.engine.plans import Asked, Plan
from django_quota.services.outages import ongoing
from django_quota.services.registry import get_limiter
from django_quota.services.request_state import state_of
from django_quota.services.subjects import asked_flow, has_unread_body

Pairs = Sequence[tuple[Rule, str]]
"""Rules, each with a subject that the caller names."""

_NOT_LIMITED = Decision(allowed=True, rule="", subject="")

VIEW_TTL = 600 * SECOND
"""Microseconds after which what a request took comes back if its process ended before the view answered."""


def decide_request(rules: Sequence[Rule], request: HttpRequest, pairs: Pairs = ()) -> Decision:
    """Decide a request under these rules; see `request_flow`."""
    if ongoing and (decision := get_limiter().allow_unasked(_all_rules(rules, pairs))) is not None:
        return decision
    return run_sync(request_flow(rules, request, pairs))


async def adecide_request(rules: Sequence[Rule], request: HttpRequest, pairs: Pairs = ()) -> Decision:
    """Decide a request under these rules without blocking the event loop; see `request_flow`."""
    if ongoing and (decision := get_limiter().allow_unasked(_all_rules(rules, pairs))) is not None:
        return decision
    return await run_async(request_flow(rules, request, pairs))


def _all_rules(rules: Sequence[Rule], pairs: Pairs) -> Sequence[Rule]:
    return [*rules, *(rule for rule, _ in pairs)] if pairs else rules


def request_flow(rules: Sequence[Rule], request: HttpRequest, pairs: Pairs = ()) -> Flow[Decision]:
    """Decide a request under these rules, and subjects under theirs.

    If no rule applies, the request is allowed and has no outcomes.
    """
    if not current().enabled:
        return _NOT_LIMITED
    limiter = get_limiter()
    need_body = [rule for rule in rules if rule.reads_body and has_unread_body(request, rule.reads_body)]
    if need_body and (pairs or len(need_body) < len(rules)):
        first = yield from request_plan([rule for rule in rules if rule not in need_body], request, pairs)
        return (yield from limiter.two_step_flow(first, partial(request_plan, need_body, request)))
    plan = yield from request_plan(rules, request, pairs)
    return (yield from limiter.decision_flow(plan, "check"))


def request_plan(rules: Iterable[Rule], request: HttpRequest, pairs: Pairs = ()) -> Flow[Plan]:
    """Return the plan of a request: the rules that apply to it, and the pairs."""
    state = state_of(request)
    asked = yield from asked_flow(rules, request, state.decided)
    if pairs:
        asked += [(rule, subject, cast("int", rule.cost), "") for rule, subject in pairs]
    plan = new_plan(asked)
    for rule, _, _, _ in asked:
        if rule.settles:
            plan.reserve(Reservation(secrets.token_hex(8), VIEW_TTL), attrgetter("settles"))
            state.unsettled = (*state.unsettled, plan)
            break
    return plan


def new_plan(asked: list[Asked]) -> Plan:
    """Return a plan of what rules ask for, by the settings."""
    settings = current()
    return Plan(settings.prefix, settings.events, time_zone, asked)


def note_decided(request: HttpRequest, rules: Sequence[Rule], decision: Decision) -> None:
    """Note the rules of the settings that a Decision is about, so that a decorator does not count them again."""
    of_settings = [rule for rule in rules if rule.match is not None]
    if of_settings:
        state = state_of(request)
        state.decided = (*state.decided, (of_settings, decision))
