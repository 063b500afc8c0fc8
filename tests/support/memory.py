"""What this process remembers by itself, beside the store."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_quota.conf import current
from django_quota.http import request_rules
from django_quota.limiting import metrics, refusals, unasked
from django_quota.limiting.fallback import Workers
from django_quota.limiting.registry import get_limiter
from tests.support.stores import current_store


def remembered_refusals() -> int:
    return sum(map(len, get_limiter().refusals.table.values()))


def metrics_that_wait() -> tuple[int, int]:
    """Return how many counts of rules wait to be sent, and of refused subjects, with the message without an answer."""
    waiting = get_limiter().metrics
    unanswered = waiting._unanswered
    more = (0, 0) if unanswered is None else (len(unanswered.counts), len(unanswered.refused))
    return len(waiting._counts) + more[0], len(waiting._refused) + more[1]


def with_room_for_metrics(rules: int, subjects: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "FIELDS", rules)
    monkeypatch.setattr(metrics, "MAX_SUBJECTS", subjects)


def with_room_for_refusals(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_REQUESTS", number)


def with_room_for_uncounted(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unasked, "MAX_PLACES", number)


@contextmanager
def as_another_process() -> Iterator[None]:
    """Do what is in the block elsewhere: afterwards this process still remembers the refusals that it knew."""
    mine = get_limiter().refusals
    known = dict(mine.table)
    yield
    for key, refused in known.items():
        mine._put(key, refused, mine.changes)


def another_process_is_alive() -> None:
    """Have one more process say in the store that it serves requests, at the time that is set."""
    Workers(current_store()).flush()


def know_of_processes(number: int) -> None:
    workers = get_limiter().fallback.workers
    assert workers is not None
    workers.number = number


def with_room_for_paths(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_rules, "MAX_KNOWN", number)


def remembered_paths() -> list[str]:
    return [path for path, *_ in request_rules.rule_index(current())._known]
