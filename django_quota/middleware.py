"""The middleware: applies the rules of the settings, answers what a view lets through, writes headers on every reply.

What a request's view has in `@quota` is decided in the same call. It decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.decisions import Decision
from django_quota.edge import LEFT_TO_MIDDLEWARE, aenter, enter, leave, refuse, unavailable
from django_quota.exceptions import QuotaExceeded, StoreUnavailable
from django_quota.joining import take_rules
from django_quota.limiter import note_failure
from django_quota.planning import APPLIED
from django_quota.request_decisions import adecide_request, decide_request
from django_quota.rules import Rule
from django_quota.site_rules import site_rules

_ASKED = "_django_quota_asked"
"""The mark of a request that the rules of the settings have been asked for."""

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class QuotaMiddleware:
    """Applies the rules of the settings that have a `match`, and answers what any view lets through.

    A `QuotaExceeded` becomes a 429, a `StoreUnavailable` the 503 of `on_unavailable="deny"`.

    It decides when the view is known: so rules may name views, and all other middleware has had its turn. What reaches
    no view (a 404, another middleware's answer) is decided on the way back. Of two in one list, the outer does it all.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            if type(self).process_view is QuotaMiddleware.process_view:  # no project's own
                # Django runs a plain function in a thread of its own.
                self.process_view = self._aprocess_view  # type: ignore[method-assign, assignment]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer a request."""
        if self.is_async:
            return self.__acall__(request)
        if hasattr(request, LEFT_TO_MIDDLEWARE):
            return cast("HttpResponseBase", self.get_response(request))
        setattr(request, LEFT_TO_MIDDLEWARE, True)
        response = self.get_response(request)
        if rules := _rules_of_the_site(request):
            response = _instead_of(response, enter(request, decide_request(rules, request)))
        delattr(request, LEFT_TO_MIDDLEWARE)
        return leave(request, cast("HttpResponseBase", response))

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request without blocking the event loop."""
        if hasattr(request, LEFT_TO_MIDDLEWARE):
            return cast("HttpResponseBase", await self.get_response(request))
        setattr(request, LEFT_TO_MIDDLEWARE, True)
        response = await self.get_response(request)
        if rules := _rules_of_the_site(request):
            response = _instead_of(response, await aenter(request, await adecide_request(rules, request)))
        delattr(request, LEFT_TO_MIDDLEWARE)
        return leave(request, cast("HttpResponseBase", response))

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        """Decide before the view; return the answer where the request is refused."""
        if hasattr(request, _ASKED):
            return None
        site = _rules_of_the_site(request)
        rules = site + take_rules(request, view)
        return enter(request, _noted(request, site, decide_request(rules, request))) if rules else None

    async def _aprocess_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        if hasattr(request, _ASKED):
            return None
        site = _rules_of_the_site(request)
        rules = site + take_rules(request, view)
        return await aenter(request, _noted(request, site, await adecide_request(rules, request))) if rules else None

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a `QuotaExceeded` or a `StoreUnavailable` that left a view."""
        if isinstance(exception, StoreUnavailable):
            note_failure(exception)
            return unavailable(request)
        return refuse(request, exception.decision) if isinstance(exception, QuotaExceeded) else None


def _instead_of(response: Any, refused: HttpResponse | None) -> HttpResponseBase:
    """Return what is sent; a refusal also closes what it stands in the place of, such as a file."""
    if refused is None:
        return cast("HttpResponseBase", response)
    refused._resource_closers += getattr(response, "_resource_closers", ())  # type: ignore[attr-defined]  # noqa: SLF001 — close() itself says that the request is over
    return refused


def _rules_of_the_site(request: HttpRequest) -> list[Rule]:
    """Return the rules of the settings that hold for a request, once."""
    if hasattr(request, _ASKED):
        return []
    setattr(request, _ASKED, True)
    return site_rules(request)


def _noted(request: HttpRequest, site: list[Rule], decision: Decision) -> Decision:
    """Note what was decided, so that a decorator which names one of these rules does not count it a second time."""
    if site:
        setattr(request, APPLIED, (site, decision))
    return decision
