"""What every Django edge does around a view: put the Decision on the request, answer a refusal, write the headers.

Decorators and middleware call these three; none of them decides or renders by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.decisions import Decision
from django_quota.responses import refusal, write_headers

if TYPE_CHECKING:

    class QuotaRequest(HttpRequest):
        """A request that a limiter has seen."""

        quota: Decision


_WRITTEN = "_django_quota_decision"

R = TypeVar("R", bound=HttpResponseBase)


def enter(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Put the decision on `request.quota`, joined with earlier ones; return the answer where it blocks."""
    joined = _join(request, decision)
    return refusal(request, joined) if decision.blocked else None


def refuse(request: HttpRequest, decision: Decision) -> HttpResponse:
    """Return the answer to a `QuotaExceeded` that was raised inside a view."""
    earlier = decision_of(request)
    if earlier is None or not set(decision.outcomes) <= set(earlier.outcomes):
        _join(request, decision)
    return refusal(request, decision)


def leave(request: HttpRequest, response: R) -> R:
    """Write the headers of all that was decided for the request on its reply."""
    decision = decision_of(request)
    # Decorators and middleware of one request pass here one after the other: what is written once is not again.
    if decision is not None and getattr(response, _WRITTEN, None) is not decision:
        write_headers(response, decision)
        setattr(response, _WRITTEN, decision)
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
