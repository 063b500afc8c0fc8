"""A hit: one rule for one subject, as a store decides it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from django_quota.algorithms import Step
from django_quota.rules import Rule


class DayKey(NamedTuple):
    """Where the checks of a day are counted, and when that day begins and ends (microseconds)."""

    key: str
    begins: int
    ends: int


class Hit:
    """One rule for one subject: limits that are decided together, under whatever else stands for the subject."""

    __slots__ = ("day", "field", "group", "holds", "override", "replaced", "rule", "standing", "steps", "tally")

    def __init__(self, rule: Rule, field: str, standing: str, steps: list[Step], group: int) -> None:
        self.rule = rule
        self.field = field
        """The rule's name as fields of hashes have it."""
        self.standing = standing
        """The key of how the subject stands."""
        self.steps = steps
        self.group = group
        """0 where a refusal refuses the plan; n where it belongs to the n-th rule that decides for itself alone."""
        self.override = ""
        """The rate override that the steps are those of, as it was published; empty for the rule's own."""
        self.replaced = False
        """Whether the steps are those of an override, which fits, and not the rule's own."""
        self.tally = ""
        """The key of the refusals on the way to a ban; empty where the rule has none."""
        self.day: DayKey | None = None
        self.holds = ""
        """The key of its holds, where they are needed; else empty."""

    @property
    def cost(self) -> int:
        """What it takes of each of its limits."""
        return self.steps[0].cost

    @property
    def subject(self) -> str:
        """Who is limited."""
        return self.steps[0].subject

    @property
    def keys(self) -> list[str]:
        """Its keys, as `lua/decide.lua` lists them."""
        keys = [self.standing]
        for step in self.steps:
            keys.append(step.key)  # noqa: PERF401 — quicker for the one or two that there are
        if self.tally:
            keys.append(self.tally)
        if self.day:
            keys.append(self.day.key)
        if self.holds:
            keys.append(self.holds)
        return keys

    @property
    def head(self) -> str:
        """What `lua/decide.lua` is told of it before its limits."""
        begins, ends = self.day[1:] if self.day else (0, 0)
        return f"{self.field} {self.group} {len(self.steps)} {self.rule.wire} {begins} {ends} {bool(self.holds):d}"
