"""All errors of the package, to import from one place. `except QuotaError` catches all of them."""

from __future__ import annotations

from django_quota.core.decisions import QuotaExceeded
from django_quota.core.errors import (
    AlgorithmError,
    ConfigurationError,
    CounterError,
    LeaseLost,
    QuotaError,
    RateError,
    RuleError,
    StoreCommandDenied,
    StoreDataError,
    StoreFull,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
    SubjectKeyError,
)

__all__ = [
    "AlgorithmError",
    "ConfigurationError",
    "CounterError",
    "LeaseLost",
    "QuotaError",
    "QuotaExceeded",
    "RateError",
    "RuleError",
    "StoreCommandDenied",
    "StoreDataError",
    "StoreFull",
    "StoreOutOfMemory",
    "StorePermissionDenied",
    "StoreRefusesWrites",
    "StoreUnavailable",
    "SubjectKeyError",
]
