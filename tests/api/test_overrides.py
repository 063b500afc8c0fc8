"""What an override does: for a subject, a network, a kind or everybody, on every store and at every edge."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from django_quota import Rule, acheck, apeek, check, check_all, peek, refund, reserve_all, reset
from django_quota.testing import freeze
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

SUBJECT = "ip:192.0.2.7"
FORMS = (SUBJECT, "ip:192.0.2.0/24", "ip:*", "*")
RULE = Rule.make("site", "2/m", key="ip")


@pytest.mark.usefixtures("either_store")
class TestOnEveryStore:
    """A block and an exemption are decided without the store, another rate and a shadow with it."""

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize(("value", "allowed", "why"), [("b 0 0 ", False, "blocked"), ("x 0 0 ", True, "exempt")])
    def test_a_blocked_or_exempt_subject_is_decided_without_a_call(
        self, form: str, value: str, allowed: bool, why: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        override(value, "site", form)
        for name in ("run", "arun", "try_all"):
            monkeypatch.setattr(current_store(), name, Mock(side_effect=AssertionError("the store was asked")))
        verbs: list[Callable[..., Any]] = [check, check, check, peek, acheck, apeek, *([refund] if allowed else [])]
        for verb in verbs:
            found = verb(RULE, SUBJECT)
            decision = asyncio.run(found) if asyncio.iscoroutine(found) else found
            assert (decision.allowed, decision.outcomes[0].why, decision.remaining) == (allowed, why, 2 * allowed)
            assert allowed or (decision.enforced, decision.retry_after) == (True, None)
        assert check(Rule.make("site", None), SUBJECT).allowed is allowed  # an unlimited tier
        shadow, lenient = Rule.make("site", "2/m", shadow=True), Rule.make("site", "2/m", block=False)
        for rule, seems in ((shadow, True), (lenient, allowed)):
            decision = check(rule, SUBJECT)
            assert (decision.allowed, decision.enforced, decision.would_refuse) == (seems, False, not allowed)

    @pytest.mark.parametrize("form", FORMS)
    def test_another_rate_counts_each_subject_by_itself_and_a_shadow_never_refuses(self, form: str) -> None:
        override("r 0 0 3/m", "site", form)
        assert [check(RULE, SUBJECT).remaining for _ in range(3)] == [2, 1, 0]
        refused = check(RULE, SUBJECT)
        assert (refused.allowed, refused.limit, refused.outcomes[0].why) == (False, 3, "override")
        assert check(RULE, "ip:192.0.2.8").limit == (2 if form == SUBJECT else 3)
        override("s 0 0 ", "other", form)
        decisions = [check("2/m", SUBJECT, name="other") for _ in range(4)]
        assert [(each.allowed, each.would_refuse) for each in decisions] == [(True, False)] * 2 + [(True, True)] * 2

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
        assert [bool(check(RULE, SUBJECT)) for _ in range(2)] == [True, False]
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

    def test_several_subjects_are_decided_together_and_reserve_is_free_for_an_exempt_one(self) -> None:
        entries = [("5/m", "user:1"), ("5/m", "org:2"), ("5/m", SUBJECT)]
        override("x 0 0 ", "*", "user:1")
        override("s 0 0 ", "*", "org:*")
        decision = check_all(entries)
        assert [(each.why, each.remaining) for each in decision.outcomes] == [("exempt", 5), ("", 4), ("", 4)]
        reserve_all([(rule, subject, 2) for rule, subject in entries]).settle(1)
        assert [peek("5/m", subject).remaining for _, subject in entries] == [5, 3, 3]
        override("b 0 0 ", "*", "ip:192.0.0.0/16")
        decision = check_all(entries)
        assert (decision.allowed, decision.subject) == (False, SUBJECT)
        override("", "*", "ip:192.0.0.0/16")
        assert [peek("5/m", subject).remaining for _, subject in entries] == [5, 3, 3]

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
def test_without_the_store_what_overrides_say_holds_whatever_the_rule_does(on_unavailable: Any) -> None:
    rule = Rule.make("mixed", "5/m", on_unavailable=on_unavailable)
    override("b 0 0 ", "*", "user:1")
    override("x 0 0 ", "*", "user:2")
    override("r 0 0 1/m", "*", "user:3")
    with no_answer():
        assert not check("5/m", "user:9", on_unavailable="deny")  # the outage has been noticed
        blocked, exempt = (check(rule, f"user:{n}") for n in (1, 2))
        assert not check_all([(rule, "user:9"), (rule, "user:1")])
        assert check_all([(rule, "user:9"), (rule, "user:2")]).allowed == (on_unavailable != "deny")
        other_rate = [check(rule, "user:3").allowed for _ in range(2)]
    assert (blocked.enforced, blocked.outcomes[0].why, blocked.degraded) == (True, "blocked", False)
    assert (exempt.allowed, exempt.outcomes[0].why, exempt.degraded) == (True, "exempt", False)
    assert other_rate == {"allow": [True, True], "deny": [False, False], "local": [True, False]}[on_unavailable]


@pytest.mark.usefixtures("redis_cache")
def test_a_refusal_from_memory_is_that_of_its_own_rule_and_ends_with_an_exemption() -> None:
    entries: Any = [("9/m", "user:1"), (Rule.make("cached", "1/m", cache_refusals=60), "user:2")]
    override("x 0 0 ", "9/m", "user:1")
    with freeze(START):
        assert [bool(check_all(entries)) for _ in range(3)] == [True, False, False]
        with no_answer():
            remembered = check_all(entries)
        assert [(each.rule, each.allowed) for each in remembered.outcomes] == [("cached", False)]
        override("x 0 0 ", "*", "user:2")
        assert check_all(entries)
        override("r 0 0 5/m", "*", "user:2")
        assert check_all(entries).remaining == 3
