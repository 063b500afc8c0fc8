"""The times that a decision promises are true: when a hit is admitted, and when more is left.

A client that waits `retry_after` is admitted, and not a moment earlier, under bans too.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Decision, Rule, peek, reserve
from django_quota.engine.operations import DictStates
from django_quota.engine.plans import Plan
from django_quota.testing import freeze
from tests.support.inputs import inputs
from tests.support.steps import ALGORITHMS, SECOND, START, driven

SUBJECT = "ip:203.0.113.9"
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND

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


class Visitor:
    """One subject under one rule, in the executable specification."""

    def __init__(self, its_rule: Rule, past: list[Any]) -> None:
        self.rule, self.states, self.now = its_rule, DictStates(), START
        for gap, cost, value in past:
            self.now += gap
            self.ask("check", cost, value)

    def ask(self, mode: Any, cost: int, value: str, later: int = 0) -> Decision:
        asked = (min(cost, 1), value) if self.rule.distinct else (cost, "")
        plan = Plan("quota", asked=[(self.rule, SUBJECT, *asked)])
        decision = plan.read(driven(lambda operation, at: operation.run(self.states, at), plan, mode, self.now + later))
        assert decision is not None
        return decision


GAPS = st.one_of(st.integers(0, 3), st.integers(0, 90 * SECOND), st.sampled_from([MINUTE, HOUR, 20 * SECOND]))
HITS = st.tuples(GAPS, st.one_of(st.integers(0, 12), st.just(100)), st.sampled_from("abcde"))
PAST = st.lists(HITS, min_size=1, max_size=25)


@inputs(150, always=True)
@given(its_rule=st.sampled_from(RULES), past=PAST, cost=st.integers(0, 12), spends=st.booleans())
def test_a_wait_of_retry_after_is_enough_and_a_microsecond_less_is_not(
    its_rule: Rule, past: list[Any], cost: int, spends: bool
) -> None:
    visitor = Visitor(its_rule, past)
    decision = visitor.ask("check" if spends else "peek", cost, "new")
    if decision:
        return
    if decision.retry_after is None:
        assert not visitor.ask("peek", cost, "new", 400 * DAY)
        return
    wait = round(decision.retry_after * SECOND)
    assert wait > 0
    assert [bool(visitor.ask("peek", cost, "new", later)) for later in (wait - 1, wait)] == [False, True]


def left(decision: Decision, number: int) -> int:
    outcome = decision.outcomes[number]
    return 0 if outcome.why in ("blocked", "banned") else outcome.remaining


@inputs(400)
@given(its_rule=st.sampled_from(RULES), past=PAST, cost=st.integers(1, 12), spends=st.booleans())
def test_more_is_left_when_the_outcome_says_and_not_a_microsecond_sooner(
    its_rule: Rule, past: list[Any], cost: int, spends: bool
) -> None:
    visitor = Visitor(its_rule, past)
    decision = visitor.ask("check" if spends else "peek", cost, "new")
    for number, outcome in enumerate(decision.outcomes):
        now, more = left(decision, number), outcome.next_after
        if more is None:
            assert left(visitor.ask("peek", 1, "new", 400 * DAY), number) == now
            assert outcome.limit in (outcome.remaining, 0) or not decision
            continue
        after = round(more * SECOND)
        assert left(visitor.ask("peek", 1, "new", after - 1), number) <= now
        assert left(visitor.ask("peek", 1, "new", after), number) > now
        if not outcome.allowed and outcome.retry_after is not None:
            assert more <= outcome.retry_after


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hit_without_cost_has_no_wait_for_more_after_it_is_admitted(algorithm: Any) -> None:
    with freeze(START):
        reserve("10/h", SUBJECT, 1, algorithm=algorithm).settle(25)
        decision = peek("10/h", SUBJECT, 0, algorithm=algorithm)
    assert decision.retry_after is not None
    assert decision.outcomes[0].next_after == decision.retry_after > 0
