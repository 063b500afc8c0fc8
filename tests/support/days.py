"""Counts checks of a day in Redis, as the decision script does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import redis

from django_quota.core.keys import field, subject_base
from django_quota.services.usage import DAYS_KEPT, day_key

EIGHT_DAYS = DAYS_KEPT * 86_400


def count(raw: redis.Redis, subject: str, rules: Mapping[str, tuple[int, int]], day: date) -> str:
    """Count allowed and refused checks of each rule; return the key."""
    key = day_key(subject_base("quota", subject), day)
    seconds, microseconds = raw.time()
    with raw.pipeline(transaction=True) as pipeline:
        for rule, (allowed, refused) in rules.items():
            for kind, number in (("a", allowed), ("r", refused)):
                if number:
                    pipeline.hincrby(key, f"{field(rule)}:{kind}", number)
        pipeline.hsetnx(key, "#", seconds * 1_000_000 + microseconds)
        pipeline.expire(key, EIGHT_DAYS)
        pipeline.execute()
    return key
