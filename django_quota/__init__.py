"""Rate limits, quotas and counters for Django on Redis: exact, atomic, one round trip.

These are the public names. To read the code, start with docs/architecture.md.
"""

from __future__ import annotations

from django_quota.core.decisions import Decision, Outcome
from django_quota.core.rules import Rule
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
from django_quota.services.api import (
    aacquire,
    acheck,
    acheck_all,
    acquire,
    apeek,
    arefund,
    areset,
    check,
    check_all,
    peek,
    refund,
    reset,
)
from django_quota.services.bans import aban, aunban, ban, unban
from django_quota.services.counters import Counter, counter
from django_quota.services.leases import Lease, lock, slot
from django_quota.services.once import aonce, once
from django_quota.services.reservations import Hold, areserve, areserve_all, reserve, reserve_all
from django_quota.services.reset import areset_subject, reset_subject
from django_quota.web.concurrency import concurrency
from django_quota.web.decorators import quota
from django_quota.web.responses import QuotaRequest

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
    "aacquire",
    "aban",
    "acheck",
    "acheck_all",
    "acquire",
    "aonce",
    "apeek",
    "arefund",
    "areserve",
    "areserve_all",
    "areset",
    "areset_subject",
    "aunban",
    "ban",
    "check",
    "check_all",
    "concurrency",
    "counter",
    "lock",
    "once",
    "peek",
    "quota",
    "refund",
    "reserve",
    "reserve_all",
    "reset",
    "reset_subject",
    "slot",
    "unban",
]

__version__ = "0.2.0"
