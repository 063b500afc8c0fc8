"""Rate limits, quotas and counters for Django on Redis or your database: exact, atomic, one round trip.

These are the functions to call. The errors are in `exceptions`, the classes of what calls return in `types`. To read
the code, start with docs/architecture.md.
"""

from __future__ import annotations

from django_quota.core.decisions import Decision
from django_quota.core.rules import Rule
from django_quota.features.bans import aban, aunban, ban, unban
from django_quota.features.counters import counter
from django_quota.features.leases import lock, slot
from django_quota.features.once import aonce, once
from django_quota.features.raised_limits import raise_limit
from django_quota.features.reservations import areserve, areserve_all, reserve, reserve_all
from django_quota.features.usage import usage
from django_quota.limiting.api import (
    aacquire,
    acheck,
    acheck_all,
    acquire,
    apeek,
    apeek_all,
    arefund,
    areset,
    check,
    check_all,
    peek,
    peek_all,
    refund,
    reset,
)
from django_quota.operating.reset import reset_subject
from django_quota.requests.subjects import Subject
from django_quota.web.concurrency import concurrency
from django_quota.web.decorators import quota
from django_quota.web.limits import alimits_of, limits_of

__all__ = [
    "Decision",
    "Rule",
    "Subject",
    "aacquire",
    "aban",
    "acheck",
    "acheck_all",
    "acquire",
    "alimits_of",
    "aonce",
    "apeek",
    "apeek_all",
    "arefund",
    "areserve",
    "areserve_all",
    "areset",
    "aunban",
    "ban",
    "check",
    "check_all",
    "concurrency",
    "counter",
    "limits_of",
    "lock",
    "once",
    "peek",
    "peek_all",
    "quota",
    "raise_limit",
    "refund",
    "reserve",
    "reserve_all",
    "reset",
    "reset_subject",
    "slot",
    "unban",
    "usage",
]

__version__ = "0.2.0"
