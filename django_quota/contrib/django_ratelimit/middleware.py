"""The middleware that lets a view answer refused requests."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.http import HttpRequest
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string

from django_quota.contrib.django_ratelimit.exceptions import Ratelimited


class RatelimitMiddleware(MiddlewareMixin):
    """Answers a `Ratelimited` with the view in `RATELIMIT_VIEW`, a dotted path."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> Any:
        """Return the response of the view to a refused request."""
        if not isinstance(exception, Ratelimited):
            return None
        view: Any = import_string(cast("Any", settings).RATELIMIT_VIEW)
        return view(request, exception)
