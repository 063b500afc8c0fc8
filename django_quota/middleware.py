"""The middleware: applies the rules of the settings, answers `QuotaExceeded`, and writes the headers on every reply.

What a request's view has in `@quota` is decided in the same call. It decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.edge import LEFT_TO_MIDDLEWARE, enter, leave, refuse
from django_quota.exceptions import QuotaExceeded
from django_quota.joining import take_rules
from django_quota.limiter import adecide_request, decide_request
from django_quota.rules import Rule
from django_quota.site_rules import site_rules

_ASKED = "_django_quota_asked"
"""The mark of a request that the rules of the settings have been asked for."""

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class QuotaMiddleware:
    """Applies the rules of the settings that have a `match`, and answers a `QuotaExceeded` of any view.

    It decides when the view is known: so rules may name views, and all other middleware has had its turn. What reaches
    no view (a 404, another middleware's answer) is decided on the way back.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        self.process_view: Callable[[HttpRequest, Callable[..., Any], Args, Kwargs], Any] = self._before_view
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self._abefore_view  # Django runs a plain function in a thread of its own

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer a request."""
        if self.is_async:
            return self.__acall__(request)
        setattr(request, LEFT_TO_MIDDLEWARE, True)
        response = self.get_response(request)
        if rules := _rules_of_the_site(request):
            response = enter(request, decide_request(rules, request)) or response
        delattr(request, LEFT_TO_MIDDLEWARE)
        return leave(request, cast("HttpResponseBase", response))

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request without blocking the event loop."""
        setattr(request, LEFT_TO_MIDDLEWARE, True)
        response = await self.get_response(request)
        if rules := _rules_of_the_site(request):
            response = enter(request, await adecide_request(rules, request)) or response
        delattr(request, LEFT_TO_MIDDLEWARE)
        return leave(request, cast("HttpResponseBase", response))

    def _before_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        rules = _rules_of_the_site(request) + take_rules(request, view)
        return enter(request, decide_request(rules, request)) if rules else None

    async def _abefore_view(
        self, request: HttpRequest, view: Callable[..., Any], _args: Args, _kwargs: Kwargs
    ) -> HttpResponse | None:
        rules = _rules_of_the_site(request) + take_rules(request, view)
        return enter(request, await adecide_request(rules, request)) if rules else None

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a `QuotaExceeded` that left a view."""
        return refuse(request, exception.decision) if isinstance(exception, QuotaExceeded) else None


def _rules_of_the_site(request: HttpRequest) -> list[Rule]:
    """Return the rules of the settings that hold for a request, once."""
    if getattr(request, _ASKED, False):
        return []
    setattr(request, _ASKED, True)
    return site_rules(request)
