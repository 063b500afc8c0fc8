"""Counts checks of a day in Redis, as the decision script does, and meets the roll-up at its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import pytest
import redis

from django_quota.admin.usage_page import rule_name, subject_name
from django_quota.core.keys import field, subject_base
from django_quota.services import rollup
from django_quota.services.usage import DAYS_KEPT, day_key

EIGHT_DAYS = DAYS_KEPT * 86_400


def names_in_a_row(subject: str, rule: str) -> tuple[str, str]:
    """Return how a row of the daily counters holds these names."""
    return subject_name(subject), rule_name(rule)


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


def _once(
    monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[[], object], after: Callable[[], object]
) -> None:
    """Let something happen once, before and after a step of the roll-up."""
    step = getattr(rollup, name)

    def met(*arguments: Any) -> Any:
        monkeypatch.setattr(rollup, name, step)
        before()
        reply = step(*arguments)
        after()
        return reply

    monkeypatch.setattr(rollup, name, met)


def _nothing() -> None: ...


def before_rows_are_locked(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    _once(monkeypatch, "begin_writing", act, _nothing)


def before_rows_are_saved(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen when a roll-up has read what it will save."""
    _once(monkeypatch, "_save", act, _nothing)


def before_days_are_dropped(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    _once(monkeypatch, "run_all", act, _nothing)


def when_rows_are_saved(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen when the second batch is saved and not yet committed."""
    _once(monkeypatch, "_save", _nothing, lambda: _once(monkeypatch, "_save", _nothing, act))
