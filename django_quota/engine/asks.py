"""What a request or a call asks for: who is limited by which rule, and for how much."""

from __future__ import annotations

from typing import NamedTuple

from django_quota.core.takes import Asked


class Place(NamedTuple):
    """Where a hit counts: asks of one place are one hit."""

    rule: str
    """The name of the rule."""
    subject: str


class Ask(NamedTuple):
    """One rule for one subject, or units of a counter."""

    rule: Asked
    subject: str
    cost: int
    """Units, from 0 up; 0 only asks whether there is room."""
    value: str = ""
    """The digest of the value that a rule with `distinct=` counts; empty for other rules."""
    is_estimate: bool = False
    """Whether the cost is an estimate, which is settled later. Until then it emits "near" only if it is refused."""

    @property
    def place(self) -> Place:
        """Where the hit counts."""
        return Place(self.rule.name, self.subject)


def counts_day(rule: Asked, subject: str) -> bool:
    """Return whether the hits of a subject are counted by day: those of users, unless the rule's `daily` decides."""
    return subject.startswith("user:") and "+" not in subject if rule.daily is None else rule.daily
