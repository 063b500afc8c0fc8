"""A limited request: the decisions on it, and what the middleware, the decorators and the view note for each other.

A body is read only when it is needed. If some rules limit by a field of a body that is not read yet, the other rules
are decided first, in a separate call. So a request that an address limit or a ban refuses costs no parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, cast

from django.http import HttpRequest

from django_quota.conf import current
from django_quota.core.decisions import Decision
from django_quota.core.flow import Flow
from django_quota.core.rules import Rule
from django_quota.engine.plans import Plan
from django_quota.limiting.limiter import new_plan
from django_quota.limiting.registry import get_limiter
from django_quota.requests.request_bodies import has_unread_body
from django_quota.requests.request_hits import Decided, asked_flow
from django_quota.requests.request_notes import notes_under


class QuotaRequest(HttpRequest):
    """For annotations: a request with a Decision."""

    quota: Decision
    """The decision on the request."""


@dataclass(slots=True)
class RequestState:
    """The notes of one request. The middleware, the decorators and the integrations share them."""

    is_in_middleware: bool = False
    """Whether the response passes the middleware, which then settles rules and writes the headers."""
    is_cached: bool = False
    """Whether a cache around the limiter stores the response, so that others would see its headers."""
    is_asked: bool = False
    """Whether the configured rules have been looked up, so that a view called by another view is not limited."""
    claimed: object = None
    """The `@quota` whose rules the middleware decides before it calls the view."""
    waiting: Sequence[Rule] = ()
    """The rules that the view decides itself; see `web/request_rules`."""
    holding: Any = None
    """The slots that the middleware gives back at the end; see `web/site_slots`."""
    waiting_slots: Sequence[Callable[[], Flow[Decision]]] = ()
    """Each takes a slot that waits as those rules do; see `web/concurrency`."""
    decided: Decided = ()
    """What `@quota` does not count again."""
    plans: Sequence[Plan] = ()
    """The plans that were decided."""
    unsettled: Sequence[Plan] = ()
    """The plans whose rules look at the response; see `web/settlements`."""

    def take_claim(self, decorator: object) -> bool:
        """Return whether the middleware has decided a `@quota` for this call of the view. The next call gets False."""
        if self.claimed is not decorator:
            return False
        self.claimed = None
        return True

    def take_waiting(self) -> Sequence[Rule]:
        """Return the rules that the view must decide; they wait no longer."""
        waiting, self.waiting = self.waiting, ()
        return waiting

    def take_waiting_slots(self) -> Sequence[Callable[[], Flow[Decision]]]:
        """Return what takes the slots that wait; they wait no longer."""
        waiting, self.waiting_slots = self.waiting_slots, ()
        return waiting

    def take_unsettled(self) -> Sequence[Plan]:
        """Return the plans that the caller settles now."""
        unsettled, self.unsettled = self.unsettled, ()
        return unsettled


def in_a_cache(request: HttpRequest) -> bool:
    """Return whether Django's cache (its middleware or `cache_page`) will store the answer of what runs now."""
    return bool(getattr(request, "_cache_update_cache", False))


state_of = notes_under("_django_quota", RequestState)
"""Returns the notes of a request."""


Pairs = Sequence[tuple[Rule, str]]
"""Rules, each with a subject that the caller names."""

_NOT_LIMITED = Decision(allowed=True, rule="", subject="")


def decide_flow(request: HttpRequest, rules: Sequence[Rule], pairs: Pairs = ()) -> Flow[Decision]:
    """Decide a request under these rules, and the subject of each pair under its rule.

    If no rule applies, the request is allowed and has no outcomes.
    """
    if not current().enabled:
        return _NOT_LIMITED
    limiter = get_limiter()
    need_body = [rule for rule in rules if rule.reads_body and has_unread_body(request, rule.reads_body)]
    if need_body and (pairs or len(need_body) < len(rules)):
        first = yield from _plan_flow(request, [rule for rule in rules if rule not in need_body], pairs)
        return (yield from limiter.two_step_flow(first, partial(_plan_flow, request, need_body)))
    plan = yield from _plan_flow(request, rules, pairs)
    return (yield from limiter.decision_flow(plan, "check"))


def _plan_flow(request: HttpRequest, rules: Iterable[Rule], pairs: Pairs = ()) -> Flow[Plan]:
    """Return the plan of a request: the rules that apply to it, and the pairs."""
    state = state_of(request)
    asked = yield from asked_flow(rules, request, state.decided)
    if pairs:
        asked += [(rule, subject, cast("int", rule.cost), "") for rule, subject in pairs]
    plan = new_plan(asked)
    state.plans = (*state.plans, plan)
    if any(rule.settles for rule, _, _, _ in asked):
        plan.estimate(attrgetter("settles"))
        state.unsettled = (*state.unsettled, plan)
    return plan


def note_decided(request: HttpRequest, rules: Sequence[Rule], decision: Decision) -> None:
    """Note the configured rules that a Decision is about, so that a decorator does not count them again."""
    of_settings = [rule for rule in rules if rule.match is not None]
    if of_settings:
        state = state_of(request)
        state.decided = (*state.decided, (of_settings, decision))


def undo_flow(request: HttpRequest) -> Flow[Sequence[Decision]]:
    """Give back what a request took, since it is refused after all; return how its limits stand afterwards."""
    found = []
    for plan in state_of(request).plans:
        found.append((yield from get_limiter().undo_flow(plan)))  # noqa: PERF401 — it waits
    return found


def decision_of(request: HttpRequest) -> Decision | None:
    """Return the decision on a request so far."""
    decision = getattr(request, "quota", None)
    return decision if isinstance(decision, Decision) else None


def add_decision(request: HttpRequest, decision: Decision) -> Decision:
    """Put a decision on `request.quota`, combined with earlier ones; return the combined one."""
    state, earlier = state_of(request), decision_of(request)
    if not state.is_in_middleware and in_a_cache(request):
        state.is_cached = True
    combined = decision if earlier is None else earlier.combined_with(decision)
    cast("QuotaRequest", request).quota = combined
    return combined
