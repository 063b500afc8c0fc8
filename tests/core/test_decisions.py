"""The Decision: which limit binds, how two decisions are combined, and what they explain."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Decision, Outcome, QuotaExceeded, Rule
from django_quota.core.algorithms import Limit
from django_quota.engine.codec import Flag, Reply, emitted, outcomes_of
from tests.support.steps import SECOND, START, hits_of


def limit(rule: str = "r", rate: str = "10/m", **options: object) -> Limit:
    return Rule.make(rule, rate, **options).limits[0]


LIMIT = limit()
outcomes = st.builds(
    lambda ok, remaining, wait, reset, shadow, enforced: Outcome(
        of=LIMIT, subject="ip:192.0.2.1", cost=1, allowed=ok, remaining=remaining, retry_after=0.0 if ok else wait,
        reset_after=reset, shadow=shadow, enforced=enforced and not shadow,
    ),
    st.booleans(), st.integers(0, 10), st.none() | st.floats(0.001, 1e6), st.floats(0, 1e6), st.booleans(),
    st.booleans(),
)  # fmt: skip


def outcome(
    rule: str = "r", *, ok: bool = True, remaining: int = 5, wait: float | None = 3.0, shadow: bool = False,
    enforced: bool = True, cost: int = 1, delay: float = 0.0,
) -> Outcome:  # fmt: skip
    return Outcome(
        of=limit(rule), subject="user:1", cost=cost, allowed=ok, remaining=remaining,
        retry_after=0.0 if ok else wait, reset_after=9.0, delay=delay, shadow=shadow, enforced=enforced and not shadow,
    )  # fmt: skip


def test_a_note_of_a_reply_is_about_all_limits_of_its_hit_and_no_others() -> None:
    hits = hits_of(Rule.make("a", "5/m"), Rule.make("b", "5/m; 70/h"), Rule.make("c", "9/m"))
    answers = [1, 4, 0, 60 * SECOND, 60 * SECOND] * 4
    plain = Reply.decode([START, 1, *answers], hits)
    assert [each.why for each in outcomes_of(plain, hits)] == ["", "", "", ""]
    assert list(emitted(plain, hits)) == []
    flags = [1, Flag.BANNED, START + SECOND, 1, Flag.BAN_BEGAN, START + SECOND, 2, Flag.NEAR_EMITTED, 0]
    reply = Reply.decode([START, 0, *answers, *flags], hits)
    assert [each.why for each in outcomes_of(reply, hits)] == ["", "banned", "banned", ""]
    assert list(emitted(reply, hits)) == [("banned", hits[1]), ("near", hits[2])]
    assert reply.encode() == [START, 0, *answers, *flags]


def test_if_all_allow_the_limit_with_the_fewest_hits_left_binds() -> None:
    decision = Decision.of((outcome("a", remaining=5), outcome("b", remaining=2), outcome("c", remaining=9)))
    assert decision.allowed
    assert (decision.rule, decision.remaining, decision.limit, decision.retry_after) == ("b", 2, 10, 0.0)


def test_hits_left_are_counted_in_hits_of_this_cost() -> None:
    decision = Decision.of((outcome("cheap", remaining=5, cost=1), outcome("dear", remaining=8, cost=4)))
    assert decision.rule == "dear"


def test_if_several_refuse_the_longest_wait_binds() -> None:
    waits = (outcome("a", ok=False, wait=3), outcome("b", ok=False, wait=8), outcome("c", remaining=0))
    assert Decision.of(waits).rule == "b"
    assert Decision.of(waits).retry_after == 8
    assert Decision.of((*waits, outcome("d", ok=False, wait=None))).retry_after is None


def test_an_enforced_refusal_binds_before_a_longer_one_that_is_not() -> None:
    decision = Decision.of((outcome("soft", ok=False, wait=99, enforced=False), outcome("hard", ok=False, wait=3)))
    assert (decision.rule, decision.retry_after, decision.enforced, decision.allowed) == ("hard", 3, True, False)


def test_a_refusal_with_block_false_is_not_enforced() -> None:
    decision = Decision.of((outcome("soft", ok=False, enforced=False), outcome("hard")))
    assert (decision.allowed, decision.enforced, decision.rule) == (False, False, "soft")


def test_a_shadow_limit_never_refuses_and_never_binds_before_others() -> None:
    decision = Decision.of((outcome("shadow", ok=False, shadow=True, remaining=0), outcome("real", remaining=9)))
    assert (decision.allowed, decision.enforced, decision.rule) == (True, False, "real")
    assert decision.would_refuse
    alone = Decision.of((outcome("shadow", ok=False, shadow=True),))
    assert (alone.allowed, alone.enforced, bool(alone)) == (True, False, True)


@given(st.lists(outcomes, min_size=1, max_size=5))
def test_a_decision_allows_unless_a_limit_without_shadow_refuses(several: list[Outcome]) -> None:
    decision = Decision.of(tuple(several))
    refusing = [o for o in several if not o.allowed and not o.shadow]
    assert decision.allowed is bool(decision) is not bool(refusing)
    assert decision.enforced is any(o.enforced for o in refusing)
    assert decision.would_refuse is any(not o.allowed for o in several)
    assert decision.outcomes == tuple(several)
    if decision.enforced and decision.retry_after is not None:
        assert decision.retry_after >= max(o.retry_after or 0 for o in refusing if o.enforced)


@given(st.lists(outcomes, min_size=1, max_size=3), st.lists(outcomes, min_size=1, max_size=3))
def test_combining_two_decisions_equals_deciding_all_limits_at_once(a: list[Outcome], b: list[Outcome]) -> None:
    joined = Decision.of(tuple(a)).combined_with(Decision.of(tuple(b)))
    assert joined == Decision.of((*a, *b))


NOTHING = Decision(allowed=True, rule="", subject="")
DENIED = Decision(allowed=False, rule="d", subject="user:1", degraded=True, enforced=True)
SOFTLY_DENIED = dataclasses.replace(DENIED, enforced=False)


@pytest.mark.parametrize("other", [Decision.of((outcome("a", ok=False),)), Decision.of((outcome("a"),)), DENIED])
def test_combining_with_an_empty_decision_changes_nothing(other: Decision) -> None:
    assert NOTHING.combined_with(other) == other
    assert other.combined_with(NOTHING) == other


@pytest.mark.parametrize(
    "earlier",
    [
        Decision.of((outcome("a"),)),
        Decision.of((outcome("a", ok=False, enforced=False),)),
        NOTHING,
        SOFTLY_DENIED,
    ],
    ids=["allowed", "refused-not-blocking", "nothing", "denied-not-blocking"],
)
def test_a_denial_without_the_store_binds_before_earlier_decisions(earlier: Decision) -> None:
    """`refusal` answers 503 if a degraded decision has no binding limit."""
    for joined in (earlier.combined_with(DENIED), DENIED.combined_with(earlier)):
        assert (joined.allowed, joined.enforced, joined.degraded) == (False, True, True)
        assert joined.binding is None
        assert joined.retry_after == 1.0


def test_a_denial_that_is_not_enforced_never_hides_an_enforced_refusal() -> None:
    joined = SOFTLY_DENIED.combined_with(Decision.of((outcome("hard", ok=False, wait=8),)))
    assert joined.enforced
    assert joined.rule == "hard"
    assert joined.retry_after == 8


def test_a_decision_without_limits_has_no_numbers() -> None:
    assert (NOTHING.limit, NOTHING.remaining, NOTHING.retry_after, NOTHING.reset_after) == (None, None, 0.0, 0.0)
    assert NOTHING.would_refuse is False


def test_the_delay_is_the_longest_of_all_limits() -> None:
    assert Decision.of((outcome(delay=0.5), outcome(delay=2.0))).delay == 2.0
    assert NOTHING.delay == 0.0


def test_raise_if_refused_raises_or_returns_the_decision() -> None:
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
            "A cost of 99 is more than rule 'a' (10 per minute) ever admits for user:1; waiting does not help.",
        ),
        (DENIED, "Rule 'd' could not be checked, so it refuses; try again shortly."),
    ],
)
def test_a_decision_explains_itself(decision: Decision, text: str) -> None:
    if decision is NOTHING:
        assert "rule ''" not in decision.explain(), "a decision without a rule must not name an empty one"
    else:
        assert decision.explain() == text


@pytest.mark.parametrize(("wait", "least"), [(7_230.0, 7_230), (93_599.0, 93_599), (90_061.0, 90_061)])
def test_the_wait_in_words_is_never_too_short(wait: float, least: int) -> None:
    words = Decision.of((outcome(ok=False, wait=wait),)).explain().partition("again in ")[2].rstrip(".").split()
    sizes = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
    total = sum(int(n) * sizes[u.rstrip("s")] for n, u in zip(words[::2], words[1::2], strict=True))
    assert total >= least


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
    assert (back, hash(back)) == (decision, hash(decision))
