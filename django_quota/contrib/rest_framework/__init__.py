"""Throttles for Django REST framework.

With `DEFAULT_THROTTLE_CLASSES = ["django_quota.contrib.rest_framework.QuotaThrottle"]`, a view that says `quota_rules =
["search"]` is limited by that configured rule. `UserRateThrottle`, `AnonRateThrottle`, `ScopedRateThrottle` and
`SimpleRateThrottle` replace those of the same name.

The framework authenticates inside the view. So on a view with one of these throttles, configured rules and rules of
`@quota` wait for the view if they need the user or the body.
"""

from __future__ import annotations

from django_quota.contrib.rest_framework import view_rules  # noqa: F401 — registers what it has
from django_quota.contrib.rest_framework.throttles import (
    AnonRateThrottle,
    QuotaThrottle,
    QuotaThrottled,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
    detail_response,
    problem_details,
    with_quota_rules,
)

__all__ = [
    "AnonRateThrottle",
    "QuotaThrottle",
    "QuotaThrottled",
    "ScopedRateThrottle",
    "SimpleRateThrottle",
    "UserRateThrottle",
    "detail_response",
    "problem_details",
    "with_quota_rules",
]
