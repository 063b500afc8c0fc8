"""For django-allauth: its pages answer a refused login with 429, and a new password set by mail unlocks its user.

The limits are those of `LoginQuotaBackend`, which must be in AUTHENTICATION_BACKENDS.
"""

from __future__ import annotations

import logging
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.signals import password_reset
from allauth.core.exceptions import ImmediateHttpResponse
from django.contrib.auth import get_backends
from django.dispatch import receiver
from django.http import HttpRequest

from django_quota.adapters import attach_decision, client_ip, refusal_response
from django_quota.contrib.auth import LoginQuotaBackend, unlock
from django_quota.exceptions import QuotaExceeded, StoreUnavailable

logger = logging.getLogger("django_quota.logins")


class LoginQuotaAdapter(DefaultAccountAdapter):
    """The adapter to name in ACCOUNT_ADAPTER, or a base of your own.

    It turns off allauth's own limit `login_failed`, with which anybody can lock out another user. Refusals become 429
    with or without `QuotaMiddleware`.
    """

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Do nothing: the backend limits, and knows how the login ends."""

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Any:
        """Authenticate; raise `ImmediateHttpResponse` with the 429 if a limit is reached."""
        try:
            return super().authenticate(request, **credentials)
        except QuotaExceeded as exceeded:
            raise ImmediateHttpResponse(
                refusal_response(request, attach_decision(request, exceeded.decision))
            ) from exceeded


@receiver(password_reset)
def _unlock_after_reset(request: HttpRequest, user: Any, **_: Any) -> None:
    """Forget the failed logins of a user who has set a new password by mail, from the address that set it."""
    names = set(user.emailaddress_set.values_list("email", flat=True))
    for backend in get_backends():
        names.update(backend.user_names(vars(user)) if isinstance(backend, LoginQuotaBackend) else ())
    try:
        for name in names:
            unlock(name, client_ip(request))
    except StoreUnavailable as error:  # the new password is saved, so the page must not fail
        logger.warning("The failed logins of user %s stay counted after a password reset: %s", user.pk, error)
