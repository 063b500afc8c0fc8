"""Sweeps of the store of the settings, at a moment, and the keys that they meet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, patch

from django_quota.core.keys import KINDS, key_of, subject_base, system_key
from django_quota.operating.sweep import ENTRIES_PER_CALL, KEYS_PER_CALL, SCAN_COUNT, SWEPT, Report, Sweeper
from django_quota.testing import freeze
from tests.support.steps import START
from tests.support.stores import redis_store

POSITION = system_key("quota", "sweep")  # the key that remembers where a sweep was stopped

MOST = {"entries": ENTRIES_PER_CALL, "keys": KEYS_PER_CALL, "scanned": SCAN_COUNT}  # what one call does at most


def kinds_of_keys() -> tuple[str, ...]:
    return tuple(KINDS)


def is_swept(kind: str) -> bool:
    """Say whether the sweep looks into keys of a kind; `bans` is the one of no subject."""
    return kind in SWEPT


def a_key(kind: str, name: str = "x", *more: str, subject: str = "ip:203.0.113.9") -> str:
    return key_of(subject_base("quota", subject), kind, name, *more)


def system(kind: str) -> str:
    return system_key("quota", kind)


def swept(
    now: int = START,
    *,
    stop: threading.Event | None = None,
    advance: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> Report:
    """Sweep at a moment, without pauses; `advance` is told how many keys each page had."""
    with freeze(now):
        return Sweeper(redis_store(), "quota", budget_ms=1_000, **options).sweep(stop or threading.Event(), advance)


def pauses_after_a_call_of_a_second(budget_ms: int) -> list[float]:
    sweeper, stop = Sweeper(redis_store(), "quota", budget_ms=budget_ms), Mock()
    sweeper._stop = stop
    with patch("time.perf_counter", side_effect=[5.0, 6.0]), sweeper._paced():
        pass
    return [each.args[0] for each in stop.wait.call_args_list]
