"""The published bound of each algorithm: a search for the worst arrivals must not beat it.

What an arrival pattern gets is measured from outside, by adding up what was admitted in every window that starts at an
admitted hit; nothing of the algorithm's own counting is trusted.
"""

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from tests.support.bounds import CASES, GAPS, MINUTE, most_in_a_window
from tests.support.inputs import inputs
from tests.support.steps import SECOND, Spec


@pytest.mark.parametrize("steps_back", [False, True])
@pytest.mark.parametrize("case", CASES)
@inputs(150)
@given(data=st.data())
def test_no_arrivals_get_more_than_the_bound(case: str, steps_back: bool, data: st.DataObject) -> None:
    options, bound = CASES[case]
    limit = Spec(**options)
    limit.now += data.draw(st.integers(0, MINUTE), label="phase")
    costs = st.integers(1, max(1, limit.rule.limits[0].rate.count // 3))
    steps = st.sampled_from([0, 0, 0, 1, SECOND, MINUTE, 3_600 * SECOND]) if steps_back else st.just(0)
    time, admitted = limit.now, []
    for gap, cost, step in data.draw(st.lists(st.tuples(GAPS, costs, steps), max_size=60), label="hits"):
        time += gap
        limit.now += gap - step
        answer = limit.run(cost=cost)
        if answer.allowed:
            admitted.append((time + (answer.retry_after if case == "leaky-bucket" else 0), cost))
    if case == "leaky-bucket":  # a hit leaves whole, at the head of its own spacing
        bound += max((cost for _, cost in admitted), default=1) - 1
    most = most_in_a_window(admitted)
    target(float(most), label="admitted in a window")
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


@given(costs=st.lists(st.integers(1, 30), max_size=80), count=st.sampled_from([100, 101, 5_000]))
def test_what_is_left_and_what_was_admitted_add_up_to_the_limit(costs: list[int], count: int) -> None:
    limit, spent = Spec(f"{count}/m"), 0
    for cost in costs:
        limit.now += 1_000
        spent += cost if limit.run(cost=cost).allowed else 0
    assert limit.run("peek").remaining == count - spent
