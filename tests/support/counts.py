"""What was counted in the store, and what this process knows that it has not counted there yet."""

from __future__ import annotations

from datetime import date
from typing import Any

from django_quota.services.activity import activity
from django_quota.services.flusher import flusher
from django_quota.services.usage import usage


def count_what_waits() -> bool:
    """Do a round of the thread in the background; say whether all of its work succeeded."""
    return flusher.flush()


def checks_of_today() -> dict[str | None, tuple[int, int, int]]:
    """Return how many checks each rule has allowed, refused, and would have refused, as the overview shows them."""
    return {rule.rule: (rule.allowed, rule.refused, rule.shadowed) for rule in activity().rules}


def refused_today() -> list[tuple[str | None, int]]:
    """Return who was refused how often; who was refused most comes first."""
    return [(each.subject, each.count) for each in activity().refused]


def days_of(subject: Any) -> dict[date, dict[str, tuple[int, int]]]:
    """Return how many checks of a subject each rule has allowed and refused, by day."""
    return {day: dict(rules) for day, rules in usage(subject).items()}


def checks_of(subject: Any) -> dict[str, tuple[int, int]]:
    """Return the same of the one day on which the subject was checked."""
    (rules,) = days_of(subject).values()
    return rules
