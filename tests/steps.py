"""Building blocks for tests of algorithms and stores: steps, and replies with names."""

from __future__ import annotations

from typing import Any, NamedTuple

from django_quota.algorithms import Mode, Step, decide
from django_quota.clock import SECOND
from django_quota.plans import Plan
from django_quota.rules import Rule

START = 1_763_700_000 * SECOND
"""A moment to begin at: 2025-11-21 04:40 UTC."""

ALGORITHMS = ("sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket")


class Answer(NamedTuple):
    """One limit's part of a reply."""

    ok: bool
    remaining: int
    wait: int
    reset: int


def steps_of(*rules: Rule, subject: str = "ip:203.0.113.9", cost: int = 1, now: int = START) -> list[Step]:
    """Return the steps that a plan of these rules takes."""
    plan = Plan("quota")
    for rule in rules:
        plan.add(rule, subject, cost)
    return list(plan.steps(now))


def answers(reply: list[int]) -> list[Answer]:
    """Return a reply's part for each limit."""
    return [Answer(bool(reply[i]), *reply[i + 1 : i + 4]) for i in range(2, len(reply), 4)]


class Spec:
    """One rule under the executable specification, with a clock that the test moves."""

    def __init__(self, rate: str, algorithm: str = "sliding_window", **options: Any) -> None:
        self.rule = Rule.make("rule", rate, algorithm=algorithm, **options)
        self.states: dict[str, Any] = {}
        self.now = START

    def run(self, mode: Mode = "check", cost: int = 1) -> Answer:
        """Decide one hit at `now`."""
        return answers(decide(self.states, steps_of(self.rule, cost=cost, now=self.now), mode, self.now))[0]
