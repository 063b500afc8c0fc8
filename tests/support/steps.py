"""Building blocks for tests of algorithms and stores: steps, and replies with names."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django_quota import Rule
from django_quota.engine.codec import PER_LIMIT, RETRY_WITH, Mode, Reply
from django_quota.engine.decide import Decide
from django_quota.engine.hits import Hit
from django_quota.engine.operations import DictStates, Operation
from django_quota.engine.plans import Plan, PlanMode
from django_quota.stores.base import Store

SECOND = 1_000_000  # in microseconds, the unit of all times

MINUTE = 60 * SECOND

START = 1_763_700_000 * SECOND  # a moment to begin at: 2025-11-21 04:40 UTC

ALGORITHMS = ("sliding_window", "fixed_window", "calendar", "token_bucket", "leaky_bucket")


class Clock:
    """A monotonic clock, in seconds, that stands still until a test sets `now`."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Answer(NamedTuple):
    allowed: bool
    remaining: int
    retry_after: int
    reset: int
    more: int


SUBJECT = "ip:203.0.113.9"


def hits_of(*rules: Rule, subject: str = SUBJECT, cost: int = 1, now: int = START, value: str = "") -> list[Hit]:
    plan = Plan("quota")
    for rule in rules:
        plan.add(rule, subject, cost, value)
    return list(plan.operation(now, "check").hits)


def decided(store: Store, hits: Sequence[Hit], mode: Mode, now: int | None) -> list[int]:
    """Decide hits on a store; return its reply."""
    return store.run(Decide(hits, mode), now)  # type: ignore[no-any-return]


def driven(
    run: Callable[[Operation, int], Any], plan: Plan, mode: PlanMode, now: int, guess: int | None = None
) -> list[Any]:
    """Ask a store until the plan has the edges that fit the time, as the limiter does; return its last reply."""
    reply = run(plan.operation(now if guess is None else guess, mode), now)
    while reply[1] == RETRY_WITH:
        reply = run(plan.operation(reply[0], mode), now)
    return reply  # type: ignore[no-any-return]


def answers(reply: Sequence[Any]) -> list[Answer]:
    """Return a reply's part for each limit; there must be no notes behind them."""
    assert len(reply) % PER_LIMIT == 2
    return [Answer(bool(reply[i]), *reply[i + 1 : i + PER_LIMIT]) for i in range(2, len(reply), PER_LIMIT)]


class Spec:
    """One subject under one rule in the executable specification, at a time that the test moves."""

    def __init__(self, rate: str | Rule = "60/m", algorithm: str = "sliding_window", **options: Any) -> None:
        self.rule = rate if isinstance(rate, Rule) else Rule.make("r", rate, algorithm=algorithm, **options)
        self.states = DictStates()
        self.now = START

    def plan(self, cost: int = 1, value: str = "a") -> Plan:
        asked = (min(cost, 1), value) if self.rule.distinct else (cost, "")
        return Plan("quota", 100, asked=[(self.rule, SUBJECT, *asked)])

    def decide(self, plan: Plan, mode: PlanMode, later: int = 0) -> list[Any]:
        return driven(lambda operation, now: operation.run(self.states, now), plan, mode, self.now + later)

    def run(self, mode: PlanMode = "check", cost: int = 1) -> Answer:
        return answers(self.decide(self.plan(cost), mode)[: 2 + PER_LIMIT])[0]

    def check(self, cost: int = 1, *, is_estimate: bool = False) -> Plan:
        """Take a hit; return its plan, whose `taken` can be adjusted."""
        plan = self.plan(cost)
        if is_estimate:
            plan.estimate()
        plan.read(self.decide(plan, "check"))
        return plan

    def adjust(self, plan: Plan, actual: int = 0, *, undone: bool = False) -> Reply:
        settled = plan.settled(plan.taken, [actual], undone=undone)
        return Reply.decode(self.decide(settled, "adjust"), settled.hits)

    @property
    def used(self) -> int:
        """The units that count, which may be more than the limit."""
        plan = self.plan(0)
        (peeked,) = Reply.decode(self.decide(plan, "peek"), plan.hits).hits[0]
        return next(iter(plan.limits)).parameters.capacity - peeked.remaining
