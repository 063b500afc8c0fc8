"""A plan: the limits that one hit asks for, with subjects and costs. It must not know how a store decides.

One plan is one script call. The reply is read into a Decision here, so that every store and every driver does it alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_quota.algorithms import Step
from django_quota.decisions import Decision, outcomes_of
from django_quota.keys import state_key, subject_base
from django_quota.operations.decide import STALE
from django_quota.rules import Rule, shared_count


class Plan:
    """The limits of one hit, in order. A limit that is added twice counts once."""

    __slots__ = ("_base", "_groups", "_prefix", "_steps", "_subject", "costs", "rules", "subjects", "timeless")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._subject = self._base = ""
        self._groups = 0
        self._steps: dict[str, Step] = {}
        self.rules: list[Rule] = []
        self.subjects: list[str] = []
        self.costs: list[int] = []
        self.timeless = True
        """Whether the steps are the same at any time: there is no calendar limit in it."""

    def add(self, rule: Rule, subject: str, cost: int) -> None:
        """Ask all limits of a rule for a subject; `cost` is what the hit takes of each."""
        self.rules.append(rule)
        self.subjects.append(subject)
        self.costs.append(cost)
        group = 0
        if rule.shadow or not rule.block:
            self._groups += 1
            group = self._groups
        if subject != self._subject:
            self._subject, self._base = subject, subject_base(self._prefix, subject)
        for limit in rule.limits:
            key = state_key(self._base, limit)
            twin = self._steps.get(key)
            if twin is None:
                self._steps[key] = Step.of(key, limit, subject, cost, group, rule.shadow, 0)
                self.timeless = self.timeless and limit.fixed is not None
            elif (twin.limit, twin.cost, twin.shadow, twin.group > 0) != (limit, cost, rule.shadow, group > 0):
                raise shared_count(limit, twin.limit)

    @property
    def keys(self) -> list[str]:
        """The keys of all its limits."""
        return list(self._steps)

    def __len__(self) -> int:
        return len(self._steps)

    def steps(self, now: int) -> Sequence[Step]:
        """Return the plan as a store decides it; `now` (microseconds) is a guess, which only calendar limits need."""
        if self.timeless:
            return list(self._steps.values())
        return [step.aimed(now) for step in self._steps.values()]

    def read(self, reply: Sequence[int], *, degraded: bool = False) -> Decision | None:
        """Return the decision that a store's reply amounts to; None where the guess of `now` was off."""
        if reply[1] == STALE:
            return None
        return Decision.of(outcomes_of(reply, list(self._steps.values())), degraded=degraded)

    def unlimited(self, *, degraded: bool = False) -> Decision:
        """Return the decision where there is nothing to ask, or nobody to ask it."""
        if not self.rules:
            return Decision(allowed=True, rule="", subject="", degraded=degraded)
        return Decision(allowed=True, rule=self.rules[0].name, subject=self.subjects[0], degraded=degraded)

    def denied(self, rule: Rule) -> Decision:
        """Return the refusal of a rule that lets nobody in while the store does not answer."""
        subject = self.subjects[self.rules.index(rule)]
        return Decision(allowed=False, rule=rule.name, subject=subject, degraded=True, blocked=rule.block)

    def only(self, rules: Sequence[Rule]) -> Plan:
        """Return the plan with no other rules than these."""
        plan = Plan(self._prefix)
        for rule, subject, cost in zip(self.rules, self.subjects, self.costs, strict=True):
            if rule in rules:
                plan.add(rule, subject, cost)
        return plan
