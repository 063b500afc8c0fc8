"""The middleware: turns `QuotaExceeded` into its answer, and writes the headers on every reply. It decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from django_quota.edge import LEFT_TO_MIDDLEWARE, leave, refuse
from django_quota.exceptions import QuotaExceeded


class QuotaMiddleware:
    """Answers a `QuotaExceeded` raised in any view, decorated or not."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer a request."""
        if self.is_async:
            return self.__acall__(request)
        setattr(request, LEFT_TO_MIDDLEWARE, True)
        response = self.get_response(request)
        delattr(request, LEFT_TO_MIDDLEWARE)
        return leave(request, cast("HttpResponseBase", response))

    async def __acall__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer a request without blocking the event loop."""
        setattr(request, LEFT_TO_MIDDLEWARE, True)
        response = await self.get_response(request)
        delattr(request, LEFT_TO_MIDDLEWARE)
        return leave(request, cast("HttpResponseBase", response))

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer a `QuotaExceeded` that left a view."""
        return refuse(request, exception.decision) if isinstance(exception, QuotaExceeded) else None
