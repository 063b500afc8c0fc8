"""Restoring holds, in any order and at any time, never mints; no place in a leaky bucket is taken twice.

On the executable specification; the state machine holds the scripts to it. What a bucket should hold is worked out here
from the hits alone, by other means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.engine.codec import PER_LIMIT, HoldId, Mode, Reservation, Settle
from django_quota.engine.operations import DictStates
from django_quota.engine.plans import Plan
from tests.support.bounds import MINUTE, most_in_a_window
from tests.support.inputs import inputs
from tests.support.steps import SECOND, START, Answer, answers, driven, include_holds
from tests.support.stores import forget_forms

SUBJECT = "ip:203.0.113.9"
DAY = 86_400 * SECOND


@dataclass
class Hit:
    """What was admitted."""

    at: int
    cost: int
    actual: int
    """What it comes to, in the end."""
    leaves: int
    name: HoldId | None = None
    """The name of its hold; None for a check."""
    abandoned: bool = False


@dataclass
class Bench:
    """One bucket, and what has been admitted to it."""

    rule: Rule
    states: DictStates = field(default_factory=DictStates)
    now: int = START
    hits: list[Hit] = field(default_factory=list)
    open: list[Hit] = field(default_factory=list)

    def __post_init__(self) -> None:
        forget_forms()

    def ask(self, mode: Mode, cost: int, reservation: Reservation | None = None) -> Answer:
        self.states.kept = {key: kept for key, kept in self.states.kept.items() if kept[1] > self.now}
        plan = Plan("quota")
        plan.add(self.rule, SUBJECT, cost)
        if isinstance(mode, Settle):
            include_holds(plan)
        if reservation is not None:
            plan.reserve(reservation)
        reply = driven(lambda operation, now: operation.run(self.states, now), plan, mode, self.now)
        return answers(reply[: 2 + PER_LIMIT])[0]

    def check(self, cost: int) -> Hit | None:
        return self._admitted(self.ask("check", cost), cost, cost)

    def reserve(self, cost: int, actual: int, ttl: int = DAY, *, abandoned: bool = False) -> Hit | None:
        token = f"t{len(self.hits)}"
        hit = self._admitted(self.ask("check", cost, Reservation(token, ttl)), cost, actual)
        if hit:
            hit.name, hit.abandoned = HoldId(self.now + ttl, token), abandoned
            if not abandoned:
                self.open.append(hit)
        return hit

    def _admitted(self, answer: Answer, cost: int, actual: int) -> Hit | None:
        if not answer.allowed or not cost:
            return None
        self.hits.append(Hit(self.now, cost, actual, self.now + answer.retry_after))
        return self.hits[-1]

    def settle(self, number: int) -> Hit | None:
        if not self.open:
            return None
        hit = self.open.pop(number % len(self.open))
        assert hit.name is not None
        self.ask(Settle.of([hit.name], [hit.actual]), hit.cost)
        return hit

    def refund(self, cost: int) -> None:
        self.ask("refund", cost)

    @property
    def backlog(self) -> int:
        """How long it takes until the bucket is full again."""
        return self.ask("peek", 1).reset


@dataclass
class Ideal:
    """A bucket that is asked from the first for what is really used."""

    interval: int
    full_at: int = 0

    def move(self, units: int, now: int) -> None:
        self.full_at = max(now, max(now, self.full_at) + units * self.interval)

    def backlog(self, now: int) -> int:
        return max(0, self.full_at - now)


GAPS = st.one_of(st.just(0), st.integers(0, 20 * SECOND), st.sampled_from([MINUTE // 7, MINUTE // 20, MINUTE]))
ACTS = st.lists(
    st.tuples(
        GAPS,
        st.sampled_from(["check", "reserve", "reserve", "abandon", "settle", "settle", "settle", "refund"]),
        st.integers(1, 20),
        st.integers(0, 24),
    ),
    max_size=40,
)
CASES: dict[str, dict[str, Any]] = {
    "even": {"rate": "60/m", "burst": 60},
    "burst": {"rate": "7/m", "burst": 60},
    "small": {"rate": "7/m"},
    "slow": {"rate": "60/d", "burst": 60},
}


def bench_of(case: str) -> tuple[Bench, Ideal]:
    options = dict(CASES[case])
    rule = Rule.make("rule", options.pop("rate"), algorithm="token_bucket", **options)
    return Bench(rule), Ideal(rule.limits[0].timeless_parameters.a)  # type: ignore[union-attr]


def play(bench: Bench, ideal: Ideal, act: tuple[int, str, int, int]) -> None:
    gap, what, cost, number = act
    bench.now += gap
    hit = None
    if what == "check":
        hit = bench.check(cost)
    elif what == "reserve":
        hit = bench.reserve(cost, number)
    elif what == "abandon":
        hit = bench.reserve(cost, 0, number * SECOND + 1, abandoned=True)
    elif what == "refund":
        bench.refund(cost)
        ideal.move(-cost, bench.now)
    else:
        settled = bench.settle(number)
        if settled and settled.actual > settled.cost:  # nobody knew that before
            ideal.move(settled.actual - settled.cost, bench.now)
    if hit:
        ideal.move(min(hit.cost, hit.actual), bench.now)


@pytest.mark.parametrize("case", CASES)
@inputs(500)
@given(acts=ACTS)
@example(  # the second moves up, and has flowed back when it is cancelled
    acts=[(0, "reserve", 20, 0), (0, "reserve", 20, 0), (0, "settle", 1, 0), (25 * SECOND, "check", 20, 0),
          (5 * SECOND, "settle", 1, 0)],
)  # fmt: skip
@example(  # a refund has left nothing of the hold, nor of the bucket; then somebody comes
    acts=[(0, "reserve", 20, 0), (0, "refund", 20, 0), (0, "check", 10, 0), (0, "settle", 1, 0)]
)
@example(  # a hit has nearly flowed back when all of it is refunded: the rest was the hold's
    acts=[(0, "check", 10, 0), (9 * SECOND, "reserve", 5, 0), (0, "refund", 10, 0), (0, "check", 5, 0),
          (0, "settle", 1, 0)],
)  # fmt: skip
def test_no_more_is_left_than_if_each_hold_had_asked_for_what_it_used(
    case: str, acts: list[tuple[int, str, int, int]]
) -> None:
    bench, ideal = bench_of(case)
    for act in acts:
        play(bench, ideal, act)
        peeked = bench.backlog
        assert peeked >= ideal.backlog(bench.now)
        bench.check(0)  # gives back what was abandoned
        assert bench.backlog == peeked
    while bench.open:
        play(bench, ideal, (0, "settle", 1, 0))
        assert bench.backlog >= ideal.backlog(bench.now)


@pytest.mark.parametrize("case", ["even", "burst", "small"])
@inputs(300)
@given(acts=ACTS)
def test_what_is_really_used_keeps_to_the_bound(case: str, acts: list[tuple[int, str, int, int]]) -> None:
    """A refund is of a hit of the same moment here: of one that was longer ago nobody knows what has flowed back."""
    bench, ideal = bench_of(case)
    limit = bench.rule.limits[0]
    for gap, what, cost, number in acts:
        if what != "refund":
            play(bench, ideal, (gap, what, cost, min(number, cost) if what == "reserve" else number))
        elif bench.check(cost):
            bench.refund(cost)
            bench.hits.pop()
    kept = [(hit.at, hit.actual) for hit in bench.hits if hit not in bench.open]
    kept += [(hit.at, hit.cost) for hit in bench.open]
    assert most_in_a_window(kept) <= limit.capacity + limit.rate.count


@pytest.mark.parametrize("case", CASES)
@given(acts=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20), st.booleans()), max_size=20), data=st.data())
def test_within_the_moment_all_that_was_too_much_comes_back_in_any_order(
    case: str, acts: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    bench, ideal = bench_of(case)
    for cost, actual, is_check in acts:
        play(bench, ideal, (0, "check" if is_check else "reserve", cost, min(cost, actual)))
    while bench.open:
        bench.settle(data.draw(st.integers(0, 20)))
    assert bench.backlog == ideal.backlog(bench.now)


@pytest.mark.parametrize("case", CASES)
@inputs(300)
@given(acts=ACTS)
def test_reservations_settled_in_order_return_all_that_has_not_refilled(
    case: str, acts: list[tuple[int, str, int, int]]
) -> None:
    """A queue of jobs says how much that is: time takes from the first, settling from its own."""
    bench, ideal = bench_of(case)
    queue: list[list[int]] = []
    mine: dict[int, list[int]] = {}
    for gap, what, cost, number in acts:
        for _ in range(2):  # half of the time passes before, half after
            bench.now += gap // 2
            flown = gap // 2
            while queue and flown:
                taken = min(flown, queue[0][0])
                queue[0][0] -= taken
                flown -= taken
                if not queue[0][0]:
                    queue.pop(0)
        hit = bench.check(cost) if what == "check" else None
        if what == "reserve":
            hit = bench.reserve(cost, min(cost, number))
        elif what == "settle" and (settled := bench.settle(0)):
            job = mine[id(settled)]
            job[0] -= min(job[0], (settled.cost - settled.actual) * ideal.interval)
        if hit:
            mine[id(hit)] = [hit.cost * ideal.interval]
            queue.append(mine[id(hit)])
        assert bench.backlog == sum(job[0] for job in queue)


LEAKY = st.lists(
    st.tuples(
        st.one_of(st.just(0), st.integers(0, 9 * SECOND), st.sampled_from([MINUTE // 7, MINUTE])),
        st.sampled_from(["check", "reserve", "reserve", "abandon", "settle", "settle", "refund"]),
        st.integers(1, 3),
        st.integers(0, 4),
    ),
    max_size=40,
)


@inputs(800)
@given(acts=LEAKY)
@example(acts=[(0, "reserve", 1, 0), (0, "check", 1, 0), (0, "settle", 0, 0), (0, "check", 1, 0)])
@example(acts=[(0, "check", 1, 0), (0, "check", 1, 0), (0, "refund", 1, 0), (0, "check", 1, 0)])
def test_no_two_leave_a_leaky_bucket_at_once_whatever_is_given_back(acts: list[tuple[int, str, int, int]]) -> None:
    bench = Bench(Rule.make("rule", "7/m", algorithm="leaky_bucket"))
    interval = -(-MINUTE // 7)
    ideal = Ideal(interval)
    for act in acts:
        play(bench, ideal, act)
    leaves_at = 0
    for hit in bench.hits:
        units = hit.cost if hit in bench.open else min(hit.cost, hit.actual)
        if units:  # what was cancelled never left
            assert hit.leaves >= leaves_at
            leaves_at = hit.leaves + units * interval
