"""The Decision: which limit binds, how two decisions are combined, and what they explain."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Decision, Rule, check
from django_quota.core.algorithms.stock import Held
from django_quota.core.decisions import Concurrency, updated
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.testing import freeze
from django_quota.types import Outcome


def outcome(
    rule: str = "r", *, ok: bool = True, remaining: int = 5, wait: float | None = 3.0, shadow: bool = False,
    enforced: bool = True, cost: int = 1, delay: float = 0.0, reset: float = 9.0,
) -> Outcome:  # fmt: skip
    return Outcome(
        of=Rule.make(rule, "10/m").limits[0], subject="user:1", cost=cost, allowed=ok, remaining=remaining,
        retry_after=0.0 if ok else wait, reset_after=reset, delay=delay, shadow=shadow,
        enforced=enforced and not shadow,
    )  # fmt: skip


def refused(rule: str = "r", **options: Any) -> Outcome:
    return outcome(rule, ok=False, **options)


outcomes = st.builds(
    outcome, ok=st.booleans(), remaining=st.integers(0, 10), wait=st.none() | st.floats(0.001, 1e6),
    reset=st.floats(0, 1e6), shadow=st.booleans(), enforced=st.booleans(),
)  # fmt: skip
NOTHING = Decision.without_limit()
DENIED = Decision.without_limit("d", "user:1", allowed=False, degraded=True, enforced=True)
SOFTLY_DENIED = replace(DENIED, enforced=False)


@pytest.mark.parametrize(
    ("outcomes_", "rule", "allowed", "enforced", "retry_after"),
    [
        # If all allow, the limit with the fewest hits left binds: hits of this cost.
        ([outcome("a", remaining=5), outcome("b", remaining=2), outcome("c", remaining=9)], "b", True, False, 0.0),
        ([outcome("cheap", remaining=5, cost=1), outcome("dear", remaining=8, cost=4)], "dear", True, False, 0.0),
        ([outcome("cheap", remaining=5, cost=1), outcome("dear", remaining=8, cost=2)], "dear", True, False, 0.0),
        ([outcome("free", remaining=3, cost=0), outcome("paid", remaining=4, cost=1)], "free", True, False, 0.0),
        # Of two with as many, the one that is free again later.
        ([outcome("soon", reset=5.0), outcome("late", reset=9.0)], "late", True, False, 0.0),
        # If several refuse, the longest wait binds; an enforced refusal before a longer one that is not.
        ([refused("a", wait=3), refused("b", wait=8), outcome("c")], "b", False, True, 8),
        ([refused("a", wait=3), refused("b", wait=None)], "b", False, True, None),
        ([refused("soft", wait=99, enforced=False), refused("hard")], "hard", False, True, 3),
        ([refused("soft", enforced=False), outcome("hard")], "soft", False, False, 3),
        # A shadow never refuses, and never binds before others.
        ([refused("shadow", shadow=True, remaining=0), outcome("real")], "real", True, False, 0.0),
        ([refused("shadow", shadow=True)], "shadow", True, False, 0.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_the_binding_limit_is_the_strictest(
    order: int, outcomes_: list[Outcome], rule: str, allowed: bool, enforced: bool, retry_after: float | None
) -> None:
    decision = Decision.of(tuple(outcomes_[::order]))

    found = (decision.rule, decision.allowed, decision.enforced, decision.retry_after)
    assert found == (rule, allowed, enforced, retry_after)
    assert decision.remaining == next(each.remaining for each in outcomes_ if each.rule == rule)


@given(st.lists(outcomes, min_size=1, max_size=5))
def test_a_decision_allows_unless_a_limit_without_shadow_refuses(several: list[Outcome]) -> None:
    decision = Decision.of(tuple(several))
    refusing = [o for o in several if not o.allowed and not o.shadow]
    assert decision.allowed is bool(decision) is not bool(refusing)
    assert decision.enforced is any(o.enforced for o in refusing)
    assert decision.would_refuse is any(not o.allowed for o in several)
    if decision.enforced and decision.retry_after is not None:
        assert decision.retry_after >= max(o.retry_after or 0 for o in refusing if o.enforced)


@given(st.lists(outcomes, min_size=1, max_size=3), st.lists(outcomes, min_size=1, max_size=3))
def test_combining_two_decisions_equals_deciding_all_limits_at_once(a: list[Outcome], b: list[Outcome]) -> None:
    joined = Decision.of((*a, *b))
    assert Decision.of(tuple(a)).combined_with(Decision.of(tuple(b))) == joined
    assert NOTHING.combined_with(joined) == joined.combined_with(NOTHING) == joined


@pytest.mark.parametrize(
    "earlier", [Decision.of((outcome("a"),)), Decision.of((refused("a", enforced=False),)), NOTHING, SOFTLY_DENIED]
)
def test_a_denial_without_the_store_binds_before_earlier_decisions(earlier: Decision) -> None:
    """`refusal_response` answers 503 if a degraded decision has no binding limit."""
    both = [earlier.combined_with(DENIED), DENIED.combined_with(earlier)]

    found = [(each.allowed, each.enforced, each.degraded, each.binding, each.retry_after) for each in both]
    assert found == [(False, True, True, None, 1.0)] * 2


def test_an_enforced_refusal_binds_before_a_denial_without_the_store_that_is_not() -> None:
    joined = SOFTLY_DENIED.combined_with(Decision.of((refused("hard", wait=8),)))
    assert (joined.enforced, joined.rule, joined.retry_after) == (True, "hard", 8)


ALLOWED, REFUSED = Decision.of((outcome("a"),)), Decision.of((refused("b"),))
SOFTLY_REFUSED = Decision.of((refused("s", enforced=False),))
FREE = Decision.without_limit("f", "user:2")


@pytest.mark.parametrize(
    ("one", "other", "rule", "allowed", "enforced", "outcomes_"),
    [
        (ALLOWED, REFUSED, "b", False, True, 2), (ALLOWED, SOFTLY_REFUSED, "s", False, False, 2),
        (SOFTLY_REFUSED, REFUSED, "b", False, True, 2), (ALLOWED, DENIED, "d", False, True, 1),
        (ALLOWED, SOFTLY_DENIED, "d", False, False, 1), (REFUSED, SOFTLY_DENIED, "b", False, True, 1),
        (ALLOWED, FREE, "a", True, False, 1), (ALLOWED, NOTHING, "a", True, False, 1),
        (SOFTLY_REFUSED, SOFTLY_DENIED, "s", False, False, 1), (REFUSED, DENIED, "b", False, True, 1),
    ],
    ids=[
        "a refusal", "a refusal that is not enforced", "an enforced refusal and another", "a denial",
        "a denial that is not enforced", "a refusal and a denial that is not enforced", "no limit", "no rule",
        "a refusal and a denial, neither enforced", "a refusal and a denial",
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
def test_of_two_decisions_the_stricter_one_speaks_for_both(
    order: int, one: Decision, other: Decision, rule: str, allowed: bool, enforced: bool, outcomes_: int
) -> None:
    first, second = (one, other)[::order]

    both = first.combined_with(second)

    assert (both.rule, both.allowed, both.enforced, len(both.outcomes)) == (rule, allowed, enforced, outcomes_)


def test_of_two_decisions_without_outcomes_the_first_speaks_for_both() -> None:
    assert (FREE.combined_with(NOTHING).rule, NOTHING.combined_with(FREE).rule) == ("f", "")


UNLIMITED = outcome("u")._replace(remaining=None, over=7)


def test_a_limit_that_only_counts_allows_and_gives_no_numbers() -> None:
    decision = Decision.of((UNLIMITED,), degraded=True)

    assert (decision.allowed, decision.enforced, decision.degraded) == (True, False, True)
    assert (decision.binding, decision.rule, decision.subject) == (None, "u", "user:1")
    assert (decision.limit, decision.remaining, decision.used, decision.reset_after) == (None, None, None, 0.0)


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "reversed"])
@pytest.mark.parametrize(
    "limited",
    [outcome("l"), outcome("l", shadow=True, remaining=10**15), refused("l", shadow=True), refused("l")],
    ids=["allowed", "a shadow", "a refused shadow", "refused"],
)
def test_a_limit_binds_before_one_that_only_counts(limited: Outcome, order: int) -> None:
    assert Decision.of((UNLIMITED, limited)[::order]).rule == "l"


def test_a_decision_has_the_numbers_of_the_limit_that_binds() -> None:
    decision = Decision.of((outcome("a", remaining=4, cost=2, reset=7.0), outcome("b", remaining=9)))

    assert (decision.rule, decision.subject, decision.cost) == ("a", "user:1", 2)
    assert (decision.limit, decision.remaining, decision.used) == (10, 4, 6)
    assert (decision.retry_after, decision.reset_after) == (0.0, 7.0)
    assert (decision.degraded, decision.approximate) == (False, False)


def test_a_decision_by_units_that_were_taken_ahead_is_approximate() -> None:
    decision = Decision.approximately_allowed(lambda: (outcome("a"),))

    assert (decision.allowed, decision.enforced, decision.degraded, decision.approximate) == (True, False, False, True)
    assert decision == Decision(True, _given=(outcome("a"),), approximate=True)


def test_an_outcome_has_the_window_of_its_limit_in_seconds() -> None:
    assert (outcome().window, Outcome(Concurrency("s", 2), "user:1", 1, True, 1, 0.0, 0.0).window) == (60, None)


@pytest.mark.parametrize(
    ("cost", "sentence"),
    [
        (0, "Rule 'r' admits 10 per minute for user:1; try again in 3 seconds."),
        (1, "Rule 'r' admits 10 per minute for user:1; try again in 3 seconds."),
        (
            2,
            "Rule 'r' admits 10 per minute for user:1. This hit needs 2; 1 of 10 are left; try again in 3 seconds.",
        ),
    ],
    ids=["free", "one unit", "two units"],
)
def test_a_refusal_says_what_is_left_if_a_hit_needs_several_units(cost: int, sentence: str) -> None:
    assert Decision.of((refused(cost=cost, remaining=1),)).explain() == sentence


def test_a_decision_that_allows_raises_nothing() -> None:
    allowed = Decision.of((outcome(),))
    assert allowed.raise_if_refused() is allowed


def test_a_refusal_raises_an_error_that_carries_it() -> None:
    denied = Decision.of((refused(),))
    with pytest.raises(QuotaExceeded) as caught:
        denied.raise_if_refused()
    assert caught.value.decision is denied


def test_the_delay_is_the_longest_of_all_limits() -> None:
    assert Decision.of((outcome(delay=0.5), outcome(delay=2.0))).delay == 2.0


def test_a_decision_without_limits_has_no_numbers() -> None:
    assert (NOTHING.limit, NOTHING.remaining, NOTHING.retry_after, NOTHING.reset_after) == (None, None, 0.0, 0.0)
    assert (NOTHING.delay, NOTHING.would_refuse, NOTHING.of_rule("a")) == (0.0, False, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [(True, False), (False, True), (True, True), (False, False)],
    ids=["the first", "the second", "both", "none"],
)
@pytest.mark.parametrize("flag", ["degraded", "approximate"])
def test_two_decisions_together_are_as_uncertain_as_either(flag: str, one: bool, other: bool) -> None:
    flags: list[Any] = [{flag: one}, {flag: other}]
    first, second = (replace(Decision.of((outcome(),)), **each) for each in flags)

    joined = first.combined_with(second)

    assert getattr(joined, flag) is (one or other)


@pytest.mark.parametrize(("slots", "words"), [(1, "1 at once"), (1_200, "1,200 at once")])
def test_a_limit_of_slots_is_shown_where_others_have_a_rate(slots: int, words: str) -> None:
    assert str(Concurrency("export", slots).rate) == words


def test_a_limit_of_slots_has_the_attributes_of_a_limit() -> None:
    limit = Concurrency("export", 3)

    assert (limit.rule, limit.capacity, limit.algorithm_name, limit.unit, limit.window, limit.rate.window) == (
        "export", 3, "concurrency", "concurrent-requests", None, "at-once",
    )  # fmt: skip


def test_a_decision_is_shown_with_all_that_it_says() -> None:
    decision = Decision.of((refused("a"),), degraded=True)

    assert repr(decision) == (
        "Decision(allowed=False, rule='a', subject='user:1', cost=1, "
        f"outcomes={decision.outcomes!r}, degraded=True, enforced=True)"
    )


@pytest.mark.parametrize("changed", ["allowed", "enforced", "degraded", "approximate"])
def test_decisions_that_differ_in_one_thing_are_not_equal(changed: str) -> None:
    flags: Any = {changed: not getattr(REFUSED, changed)}

    assert replace(REFUSED, **flags) != REFUSED


@pytest.mark.parametrize(
    "copied", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))], ids=["copied", "pickled"]
)
def test_a_copy_of_a_denial_without_the_store_is_of_the_same_rule_and_subject(copied: Any) -> None:
    found = copied(DENIED)

    assert (found, found.rule, found.subject) == (DENIED, "d", "user:1")


def test_denials_by_different_rules_are_not_equal() -> None:
    assert Decision.without_limit("d", "user:1", allowed=False) != Decision.without_limit("e", "user:1", allowed=False)


def test_a_denial_without_the_store_refuses_though_no_limit_did() -> None:
    assert (DENIED.would_refuse, SOFTLY_DENIED.would_refuse) == (True, True)


def test_of_two_decisions_the_one_with_outcomes_speaks_for_both_though_none_of_them_binds() -> None:
    exempt = Decision.without_limit("exempt", "user:1", outcomes=(outcome("a"),))

    both = [exempt.combined_with(NOTHING), NOTHING.combined_with(exempt)]

    assert [(each.rule, each.binding, each.outcomes) for each in both] == [("exempt", None, exempt.outcomes)] * 2


def test_a_decision_is_no_other_thing() -> None:
    assert NOTHING != "nothing"


def test_equal_decisions_are_one_in_a_set() -> None:
    assert len({Decision.of((outcome("a"),)), Decision.of((outcome("a"),)), NOTHING}) == 2


@pytest.mark.parametrize(
    ("changed", "used"),
    [
        ({}, 5), ({"over": 3, "remaining": 0}, 13), ({"why": "blocked", "remaining": 0, "allowed": False}, 0),
        ({"why": "banned", "remaining": 4, "allowed": False}, 6), ({"remaining": None, "over": 7}, 7),
    ],
    ids=["within the limit", "over the limit", "blocked", "banned", "without a limit"],
)  # fmt: skip
def test_what_is_used_counts_even_above_the_limit(changed: Any, used: int) -> None:
    assert outcome()._replace(**changed).used == used


@pytest.mark.parametrize(
    ("why", "allowed", "is_shut_out"),
    [
        ("blocked", False, True),
        ("banned", False, True),
        ("", False, False),
        ("override", False, False),
        ("", True, False),
        ("banned", True, False),
    ],
)
def test_who_is_blocked_or_banned_is_shut_out(why: Any, allowed: bool, is_shut_out: bool) -> None:
    assert outcome(ok=allowed)._replace(why=why).is_shut_out is is_shut_out


def test_a_decision_without_limits_has_a_cost_of_one() -> None:
    assert (NOTHING.cost, NOTHING.used, NOTHING.rule, NOTHING.subject) == (1, None, "", "")


def test_a_refused_hit_has_no_delay() -> None:
    assert Decision.of((refused(delay=2.0),)).delay == 0.0


@pytest.mark.parametrize("attribute", ["outcomes", "binding"])
def test_what_a_decision_reads_is_no_attribute_of_the_class(attribute: str) -> None:
    with pytest.raises(AttributeError, match=rf"^Decision\.{attribute} is an attribute of instances\.$"):
        getattr(Decision, attribute)


TIGHT, OTHER = outcome("a", remaining=2), outcome("b", remaining=1)
SEVERAL = Decision.of((outcome("a", remaining=5), TIGHT, OTHER))


def test_the_outcome_of_a_rule_is_that_of_its_tightest_rate() -> None:
    assert (SEVERAL.of_rule("a"), SEVERAL.of_rule("b")) == (TIGHT, OTHER)


def test_the_outcome_of_a_rule_that_was_not_asked_is_an_error() -> None:
    with pytest.raises(RuleError, match=r"^Rule 'c' is not in this decision\. It has 'a', 'b'\.$"):
        SEVERAL.of_rule("c")


OWING = refused(cost=3, remaining=0, wait=None)._replace(of=Held("credits", 0), over=15)
OF_A_SHARE = "rule 'r' (10 per minute, of which these requests may fill 2)"
TOO_DEAR = refused(cost=3, remaining=2, wait=None)._replace(of=Rule.make("r", "10/m", share=0.2).limits[0])


@pytest.mark.parametrize(
    ("decision", "sentence"),
    [
        (Decision.of((outcome("a"),)), "Allowed by rule 'a' for user:1; 5 of 10 are left."),
        (NOTHING, "Allowed: nothing limits this."),
        (Decision.without_limit(degraded=True), "Allowed without a check: the store did not answer."),
        (DENIED, "Rule 'd' refuses, since the store did not answer; try again shortly."),
        (Decision.without_limit(allowed=False), "The store did not answer a call of the view; try again shortly."),
        (
            Decision.without_limit("d", allowed=False),
            "Rule 'd' refuses, since the store did not answer; try again shortly.",
        ),
        (Decision.of((OWING,)), "This hit needs 3 of counter 'credits' of user:1; 15 are owed."),
        (Decision.of((OWING._replace(over=0),)), "This hit needs 3 of counter 'credits' of user:1; 0 are left."),
        (
            Decision.of((TOO_DEAR,)),
            f"A cost of 3 is more than {OF_A_SHARE} ever admits for user:1; waiting does not help.",
        ),
    ],
    ids=[
        "allowed",
        "no limit",
        "allowed without the store",
        "denied without the store",
        "denied in the view",
        "denied without the store and for nobody",
        "a counter that owes",
        "an empty counter",
        "more than a share",
    ],
)
def test_a_decision_explains_itself(decision: Decision, sentence: str) -> None:
    """What refusals say is in `tests/api/test_refusal_sentences.py`."""
    assert decision.explain() == sentence


@given(st.floats(1, 400 * 86_400.0))
def test_the_wait_in_words_is_never_too_short(wait: float) -> None:
    words = Decision.of((refused(wait=wait),)).explain().partition("again in ")[2].rstrip(".").split()
    sizes = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
    assert sum(int(n) * sizes[u.rstrip("s")] for n, u in zip(words[::2], words[1::2], strict=True)) >= wait


@pytest.mark.parametrize("skew", [-1000, 1000], ids=["a clock that is late", "a clock that is early"])
@pytest.mark.parametrize(
    ("period", "tz", "now", "ends"),
    [
        ("month", "Asia/Tokyo", "2026-11-30T16:00+00:00", "1 January"),
        ("day", "UTC", "2026-11-20T08:00Z", "21 November"),
    ],
)
def test_a_refusal_of_a_calendar_names_the_day_on_which_its_period_ends(
    period: str, tz: str, now: str, ends: str, skew: int, memory_store: None
) -> None:
    options: Any = {"name": "tokens", "algorithm": "calendar", "tz": tz}
    moment = datetime.fromisoformat(now)
    with freeze(moment):
        check(f"100000/{period}", "org:7", 85_840, **options)
        decision = check(f"100000/{period}", "org:7", 15_000, **options)

    with freeze(moment + timedelta(seconds=skew)):
        assert decision.explain() == (
            f"Rule 'tokens' admits 100,000 per {period} for org:7. "
            f"This hit needs 15,000; 14,160 of 100,000 are left until {ends}."
        )


@pytest.mark.parametrize(
    ("rate", "algorithm"), [("100/day", "sliding_window"), ("100/day", "fixed_window"), ("100/h", "calendar")]
)
def test_a_refusal_of_a_window_names_no_day(rate: str, algorithm: Any, memory_store: None) -> None:
    with freeze(datetime.fromisoformat("2026-11-20T08:00Z")):
        check(rate, "org:7", 90, algorithm=algorithm)
        sentence = check(rate, "org:7", 15, algorithm=algorithm).explain()

    assert sentence.endswith(f"; 10 of 100 are left; try again in {'1 day' if 'day' in rate else '1 hour'}.")


@pytest.mark.parametrize(
    "copied",
    [lambda lazy: lazy, copy.copy, lambda lazy: pickle.loads(pickle.dumps(lazy))],
    ids=["not yet read", "copied", "pickled"],
)
def test_a_decision_is_the_same_whether_its_outcomes_were_read_or_not(copied: Callable[[Decision], Decision]) -> None:
    decision = Decision.of((refused("a"),))
    lazy = Decision(False, enforced=True, _given=lambda: decision.outcomes)

    assert copied(lazy) == decision


@pytest.mark.parametrize("of", [hash, repr, Decision.explain], ids=["hash", "repr", "explain"])
@pytest.mark.parametrize(
    "copied",
    [lambda lazy: lazy, copy.copy, lambda lazy: pickle.loads(pickle.dumps(lazy))],
    ids=["not yet read", "copied", "pickled"],
)
def test_what_is_shown_of_a_decision_reads_its_outcomes(
    of: Callable[[Decision], object], copied: Callable[[Decision], Decision]
) -> None:
    decision = Decision.of((refused("a"),))
    lazy = Decision(False, enforced=True, _given=lambda: decision.outcomes)

    assert of(copied(lazy)) == of(decision)


def test_what_is_left_after_a_later_decision_has_all_its_numbers() -> None:
    decision, later = Decision.of((outcome(remaining=4, reset=5),)), outcome(remaining=6, reset=7)

    (found,) = updated(
        decision, Decision.of((later._replace(over=1, next_after=2.0, cost=9, retry_after=8.0),))
    ).outcomes

    assert (found.remaining, found.reset_after, found.over, found.next_after) == (6, 7, 1, 2.0)
    assert (found.cost, found.retry_after) == (1, 0.0)


def test_what_a_later_decision_does_not_have_stays_as_it_was() -> None:
    decision = Decision.of((outcome("a", remaining=4), outcome("b", remaining=3)), degraded=True)

    assert updated(decision, Decision.of((outcome("b", remaining=9),))) == Decision.of(
        (outcome("a", remaining=4), outcome("b", remaining=9)), degraded=True
    )


def test_a_decision_without_outcomes_stays_as_it_was() -> None:
    assert updated(DENIED, Decision.of((outcome(),))) is DENIED


def test_what_a_shadow_refused_is_still_refused_after_the_others_got_their_hits_back() -> None:
    decision = Decision.of((refused("shadow", shadow=True, remaining=0), outcome("real", remaining=4)))
    later = Decision.of((outcome("shadow", shadow=True, remaining=1), outcome("real", remaining=5)))
    assert [(each.allowed, each.remaining) for each in updated(decision, later).outcomes] == [(False, 0), (True, 5)]
