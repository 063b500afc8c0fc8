"""Sweeps of the store of the settings, at a moment, and the keys that they meet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django_quota.core.keys import KINDS, key_of, subject_base, system_key
from django_quota.operating.sweep import ENTRIES_PER_CALL, KEYS_PER_CALL, SCAN_COUNT, SWEPT, Report, Sweeper
from django_quota.testing import freeze
from tests.support.steps import START
from tests.support.stores import redis_store

POSITION = system_key("quota", "sweep")
"""The key that remembers where a sweep was stopped."""

MOST = {"entries": ENTRIES_PER_CALL, "keys": KEYS_PER_CALL, "scanned": SCAN_COUNT}
"""What one call does at most."""


def kinds_of_keys() -> tuple[str, ...]:
    """Return how each kind of key of a subject is called."""
    return tuple(KINDS)


def is_swept(kind: str) -> bool:
    """Say whether the sweep looks into keys of a kind; `bans` is the one of no subject."""
    return kind in SWEPT


def a_key(kind: str, name: str = "x", *more: str, subject: str = "ip:203.0.113.9") -> str:
    """Return a key of a kind."""
    return key_of(subject_base("quota", subject), kind, name, *more)


def system(kind: str) -> str:
    """Return a key that belongs to no subject."""
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


def pause_after(work: Callable[[], object], budget_ms: int) -> tuple[float, list[float]]:
    """Do some work as a sweep does a call; return how long it took, and the pauses behind it."""
    waited: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return False

    sweeper = Sweeper(redis_store(), "quota", budget_ms=budget_ms)
    report = sweeper.sweep(Stop(), lambda _: None)
    waited.clear()
    sweeper._round_trip = report.slowest = 0.0
    with sweeper._paced():
        work()
    return report.slowest, waited
