"""What this process remembers by itself, beside the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_quota.services import refusals
from django_quota.services.registry import get_limiter


def remembered_refusals() -> int:
    """Return how many refusals the process may repeat."""
    return sum(map(len, get_limiter().refusals.table.values()))


def uncounted_refusals() -> int:
    """Return how many refusals wait until their repetitions are counted in the store."""
    return len(get_limiter().refusals._uncounted)


def with_room_for_refusals(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_REFUSALS", number)


@contextmanager
def as_another_process() -> Iterator[None]:
    """Do what is in the block elsewhere: afterwards this process still remembers the refusals that it knew."""
    mine = get_limiter().refusals
    known, size = {subject: dict(rules) for subject, rules in mine.table.items()}, mine._size
    ends = [(refusal, refusal.ends) for rules in known.values() for refusal in rules.values()]
    yield
    mine.table.update(known)
    mine._size = size
    for refusal, end in ends:
        refusal.ends = end
