"""Rate limits, quotas and counters for Django on Redis or your database: exact, atomic, one round trip.

These are the functions to call. The errors are in `exceptions`, the classes of what calls return in `types`. To read
the code, start with docs/architecture.md.

A name is imported when it is first used: Django imports this package to find the app, and needs nothing of it then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_quota.core.decisions import Decision
    from django_quota.core.rules import Rule
    from django_quota.features.bans import aban, aunban, ban, unban
    from django_quota.features.counters.calls import counter
    from django_quota.features.once import aonce, once
    from django_quota.features.raised_limits import araise_limit, raise_limit
    from django_quota.features.reservations.calls import areserve, areserve_all, reserve, reserve_all
    from django_quota.features.resets import areset, reset
    from django_quota.features.slots.calls import lock, slot
    from django_quota.features.usage.days import ausage, usage
    from django_quota.features.usage.lines import ausage_lines, usage_lines
    from django_quota.http.decorators import concurrency, quota
    from django_quota.http.limits import alimits_of, limits_of
    from django_quota.limiting.api import (
        Entry,
        aacquire,
        acheck,
        acheck_all,
        acquire,
        apeek,
        apeek_all,
        arefund,
        check,
        check_all,
        peek,
        peek_all,
        refund,
    )
    from django_quota.subjects.subject import Subject
else:
    _HOMES = {
        "django_quota.core.decisions": ("Decision",),
        "django_quota.core.rules": ("Rule",),
        "django_quota.features.bans": (
            "aban",
            "aunban",
            "ban",
            "unban",
        ),
        "django_quota.features.counters.calls": ("counter",),
        "django_quota.features.once": (
            "aonce",
            "once",
        ),
        "django_quota.features.raised_limits": (
            "araise_limit",
            "raise_limit",
        ),
        "django_quota.features.reservations.calls": (
            "areserve",
            "areserve_all",
            "reserve",
            "reserve_all",
        ),
        "django_quota.features.resets": (
            "areset",
            "reset",
        ),
        "django_quota.features.slots.calls": (
            "lock",
            "slot",
        ),
        "django_quota.features.usage.days": (
            "ausage",
            "usage",
        ),
        "django_quota.features.usage.lines": (
            "ausage_lines",
            "usage_lines",
        ),
        "django_quota.http.decorators": (
            "concurrency",
            "quota",
        ),
        "django_quota.http.limits": (
            "alimits_of",
            "limits_of",
        ),
        "django_quota.limiting.api": (
            "Entry",
            "aacquire",
            "acheck",
            "acheck_all",
            "acquire",
            "apeek",
            "apeek_all",
            "arefund",
            "check",
            "check_all",
            "peek",
            "peek_all",
            "refund",
        ),
        "django_quota.subjects.subject": ("Subject",),
    }
    """Where each name is defined."""

    def __getattr__(name):
        for home, names in _HOMES.items():
            if name in names:
                from importlib import import_module  # noqa: PLC0415 — most who import this package need no name

                found = globals()[name] = getattr(import_module(home), name)  # the next use finds it at once
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})


__all__ = [
    "Decision",
    "Entry",
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
    "araise_limit",
    "arefund",
    "areserve",
    "areserve_all",
    "areset",
    "aunban",
    "ausage",
    "ausage_lines",
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
    "slot",
    "unban",
    "usage",
    "usage_lines",
]

__version__ = "0.2.0"
