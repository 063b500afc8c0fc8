"""The published bound of each algorithm: a search for the worst arrivals must not beat it; and its times are true."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, target
from hypothesis import strategies as st

from django_quota import Decision, Rule, peek, reserve
from django_quota.engine.receipts import Receipt
from django_quota.testing import freeze
from tests.support.inputs import inputs
from tests.support.steps import ALGORITHMS, SECOND, START, SUBJECT, Spec

MINUTE = 60 * SECOND


def most_in_a_window(admitted: Iterable[tuple[int, int]], window: int = MINUTE) -> int:
    moments = sorted(admitted)
    return max((sum(cost for at, cost in moments if 0 <= at - first < window) for first, _ in moments), default=0)


CASES: dict[str, tuple[dict[str, Any], int]] = {
    "sliding-exact": ({"rate": "7/m"}, 7),
    "sliding-at-precision": ({"rate": "100/m"}, 100),
    "sliding-slices": ({"rate": "23/m", "precision": 5}, 23),
    "sliding-one-slice": ({"rate": "23/m", "precision": 1}, 23),
    "sliding-many": ({"rate": "1000/m"}, 1_000),
    "sliding-counted": ({"rate": "7/m", "count_refused": True}, 7),
    "fixed": ({"rate": "7/m", "algorithm": "fixed_window"}, 14),
    "calendar": ({"rate": "7/m", "algorithm": "calendar"}, 14),  # a window may straddle two periods of 7 each
    "token-bucket": ({"rate": "7/m", "algorithm": "token_bucket"}, 14),
    "token-bucket-burst": ({"rate": "7/m", "algorithm": "token_bucket", "burst": 3}, 10),
    "leaky-bucket": ({"rate": "7/m", "algorithm": "leaky_bucket"}, 7),
}

GAPS = st.one_of(
    st.integers(0, 3),
    st.integers(0, 90 * SECOND),
    st.sampled_from([MINUTE - 1, MINUTE, MINUTE + 1, MINUTE // 5, MINUTE // 7, MINUTE // 100, MINUTE // 2]),
)

CHECKS, MIXED = ["check"], ["check", "check", "check", "adjust", "adjust", "refund"]


@pytest.mark.thorough("slow")
@pytest.mark.parametrize("case", CASES)
@inputs(300)
@given(data=st.data())
def test_no_mix_of_calls_lets_more_than_the_bound_in(case: str, data: st.DataObject) -> None:
    options, bound = CASES[case]
    limit = Spec(**options)
    limit.now += data.draw(st.integers(0, MINUTE), label="phase")
    steps_back, acts = data.draw(st.sampled_from([(False, CHECKS), (True, CHECKS), (False, MIXED)]), label="acts")
    back = st.sampled_from([0, 0, 0, 1, SECOND, MINUTE, 3_600 * SECOND]) if steps_back else st.just(0)
    most_cost = 4 if acts is MIXED else max(1, limit.rule.limits[0].rate.count // 3)
    steps = st.tuples(GAPS, back, st.sampled_from(acts), st.integers(1, most_cost), st.integers(0, 8))
    time, hits = limit.now, list[list[int]]()
    taken: list[tuple[Receipt, list[int]]] = []

    for gap, step, what, cost, which in data.draw(st.lists(steps, max_size=60), label="hits"):
        gap = max(gap, acts is MIXED)  # noqa: PLW2901 - no two hits at one moment
        time += gap
        limit.now += gap - step
        if what == "adjust" and taken:
            receipt, hit = taken.pop(which % len(taken))
            limit.adjust(receipt, which // 2)
            hit[1] = min(hit[1], which // 2)
            continue
        question = limit.question(cost)
        reply = limit.decide(question, "check")
        receipt = question.receipt(reply)
        if receipt.taken:
            hits.append([time + reply[4], cost])  # it leaves a leaky bucket later
            taken += [(receipt, hits[-1])] if what != "refund" else []
            if what == "refund":
                limit.decide(limit.question(cost), "refund")
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
        return [limit.decide(limit.question(units), "peek", later) for units, later in asked]

    before = answers()
    receipt = limit.check(cost)
    if receipt.taken:
        limit.adjust(receipt)
        assert answers() == before


# --- waits ------------------------------------------------------------------------------------------------------------

HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND
BAN = {"after": "2/m", "for": ["20s", "10m"]}
RULES = [
    Rule.make("exact", "5/h", ban=BAN),
    Rule.make("two", "3/m; 5/h", ban=BAN),
    Rule.make("slices", "40/m", precision=7, ban=BAN),
    Rule.make("counted", "6/m", count_refused=True, ban=BAN),
    Rule.make("fixed", "9/m", algorithm="fixed_window", ban=BAN),
    Rule.make("calendar", "9/m; 40/d", algorithm="calendar", tz="Europe/Berlin", ban=BAN),
    Rule.make("bucket", "7/m", algorithm="token_bucket", ban=BAN),
    Rule.make("burst", "7/h", algorithm="token_bucket", burst=20, ban=BAN),
    Rule.make("leaky", "11/m", algorithm="leaky_bucket", ban=BAN),
    Rule.make("devices", "3/m", distinct=True, ban=BAN),
    Rule.make("none", "0/m", ban=BAN),
]
PAUSES = st.one_of(st.integers(0, 3), st.integers(0, 90 * SECOND), st.sampled_from([MINUTE, HOUR, 20 * SECOND]))
HITS = st.tuples(PAUSES, st.one_of(st.integers(0, 12), st.just(100)), st.sampled_from("abcde"))
PAST = st.lists(HITS, min_size=1, max_size=25)


def ask(limit: Spec, mode: Any, cost: int, value: str = "new", later: int = 0) -> Decision:
    question = limit.question(cost, value)
    return question.answer(limit.decide(question, mode, later)).decision


def left(decision: Decision, number: int) -> int:
    outcome = decision.outcomes[number]
    return 0 if outcome.why in ("blocked", "banned") else outcome.remaining or 0


def with_past(its_rule: Rule, past: list[Any]) -> Spec:
    limit = Spec(its_rule)
    for gap, *hit in past:
        limit.now += gap
        ask(limit, "check", *hit)
    return limit


@pytest.mark.thorough("slow")
@inputs(500)
@given(its_rule=st.sampled_from(RULES), past=PAST, cost=st.integers(0, 12), spends=st.booleans())
def test_a_wait_for_room_is_right_to_the_microsecond(its_rule: Rule, past: list[Any], cost: int, spends: bool) -> None:
    limit = with_past(its_rule, past)

    decision = ask(limit, "check" if spends else "peek", cost)

    if not decision and decision.retry_after is None:
        assert not ask(limit, "peek", cost, later=400 * DAY)
    elif not decision:
        wait = round((decision.retry_after or 0) * SECOND)
        assert wait > 0
        assert [bool(ask(limit, "peek", cost, later=later)) for later in (wait - 1, wait)] == [False, True]


def faults_of_next_after(limit: Spec, decision: Decision, number: int) -> Iterator[str]:
    """Yield what is wrong with the moment at which a limit has more left."""
    outcome, now = decision.outcomes[number], left(decision, number)
    if outcome.next_after is None:
        if left(ask(limit, "peek", 1, later=400 * DAY), number) != now:
            yield f"{outcome} has more left one day"
        if decision and outcome.limit not in (outcome.remaining, 0):
            yield f"{outcome} lacks something and never has more"
        return
    after = round(outcome.next_after * SECOND)
    sooner, then = (left(ask(limit, "peek", 1, later=later), number) for later in (after - 1, after))
    if not sooner <= now < then:
        yield f"{outcome} has {sooner} left just before, {then} then"
    if not outcome.allowed and outcome.retry_after is not None and outcome.next_after > outcome.retry_after:
        yield f"{outcome} has room before it has more"


@pytest.mark.thorough("slow")
@inputs(500)
@given(its_rule=st.sampled_from(RULES), past=PAST, cost=st.integers(1, 12), spends=st.booleans())
def test_a_wait_for_more_is_right_to_the_microsecond(its_rule: Rule, past: list[Any], cost: int, spends: bool) -> None:
    limit = with_past(its_rule, past)

    decision = ask(limit, "check" if spends else "peek", cost)

    numbers = range(len(decision.outcomes))
    assert [fault for number in numbers for fault in faults_of_next_after(limit, decision, number)] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hit_without_cost_has_no_wait_for_more_after_it_is_admitted(algorithm: Any, memory_store: None) -> None:
    with freeze(START):
        reserve("10/h", SUBJECT, 1, algorithm=algorithm).settle(25)
        decision = peek("10/h", SUBJECT, 0, algorithm=algorithm)
    assert decision.retry_after is not None
    assert decision.outcomes[0].next_after == decision.retry_after > 0
