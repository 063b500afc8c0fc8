"""`settle` and `count_when`: what a request took is settled once the view has answered.

The request first takes its estimate, as a reservation does. Later the middleware, or without it the `@quota` on the
outside, settles all rules of the request, and then writes the headers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.http.multipartparser import MultiPartParserError

from django_quota.core.decisions import NOTHING_LIMITS, Decision, updated
from django_quota.core.errors import RuleError
from django_quota.core.flow import Flow
from django_quota.core.rates import MAX_COUNT
from django_quota.engine.asks import Ask, Asked
from django_quota.engine.receipts import Receipt
from django_quota.features.request_end import at_stream_end
from django_quota.features.reservations.calls import Reservation
from django_quota.http.responses import decision_of
from django_quota.subjects.site_functions import call_flow

logger = logging.getLogger("django_quota.reservations")


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


def settle_by_response_flow(request: HttpRequest, response: Any, receipts: Sequence[Receipt]) -> Flow[None]:
    """Settle what a request took, by its response or by the error that left the view.

    A streaming response is settled when it ends. After a `CancelledError`, because the client went away, what was taken
    stays spent: the view has done the work. If the function of a rule raises an error, the other rules are settled
    before the error is raised again.
    """
    if isinstance(response, Exception):
        response = _response_for(response)
    failed: Exception | None = None
    for receipt in receipts:
        try:
            yield from _settle_one_flow(request, response, receipt)
        except Exception as error:  # noqa: BLE001 — raised below
            failed = failed or error
    if failed is not None:
        raise failed


def _settle_one_flow(request: HttpRequest, response: Any, receipt: Receipt) -> Flow[None]:
    reservation = Reservation(receipt, NOTHING_LIMITS)
    if not reservation.is_open:
        return
    if isinstance(response, BaseException):
        yield from reservation.settling(reservation.costs)
        return
    try:
        counted = yield from _counted_flow(receipt.asks, response)
        if getattr(response, "streaming", False) and any(
            ask.rule.settle is not None and counts for ask, counts in zip(receipt.asks, counted, strict=True)
        ):
            settle = partial(_end_flow, reservation, receipt.asks, counted, request, response)
            at_stream_end(response, settle)
            return
        costs = yield from _costs_flow(receipt.asks, counted, request, response)
    except Exception:
        yield from reservation.settling(reservation.costs)
        raise
    show(request, (yield from reservation.settling(costs)))


def _end_flow(
    reservation: Reservation,
    asks: Sequence[Ask],
    counted: Sequence[bool],
    request: HttpRequest,
    response: HttpResponseBase,
) -> Flow[None]:
    """Settle after a stream has ended."""
    try:
        costs = yield from _costs_flow(asks, counted, request, response)
    except Exception:
        logger.exception("settle= failed after a stream had ended: the estimate stays spent.")
        costs = list(reservation.costs)
    yield from reservation.settling(costs)


def _counted_flow(asks: Sequence[Ask], response: Any) -> Flow[list[bool]]:
    """Return for each rule whether the request counts."""
    counted = []
    for rule in [ask.rule for ask in asks]:
        counts = rule.count_when is None or bool((yield from call_flow(rule.count_when, response)))
        counted.append(counts)
    return counted


def _costs_flow(asks: Sequence[Ask], counted: Sequence[bool], request: HttpRequest, response: Any) -> Flow[list[int]]:
    """Return the real cost of each rule."""
    costs = []
    for (rule, _, cost, *_), counts in zip(asks, counted, strict=True):
        if counts and rule.settle is not None:
            costs.append(_read_cost((yield from call_flow(partial(rule.settle, request), response)), rule))
        else:
            costs.append(cost if counts else 0)
    return costs


def _read_cost(cost: object, rule: Asked) -> int:
    if not isinstance(cost, int) or isinstance(cost, bool) or not 0 <= cost <= MAX_COUNT:
        raise RuleError(
            f"settle= of rule {rule.name!r} returned {cost!r}.", f"Return a whole number from 0 to {MAX_COUNT}."
        )
    return cost


def show(request: HttpRequest, settled: Decision) -> None:
    """Show on `request.quota` and in the headers how the limits stand now."""
    decision = decision_of(request)
    if decision is None or settled.degraded:
        return
    if decision.allowed or decision.binding is not None:  # else an outage refuses it, and no limit does
        cast("Any", request).quota = updated(decision, settled)
