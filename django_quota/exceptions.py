"""All errors of the package, to import from one place. `except QuotaError` catches all of them."""

from __future__ import annotations

from django_quota.core.decisions import QuotaExceeded
from django_quota.core.errors import (
    ConfigurationError,
    CounterError,
    LeaseLost,
    QuotaError,
    RateError,
    RuleError,
    StoreUnavailable,
)

__all__ = [
    "ConfigurationError",
    "CounterError",
    "LeaseLost",
    "QuotaError",
    "QuotaExceeded",
    "RateError",
    "RuleError",
    "StoreUnavailable",
]
