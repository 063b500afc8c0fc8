"""For django-allauth: its pages answer a refused login with 429.

The limits are those of `LoginQuotaBackend`, which must be in AUTHENTICATION_BACKENDS.
"""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from django.http import HttpRequest

from django_quota import QuotaExceeded
from django_quota.adapters import apply_decision, refusal


class LoginQuotaAdapter(DefaultAccountAdapter):
    """The adapter to name in ACCOUNT_ADAPTER, or a base of your own.

    It turns off allauth's own limit `login_failed`, by which anybody can lock somebody out. Refusals become 429 with or
    without `QuotaMiddleware`.
    """

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Do nothing: the backend limits, and knows how the login ends."""

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Any:
        """Authenticate; raise `ImmediateHttpResponse` with the 429 if a limit is reached."""
        try:
            return super().authenticate(request, **credentials)
        except QuotaExceeded as exceeded:
            raise ImmediateHttpResponse(refusal(request, apply_decision(request, exceeded.decision))) from exceeded
