"""What an override does: for a subject, a network, a kind or everybody, on every store and at every edge."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from django.test import RequestFactory

from django_quota import Rule, acheck, apeek, check, check_all, counter, peek, refund, reset
from django_quota.adapters import decide
from django_quota.core.errors import RuleError, StoreFull
from django_quota.signals import refused
from django_quota.testing import freeze
from tests.support.counts import limits_in, previews
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

SUBJECT = "ip:192.0.2.7"
FORMS = (SUBJECT, "ip:192.0.2.0/24", "ip:*", "*")
RULE = Rule.make("site", "2/m", key="ip")


@pytest.mark.usefixtures("either_store")
class TestOnEveryStore:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize(("value", "allowed", "why"), [("b 0 0 ", False, "blocked"), ("x 0 0 ", True, "exempt")])
    def test_a_blocked_or_exempt_subject_is_decided_without_a_call(
        self, form: str, value: str, allowed: bool, why: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        override(value, "site", form)
        for name in ("run", "arun", "try_all"):
            monkeypatch.setattr(current_store(), name, Mock(side_effect=AssertionError("the store was asked")))
        verbs: list[Callable[..., Any]] = [check, check, check, peek, acheck, apeek, *([refund] if allowed else [])]

        found = [verb(RULE, SUBJECT) for verb in verbs]
        decisions = [asyncio.run(each) if asyncio.iscoroutine(each) else each for each in found]

        shown = [(each.allowed, each.outcomes[0].why, each.remaining) for each in decisions]
        assert shown == [(allowed, why, 2 * allowed)] * len(verbs)
        refused = [(each.enforced, each.retry_after) for each in decisions if not each.allowed]
        assert refused == [(True, None)] * len(refused)
        assert check(Rule.make("site", None), SUBJECT).allowed is allowed  # an unlimited tier

    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize(("value", "allowed"), [("b 0 0 ", False), ("x 0 0 ", True)], ids=["blocked", "exempt"])
    @pytest.mark.parametrize("options", [{"shadow": True}, {"block": False}], ids=["shadow", "block=False"])
    def test_a_rule_that_only_reports_lets_a_blocked_subject_in(
        self, options: dict[str, Any], value: str, allowed: bool, form: str
    ) -> None:
        override(value, "site", form)

        decision = check(Rule.make("site", "2/m", **options), SUBJECT)

        assert decision.allowed is (allowed or "shadow" in options)
        assert (decision.enforced, decision.would_refuse) == (False, not allowed)

    @pytest.mark.parametrize("form", FORMS)
    def test_another_rate_counts_each_subject_by_itself(self, form: str) -> None:
        override("r 0 0 3/m", "site", form)

        assert [check(RULE, SUBJECT).remaining for _ in range(3)] == [2, 1, 0]
        refused = check(RULE, SUBJECT)
        assert (refused.allowed, refused.limit, refused.outcomes[0].why) == (False, 3, "override")
        assert check(RULE, "ip:192.0.2.8").limit == (2 if form == SUBJECT else 3)

    @pytest.mark.parametrize("form", FORMS)
    def test_a_shadow_never_refuses(self, form: str) -> None:
        override("s 0 0 ", "other", form)

        decisions = [check("2/m", SUBJECT, name="other") for _ in range(4)]

        assert [(each.allowed, each.would_refuse) for each in decisions] == [(True, False)] * 2 + [(True, True)] * 2

    def test_a_rate_of_the_same_window_goes_on_from_its_count(self) -> None:
        for _ in range(2):
            check(RULE, SUBJECT)

        override("r 0 0 3/m", "site", SUBJECT)

        assert check(RULE, SUBJECT).remaining == 0

    def test_a_rate_of_another_window_has_a_count_of_its_own(self) -> None:
        for _ in range(2):
            check(RULE, SUBJECT)

        override("r 0 0 5/h", "site", SUBJECT)
        assert check(RULE, SUBJECT).remaining == 4

        override("", "site", SUBJECT)
        assert not check(RULE, SUBJECT)

    def test_a_refund_reaches_what_a_blocked_subject_has_used(self) -> None:
        for _ in range(2):
            check(RULE, SUBJECT)
        override("b 0 0 ", "*", SUBJECT)

        assert refund(RULE, SUBJECT, 1).outcomes[0].why == "blocked"

        override("", "*", SUBJECT)
        assert peek(RULE, SUBJECT).remaining == 1

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

    def test_of_rules_of_one_name_the_one_that_counts_refused_hits_counts_them(self) -> None:
        request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.7")
        rules = [RULE, Rule.make("site", "9/h", key="ip", count_refused=True)]
        for _ in range(3):
            decision = decide(request, rules)
        assert [outcome.remaining for outcome in decision.outcomes] == [0, 6]

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


# --- previews: they show what will apply, and change nothing ----------------------------------------------------------


@pytest.fixture
def rules(memory_store: None, settings: Any) -> None:
    rules = {
        "search": {"rate": "10/m; 100/h"},
        "banning": {"rate": "1/h", "ban": {"after": "1/m", "for": "1h"}},
        "monthly": {"rate": "5/month", "algorithm": "calendar"},
        "tiered": {"rate": {"anonymous": "5/m", "authenticated": "50/m"}},
    }
    settings.QUOTA = {**settings.QUOTA, "RULES": rules}


@pytest.mark.parametrize("value", ["r 0 0 3/m", "r 0 0 3/h", "s 0 0 "], ids=["rate", "window", "shadow"])
def test_a_full_store_refuses_whatever_rate_an_override_gives(memory_store: None, value: str) -> None:
    override(value, "site", SUBJECT)
    with no_answer(StoreFull()):
        decision = check(RULE, SUBJECT)
    assert (decision.allowed, decision.degraded) == (value.startswith("s"), True)


@pytest.mark.parametrize(("value", "why"), [("b 0 0 ", "blocked"), ("x 0 0 ", "exempt")])
def test_each_limit_of_rules_of_one_name_has_an_outcome_by_the_override(
    memory_store: None, value: str, why: str
) -> None:
    override(value, "site", SUBJECT)
    request = RequestFactory().get("/", REMOTE_ADDR=SUBJECT.removeprefix("ip:"))
    decision = decide(request, [RULE, Rule.make("site", "9/h", key="ip")])
    assert [(each.why, str(each.rate)) for each in decision.outcomes] == [(why, "2/m"), (why, "9/h")]


def test_a_limit_that_rules_of_one_name_share_has_one_outcome_by_the_override(memory_store: None) -> None:
    override("b 0 0 ", "site", SUBJECT)
    request = RequestFactory().get("/", REMOTE_ADDR=SUBJECT.removeprefix("ip:"))
    decision = decide(request, [RULE, Rule.make("site", "2/m", "9/h", key="ip")])
    assert [str(outcome.rate) for outcome in decision.outcomes] == ["2/m", "9/h"]


@pytest.mark.parametrize("others", [["shadow", "block"], ["block", "shadow"]], ids=["first", "last"])
def test_a_block_refuses_beside_a_blocked_shadow(memory_store: None, others: list[str]) -> None:
    override("b 0 0 ", "*", SUBJECT)
    decision = check_all([(Rule.make(name, "2/m", shadow=name == "shadow"), SUBJECT) for name in others])
    assert (decision.allowed, decision.enforced, decision.rule) == (False, True, "block")


def test_a_block_of_a_tier_without_a_limit_has_an_outcome(memory_store: None) -> None:
    override("b 0 0 ", "site", SUBJECT)
    [outcome] = check(Rule.make("site", None), SUBJECT).outcomes
    assert (outcome.why, outcome.limit) == ("blocked", 0)


@pytest.mark.parametrize("value", ["r 0 0 3/m", "s 0 0 "], ids=["rate", "shadow"])
def test_only_the_rule_with_the_rate_of_an_override_says_so(memory_store: None, value: str) -> None:
    override(value, "site", SUBJECT)
    override("r 0 0 5/m", "third", SUBJECT)
    rules = [RULE, Rule.make("other", "2/m"), Rule.make("third", "2/m")]
    decision = check_all([(rule, SUBJECT) for rule in rules])
    assert [each.why for each in decision.outcomes] == ["override" if value[0] == "r" else "", "", "override"]


def test_a_blocked_shadow_sends_no_signal(memory_store: None) -> None:
    names: list[Any] = []

    def hear(**values: Any) -> None:
        names.append(values["rule"].name)

    override("b 0 0 ", "*", SUBJECT)
    refused.connect(hear)
    try:
        check_all([(Rule.make(name, "2/m", shadow=name == "shadow"), SUBJECT) for name in ("shadow", "block")])
    finally:
        refused.disconnect(hear)
    assert names == ["block"]


def test_an_override_of_a_counters_name_leaves_the_counter_alone(memory_store: None) -> None:
    balance = counter("credits")
    balance.set(SUBJECT, 5)
    override("b 0 0 ", "credits", SUBJECT)
    assert check_all([(balance, SUBJECT, 2)]).remaining == 3


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_without_a_store_the_rule_that_blocks_binds(memory_store: None, is_first: bool) -> None:
    blocking, lenient = (Rule.make(f"r{block}", "9/m", on_unavailable="deny", block=block) for block in (True, False))
    with no_answer():
        rules = (blocking, lenient) if is_first else (lenient, blocking)
        decision = check_all([(rule, SUBJECT) for rule in rules])
    assert (decision.rule, decision.enforced) == ("rTrue", True)


def test_without_a_store_a_request_that_is_denied_takes_nothing_of_a_local_limit(memory_store: None) -> None:
    denying, local = (Rule.make(how, "2/m", on_unavailable=how) for how in ("deny", "local"))
    with no_answer():
        for _ in range(2):
            check_all([(denying, SUBJECT), (local, SUBJECT)])
        assert check(local, SUBJECT).remaining == 1


def test_each_rule_that_blocks_nothing_decides_for_itself(memory_store: None) -> None:
    full, roomy = (Rule.make(rate, rate, block=False) for rate in ("1/m", "9/m"))
    for _ in range(3):
        check_all([(full, SUBJECT), (roomy, SUBJECT)])
    assert (peek(full, SUBJECT).remaining, peek(roomy, SUBJECT).remaining) == (0, 6)


def test_a_hit_of_a_rule_that_counts_different_values_costs_one(memory_store: None) -> None:
    with pytest.raises(RuleError, match="a hit costs 1, not 2"):
        check("9/m", SUBJECT, 2, value="a", distinct=True)


def test_an_override_that_does_not_fit_is_logged_once_for_forced_hits_too(
    memory_store: None, caplog: pytest.LogCaptureFixture
) -> None:
    rule = Rule.make("leaky", "2/m", algorithm="leaky_bucket")
    override("r 0 0 +500", "leaky", SUBJECT)
    for _ in range(3):
        check(rule, SUBJECT, force=True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize("rates", ["100/m", "3/s; 7/m"])
def test_the_preview_is_what_holds_after_saving(rates: str, rules: None) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        (change,) = previews(SUBJECT, "search", "rate", rates).values()
        assert limits_in(change.now) == [("10/m", 10, 0, 60.0, ""), ("100/h", 10, 90, 0.0, "")]
        assert [each.used for each in peek("search", SUBJECT).outcomes] == [10, 10], "it changes nothing"
        override(f"r 0 0 {rates}", "search", SUBJECT)
        outcomes = peek("search", SUBJECT).outcomes
    assert [(limit.limit, limit.remaining, limit.retry_after) for limit in change.then] == [
        (outcome.limit, outcome.remaining, outcome.retry_after) for outcome in outcomes
    ]


@pytest.mark.parametrize(
    ("mode", "seconds", "waits"),
    [
        pytest.param("exempt", 0, [0.0, 0.0], id="an exemption waits for nothing"),
        pytest.param("blocked", 0, [None, None], id="a block without an end"),
        pytest.param("blocked", 20, [60.0, 20.0], id="a block that ends before the limit"),
    ],
)
def test_the_preview_of_an_exemption_or_a_block_has_the_longer_wait(
    rules: None, mode: Any, seconds: int, waits: list[Any]
) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)

        (change,) = previews(SUBJECT, "search", mode, ends=seconds and START + seconds * SECOND).values()

    assert [limit.retry_after for limit in change.then] == waits


def test_the_preview_of_a_block_replaces_the_one_that_is_there(rules: None) -> None:
    with freeze(START):
        check("search", SUBJECT, 10)
        override("b 0 0 ", "search", SUBJECT)

        (change,) = previews(SUBJECT, "search", "blocked", ends=START + 20 * SECOND).values()

    assert [limit.retry_after for limit in change.then] == [60.0, 20.0]


def test_in_the_preview_a_ban_precedes_a_rate(rules: None) -> None:
    with freeze(START):
        check("1/d", SUBJECT, name="banning")
        check("banning", SUBJECT)
        check("banning", SUBJECT)
        (fewer,) = previews(SUBJECT, "banning", "rate", "1/d").values()
        (more,) = previews(SUBJECT, "banning", "rate", "50/h").values()

    assert limits_in(fewer.then) == [("1/d", 1, 0, 86_400.0, "banned")]
    assert limits_in(more.then) == [("50/h", 1, 49, 3_600.0, "banned")]


def test_in_the_preview_an_override_of_one_rule_precedes_that_of_all(rules: None) -> None:
    override("x 0 0 ", "search", SUBJECT)
    with freeze(START):
        found = previews(SUBJECT, "*", "rate", "7/m")

    assert "an override of its own" in found["search"].problem
    assert not found["search"].then
    others = {name: limits_in(found[name].then) for name in ("tiered", "monthly")}
    assert others == {name: [("7/m", 0, 7, 0.0, "override")] for name in others}
