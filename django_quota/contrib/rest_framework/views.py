"""The caller's own limits, for callers that the framework authenticates, such as those with a token.

`path("limits/", QuotaLimitsView.as_view())` answers as `django_quota.urls` does. This is a module of its own, since the
framework imports the throttles while it defines its views.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from rest_framework.views import APIView

from django_quota.adapters import limits_view


class QuotaLimitsView(APIView):
    """Answers with the limits of the caller as JSON; 503 if the store does not answer."""

    schema = None  # drf-spectacular cannot read an answer without a serializer

    def get(self, request: Any) -> HttpResponse:
        """Return the limits of the configured rules that are about the caller."""
        return limits_view(request)
