"""What an override does: for a subject, a network, a kind or everybody, on every store and at every edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from django_quota import Rule, acheck, apeek, check, check_all, peek, refund, reserve_all, reset
from django_quota.core.algorithms import ALGORITHMS
from django_quota.testing import freeze
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

SUBJECT = "ip:192.0.2.7"
FORMS = (SUBJECT, "ip:192.0.2.0/24", "ip:*", "*")
RULE = Rule.make("site", "2/m", key="ip")

each_form = pytest.mark.parametrize("form", FORMS)


@pytest.fixture
def no_call(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes the store raise when it is asked."""

    def forbid() -> None:
        def fail(*_: Any) -> Any:
            raise AssertionError("the store was asked")

        for name in ("run", "arun", "try_all"):
            monkeypatch.setattr(current_store(), name, fail)

    return forbid


@pytest.mark.usefixtures("either_store")
class TestOnEveryStore:
    """A block and an exemption are decided without the store, another rate and a shadow with it."""

    @each_form
    @pytest.mark.parametrize(("value", "allowed", "why"), [("b 0 0 ", False, "blocked"), ("x 0 0 ", True, "exempt")])
    def test_a_blocked_or_exempt_subject_is_decided_without_a_call(
        self, form: str, value: str, allowed: bool, why: str, no_call: Callable[[], None]
    ) -> None:
        override(value, "site", form)
        no_call()
        verbs: list[Callable[..., Any]] = [check, check, check, peek, acheck, apeek, *([refund] if allowed else [])]
        for verb in verbs:
            found = verb(RULE, SUBJECT)
            decision = asyncio.run(found) if asyncio.iscoroutine(found) else found
            assert (decision.allowed, decision.outcomes[0].why, decision.remaining) == (allowed, why, 2 * allowed)
            assert allowed or (decision.enforced, decision.retry_after) == (True, None)

    @each_form
    def test_another_rate_counts_each_subject_by_itself(self, form: str) -> None:
        override("r 0 0 3/m", "site", form)
        assert [check(RULE, SUBJECT).remaining for _ in range(3)] == [2, 1, 0]
        refused = check(RULE, SUBJECT)
        assert (refused.allowed, refused.limit, refused.outcomes[0].why) == (False, 3, "override")
        assert check(RULE, "ip:192.0.2.8").limit == (2 if form == SUBJECT else 3)
        assert check(RULE, "ip:192.0.2.8")

    @each_form
    def test_a_shadow_counts_and_reports_and_never_refuses(self, form: str) -> None:
        override("s 0 0 ", "site", form)
        decisions = [check(RULE, SUBJECT) for _ in range(4)]
        assert [decision.allowed for decision in decisions] == [True] * 4
        assert [decision.would_refuse for decision in decisions] == [False, False, True, True]

    def test_a_rate_of_another_window_has_a_count_of_its_own_and_the_same_window_goes_on(self) -> None:
        for _ in range(2):
            check(RULE, SUBJECT)
        override("r 0 0 3/m", "site", SUBJECT)
        assert check(RULE, SUBJECT).remaining == 0
        override("r 0 0 5/h", "site", SUBJECT)
        assert check(RULE, SUBJECT).remaining == 4
        override("", "site", SUBJECT)
        assert not check(RULE, SUBJECT)

    def test_a_reset_drops_also_what_was_counted_under_the_rates_of_overrides(self) -> None:
        override("r 0 0 1/h", "site", SUBJECT)
        override("r 0 0 1/d", "*", "ip:*")
        assert check(RULE, SUBJECT)
        assert not check(RULE, SUBJECT)
        override("", "site", SUBJECT)
        assert check(RULE, SUBJECT).limit == 1
        override("r 0 0 1/h", "site", SUBJECT)
        assert reset(RULE, SUBJECT)
        assert check(RULE, SUBJECT)
        override("", "site", SUBJECT)
        assert check(RULE, SUBJECT)

    def test_a_refund_reaches_what_a_blocked_subject_has_used(self) -> None:
        for _ in range(2):
            check(RULE, SUBJECT)
        override("b 0 0 ", "*", SUBJECT)
        assert refund(RULE, SUBJECT).outcomes[0].why == "blocked"
        override("", "*", SUBJECT)
        assert peek(RULE, SUBJECT).remaining == 1

    def test_several_subjects_are_decided_together(self) -> None:
        entries = [("5/m", "user:1"), ("5/m", "org:2"), ("5/m", SUBJECT)]
        override("x 0 0 ", "*", "user:1")
        override("s 0 0 ", "*", "org:*")
        decision = check_all(entries)
        assert [(each.subject, each.why, each.remaining) for each in decision.outcomes] == [
            ("user:1", "exempt", 5),
            ("org:2", "", 4),
            (SUBJECT, "", 4),
        ]
        override("b 0 0 ", "*", "ip:192.0.0.0/16")
        decision = check_all(entries)
        assert (decision.allowed, decision.subject) == (False, SUBJECT)
        override("", "*", "ip:192.0.0.0/16")
        assert [peek("5/m", subject).remaining for _, subject in entries] == [5, 4, 4]

    def test_a_reservation_is_free_for_an_exempt_subject(self) -> None:
        override("x 0 0 ", "site", "user:1")
        reserve_all([(RULE, "user:1", 2), (RULE, "user:3", 2)]).settle(1)
        assert (peek(RULE, "user:1").remaining, peek(RULE, "user:3").remaining) == (2, 1)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("rates", [("2/m",), ("2/m", "9/h"), (None,)])
    def test_they_hold_under_every_algorithm_and_for_unlimited_tiers(self, algorithm: Any, rates: Any) -> None:
        options = {"burst": 3} if algorithm in ("token_bucket", "leaky_bucket") else {}
        rule = Rule.make("any", *rates, algorithm=algorithm, **options)
        override("x 0 0 ", "any", "user:1")
        override("b 0 0 ", "any", "user:2")
        override("s 0 0 ", "any", "user:3")
        assert [bool(check(rule, f"user:{n}")) for n in (1, 2, 3) for _ in range(5)] == [True] * 5 + [False] * 5 + [
            True
        ] * 5
        assert [bool(verb(rule, "user:1")) for verb in (peek, refund)] == [True, True]

    def test_a_rule_that_reports_only_reports_a_block(self, no_call: Callable[[], None]) -> None:
        override("b 0 0 ", "*", SUBJECT)
        no_call()
        shadow = check("2/m", SUBJECT, shadow=True)
        assert (shadow.allowed, shadow.enforced, shadow.would_refuse) == (True, False, True)
        lenient = check("2/m", SUBJECT, block=False)
        assert (lenient.allowed, lenient.enforced) == (False, False)
        decision = check_all([(Rule.make("a", "2/m", shadow=True), SUBJECT), (Rule.make("b", "2/m"), SUBJECT)])
        assert (decision.enforced, decision.rule) == (True, "b")

    def test_a_block_says_truly_how_long_it_lasts(self) -> None:
        override(f"b 0 {START + 90 * SECOND} ", "*", SUBJECT)
        override(f"b {START + 60 * SECOND} {START + 100 * SECOND} ", "*", "ip:*")
        with freeze(START):
            refused = check(RULE, SUBJECT)
        assert (refused.retry_after, refused.reset_after) == (100.0, 100.0)
        with freeze(START + 100 * SECOND - 1):
            assert not check(RULE, SUBJECT)
        with freeze(START + 100 * SECOND):
            assert check(RULE, SUBJECT)


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("on_unavailable", ["allow", "deny", "local"])
class TestWithoutTheStore:
    """What overrides say holds, whatever a rule does without its store."""

    def test_a_block_and_an_exemption_hold(self, on_unavailable: Any) -> None:
        override("b 0 0 ", "*", "user:1")
        override("x 0 0 ", "*", "user:2")
        with no_answer():
            assert not check("5/m", "user:9", on_unavailable="deny")  # the outage has been noticed
            blocked, exempt = (check("5/m", f"user:{n}", on_unavailable=on_unavailable) for n in (1, 2))
        assert (blocked.enforced, blocked.outcomes[0].why, blocked.degraded) == (True, "blocked", False)
        assert (exempt.allowed, exempt.outcomes[0].why, exempt.degraded) == (True, "exempt", False)

    def test_a_block_beside_another_subject_holds(self, on_unavailable: Any) -> None:
        rule = Rule.make("mixed", "5/m", on_unavailable=on_unavailable)
        override("b 0 0 ", "*", "user:1")
        override("x 0 0 ", "*", "user:2")
        with no_answer():
            assert not check_all([(rule, "user:9"), (rule, "user:1")])
            allowed = check_all([(rule, "user:9"), (rule, "user:2")]).allowed
        assert allowed == (on_unavailable != "deny")

    def test_another_rate_holds_where_the_process_counts(self, on_unavailable: Any) -> None:
        override("r 0 0 1/m", "*", "user:1")
        with no_answer():
            allowed = [check("5/m", "user:1", on_unavailable=on_unavailable).allowed for _ in range(2)]
        assert allowed == {"allow": [True, True], "deny": [False, False], "local": [True, False]}[on_unavailable]


@pytest.mark.usefixtures("redis_cache")
def test_a_refusal_from_memory_is_that_of_its_own_rule() -> None:
    entries: Any = [("9/m", "user:1"), (Rule.make("cached", "1/m", cache_refusals=60), "user:2")]
    override("x 0 0 ", "9/m", "user:1")
    with freeze(START):
        assert [bool(check_all(entries)) for _ in range(3)] == [True, False, False]
        with no_answer():
            remembered = check_all(entries)
    assert [(each.rule, each.allowed) for each in remembered.outcomes] == [("cached", False)]


@pytest.mark.usefixtures("redis_cache")
def test_a_refusal_from_memory_ends_with_an_exemption() -> None:
    with freeze(START):
        for _ in range(3):
            check("1/m", "user:1", cache_refusals=60)
        override("x 0 0 ", "*", "user:1")
        assert check("1/m", "user:1", cache_refusals=60)
        override("r 0 0 5/m", "*", "user:1")
        assert check("1/m", "user:1", cache_refusals=60).remaining == 3
