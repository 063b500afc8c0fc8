"""Adjust: a hit takes another cost after all, where it was counted.

Redis, the memory store and the specification are driven alike, and must never differ.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.core.algorithms import Verdict
from django_quota.engine.codec import Flag, Reply
from django_quota.engine.operations import DictStates
from django_quota.engine.plans import Plan, PlanMode
from tests.support.bounds import CASES, most_in_a_window
from tests.support.bounds import GAPS as MIXED_GAPS
from tests.support.inputs import inputs
from tests.support.places import Places
from tests.support.steps import ALGORITHMS, SECOND, START, SUBJECT, driven

MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND


class One:
    """One subject under one rule in the specification, at a time that the test moves."""

    def __init__(self, its_rule: Rule, now: int = START) -> None:
        self.rule = its_rule
        self.states = DictStates()
        self.now = now

    def plan(self, cost: int) -> Plan:
        plan = Plan("quota", 100)
        plan.add(self.rule, SUBJECT, cost, "a" if self.rule.distinct else "")
        return plan

    def decide(self, plan: Plan, mode: PlanMode, now: int | None = None) -> list[Any]:
        return driven(
            lambda operation, moment: operation.run(self.states, moment), plan, mode, self.now if now is None else now
        )

    def check(self, cost: int = 1) -> Plan:
        """Take a hit; return its plan, whose `taken` can be adjusted."""
        plan = self.plan(cost)
        plan.read(self.decide(plan, "check"))
        return plan

    def adjust(self, plan: Plan, actual: int = 0, *, undone: bool = False, taken: Any = None) -> Reply:
        settled = plan.settled(plan.taken if taken is None else taken, [actual], undone=undone)
        raw = self.decide(settled, "adjust")
        return Reply.decode(raw, settled.hits)

    def charge(self, cost: int) -> None:
        """Count a hit, whether or not there is room."""
        (limit,) = self.plan(cost).operation(self.now, "check").hits[0].limits
        state, _ = limit.limit.algorithm.consume(self.states.get(limit.key), limit.parameters, cost, self.now)
        self.states.put(limit.key, state, limit.limit.algorithm.expiry(state))

    def peek(self) -> Verdict:
        """Return how the limit is."""
        plan = self.plan(0)
        return Reply.decode(self.decide(plan, "peek"), plan.hits).hits[0][0]

    @property
    def used(self) -> int:
        """How much is used, at most the capacity."""
        (limit,) = self.plan(0).limits
        return limit.parameters.capacity - self.peek().remaining


def of(algorithm: str, rate: str = "60/m", **options: Any) -> Rule:
    return Rule.make("r", rate, algorithm=algorithm, **options)


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_less_gives_the_rest_back_and_more_is_charged_even_past_the_limit(algorithm: str) -> None:
    one = One(of(algorithm))
    plan = one.check(40)
    one.adjust(plan, 10)
    assert one.used == 10
    plan = one.check(50)
    one.adjust(plan, 75)  # 85 of 60
    reply = one.adjust(one.check(0), 0)
    assert (reply.verdict, one.used) == (0, 85)
    assert not one.check(1).taken


@pytest.mark.parametrize("precision", [None, 3])
def test_a_sliding_window_gives_back_in_the_slice_of_the_moment_alone(precision: int | None) -> None:
    one = One(Rule.make("logins", "5/h", precision=precision))
    one.check()  # a failure at noon
    for _ in range(300):  # a client that sends its password with each request, all day long
        one.now += 12 * SECOND
        one.adjust(one.check())
    assert one.used == (0 if precision is None else 1)
    one.now = START + HOUR + (0 if precision is None else HOUR // 3)
    assert one.used == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_has_expired_is_not_given_back(algorithm: str) -> None:
    one = One(of(algorithm))
    plan = one.check(30)
    one.now += MINUTE + (MINUTE - one.now % MINUTE)
    one.check(20)
    one.adjust(plan)
    assert one.used == 20


def test_a_calendar_gives_back_within_the_same_period_alone() -> None:
    one = One(Rule.make("r", "60/d", algorithm="calendar"), now=START - START % DAY + DAY - SECOND)
    before_midnight = one.check(30)
    one.now += 2 * SECOND
    after_midnight = one.check(20)
    one.adjust(before_midnight)
    assert one.used == 20
    one.now += HOUR
    one.adjust(after_midnight, 5)
    assert one.used == 5


def test_a_bucket_gives_back_what_has_not_refilled_since() -> None:
    one = One(of("token_bucket"))  # a second for each unit
    plan = one.check(60)
    one.now += 50 * SECOND
    one.check(50)  # what has refilled
    one.adjust(plan)
    assert one.used == 50


def test_a_leaky_bucket_gives_back_the_last_place_alone() -> None:
    one = One(of("leaky_bucket"))
    first = one.check(10)
    one.now += 1
    second = one.check(5)
    one.adjust(first)
    assert one.used == 15
    one.adjust(second)
    assert one.used == 10


def test_a_value_is_forgotten_only_by_the_hit_that_added_it() -> None:
    one = One(Rule.make("devices", "3/m", distinct=True))
    known = one.check()
    one.now += SECOND
    again = one.check()
    one.adjust(known)
    one.adjust(again)
    assert one.used == 1
    one.states.kept.clear()
    one.adjust(one.check())
    assert one.used == 0


def test_a_limit_that_counts_refused_hits_keeps_one_that_is_undone() -> None:
    one = One(of("sliding_window", count_refused=True))
    one.adjust(one.check(10), undone=True)
    assert one.used == 10
    one.adjust(one.check(10))
    assert one.used == 10


def test_the_day_of_a_hit_counts_what_it_really_used_whenever_that_is_known() -> None:
    one = One(of("sliding_window", daily=True))
    more, less, undone, unused = one.check(3), one.check(3), one.check(3), one.check()
    (day_key,) = [key for key in one.states.kept if ":day:" in key]
    assert one.states.get(day_key) == {"r:a": 4, "r:u": 6}
    one.states.drop(day_key)  # they are moved
    one.now += DAY
    one.adjust(more, 9)
    assert one.states.get(day_key) == {"r:u": 6}
    one.adjust(less, 1)
    one.adjust(undone, undone=True)
    one.adjust(unused)
    assert one.states.get(day_key) == {"r:a": -2, "r:u": 2}
    assert one.states.expiry(day_key) == one.now + 8 * DAY


def test_only_a_check_needs_the_day_that_it_is_counted_in(places: Places) -> None:
    """What arrives after midnight is done at once: if a plan in parts were sent again, a part would be done twice."""
    midnight = (START // DAY + 1) * DAY

    def plan() -> Plan:
        plan = Plan("quota", 100)
        plan.add(Rule.make("r", "9/h", daily=True), "user:1", 3)
        return plan

    hit = plan()
    hit.read(places.run(hit.operation(midnight - 2, "check"), midnight - 2))
    settled = hit.settled(hit.taken, [1])
    sent: list[tuple[Plan, PlanMode]] = [(settled, "adjust"), (plan(), "peek"), (plan(), "refund"), (plan(), "check")]
    found = [places.run(of_mode.operation(midnight - 1, mode), midnight + 1)[:4] for of_mode, mode in sent]
    assert [(reply[1], *reply[3:]) for reply in found] == [(1, 8), (1, 8), (1, 9), (-1,)]


def test_another_rate_of_the_same_window_settles_windows_and_leaves_buckets() -> None:
    for algorithm, left in (("sliding_window", 4), ("fixed_window", 4), ("token_bucket", 20)):
        one = One(of(algorithm))
        plan = one.check(10)
        one.rule = of(algorithm, "30/m", **({"burst": 30} if algorithm == "token_bucket" else {}))
        settled = Plan("quota", asked=[(one.rule, SUBJECT, 10, "")]).settled(plan.taken, [4])
        one.decide(settled, "adjust")
        # A bucket counts time, and its units take another time by now: they would be too many.
        assert one.used == (left if algorithm != "token_bucket" else 5), algorithm


# --- near -------------------------------------------------------------------------------------------------------------


def nears(reply: Reply) -> int:
    return sum(flagged.flag == Flag.NEAR_EMITTED for flagged in reply.flags)


def test_settling_past_several_shares_tells_the_highest() -> None:
    one = One(Rule.make("r", "100/m", warn_at=(0.5, 0.8, 1)))

    def told(plan: Plan, actual: int) -> list[int]:
        return [flagged.value for flagged in one.adjust(plan, actual).flags]

    def reserved(estimate: int) -> Plan:
        plan = one.plan(estimate)
        plan.estimate()
        plan.read(one.decide(plan, "check"))
        return plan

    assert told(reserved(10), 130) == [1000]
    assert told(reserved(0), 0) == []
    held = one.states.get(one.plan(0).hits[0].status_key)
    assert held == {"w:r": f"{one.now + MINUTE} 1000"}
    one.now += MINUTE
    first = reserved(85)
    assert told(first, 85) == [800]
    one.decide(one.plan(20), "refund")  # 65: 0.5 stays told
    assert told(reserved(20), 10) == []
    assert told(reserved(20), 20) == [800]  # 95
    assert told(reserved(5), 5) == [1000]


# --- properties -------------------------------------------------------------------------------------------------------


def one_of(case: str) -> One:
    options = dict(CASES[case][0])
    return One(Rule.make("r", options.pop("rate"), **options))


@pytest.mark.parametrize("case", CASES)
@inputs(60)
@given(
    hits=st.lists(st.tuples(st.one_of(st.just(1), MIXED_GAPS), st.integers(1, 4)), max_size=8), cost=st.integers(1, 4)
)
def test_adjusting_to_0_at_once_leaves_a_limit_as_it_was(case: str, hits: list[tuple[int, int]], cost: int) -> None:
    one = one_of(case)
    for gap, units in hits:
        one.now += gap
        one.check(units)
    one.now += 1  # no two hits at one moment

    def answers() -> list[Any]:
        moments = (0, SECOND, MINUTE // 2, MINUTE)
        asked = [(units, later) for units in (1, 3, one.rule.limits[0].capacity) for later in moments]
        return [one.decide(one.plan(units), "peek", one.now + later) for units, later in asked]

    before = answers()
    plan = one.check(cost)
    if plan.taken:
        one.adjust(plan)
        assert answers() == before


@pytest.mark.parametrize("case", CASES)
@inputs(150)
@given(
    steps=st.lists(
        st.tuples(
            MIXED_GAPS,
            st.sampled_from(["check", "check", "check", "adjust", "adjust", "refund"]),
            st.integers(1, 4),
            st.integers(0, 8),
        ),
        max_size=60,
    )
)
def test_no_mix_of_checks_refunds_and_adjusts_lets_more_than_the_bound_in(case: str, steps: list[Any]) -> None:
    bound = CASES[case][1] + (3 if case == "leaky-bucket" else 0)  # there a hit leaves whole
    one = one_of(case)
    hits: list[list[int]] = []
    taken: list[tuple[Plan, list[int]]] = []
    for gap, what, cost, which in steps:
        one.now += max(gap, 1)
        if what == "adjust" and taken:
            plan, hit = taken.pop(which % len(taken))
            one.adjust(plan, which // 2)
            hit[1] = min(hit[1], which // 2)
            continue
        plan = one.plan(cost)
        raw = one.decide(plan, "check")
        plan.read(raw)
        if not plan.taken:
            continue
        hits.append([one.now + raw[4], cost])  # it leaves a leaky bucket later
        if what == "refund":
            one.decide(one.plan(cost), "refund")
            hits[-1][1] = 0
        else:
            taken.append((plan, hits[-1]))
    most = most_in_a_window((moment, cost) for moment, cost in hits)
    target(float(most), label="really used in a window")
    assert most <= bound
