"""The middleware: it applies the rules of the settings, answers refusals, and writes the headers of every response.

The `@quota` on the outside of the view is decided in the same call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.core.decisions import QuotaExceeded
from django_quota.core.errors import StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_async, run_sync
from django_quota.core.rules import Rule
from django_quota.services.registry import get_limiter
from django_quota.services.request_decisions import note_decided, request_flow
from django_quota.services.site_rules import site_rules
from django_quota.web.responses import (
    DEFERRED,
    apply_flow,
    refuse,
    unavailable,
    write_headers,
)
from django_quota.web.view_lookup import claim_view_rules
from django_quota.web.waiting_rules import rules_for_now, rules_left

_ASKED = "_django_quota_asked"
"""The attribute of a request whose rules of the settings have been decided."""

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class QuotaMiddleware:
    """Applies the rules of the settings that have a `match`, and answers errors of the limiter that leave a view.

    A `QuotaExceeded` becomes a 429, a `StoreUnavailable` the 503 of `on_unavailable="deny"`.

    It decides when Django has found the view: so a rule may name a view, and all other middleware has run. A request
    that reaches no view, such as a 404, is decided on the way back. If MIDDLEWARE lists it twice, the outer one does
    the work.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            if type(self).process_view is QuotaMiddleware.process_view:  # a subclass has not replaced it
                # Django would run a sync function in a thread.
                self.process_view = self._aprocess_view  # type: ignore[method-assign, assignment]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer a request."""
        if self.is_async:
            return run_async(self._answer_flow(request))
        return run_sync(self._answer_flow(request))

    def _answer_flow(self, request: HttpRequest) -> Flow[HttpResponseBase]:
        if hasattr(request, DEFERRED):
            return cast("HttpResponseBase", (yield IOCall(self.get_response, self.get_response, request)))
        setattr(request, DEFERRED, True)
        response = yield IOCall(self.get_response, self.get_response, request)
        if hasattr(request, _ASKED):
            refused = yield from _decide_flow(request, rules_left(request))
        else:
            refused = yield from _limit_flow(request, None)
        delattr(request, DEFERRED)
        return write_headers(request, _replaced(response, refused))

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        """Decide before the view; return a response if the request is refused."""
        return None if hasattr(request, _ASKED) else run_sync(_limit_flow(request, view))

    async def _aprocess_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        return None if hasattr(request, _ASKED) else await run_async(_limit_flow(request, view))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a `QuotaExceeded` or a `StoreUnavailable` that left a view."""
        if isinstance(exception, StoreUnavailable):
            get_limiter().note_failure(exception)
            return unavailable(request)
        return refuse(request, exception.decision) if isinstance(exception, QuotaExceeded) else None


def _replaced(response: Any, refused: HttpResponse | None) -> HttpResponseBase:
    """Return the response to send. A refusal also closes the response that it replaces, such as a file."""
    if refused is None:
        return cast("HttpResponseBase", response)
    refused._resource_closers += getattr(response, "_resource_closers", ())  # type: ignore[attr-defined]  # noqa: SLF001 — close() itself says that the request is over
    return refused


def _limit_flow(request: HttpRequest, view: Callable[..., Any] | None) -> Flow[HttpResponse | None]:
    """Decide the rules of the settings and of the view; return a response if the request is refused."""
    setattr(request, _ASKED, True)
    site = site_rules(request)
    rules = site if view is None else rules_for_now(request, view, site + claim_view_rules(request, view))
    return (yield from _decide_flow(request, rules))


def _decide_flow(request: HttpRequest, rules: list[Rule]) -> Flow[HttpResponse | None]:
    """Decide rules; return a response if the request is refused."""
    if not rules:
        return None
    decision = yield from request_flow(rules, request)
    note_decided(request, rules, decision)
    return (yield from apply_flow(request, decision))
