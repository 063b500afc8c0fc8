"""Building blocks for tests of algorithms and stores: steps, and replies with names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django_quota.algorithms import Step
from django_quota.clock import SECOND
from django_quota.operations.base import DictStates
from django_quota.operations.decide import Decide, Mode
from django_quota.plans import Plan
from django_quota.rules import Rule
from django_quota.stores.base import Store

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


def decided(store: Store, steps: Sequence[Step], mode: Mode, now: int | None) -> list[int]:
    """Decide steps on a store; return its reply."""
    return store.run(Decide(steps, mode), now)  # type: ignore[no-any-return]


async def adecided(store: Store, steps: Sequence[Step], mode: Mode, now: int | None) -> list[int]:
    """Decide steps on a store without blocking; return its reply."""
    return await store.arun(Decide(steps, mode), now)  # type: ignore[no-any-return]


def answers(reply: list[int]) -> list[Answer]:
    """Return a reply's part for each limit."""
    return [Answer(bool(reply[i]), *reply[i + 1 : i + 4]) for i in range(2, len(reply), 4)]


class Spec:
    """One rule under the executable specification, with a clock that the test moves."""

    def __init__(self, rate: str, algorithm: str = "sliding_window", **options: Any) -> None:
        self.rule = Rule.make("rule", rate, algorithm=algorithm, **options)
        self.states = DictStates()
        self.now = START

    def run(self, mode: Mode = "check", cost: int = 1) -> Answer:
        """Decide one hit at `now`."""
        return answers(Decide(steps_of(self.rule, cost=cost, now=self.now), mode).run(self.states, self.now))[0]
