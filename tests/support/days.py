"""Counts checks of a day in Redis, as the decision script does, and acts at a step of a roll-up, or kills it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from typing import Any
from unittest.mock import patch

import pytest
import redis
from django.db import connection

from django_quota.core.keys import field, subject_base
from django_quota.features.usage import rollup
from django_quota.features.usage.days import DAYS_KEPT, day_key
from django_quota.stores.redis.store import RedisStore

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


class Died(BaseException):
    """The death of a process, as a test in one process has it: nothing catches it."""


def raise_died() -> None:
    raise Died


@contextmanager
def dying(step: int, die: Callable[[], object] = raise_died) -> Iterator[None]:
    """Kill a roll-up at a step: before or after a statement of the database, or a trip to Redis."""
    left = step

    def passes() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            die()

    def around(act: Any) -> Any:
        def stepped(*arguments: Any) -> Any:
            passes()
            reply = act(*arguments)
            passes()
            return reply

        return stepped

    def execute(act: Any, *arguments: Any) -> Any:
        return around(act)(*arguments)

    with patch.object(RedisStore, "try_all", around(RedisStore.try_all)), connection.execute_wrapper(execute):
        yield
