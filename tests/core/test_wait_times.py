"""The times that a decision promises are true: when a hit is admitted, and when more is left.

A client that waits `retry_after` is admitted, and not a moment earlier, under bans too.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Decision, Rule, peek, reserve
from django_quota.testing import freeze
from tests.support.inputs import inputs
from tests.support.steps import ALGORITHMS, MINUTE, SECOND, START, SUBJECT, Spec

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
GAPS = st.one_of(st.integers(0, 3), st.integers(0, 90 * SECOND), st.sampled_from([MINUTE, HOUR, 20 * SECOND]))
HITS = st.tuples(GAPS, st.one_of(st.integers(0, 12), st.just(100)), st.sampled_from("abcde"))
PAST = st.lists(HITS, min_size=1, max_size=25)


def ask(limit: Spec, mode: Any, cost: int, value: str = "new", later: int = 0) -> Decision:
    plan = limit.plan(cost, value)
    decision = plan.read(limit.decide(plan, mode, later))
    assert decision is not None
    return decision


def left(decision: Decision, number: int) -> int:
    outcome = decision.outcomes[number]
    return 0 if outcome.why in ("blocked", "banned") else outcome.remaining


@inputs(500)
@given(its_rule=st.sampled_from(RULES), past=PAST, cost=st.integers(0, 12), spends=st.booleans())
def test_a_wait_for_room_or_for_more_is_enough_and_a_microsecond_less_is_not(
    its_rule: Rule, past: list[Any], cost: int, spends: bool
) -> None:
    limit = Spec(its_rule)
    for gap, *hit in past:
        limit.now += gap
        ask(limit, "check", *hit)
    decision = ask(limit, "check" if spends else "peek", cost)
    if not decision and decision.retry_after is None:
        assert not ask(limit, "peek", cost, later=400 * DAY)
    elif not decision:
        wait = round((decision.retry_after or 0) * SECOND)
        assert wait > 0
        assert [bool(ask(limit, "peek", cost, later=later)) for later in (wait - 1, wait)] == [False, True]
    for number, outcome in enumerate(decision.outcomes if cost else ()):
        now, more = left(decision, number), outcome.next_after
        if more is None:
            assert left(ask(limit, "peek", 1, later=400 * DAY), number) == now
            assert outcome.limit in (outcome.remaining, 0) or not decision
            continue
        after = round(more * SECOND)
        sooner, then = (left(ask(limit, "peek", 1, later=later), number) for later in (after - 1, after))
        assert sooner <= now < then
        assert outcome.allowed or outcome.retry_after is None or more <= outcome.retry_after


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hit_without_cost_has_no_wait_for_more_after_it_is_admitted(algorithm: Any) -> None:
    with freeze(START):
        reserve("10/h", SUBJECT, 1, algorithm=algorithm).settle(25)
        decision = peek("10/h", SUBJECT, 0, algorithm=algorithm)
    assert decision.retry_after is not None
    assert decision.outcomes[0].next_after == decision.retry_after > 0
