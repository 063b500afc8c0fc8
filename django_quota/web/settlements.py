"""`settle` and `counts`: what a request took is settled once the view has answered.

The request takes its estimate as a reservation. A rule of the middleware, and with the middleware every rule, is
settled when the response leaves it. Without the middleware, `@quota` settles its own rules. Both do it before the
headers are written.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.http.multipartparser import MultiPartParserError

from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.core.rates import MAX_COUNT
from django_quota.core.rules import Rule
from django_quota.engine.plans import Plan
from django_quota.services.request_decisions import VIEW_TTL
from django_quota.services.request_state import state_of
from django_quota.services.reservations import Hold
from django_quota.services.settled_stream import settled_stream
from django_quota.services.subjects import call_flow
from django_quota.web.responses import decision_of

logger = logging.getLogger("django_quota")


def take_unsettled(request: HttpRequest) -> Sequence[Plan]:
    """Return the plans of a request that look at its response, unless the middleware settles them."""
    state = state_of(request)
    return () if state.is_in_middleware else state.take_unsettled()


def settle_response(request: HttpRequest, response: Any, plans: Sequence[Plan]) -> None:
    """Settle what a request took, by its response or by the error that left the view.

    A streaming response is settled when it ends.
    """
    run_sync(_settle_flow(request, response, plans))


async def asettle_response(request: HttpRequest, response: Any, plans: Sequence[Plan]) -> None:
    """Settle what a request took without blocking the event loop; see `settle_response`.

    After a `CancelledError`, because the client went away, what was taken stays spent: the view has worked for it.
    """
    await run_async(_settle_flow(request, response, plans))


def _response_for(error: Exception) -> HttpResponse:
    """Return an empty response with the status that Django answers an exception with."""
    for kinds, status in _STATUS:
        if isinstance(error, kinds):
            return HttpResponse(status=status)
    return HttpResponse(status=500)


_STATUS: Sequence[tuple[Any, int]] = (
    (Http404, 404),
    (PermissionDenied, 403),
    ((BadRequest, MultiPartParserError, SuspiciousOperation), 400),
)


def _settle_flow(request: HttpRequest, response: Any, plans: Sequence[Plan]) -> Flow[None]:
    """Settle all plans; after that raise the first error, if a function of a rule failed."""
    if isinstance(response, Exception):
        response = _response_for(response)
    failed: Exception | None = None
    for plan in plans:
        try:
            yield from _settle_plan_flow(request, response, plan)
        except Exception as error:  # noqa: BLE001 — raised below
            failed = failed or error
    if failed is not None:
        raise failed


def _settle_plan_flow(request: HttpRequest, response: Any, plan: Plan) -> Flow[None]:
    hold = Hold(plan, _NO_DECISION, VIEW_TTL)
    if not hold.is_open:
        return
    if isinstance(response, BaseException):
        yield from hold.settling(hold.costs)
        return
    try:
        counted = yield from _counted_flow(plan, response)
        if getattr(response, "streaming", False) and any(
            rule.settle is not None and counts for rule, counts in zip(plan.rules, counted, strict=True)
        ):
            settle = partial(_end_flow, hold, plan, counted, request, response)
            settled_stream(response, hold.ttl, hold.renewing, settle)
            return
        costs = yield from _costs_flow(plan, counted, request, response)
    except Exception:
        yield from hold.settling(hold.costs)
        raise
    _show(request, (yield from hold.settling(costs)))


_NO_DECISION = Decision(allowed=True, rule="", subject="")


def _end_flow(
    hold: Hold, plan: Plan, counted: Sequence[bool], request: HttpRequest, response: HttpResponseBase
) -> Flow[None]:
    """Settle a stream that is over."""
    try:
        costs = yield from _costs_flow(plan, counted, request, response)
    except Exception:
        logger.exception("A stream is over, and settle= failed: the estimate stays spent.")
        costs = list(hold.costs)
    yield from hold.settling(costs)


def _counted_flow(plan: Plan, response: Any) -> Flow[list[bool]]:
    """Return for each rule whether the request counts."""
    counted = []
    for rule in plan.rules:
        counted.append(rule.counts is None or bool((yield from call_flow(rule.counts, response))))  # noqa: PERF401 — it waits
    return counted


def _costs_flow(plan: Plan, counted: Sequence[bool], request: HttpRequest, response: Any) -> Flow[list[int]]:
    """Return the real cost of each rule."""
    costs = []
    for (rule, _, cost, _), counts in zip(plan.asked, counted, strict=True):
        if counts and rule.settle is not None:
            costs.append(_read_cost((yield from call_flow(partial(rule.settle, request), response)), rule))
        else:
            costs.append(cost if counts else 0)
    return costs


def _read_cost(cost: object, rule: Rule) -> int:
    if not isinstance(cost, int) or isinstance(cost, bool) or not 0 <= cost <= MAX_COUNT:
        raise RuleError(
            f"settle= of rule {rule.name!r} returned {cost!r}.", f"Return a whole number from 0 to {MAX_COUNT}."
        )
    return cost


def _show(request: HttpRequest, settled: Decision) -> None:
    """Let `request.quota` and the headers say how the limits stand now."""
    decision = decision_of(request)
    if decision is None or settled.degraded:
        return
    now = {(outcome.of, outcome.subject): outcome for outcome in settled.outcomes}
    outcomes = tuple([_at_last(outcome, now.get((outcome.of, outcome.subject))) for outcome in decision.outcomes])
    if decision.allowed and outcomes:
        cast("Any", request).quota = replace(Decision.of(outcomes), degraded=decision.degraded)


def _at_last(outcome: Outcome, now: Outcome | None) -> Outcome:
    if now is None or not outcome.allowed:
        return outcome
    return outcome._replace(remaining=now.remaining, reset_after=now.reset_after, next_after=now.next_after)
