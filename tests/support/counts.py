"""What was counted in the store, and what this process knows that it has not counted there yet."""

from datetime import date
from typing import Any

from django_quota.features.usage import recent_usage
from django_quota.limiting.flusher import flusher
from django_quota.operating.activity import RuleActivity, activity


def count_what_waits() -> bool:
    """Do a round of the thread in the background; say whether all of its work succeeded."""
    return flusher.flush()


def checks_of_today() -> dict[str | None, tuple[int, int, int]]:
    """Return how many checks each rule has allowed, refused, and would have refused, as the overview shows them."""
    return {rule.rule: (rule.allowed, rule.refused, rule.shadowed) for rule in activity().rules}


def checks_by_minute(rule: str) -> list[tuple[int, int]]:
    return [(minute.allowed, minute.refused) for minute in _activity_of(rule).minutes]


def checks_a_minute(rule: str) -> float:
    return _activity_of(rule).rate


def _activity_of(rule: str) -> RuleActivity:
    return next(each for each in activity().rules if each.rule == rule)


def refused_today() -> list[tuple[str | None, int]]:
    """Return who was refused how often; who was refused most comes first."""
    return [(each.subject, each.count) for each in activity().refused]


def days_of(subject: Any) -> dict[date, dict[str, tuple[int, int]]]:
    """Return how many checks of a subject each rule has allowed and refused, by day."""
    return {
        day: {rule: (count.allowed, count.refused) for rule, count in rules.items()}
        for day, rules in recent_usage(subject).items()
    }


def units_of(subject: Any) -> dict[str, int]:
    (rules,) = recent_usage(subject).values()
    return {rule: count.units for rule, count in rules.items()}


def checks_of(subject: Any) -> dict[str, tuple[int, int]]:
    (rules,) = days_of(subject).values()
    return rules
