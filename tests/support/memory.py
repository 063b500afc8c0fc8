"""What this process remembers by itself, beside the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_quota.services import counters, refusals, registry, site_rules
from django_quota.services.limiter import Limiter
from django_quota.services.registry import get_limiter
from django_quota.services.workers import Workers
from tests.support.steps import START
from tests.support.stores import current_store


def remembered_refusals() -> int:
    """Return how many refusals the process may repeat."""
    return sum(map(len, get_limiter().refusals.table.values()))


def uncounted_refusals() -> int:
    """Return how many refusals wait until their repetitions are counted in the store."""
    return len(get_limiter().refusals._uncounted)


def metrics_that_wait() -> tuple[int, int]:
    """Return how many counts of rules wait to be sent, and of refused subjects."""
    metrics = get_limiter().metrics
    assert metrics is not None
    return len(metrics._counts), len(metrics._refused)


def with_room_for_refusals(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_SUBJECTS", number)


def with_room_for_uncounted(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_UNCOUNTED", number)


@contextmanager
def as_another_process() -> Iterator[None]:
    """Do what is in the block elsewhere: afterwards this process still remembers the refusals that it knew."""
    mine = get_limiter().refusals
    known = {subject: dict(rules) for subject, rules in mine.table.items()}
    yield
    mine.table.update(known)


def another_process_is_alive() -> None:
    """Have one more process say in the store that it serves requests, at the time that is set."""
    Workers(current_store()).flush()


def know_of_processes(number: int) -> None:
    """Have this process know how many share the limits."""
    workers = get_limiter().workers
    assert workers is not None
    workers.number = number


def make_the_limiter_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another thread make the limiter of the settings while this one is about to."""
    make = registry._make_limiter

    def slow() -> Limiter:
        made = make()
        monkeypatch.setattr(registry, "_make_limiter", make)
        get_limiter()
        return made

    monkeypatch.setattr(registry, "_make_limiter", slow)
    get_limiter()


def with_our_clock_off(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process believe that the clock of the store is off its own by so many microseconds."""
    monkeypatch.setattr(counters, "_skew", by)


def with_a_store_whose_clock_runs(by: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Set the store's clock on by so many microseconds at each call; return what notes the calls."""
    store, calls = current_store(), list[int]()
    run = store.run

    def later(operation: Any, now: int | None = None) -> Any:
        calls.append(1)
        return run(operation, START + len(calls) * by)

    monkeypatch.setattr(store, "run", later)
    return calls


def with_room_for_paths(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_rules, "MAX_KNOWN", number)


def remembered_paths() -> list[str]:
    """Return the paths whose rules the process has found before."""
    assert site_rules._index is not None
    return [path for path, _ in site_rules._index[1]._known]
