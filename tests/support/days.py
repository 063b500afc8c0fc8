"""Counts checks of a day in Redis, as the decision script does, and meets the roll-up at its steps."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import pytest
import redis

from django_quota.core.keys import field, subject_base
from django_quota.features import rollup
from django_quota.features.usage import DAYS_KEPT, day_key

EIGHT_DAYS = DAYS_KEPT * 86_400


def count(raw: redis.Redis, subject: str, rules: Mapping[str, tuple[int, ...]], day: date) -> str:
    """Count allowed and refused checks of each rule, and units beyond one for each allowed check; return the key."""
    key = day_key(subject_base("quota", subject), day)
    with raw.pipeline(transaction=True) as pipeline:
        for rule, counts in rules.items():
            for kind, number in zip("aru", counts, strict=False):
                if number:
                    pipeline.hincrby(key, f"{field(rule)}:{kind}", number)
        pipeline.expire(key, EIGHT_DAYS)
        pipeline.execute()
    return key


def before_rows_are_saved(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    step = rollup._save

    def met(*arguments: Any) -> None:
        monkeypatch.setattr(rollup, "_save", step)
        act()
        step(*arguments)

    monkeypatch.setattr(rollup, "_save", met)
