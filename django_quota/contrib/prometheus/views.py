"""The view that Prometheus reads."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from django_quota.conf import current
from django_quota.contrib.prometheus.collector import QuotaCollector

PERMISSION = "django_quota.view_overview"
"""The permission that a user without a token needs."""

registry = CollectorRegistry()
"""The metrics of django_quota alone. For one address with your own metrics, register `QuotaCollector` with yours."""
registry.register(QuotaCollector())


@login_not_required
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of django_quota to a client with the token, or to a user who may view the overview.

    The token is the setting `METRICS_TOKEN`; Prometheus sends it as `Authorization: Bearer <token>`. Raises
    `PermissionDenied` for anybody else.
    """
    if not (_has_token(request) or _has_permission(request)):
        raise PermissionDenied
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


def _has_token(request: HttpRequest) -> bool:
    token = current().metrics_token
    return bool(token) and constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {token}")


def _has_permission(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return bool(user is not None and user.is_active and user.has_perm(PERMISSION))
