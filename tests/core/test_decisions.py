"""The Decision: which limit binds, how two decisions are combined, and what they explain."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Decision, Rule, check, peek
from django_quota.core.algorithms import ALGORITHMS, Limit
from django_quota.engine.codec import Flag, Reply, emitted, outcomes_of
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.testing import freeze
from django_quota.types import Outcome
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
    flags = [1, Flag.BANNED, START + SECOND, 1, Flag.BAN_BEGAN, START + SECOND, 2, Flag.NEAR_EMITTED, 800]
    reply = Reply.decode([START, 0, *answers, *flags], hits)
    assert [each.why for each in outcomes_of(reply, hits)] == ["", "banned", "banned", ""]
    assert list(emitted(reply, hits)) == [("banned", hits[1], START + SECOND), ("near", hits[2], 800)]
    assert reply.encode() == [START, 0, *answers, *flags]


@pytest.mark.parametrize(
    ("outcomes_", "rule", "allowed", "enforced", "retry_after"),
    [
        # If all allow, the limit with the fewest hits left binds: hits of this cost.
        ([outcome("a", remaining=5), outcome("b", remaining=2), outcome("c", remaining=9)], "b", True, False, 0.0),
        ([outcome("cheap", remaining=5, cost=1), outcome("dear", remaining=8, cost=4)], "dear", True, False, 0.0),
        # If several refuse, the longest wait binds; an enforced refusal before a longer one that is not.
        ([outcome("a", ok=False, wait=3), outcome("b", ok=False, wait=8), outcome("c")], "b", False, True, 8),
        ([outcome("a", ok=False, wait=3), outcome("b", ok=False, wait=None)], "b", False, True, None),
        ([outcome("soft", ok=False, wait=99, enforced=False), outcome("hard", ok=False)], "hard", False, True, 3),
        ([outcome("soft", ok=False, enforced=False), outcome("hard")], "soft", False, False, 3),
        # A shadow never refuses, and never binds before others.
        ([outcome("shadow", ok=False, shadow=True, remaining=0), outcome("real")], "real", True, False, 0.0),
        ([outcome("shadow", ok=False, shadow=True)], "shadow", True, False, 0.0),
    ],
)  # fmt: skip
def test_the_binding_limit_is_the_strictest(
    outcomes_: list[Outcome], rule: str, allowed: bool, enforced: bool, retry_after: float | None
) -> None:
    for order in (outcomes_, outcomes_[::-1]):
        decision = Decision.of(tuple(order))
        assert (decision.rule, decision.allowed, decision.enforced) == (rule, allowed, enforced)
        assert decision.retry_after == retry_after
        assert decision.remaining == next(each.remaining for each in order if each.rule == rule)


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
SOFTLY_DENIED = replace(DENIED, enforced=False)


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
    assert (NOTHING.delay, NOTHING.would_refuse, NOTHING.of_rule("a")) == (0.0, False, None)
    assert "rule ''" not in NOTHING.explain(), "a decision without a rule must not name an empty one"


def test_the_delay_is_the_longest_of_all_limits() -> None:
    assert Decision.of((outcome(delay=0.5), outcome(delay=2.0))).delay == 2.0


def test_raise_if_refused_raises_or_returns_the_decision() -> None:
    allowed, refused = Decision.of((outcome(),)), Decision.of((outcome(ok=False),))
    assert allowed.raise_if_refused() is allowed
    with pytest.raises(QuotaExceeded) as caught:
        refused.raise_if_refused()
    assert caught.value.decision is refused


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (Decision.of((outcome("a"),)), "Allowed by rule 'a' for user:1; 5 of 10 are left."),
        (
            Decision.of((outcome("a", ok=False, wait=0.2),)),
            "Rule 'a' admits 10 per minute for user:1; try again in 1 second.",
        ),
        (
            Decision.of((outcome("a", ok=False, wait=None, cost=99),)),
            "A cost of 99 is more than rule 'a' (10 per minute) ever admits for user:1; waiting does not help.",
        ),
        (
            Decision.of((outcome("a", ok=False, cost=8),)),
            "Rule 'a' admits 10 per minute for user:1. This hit needs 8; 5 of 10 are left; try again in 3 seconds.",
        ),
        (DENIED, "Rule 'd' refuses, since the store did not answer; try again shortly."),
    ],
)
def test_a_decision_explains_itself(decision: Decision, text: str) -> None:
    assert decision.explain() == text


@pytest.mark.parametrize(
    ("period", "tz", "now", "ends"),
    [
        ("month", "UTC", "2026-11-20T08:00+00:00", "1 December"),
        ("month", "Asia/Tokyo", "2026-11-30T16:00+00:00", "1 January"),
        ("day", "UTC", "2026-11-20T08:00+00:00", "21 November"),
    ],
)
@pytest.mark.parametrize("skew", [-1000, 0, 1000])
def test_a_refusal_of_a_calendar_names_the_day_on_which_its_period_ends(
    period: str, tz: str, now: str, ends: str, skew: int, memory_store: None
) -> None:
    moment = datetime.fromisoformat(now)
    with freeze(moment):
        check(f"100000/{period}", "org:7", 85_840, name="tokens", algorithm="calendar", tz=tz)
        decision = check(f"100000/{period}", "org:7", 15_000, name="tokens", algorithm="calendar", tz=tz)
    with freeze(moment + timedelta(seconds=skew)):  # this clock is not that of the store
        text = decision.explain()
    assert text == (
        f"Rule 'tokens' admits 100,000 per {period} for org:7. "
        f"This hit needs 15,000; 14,160 of 100,000 are left until {ends}."
    )


def test_the_outcome_of_a_rule_is_that_of_its_tightest_rate() -> None:
    loose, tight, other = outcome("a", remaining=5), outcome("a", remaining=2), outcome("b", remaining=1)
    decision = Decision.of((loose, tight, other))
    assert decision.of_rule("a") is tight
    assert decision.of_rule("b") is other
    with pytest.raises(RuleError, match=r"Rule 'c' is not in this decision\. It has 'a', 'b'\."):
        decision.of_rule("c")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_used_counts_until_the_window_is_over(algorithm: Any, memory_store: None) -> None:
    with freeze(START):
        taken = check("10/m", "user:1", 3, algorithm=algorithm).outcomes[0]
        refused = check("10/m", "user:1", 8, algorithm=algorithm).outcomes[0]
        assert (taken.used, refused.used, peek("10/m", "user:2", algorithm=algorithm).outcomes[0].used) == (3, 3, 0)
    with freeze(START + 120 * SECOND):
        assert peek("10/m", "user:1", algorithm=algorithm).outcomes[0].used == 0


@pytest.mark.parametrize(("wait", "least"), [(7_230.0, 7_230), (93_599.0, 93_599), (90_061.0, 90_061)])
def test_the_wait_in_words_is_never_too_short(wait: float, least: int) -> None:
    words = Decision.of((outcome(ok=False, wait=wait),)).explain().partition("again in ")[2].rstrip(".").split()
    sizes = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
    total = sum(int(n) * sizes[u.rstrip("s")] for n, u in zip(words[::2], words[1::2], strict=True))
    assert total >= least


@pytest.mark.parametrize(
    ("rate", "options", "window"), [("10/m", {}, 60), ("1/month", {"algorithm": "calendar"}, None)]
)
def test_the_window_of_an_outcome_is_whole_seconds_and_none_for_months(
    rate: str, options: dict[str, Any], window: int | None
) -> None:
    assert outcome()._replace(of=limit(rate=rate, **options)).window == window


def test_a_decision_survives_pickling() -> None:
    decision = Decision.of((outcome("a", ok=False),))
    back = pickle.loads(pickle.dumps(decision))
    assert (back.explain(), back.limit, back.retry_after) == (decision.explain(), 10, 3.0)
    assert (back, hash(back)) == (decision, hash(decision))
