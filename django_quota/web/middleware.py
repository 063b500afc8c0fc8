"""The middleware: it applies the configured rules, answers refusals, and writes the headers of every response.

The `@quota` on the outside of the view is decided in the same call. The slots of the settings are taken afterwards, and
given back when the response is finished.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.core.decisions import QuotaExceeded
from django_quota.core.errors import StoreUnavailable
from django_quota.core.flow import Flow, run_async, run_sync
from django_quota.limiting.registry import get_limiter
from django_quota.web.concurrency import Holding
from django_quota.web.headers import write_headers
from django_quota.web.limited_requests import RequestState, state_of
from django_quota.web.request_rules import log_untaken_slots, rules_after, rules_before
from django_quota.web.responses import limit_flow, refuse, unavailable
from django_quota.web.settlements import settle_flow
from django_quota.web.site_slots import take_slots_flow

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class QuotaMiddleware:
    """Applies the configured rules that have a `match`, and answers errors of the limiter that leave a view.

    A `QuotaExceeded` becomes a 429, a `StoreUnavailable` the 503 of `on_unavailable="deny"`.

    It decides after Django has found the view, so a rule may name a view, and all other middleware has run. A request
    that reaches no view, such as a 404, is decided when its response is on the way back. If MIDDLEWARE lists it twice,
    the outer one does the work.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async: bool = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            if type(self).process_view is QuotaMiddleware.process_view:  # a subclass has not replaced it
                # Django would run a sync function in a thread.
                self.process_view = self._aprocess_view  # type: ignore[method-assign, assignment]

    def __call__(self, request: HttpRequest) -> Any:
        """Answer a request. Returns a coroutine if the next middleware does."""
        state = state_of(request)
        if state.is_in_middleware:
            return self.get_response(request)
        state.is_in_middleware = True
        state.holding = holding = Holding()
        if self.is_async:
            return self._acall(request, state, holding)
        with holding:
            return holding.until_closed(run_sync(_after_view_flow(request, self.get_response(request))))

    async def _acall(self, request: HttpRequest, state: RequestState, holding: Holding) -> HttpResponseBase:
        async with holding:
            try:
                response = await self.get_response(request)
            except CancelledError as error:
                await run_async(settle_flow(request, error, state.take_unsettled()))
                raise
            return holding.until_closed(await run_async(_after_view_flow(request, response)))

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        """Decide before the view; return a response if the request is refused."""
        return run_sync(_before_view_flow(request, view))

    async def _aprocess_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        return await run_async(_before_view_flow(request, view))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a `QuotaExceeded` or a `StoreUnavailable` that left a view."""
        if isinstance(exception, StoreUnavailable):
            get_limiter().note_failure(exception)
            return unavailable(request)
        return refuse(request, exception.decision) if isinstance(exception, QuotaExceeded) else None


def _before_view_flow(request: HttpRequest, view: Callable[..., Any]) -> Flow[HttpResponse | None]:
    """Decide the rules, then take the slots; return a response if the request is refused."""
    state = state_of(request)
    if state.is_asked:
        return None
    refused = yield from limit_flow(request, rules_before(request, view), is_noted=True)
    return refused or (yield from take_slots_flow(request, view, state.holding))


def _after_view_flow(request: HttpRequest, response: Any) -> Flow[HttpResponseBase]:
    """Decide the rules that the view did not decide, settle all, and return the response to send, with its headers.

    A refusal also closes the response that it replaces, such as a file.
    """
    state = state_of(request)
    log_untaken_slots(request, response)
    refused = yield from limit_flow(request, rules_after(request, response), is_noted=True)
    if state.unsettled:
        yield from settle_flow(request, refused or response, state.take_unsettled())
    state.is_in_middleware = False
    if refused is None:
        return write_headers(request, cast("HttpResponseBase", response))
    refused._resource_closers += getattr(response, "_resource_closers", ())  # type: ignore[attr-defined]  # noqa: SLF001 — close() itself says that the request is over
    return write_headers(request, refused)
