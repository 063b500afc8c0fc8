"""Adjust: a hit takes another cost after all, where it was counted."""

from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from django_quota import Rule
from django_quota.engine.codec import Reply
from django_quota.engine.operations import DictStates
from django_quota.engine.plans import Plan, PlanMode
from tests.support.bounds import CASES, GAPS, most_in_a_window
from tests.support.inputs import inputs
from tests.support.places import Places
from tests.support.steps import ALGORITHMS, MINUTE, SECOND, START, SUBJECT, driven

HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND


class One:
    """One subject under one rule in the specification, at a time that the test moves."""

    def __init__(self, rate: str = "60/m", now: int = START, **options: Any) -> None:
        self.rule = Rule.make("r", rate, **options)
        self.states = DictStates()
        self.now = now

    def plan(self, cost: int) -> Plan:
        return Plan("quota", 100, asked=[(self.rule, SUBJECT, cost, "a" if self.rule.distinct else "")])

    def decide(self, plan: Plan, mode: PlanMode, later: int = 0) -> list[Any]:
        return driven(lambda operation, now: operation.run(self.states, now), plan, mode, self.now + later)

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
        plan = self.plan(0)
        (peeked,) = Reply.decode(self.decide(plan, "peek"), plan.hits).hits[0]
        return next(iter(plan.limits)).parameters.capacity - peeked.remaining


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_less_is_given_back_and_more_is_charged_past_the_limit_but_never_twice(algorithm: str) -> None:
    one = One(algorithm=algorithm)
    one.adjust(one.check(40), 10)
    assert one.used == 10
    one.adjust(one.check(50), 75)  # 85 of 60
    assert (one.adjust(one.check(0)).verdict, one.used) == (0, 85)
    assert not one.check(1).taken


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_has_expired_is_not_given_back(algorithm: str) -> None:
    one = One(algorithm=algorithm)
    plan = one.check(30)
    one.now += MINUTE + (MINUTE - one.now % MINUTE)
    one.check(20)
    one.adjust(plan)
    assert one.used == 20


@pytest.mark.parametrize("precision", [None, 3])
def test_a_sliding_window_gives_back_in_the_slice_of_the_moment_alone(precision: int | None) -> None:
    one = One("5/h", precision=precision)
    one.check()  # a failure at noon
    for _ in range(300):  # a client that sends its password with each request, all day long
        one.now += 12 * SECOND
        one.adjust(one.check())
    assert one.used == (0 if precision is None else 1)
    one.now = START + HOUR + (0 if precision is None else HOUR // 3)
    assert one.used == 0


@pytest.mark.parametrize(
    ("algorithm", "first", "gap", "second", "left"),
    [
        ("calendar", 30, 2 * SECOND, 20, [20, 0]),  # midnight is between them
        ("token_bucket", 60, 50 * SECOND, 50, [50, 0]),  # that many have refilled, one a second
        ("leaky_bucket", 10, 1, 5, [15, 10]),  # the last place alone
    ],
)
def test_only_what_still_counts_is_given_back(algorithm: str, first: int, gap: int, second: int, left: Any) -> None:
    rate, now = ("60/d", (START // DAY + 1) * DAY - SECOND) if algorithm == "calendar" else ("60/m", START)
    one, found = One(rate, now, algorithm=algorithm), []
    earlier = one.check(first)
    one.now += gap
    for plan in (earlier, one.check(second)):
        one.adjust(plan)
        found.append(one.used)
    assert found == left


def test_a_value_is_forgotten_only_by_the_hit_that_added_it() -> None:
    one = One("3/m", distinct=True)
    plans = [one.check()]
    one.now += SECOND
    for plan in [*plans, one.check()]:
        one.adjust(plan)
    assert one.used == 1
    one.states.kept.clear()
    one.adjust(one.check())
    assert one.used == 0


def test_a_limit_that_counts_refused_hits_keeps_one_that_is_undone_and_settles_others() -> None:
    one = One(count_refused=True)
    one.adjust(one.check(10), undone=True)
    one.adjust(one.check(10))
    assert one.used == 10


def test_the_day_of_a_hit_counts_what_it_really_used_whenever_that_is_known() -> None:
    one = One(daily=True)
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
        return Plan("quota", 100, asked=[(Rule.make("r", "9/h", daily=True), "user:1", 3, "")])

    hit = plan()
    hit.read(places.run(hit.operation(midnight - 2, "check"), midnight - 2))
    sent: list[tuple[Plan, PlanMode]] = [(plan(), "peek"), (plan(), "refund"), (plan(), "check")]
    sent.insert(0, (hit.settled(hit.taken, [1]), "adjust"))
    found = [places.run(of_mode.operation(midnight - 1, mode), midnight + 1)[:4] for of_mode, mode in sent]
    assert [(reply[1], *reply[3:]) for reply in found] == [(1, 8), (1, 8), (1, 9), (-1,)]


@pytest.mark.parametrize(
    ("algorithm", "burst", "left"), [("sliding_window", None, 4), ("fixed_window", None, 4), ("token_bucket", 30, 5)]
)
def test_another_rate_of_the_same_window_settles_windows_and_leaves_buckets(
    algorithm: str, burst: int | None, left: int
) -> None:
    """A bucket counts time, and its units take another time by now: they would be too many."""
    one = One(algorithm=algorithm)
    taken = one.check(10).taken
    one.rule = Rule.make("r", "30/m", algorithm=algorithm, burst=burst)
    one.decide(one.plan(10).settled(taken, [4]), "adjust")
    assert one.used == left


def test_settling_past_several_shares_tells_the_highest() -> None:
    one = One("100/m", warn_at=(0.5, 0.8, 1))

    def told(estimate: int, actual: int) -> list[int]:
        return [flagged.value for flagged in one.adjust(one.check(estimate, is_estimate=True), actual).flags]

    assert [told(10, 130), told(0, 0)] == [[1000], []]
    assert one.states.get(one.plan(0).hits[0].status_key) == {"w:r": f"{one.now + MINUTE} 1000"}
    one.now += MINUTE
    assert told(85, 85) == [800]
    one.decide(one.plan(20), "refund")  # 65: 0.5 stays told
    assert [told(*each) for each in ((20, 10), (20, 20), (5, 5))] == [[], [800], [1000]]


def one_of(case: str) -> One:
    return One(**CASES[case][0])


@pytest.mark.parametrize("case", CASES)
@inputs(60)
@given(hits=st.lists(st.tuples(st.just(1) | GAPS, st.integers(1, 4)), max_size=8), cost=st.integers(1, 4))
def test_adjusting_to_0_at_once_leaves_a_limit_as_it_was(case: str, hits: list[tuple[int, int]], cost: int) -> None:
    one = one_of(case)
    for gap, units in hits:
        one.now += gap
        one.check(units)
    one.now += 1  # no two hits at one moment

    def answers() -> list[Any]:
        moments = (0, SECOND, MINUTE // 2, MINUTE)
        asked = [(units, later) for units in (1, 3, one.rule.limits[0].capacity) for later in moments]
        return [one.decide(one.plan(units), "peek", later) for units, later in asked]

    before = answers()
    plan = one.check(cost)
    if plan.taken:
        one.adjust(plan)
        assert answers() == before


ACTS = st.sampled_from(["check", "check", "check", "adjust", "adjust", "refund"])


@pytest.mark.parametrize("case", CASES)
@inputs(150)
@given(steps=st.lists(st.tuples(GAPS, ACTS, st.integers(1, 4), st.integers(0, 8)), max_size=60))
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
