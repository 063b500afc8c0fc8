"""The Decision: which limit is on top, how decisions join, and what they say."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import QuotaExceeded, Rule
from django_quota.algorithms import Limit
from django_quota.clock import SECOND
from django_quota.decisions import Decision, Outcome, outcomes_of, told
from django_quota.operations.standing import BAN_BEGAN, BANNED, NEAR_TOLD
from tests.steps import START, hits_of


def limit(rule: str = "r", rate: str = "10/m", **options: object) -> Limit:
    return Rule.make(rule, rate, **options).limits[0]


LIMIT = limit()
outcomes = st.builds(
    lambda ok, remaining, wait, reset, shadow, blocks: Outcome(
        of=LIMIT, subject="ip:192.0.2.1", cost=1, allowed=ok, remaining=remaining, retry_after=0.0 if ok else wait,
        reset_after=reset, shadow=shadow, blocks=blocks and not shadow,
    ),
    st.booleans(), st.integers(0, 10), st.none() | st.floats(0.001, 1e6), st.floats(0, 1e6), st.booleans(),
    st.booleans(),
)  # fmt: skip


def outcome(
    rule: str = "r", *, ok: bool = True, remaining: int = 5, wait: float | None = 3.0, shadow: bool = False,
    blocks: bool = True, cost: int = 1, delay: float = 0.0,
) -> Outcome:  # fmt: skip
    return Outcome(
        of=limit(rule), subject="user:1", cost=cost, allowed=ok, remaining=remaining,
        retry_after=0.0 if ok else wait, reset_after=9.0, delay=delay, shadow=shadow, blocks=blocks and not shadow,
    )  # fmt: skip


def test_a_note_of_a_reply_is_about_all_limits_of_its_hit_and_no_others() -> None:
    hits = hits_of(Rule.make("a", "5/m"), Rule.make("b", "5/m; 70/h"), Rule.make("c", "9/m"))
    answers = [1, 4, 0, 60 * SECOND, 60 * SECOND] * 4
    assert [each.why for each in outcomes_of([START, 1, *answers], hits)] == ["", "", "", ""]
    assert told([START, 1, *answers], hits, 4) == ()
    reply = [START, 0, *answers, 1, BANNED, START + SECOND, 1, BAN_BEGAN, START + SECOND, 2, NEAR_TOLD, 0]
    assert [each.why for each in outcomes_of(reply, hits)] == ["", "banned", "banned", ""]
    assert told(reply, hits, 4) == [("banned", hits[1]), ("near", hits[2])]


def test_where_all_have_room_the_one_with_the_fewest_hits_left_is_on_top() -> None:
    decision = Decision.of((outcome("a", remaining=5), outcome("b", remaining=2), outcome("c", remaining=9)))
    assert decision.allowed
    assert (decision.rule, decision.remaining, decision.limit, decision.retry_after) == ("b", 2, 10, 0.0)


def test_hits_left_are_counted_in_hits_of_this_cost_not_in_units() -> None:
    decision = Decision.of((outcome("cheap", remaining=5, cost=1), outcome("dear", remaining=8, cost=4)))
    assert decision.rule == "dear"


def test_where_several_refuse_the_longest_wait_is_on_top_and_never_is_the_longest() -> None:
    waits = (outcome("a", ok=False, wait=3), outcome("b", ok=False, wait=8), outcome("c", remaining=0))
    assert Decision.of(waits).rule == "b"
    assert Decision.of(waits).retry_after == 8
    assert Decision.of((*waits, outcome("d", ok=False, wait=None))).retry_after is None


def test_a_refusal_that_blocks_is_above_a_longer_one_that_does_not() -> None:
    decision = Decision.of((outcome("soft", ok=False, wait=99, blocks=False), outcome("hard", ok=False, wait=3)))
    assert (decision.rule, decision.retry_after, decision.blocked, decision.allowed) == ("hard", 3, True, False)


def test_a_refusal_that_does_not_block_refuses_without_blocking() -> None:
    decision = Decision.of((outcome("soft", ok=False, blocks=False), outcome("hard")))
    assert (decision.allowed, decision.blocked, decision.rule) == (False, False, "soft")


def test_a_shadow_never_refuses_and_never_hides_a_limit_that_holds() -> None:
    decision = Decision.of((outcome("shadow", ok=False, shadow=True, remaining=0), outcome("real", remaining=9)))
    assert (decision.allowed, decision.blocked, decision.rule) == (True, False, "real")
    assert decision.would_refuse
    alone = Decision.of((outcome("shadow", ok=False, shadow=True),))
    assert (alone.allowed, alone.blocked, bool(alone)) == (True, False, True)


@given(st.lists(outcomes, min_size=1, max_size=5))
def test_a_decision_allows_exactly_where_no_limit_but_a_shadow_refuses(several: list[Outcome]) -> None:
    decision = Decision.of(tuple(several))
    refusing = [o for o in several if not o.allowed and not o.shadow]
    assert decision.allowed is bool(decision) is not bool(refusing)
    assert decision.blocked is any(o.blocks for o in refusing)
    assert decision.would_refuse is any(not o.allowed for o in several)
    assert decision.outcomes == tuple(several)
    if decision.blocked and decision.retry_after is not None:
        assert decision.retry_after >= max(o.retry_after or 0 for o in refusing if o.blocks)


@given(st.lists(outcomes, min_size=1, max_size=3), st.lists(outcomes, min_size=1, max_size=3))
def test_joining_two_decisions_is_deciding_all_their_limits_at_once(a: list[Outcome], b: list[Outcome]) -> None:
    joined = Decision.of(tuple(a)).joined(Decision.of(tuple(b)))
    assert joined == Decision.of((*a, *b))


NOTHING = Decision(allowed=True, rule="", subject="")
DENIED = Decision(allowed=False, rule="d", subject="user:1", degraded=True, blocked=True)
SOFTLY_DENIED = dataclasses.replace(DENIED, blocked=False)


@pytest.mark.parametrize("other", [Decision.of((outcome("a", ok=False),)), Decision.of((outcome("a"),)), DENIED])
def test_joining_with_nothing_changes_nothing(other: Decision) -> None:
    assert NOTHING.joined(other) == other
    assert other.joined(NOTHING) == other


@pytest.mark.parametrize(
    "earlier",
    [Decision.of((outcome("a"),)), Decision.of((outcome("a", ok=False, blocks=False),)), NOTHING, SOFTLY_DENIED],
    ids=["allowed", "refused-not-blocking", "nothing", "denied-not-blocking"],
)
def test_a_denial_while_the_store_is_away_shows_as_one_whatever_came_before(earlier: Decision) -> None:
    """`refusal` answers 503 exactly where the top of a degraded decision is no limit."""
    for joined in (earlier.joined(DENIED), DENIED.joined(earlier)):
        assert (joined.allowed, joined.blocked, joined.degraded) == (False, True, True)
        assert joined.binding is None
        assert joined.retry_after == 1.0


def test_a_denial_that_does_not_block_never_hides_a_later_refusal_that_does() -> None:
    joined = SOFTLY_DENIED.joined(Decision.of((outcome("hard", ok=False, wait=8),)))
    assert joined.blocked
    assert joined.rule == "hard"
    assert joined.retry_after == 8


def test_where_nothing_limits_there_are_no_numbers() -> None:
    assert (NOTHING.limit, NOTHING.remaining, NOTHING.retry_after, NOTHING.reset_after) == (None, None, 0.0, 0.0)
    assert NOTHING.would_refuse is False


def test_the_delay_is_the_longest_of_all_limits() -> None:
    assert Decision.of((outcome(delay=0.5), outcome(delay=2.0))).delay == 2.0
    assert NOTHING.delay == 0.0


def test_raise_if_refused_raises_with_the_decision_else_returns_it() -> None:
    allowed, refused = Decision.of((outcome(),)), Decision.of((outcome(ok=False),))
    assert allowed.raise_if_refused() is allowed
    with pytest.raises(QuotaExceeded) as caught:
        refused.raise_if_refused()
    assert caught.value.decision is refused


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (NOTHING, "Allowed by rule '' for ."),
        (Decision.of((outcome("a"),)), "Allowed by rule 'a' for user:1. 5 left."),
        (
            Decision.of((outcome("a", ok=False, wait=0.2),)),
            "Rule 'a' admits 10 per minute for user:1; try again in 1 second.",
        ),
        (
            Decision.of((outcome("a", ok=False, wait=None, cost=99),)),
            "A cost of 99 is above what rule 'a' (10 per minute) ever admits for user:1; waiting does not help.",
        ),
        (DENIED, "Rule 'd' could not be checked and refuses while that is so; try again shortly."),
    ],
)
def test_a_decision_explains_itself(decision: Decision, text: str) -> None:
    if decision is NOTHING:
        assert "rule ''" not in decision.explain(), "a decision without a rule must not name an empty one"
    else:
        assert decision.explain() == text


@pytest.mark.parametrize(("wait", "least"), [(7_230.0, 7_230), (93_599.0, 93_599), (90_061.0, 90_061)])
def test_the_wait_in_words_is_never_shorter_than_the_wait(wait: float, least: int) -> None:
    words = Decision.of((outcome(ok=False, wait=wait),)).explain().partition("again in ")[2].rstrip(".").split()
    sizes = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
    told = sum(int(n) * sizes[u.rstrip("s")] for n, u in zip(words[::2], words[1::2], strict=True))
    assert told >= least


def test_the_window_of_an_outcome_is_whole_seconds_and_none_for_months() -> None:
    assert outcome().window == 60
    monthly = limit(rate="1/month", algorithm="calendar")
    assert outcome()._replace(of=monthly).window is None


def test_a_decision_cannot_be_changed_and_survives_pickling() -> None:
    decision = Decision.of((outcome("a", ok=False),))
    with pytest.raises(dataclasses.FrozenInstanceError):
        decision.allowed = False  # type: ignore[misc]
    back = pickle.loads(pickle.dumps(decision))
    assert (back.explain(), back.limit, back.retry_after) == (decision.explain(), 10, 3.0)
    assert back == decision
