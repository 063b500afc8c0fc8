"""The middleware: it applies the configured rules, answers refusals, and writes the headers of every response.

The `@quota` on the outside of the view is decided in the same call. The slots of the settings are taken afterwards, and
given back when the response is finished. What this module calls is in `http/`.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

from django_quota.conf import current
from django_quota.core.decisions import QuotaExceeded
from django_quota.core.errors import ConfigurationError, StoreUnavailable
from django_quota.core.flow import run_async, run_sync
from django_quota.http.limited_requests import (
    RequestState,
    aclose_request,
    before_view_flow,
    close_flow,
    close_request,
    refuse,
    request_state,
    unavailable,
)
from django_quota.http.request_rules import rule_index
from django_quota.http.request_slots import Holding, slot_index, take_slots_flow
from django_quota.limiting.registry import get_limiter

__all__ = ["QuotaMiddleware"]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class QuotaMiddleware:
    """Applies the configured rules that have a `match`, and answers errors of the limiter that leave a view.

    A `QuotaExceeded` becomes a 429, a `StoreUnavailable` the 503 of `on_unavailable="deny"`.

    The middleware decides after Django has found the view, so a rule may name a view, and all other middleware has run.
    A request that reaches no view, such as a 404, is decided when its response is on the way back. If MIDDLEWARE lists
    it twice, the outer one does the work.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        with suppress(ConfigurationError):  # each request raises it, and a system check reports it
            settings = current()  # read at start, so that the first request does not wait for it
            rule_index(settings)
            slot_index(settings)
        self.is_async: bool = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            if type(self).process_view is QuotaMiddleware.process_view:  # a subclass has not replaced it
                # Django would run a sync function in a thread.
                self.process_view = self._aprocess_view  # type: ignore[method-assign, assignment]

    def __call__(self, request: HttpRequest) -> Any:
        """Answer a request. Returns a coroutine if the next middleware does."""
        state = request_state(request)
        if state.closer:
            return self.get_response(request)
        state.closer = "middleware"
        answer = partial(self._aanswer if self.is_async else self._answer, request, state)
        if not slot_index(current()).rules:
            return answer()
        holding = Holding()
        state.take_slots = partial(take_slots_flow, holding)
        flow = holding.while_flow(answer)
        return run_async(flow) if self.is_async else run_sync(flow)

    def _answer(self, request: HttpRequest, state: RequestState) -> Any:
        return close_request(request, state, self.get_response(request))

    async def _aanswer(self, request: HttpRequest, state: RequestState) -> Any:
        try:
            response = await self.get_response(request)
        except CancelledError as error:
            await run_async(close_flow(request, state, error))
            raise
        return await aclose_request(request, state, response)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        """Decide before the view; return a response if the request is refused."""
        return run_sync(before_view_flow(request, view))

    async def _aprocess_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        return await run_async(before_view_flow(request, view))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a `QuotaExceeded` or a `StoreUnavailable` that left a view."""
        if isinstance(exception, StoreUnavailable):
            get_limiter().note_failure(exception)
            return unavailable(request)
        return refuse(request, exception.decision) if isinstance(exception, QuotaExceeded) else None
