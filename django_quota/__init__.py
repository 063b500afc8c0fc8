"""Rate limits, quotas and counters for Django on Redis: exact, atomic, one round trip.

The public names stand here; a newcomer reads on in `limiter`, then `algorithms`, then `lua/sliding_window.lua`, then
`stores/redis`, and the edges last.
"""

from __future__ import annotations

from django_quota.concurrency import concurrency
from django_quota.counters import Counter, counter
from django_quota.decisions import Decision, Outcome
from django_quota.decorators import quota
from django_quota.edge import QuotaRequest
from django_quota.exceptions import (
    ConfigurationError,
    CounterError,
    LeaseLost,
    QuotaError,
    QuotaExceeded,
    RateError,
    RuleError,
    StoreUnavailable,
)
from django_quota.leases import Lease, lock, slot
from django_quota.limiter import acheck, apeek, arefund, areset, check, peek, refund, reset
from django_quota.reservations import Hold, areserve, reserve
from django_quota.rules import Rule
from django_quota.seen import aonce, once

__all__ = [
    "ConfigurationError",
    "Counter",
    "CounterError",
    "Decision",
    "Hold",
    "Lease",
    "LeaseLost",
    "Outcome",
    "QuotaError",
    "QuotaExceeded",
    "QuotaRequest",
    "RateError",
    "Rule",
    "RuleError",
    "StoreUnavailable",
    "acheck",
    "aonce",
    "apeek",
    "arefund",
    "areserve",
    "areset",
    "check",
    "concurrency",
    "counter",
    "lock",
    "once",
    "peek",
    "quota",
    "refund",
    "reserve",
    "reset",
    "slot",
]

__version__ = "0.1.0"
