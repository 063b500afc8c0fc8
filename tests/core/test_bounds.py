"""The published bound of each algorithm: a search for the worst arrivals must not beat it.

What a pattern gets is measured from outside, by adding up what was admitted in every window that starts at an admitted
hit; nothing of the algorithm's own counting is trusted.
"""

from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from django_quota.engine.plans import Plan
from tests.support.bounds import CASES, GAPS, MINUTE, most_in_a_window
from tests.support.inputs import inputs
from tests.support.steps import SECOND, Spec

CHECKS, MIXED = ["check"], ["check", "check", "check", "adjust", "adjust", "refund"]


@pytest.mark.parametrize("case", CASES)
@inputs(300)
@given(data=st.data())
def test_no_mix_of_checks_refunds_and_adjusts_lets_more_than_the_bound_in(case: str, data: st.DataObject) -> None:
    options, bound = CASES[case]
    limit = Spec(**options)
    limit.now += data.draw(st.integers(0, MINUTE), label="phase")
    steps_back, acts = data.draw(st.sampled_from([(False, CHECKS), (True, CHECKS), (False, MIXED)]), label="acts")
    back = st.sampled_from([0, 0, 0, 1, SECOND, MINUTE, 3_600 * SECOND]) if steps_back else st.just(0)
    most_cost = 4 if acts is MIXED else max(1, limit.rule.limits[0].rate.count // 3)
    steps = st.tuples(GAPS, back, st.sampled_from(acts), st.integers(1, most_cost), st.integers(0, 8))
    time, hits = limit.now, list[list[int]]()
    taken: list[tuple[Plan, list[int]]] = []
    for gap, step, what, cost, which in data.draw(st.lists(steps, max_size=60), label="hits"):
        gap = max(gap, acts is MIXED)  # noqa: PLW2901 - no two hits at one moment
        time += gap
        limit.now += gap - step
        if what == "adjust" and taken:
            plan, hit = taken.pop(which % len(taken))
            limit.adjust(plan, which // 2)
            hit[1] = min(hit[1], which // 2)
            continue
        plan = limit.plan(cost)
        reply = limit.decide(plan, "check")
        plan.read(reply)
        if plan.taken:
            hits.append([time + reply[4], cost])  # it leaves a leaky bucket later
            taken += [(plan, hits[-1])] if what != "refund" else []
            if what == "refund":
                limit.decide(limit.plan(cost), "refund")
                hits[-1][1] = 0
    if case == "leaky-bucket":  # a hit leaves whole, at the head of its own spacing
        bound += (4 if acts is MIXED else max((cost for _, cost in hits), default=1)) - 1
    most = most_in_a_window((moment, cost) for moment, cost in hits)
    target(float(most), label="really used in a window")
    assert most <= bound


@pytest.mark.parametrize(
    ("case", "hits", "most"),
    [
        ("fixed", [(0, 1), (MINUTE - 1, 6), (1, 7)], 13),
        ("token-bucket-burst", [(0, 3), *[(MINUTE // 7 + 1, 1)] * 6], 9),
    ],
)
def test_the_bound_is_reached(case: str, hits: list[tuple[int, int]], most: int) -> None:
    """That the search could find a breach at all: these patterns would break a bound of the limit alone."""
    limit, admitted = Spec(**CASES[case][0]), []
    for gap, cost in hits:
        limit.now += gap
        if limit.run(cost=cost).allowed:
            admitted.append((limit.now, cost))
    assert most_in_a_window(admitted) == most


@pytest.mark.parametrize("case", CASES)
@inputs(60)
@given(hits=st.lists(st.tuples(st.just(1) | GAPS, st.integers(1, 4)), max_size=8), cost=st.integers(1, 4))
def test_adjusting_to_0_at_once_leaves_a_limit_as_it_was(case: str, hits: list[tuple[int, int]], cost: int) -> None:
    limit = Spec(**CASES[case][0])
    for gap, units in hits:
        limit.now += gap
        limit.check(units)
    limit.now += 1  # no two hits at one moment

    def answers() -> list[Any]:
        moments = (0, SECOND, MINUTE // 2, MINUTE)
        asked = [(units, later) for units in (1, 3, limit.rule.limits[0].capacity) for later in moments]
        return [limit.decide(limit.plan(units), "peek", later) for units, later in asked]

    before = answers()
    plan = limit.check(cost)
    if plan.taken:
        limit.adjust(plan)
        assert answers() == before
