"""Overrides in the database, and moments at which they begin and end."""

from datetime import UTC, datetime
from typing import Any

from django_quota.models import QuotaOverride

BEGIN, END = datetime(2025, 11, 1, tzinfo=UTC), datetime(2099, 1, 2, tzinfo=UTC)


def override(subject: str, rule: str = "*", mode: str = "blocked", **given: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(subject=subject, rule=rule, mode=mode, **given)
