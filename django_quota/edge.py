"""What every Django edge does around a view: put the Decision on the request, answer a refusal, write the headers.

Decorators and middleware call these functions; none of them decides or renders by itself.
"""

from __future__ import annotations

from typing import TypeVar, cast

from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.decisions import Decision
from django_quota.responses import arefusal, refusal, write_headers


class QuotaRequest(HttpRequest):
    """For annotations: a request that a limiter has seen."""

    quota: Decision
    """All that was decided for the request."""


LEFT_TO_MIDDLEWARE = "_django_quota_middleware"
"""The mark of a request whose reply passes our middleware: then that one writes the headers, once for all."""

_TAKEN = "_django_quota_taken"

R = TypeVar("R", bound=HttpResponseBase)


def enter(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Put the decision on `request.quota`, joined with earlier ones; return the answer where it blocks."""
    joined = _join(request, decision)
    return refusal(request, joined) if decision.blocked else None


async def aenter(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Put the decision on `request.quota` without blocking the event loop; see `enter`."""
    joined = _join(request, decision)
    return await arefusal(request, joined) if decision.blocked else None


def take(request: HttpRequest, decorator: object) -> None:
    """Note that a decorator's rules are decided before its view is called."""
    setattr(request, _TAKEN, decorator)


def is_taken(request: HttpRequest, decorator: object) -> bool:
    """Say whether a decorator's rules were decided for this call of its view; for the next call they are not."""
    if getattr(request, _TAKEN, None) is not decorator:
        return False
    delattr(request, _TAKEN)
    return True


def refuse_in_view(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the answer to a `QuotaExceeded` that a decorator caught; the view's transaction is rolled back."""
    _roll_back()
    return refuse(request, decision)


async def arefuse_in_view(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the answer without blocking the event loop; see `refuse_in_view`."""
    _roll_back()
    return await arefusal(request, _refused(request, decision))


def _roll_back() -> None:
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
            connection.set_rollback(True)  # as if the exception had left the view


def refuse(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the answer to a `QuotaExceeded` that was raised inside a view."""
    return refusal(request, _refused(request, decision))


def unavailable(request: HttpRequest) -> HttpResponse:
    """Return the answer to a `StoreUnavailable` that left a view: the 503 of `on_unavailable="deny"`."""
    return refusal(request, _join(request, _UNDECIDED))


_UNDECIDED = Decision(allowed=False, rule="", subject="", degraded=True, blocked=True)
"""What is answered where something was asked that no rule stands for."""


def _refused(request: HttpRequest, decision: Decision) -> Decision:
    """Return what to answer a `QuotaExceeded` with: all that was decided for the request, where that refuses too."""
    earlier = decision_of(request)
    known = earlier is not None and set(decision.outcomes) <= set(earlier.outcomes)
    joined = earlier if earlier is not None and known else _join(request, decision)
    return decision if joined.allowed else joined


def leave(request: HttpRequest, response: R) -> R:
    """Write the headers of all that was decided for the request on its reply."""
    decision = decision_of(request)
    if decision is None or getattr(request, LEFT_TO_MIDDLEWARE, False):
        return response
    if isinstance(cast("object", response), HttpResponseBase):  # Django says itself what else a view may not return
        write_headers(response, decision)
    return response


def decision_of(request: HttpRequest) -> Decision | None:
    """Return what has been decided for a request so far."""
    decision = getattr(request, "quota", None)
    return decision if isinstance(decision, Decision) else None


def _join(request: HttpRequest, decision: Decision) -> Decision:
    earlier = decision_of(request)
    joined = decision if earlier is None else earlier.joined(decision)
    cast("QuotaRequest", request).quota = joined
    return joined
