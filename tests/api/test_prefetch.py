"""`prefetch`: a busy process takes units ahead. What it spends is counted like any other hit, and never twice."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory

from django_quota import Decision, Rule, acheck, check, check_all, peek, refund, reserve, reset
from django_quota.adapters import decide
from django_quota.conf import rule_of
from django_quota.core import clock
from django_quota.core.clock import DAY
from django_quota.core.errors import RuleError
from django_quota.core.flow import IOCall, run_sync
from django_quota.engine.asks import Ask
from django_quota.engine.compiled import CompiledRule
from django_quota.limiting import prefetch
from django_quota.limiting.metrics import observe, unobserve
from django_quota.limiting.overrides import overrides
from django_quota.limiting.registry import get_limiter
from django_quota.operating.activity import activity, running_totals
from django_quota.operating.inspection import load_snapshot
from django_quota.signals import near_limit
from django_quota.testing import clear, freeze
from django_quota.testing.kit import QuotaKit
from tests.support.calls import called, calls_of, get
from tests.support.commands import said
from tests.support.counts import checks_of, checks_of_today, count_what_waits, days_of, units_of
from tests.support.memory import know_of_processes
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import MINUTE, SECOND, START

SUBJECT = "ip:203.0.113.9"
HOT = Rule.make("hot", "1000/m", prefetch=True)
LEASE = HOT.lease


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls of the store."""
    return calls_of(monkeypatch)


def allowed(number: int, rule: Any = HOT, subject: str = SUBJECT) -> int:
    """Check so many times; return how many were allowed."""
    return sum(check(rule, subject).allowed for _ in range(number))


def left(rule: Any = HOT, subject: str = SUBJECT) -> int:
    """Return what the rule has left, after this process has returned its share."""
    check(rule, subject)
    refund(rule, subject)
    return peek(rule, subject).remaining or 0


ALGORITHMS = ["sliding_window", "fixed_window", "calendar", "token_bucket"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_process_admits_exactly_the_limit_in_few_calls(either_store: Any, asked: list[int], algorithm: Any) -> None:
    rule = Rule.make("exact", "1000/m", algorithm=algorithm, prefetch=True)
    with freeze(START):
        assert allowed(1_100, rule) == 1_000
    assert len(asked) < 60


@pytest.mark.usefixtures("memory_store")
class TestWhatIsLeft:
    def test_counts_down_by_each_hit(self) -> None:
        with freeze(START):
            decisions = [check(HOT, SUBJECT) for _ in range(400)]
        assert [each.remaining for each in decisions] == list(range(999, 599, -1))
        assert {each.approximate for each in decisions} == {False, True}

    def test_is_as_without_prefetch_for_a_subject_that_asks_seldom(self) -> None:
        for number in range(20):
            with freeze(START + number * LEASE):
                decision = check(HOT, SUBJECT)
        assert not decision.approximate
        with freeze(START + 20 * LEASE):
            assert peek(HOT, SUBJECT).remaining == 980

    def test_leaves_out_what_another_process_has_taken(self) -> None:
        with freeze(START):
            allowed(8)
            assert peek(HOT, SUBJECT).remaining == 1_000 - 8 - 16

    def test_is_what_it_was_after_the_last_hit_if_nothing_is_spent_until_the_next(self) -> None:
        with freeze(START):
            allowed(8)
        with freeze(START + 5 * LEASE):
            assert check(HOT, SUBJECT).remaining == 1_000 - 9

    def test_leaves_out_more_for_a_share_that_was_spent_at_once(self) -> None:
        with freeze(START):
            allowed(8 + 16 + 1)
            assert peek(HOT, SUBJECT).remaining == 1_000 - 25 - 2 * 17


WINDOWS = ["sliding_window", "fixed_window", "calendar"]


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("algorithm", WINDOWS)
@pytest.mark.parametrize("wait", ["reset_after", "next_after"])
def test_the_waits_of_a_spent_hit_are_those_of_a_hit_that_the_store_decides(wait: str, algorithm: Any) -> None:
    ahead = Rule.make("ahead", "100/m", algorithm=algorithm, prefetch=True)
    rules, found = [ahead, Rule.make("plain", "100/m", algorithm=algorithm)], []

    for rule in rules:
        with freeze(START):
            allowed(8, rule)
        with freeze(START + SECOND // 2):
            found.append(check(rule, SUBJECT))

    assert [each.approximate for each in found] == [True, False]
    waits = [getattr(each.outcomes[0], wait) for each in found]
    assert waits[0] == waits[1] > 0


@pytest.mark.usefixtures("memory_store")
class TestAShareEnds:
    def test_with_its_lease(self, asked: list[int]) -> None:
        with freeze(START):
            allowed(20)
        asked.clear()
        with freeze(START + LEASE - LEASE // 100 - 1):
            assert check(HOT, SUBJECT).approximate
        with freeze(START + LEASE - LEASE // 100):
            assert not check(HOT, SUBJECT).approximate

    @pytest.mark.parametrize("named", ["api", "*"], ids=["under its rule", "under all rules"])
    def test_when_its_subject_is_reset(self, named: str, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"api": {"rate": "1000/m", "prefetch": True}}}
        rule = rule_of("api", {})
        with freeze(START):
            allowed(50, rule)
            reset(named, SUBJECT)
            assert left(rule) == 1_000

    def test_only_if_there_is_one_when_its_subject_is_reset(self) -> None:
        with freeze(START):
            allowed(1)

            assert reset(HOT, SUBJECT) == 1
            assert left() == 1_000

    def test_with_a_refund_that_sees_what_was_spent(self) -> None:
        with freeze(START):
            allowed(50)
            assert refund(HOT, SUBJECT, 5).remaining == 955

    def test_with_a_forced_hit_that_sees_what_was_spent(self) -> None:
        with freeze(START):
            allowed(50)
            assert check(HOT, SUBJECT, 5, force=True).remaining == 945

    @pytest.mark.parametrize("change", ["b 0 0 ", "r 0 0 5/m", "x 0 0 "], ids=["block", "rate", "exempt"])
    def test_when_an_override_begins(self, change: str) -> None:
        with freeze(START):
            allowed(50)
            override(change, "hot")
            decision = check(HOT, SUBJECT)
        assert not decision.approximate
        assert decision.allowed == (change[0] == "x")

    def test_not_with_a_look(self) -> None:
        with freeze(START):
            allowed(20)
            peek(HOT, SUBJECT)

            assert check(HOT, SUBJECT).approximate

    def test_when_the_override_ends_under_which_it_was_taken(self) -> None:
        override(f"r 0 {START + SECOND} 5000/m", "hot")
        with freeze(START):
            assert allowed(1_500) == 1_500
        with freeze(START + SECOND):
            assert not check(HOT, SUBJECT)

    def test_not_because_of_the_override_under_which_it_was_taken(self) -> None:
        override("r 0 0 5000/m", "hot")
        with freeze(START):
            allowed(20)

            assert check(HOT, SUBJECT).approximate

    def test_when_all_is_cleared(self) -> None:
        with freeze(START):
            allowed(50)
            get_limiter().prefetch.forget()
            assert not check(HOT, SUBJECT).approximate


@pytest.mark.usefixtures("memory_store")
def test_no_call_looks_for_a_share_after_the_settings_have_dropped_the_only_rule_with_one(settings: Any) -> None:
    check(HOT, SUBJECT)
    looked_before = CompiledRule.any_prefetches

    settings.QUOTA = {**settings.QUOTA, "RULES": {}}
    check("9/m", SUBJECT)

    assert (looked_before, CompiledRule.any_prefetches) == (True, False)


@pytest.mark.usefixtures("memory_store")
class TestAPlan:
    OTHER = Rule.make("other", "100/m", prefetch=True)

    def test_spends_of_all_its_shares_or_asks(self) -> None:
        with freeze(START):
            plan = [(HOT, SUBJECT), (self.OTHER, SUBJECT)]
            assert sum(check_all(plan).allowed for _ in range(300)) == 100
            assert (peek(HOT, SUBJECT).remaining, peek(self.OTHER, SUBJECT).remaining) == (900, 0)

    def test_asks_each_time_if_one_of_its_rules_takes_nothing_ahead(self, asked: list[int]) -> None:
        with freeze(START):
            plan: list[Any] = [(HOT, SUBJECT), ("500/m", SUBJECT)]
            assert all(check_all(plan) for _ in range(100))
        assert len(asked) == 100

    def test_takes_nothing_ahead_of_a_busy_limit_for_subjects_that_ask_seldom(self) -> None:
        with freeze(START):
            decided = [check_all([(HOT, "global"), (self.OTHER, f"user:{number}")]) for number in range(100)]

            assert all(decided)
            assert peek(HOT, "global").remaining == 900

    def test_counts_each_hit_once_in_the_metrics(self) -> None:
        with freeze(START):
            assert all(check_all([(HOT, SUBJECT), (self.OTHER, SUBJECT)]) for _ in range(50))
            count_what_waits()

            assert checks_of_today() == {"hot": (50, 0, 0), "other": (50, 0, 0)}

    def test_beside_single_hits_is_counted_once_in_the_metrics(self) -> None:
        with freeze(START):
            assert all(check_all([(HOT, SUBJECT), (self.OTHER, SUBJECT)]) for _ in range(12))
            assert all(check(HOT, SUBJECT).approximate for _ in range(3))
            count_what_waits()

            assert checks_of_today() == {"hot": (15, 0, 0), "other": (12, 0, 0)}

    def test_leaves_the_single_hits_after_it_in_the_metrics(self) -> None:
        with freeze(START):
            assert all(check_all([(HOT, SUBJECT), (self.OTHER, SUBJECT)]) for _ in range(12))
            count_what_waits()
            assert all(check(HOT, SUBJECT).approximate for _ in range(3))
            count_what_waits()

            assert checks_of_today() == {"hot": (15, 0, 0), "other": (12, 0, 0)}

    def test_has_one_outcome_of_each_rule_when_it_is_spent(self) -> None:
        with freeze(START):
            for _ in range(12):
                decision = check_all([(HOT, SUBJECT), (self.OTHER, SUBJECT)])

        assert decision.approximate
        assert [(each.rule, each.remaining) for each in decision.outcomes] == [("hot", 988), ("other", 88)]

    def block_one(self, subject: str = SUBJECT) -> None:
        """Have a share of 16 units, and be refused 16 times by the block of another subject."""
        override("b 0 0 ", "other", "user:2")
        allowed(8, subject=subject)
        assert not any(check_all([(HOT, subject, 2), (self.OTHER, "user:2")]) for _ in range(16))

    def test_that_a_block_refuses_leaves_its_share_whole(self) -> None:
        with freeze(START):
            self.block_one()
            decision = check(HOT, SUBJECT, 16)

        assert (decision.approximate, decision.remaining) == (True, 1_000 - 8 - 16)

    def test_that_a_block_refuses_leaves_the_metrics_of_its_share_alone(self) -> None:
        with freeze(START):
            self.block_one()
            check(HOT, SUBJECT)
            count_what_waits()

            assert checks_of_today() == {"hot": (9, 0, 0), "other": (0, 16, 0)}

    def test_that_a_block_refuses_leaves_the_day_of_its_share_alone(self) -> None:
        with freeze(START):
            self.block_one("user:1")
            check(HOT, "user:1", 3)
            count_what_waits()

            assert (checks_of("user:1"), units_of("user:1")) == ({"hot": (9, 0)}, {"hot": 11})

    def test_of_two_rules_that_share_one_count_takes_nothing_ahead(self) -> None:
        rules = [Rule.make("hot", rate, key="ip", prefetch=True) for rate in ("1000/m", "5000/h")]
        with freeze(START):
            for _ in range(8):
                decide(get(), rules)

            assert [peek(rule, "ip:192.0.2.1").remaining for rule in rules] == [992, 4_992]

    def test_without_a_rule_is_allowed(self) -> None:
        with freeze(START):
            allowed(50)
            answer = run_sync(get_limiter().answer_flow([], "check"))
        assert answer.decision.allowed
        assert not answer.decision.approximate

    def test_asks_for_a_cost_above_the_share(self) -> None:
        with freeze(START):
            allowed(8)
            decision = check(HOT, SUBJECT, 17)
            assert (decision.approximate, decision.remaining) == (False, 975)

    @pytest.mark.parametrize("before", [8, 50], ids=["a share with room", "a share that is nearly spent"])
    def test_asks_for_an_estimate(self, before: int) -> None:
        with freeze(START):
            allowed(before)
            with reserve(HOT, SUBJECT, 10) as hold:
                assert (hold.decision.approximate, hold.decision.remaining) == (False, 1_000 - before - 10)
                assert hold.settle(3).remaining == 1_000 - before - 3

    def test_gives_a_spent_hit_back_if_the_request_is_refused_after_all(self) -> None:
        limiter = get_limiter()
        with freeze(START):
            allowed(50)
            answer = run_sync(limiter.answer_flow([Ask(HOT, SUBJECT, 3)], "check"))
            assert answer.decision.approximate
            assert run_sync(limiter.undo_flow(answer.receipt())).remaining == 950

    def test_gives_a_spent_hit_back_to_its_own_share(self) -> None:
        limiter = get_limiter()
        with freeze(START):
            for subject in ("user:1", SUBJECT):
                allowed(9, subject=subject)
            answer = run_sync(limiter.answer_flow([Ask(HOT, SUBJECT, 1)], "check"))
            run_sync(limiter.undo_flow(answer.receipt()))

            assert (left(subject="user:1"), left()) == (991, 991)

    def test_gives_a_spent_hit_back_though_its_share_was_returned_meanwhile(self) -> None:
        limiter = get_limiter()
        with freeze(START):
            allowed(50)
            answer = run_sync(limiter.answer_flow([Ask(HOT, SUBJECT, 3)], "check"))
            refund(HOT, SUBJECT)
            assert run_sync(limiter.undo_flow(answer.receipt())).remaining == 951

    def test_gives_nothing_back_to_a_share_that_a_reset_has_ended(self) -> None:
        limiter = get_limiter()
        with freeze(START):
            allowed(50)
            answer = run_sync(limiter.answer_flow([Ask(HOT, SUBJECT, 3)], "check"))
            assert answer.decision.approximate
            reset(HOT, SUBJECT)
            assert run_sync(limiter.undo_flow(answer.receipt())).remaining == 1_000

    def test_spends_at_a_time_of_the_stores_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clock, "_steady_clock", lambda: 10**15)
        allowed(8)

        answer = run_sync(get_limiter().answer_flow([Ask(HOT, SUBJECT, 1)], "check"))

        assert answer.spent_at is not None
        assert abs(answer.spent_at - clock.now()) < 60 * MINUTE


@pytest.mark.usefixtures("memory_store")
class TestACallThatIsSpent:
    """Such a call is decided before anything is made for the store."""

    @pytest.fixture(autouse=True)
    def no_decider(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
        """Return a function after which the limiter decides nothing any more."""
        settings.QUOTA = {
            **settings.QUOTA,
            "RULES": {
                "named": {"rate": "1000/m", "prefetch": True},
                "tiers": {"rate": {"anonymous": "1000/m", "authenticated": "2000/m"}, "prefetch": True},
            },
        }

        def decide(*_: object, **__: object) -> None:
            raise AssertionError("the limiter was asked")

        with freeze(START):
            yield lambda: monkeypatch.setattr(get_limiter(), "answer_flow", decide)

    @pytest.mark.parametrize(
        ("rule", "subject", "cost"),
        [
            pytest.param(HOT, SUBJECT, None, id="a rule"),
            pytest.param("named", SUBJECT, None, id="the name of a rule"),
            pytest.param("tiers", SUBJECT, None, id="a rule with tiers"),
            pytest.param("named", User(pk=7), None, id="a user"),
            pytest.param("named", SUBJECT, 3, id="a cost"),
        ],
    )
    def test_does_without_the_limiter(self, no_decider: Any, rule: Any, subject: Any, cost: int | None) -> None:
        allowed(8, rule, subject)
        no_decider()
        assert check(rule, subject, cost).approximate

    def test_does_without_the_limiter_in_async_code(self, no_decider: Any) -> None:
        allowed(8)
        no_decider()
        assert asyncio.run(acheck(HOT, SUBJECT)).approximate

    @pytest.mark.parametrize("subject", [42, None, b"user:1"], ids=repr)
    def test_refuses_what_is_not_a_subject(self, subject: Any) -> None:
        allowed(8)
        with pytest.raises(RuleError, match="is not a subject"):
            check(HOT, subject)

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_leaves_a_forced_hit_to_the_store(self, is_async: bool) -> None:
        allowed(8)
        assert not called(is_async, check, acheck, HOT, SUBJECT, force=True).approximate

    @pytest.mark.parametrize("cost", [0, True, 1.0, "1"])
    def test_refuses_a_wrong_cost(self, cost: Any) -> None:
        allowed(8)
        with pytest.raises(RuleError):
            check(HOT, SUBJECT, cost)

    def test_is_only_allowed_while_limits_are_off(self, no_decider: Any) -> None:
        allowed(8)
        with QuotaKit().off():
            assert not check(HOT, SUBJECT).approximate

    def test_is_observed_with_its_duration(self, no_decider: Any) -> None:
        seen: list[tuple[bool, bool]] = []

        def note(decision: Decision, seconds: float | None) -> None:
            seen.append((decision.approximate, seconds is not None and 0 < seconds < 60))

        allowed(8)
        observe(note, duration=True)
        try:
            check(HOT, SUBJECT)
        finally:
            unobserve(note)
        assert seen == [(True, True)]

    def test_reads_the_overrides_first_if_they_are_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[int] = []
        allowed(8)
        monkeypatch.setattr(overrides, "refreshing", lambda: IOCall(lambda: read.append(1), asyncio.sleep))

        decision = check(HOT, SUBJECT)

        assert (decision.approximate, read) == (True, [1])

    def test_is_counted_as_a_call_that_was_saved(self, asked: list[int]) -> None:
        allowed(50)
        calls = len(asked)
        (rule,) = running_totals().rules
        assert (rule.rule, rule.allowed, rule.spent) == ("hot", 50, 50 - calls)

    def test_is_counted_as_a_call_that_was_saved_by_a_request(self, asked: list[int]) -> None:
        for _ in range(50):
            decide(RequestFactory().get("/"), [HOT])
        calls = len(asked)
        (rule,) = running_totals().rules
        assert (rule.rule, rule.allowed, rule.spent) == ("hot", 50, 50 - calls)

    def test_is_counted_in_its_minute(self) -> None:
        with freeze(START):
            allowed(50)

            (rule,) = activity().rules

        assert (rule.minutes[-1], rule.rate) == ((50, 0), 50)


@pytest.mark.usefixtures("redis_cache")
class TestASpentHit:
    def test_is_counted_on_the_day_on_which_it_is_spent(self) -> None:
        midnight = START // DAY * DAY + DAY
        for moment, hits in ((midnight - LEASE // 2, 20), (midnight, 1)):
            with freeze(moment):
                allowed(hits, subject="user:1")
        assert count_what_waits()
        with freeze(midnight):
            assert list(days_of("user:1").values()) == [{"hot": (20, 0)}, {"hot": (1, 0)}]

    def test_is_counted_by_day(self) -> None:
        with freeze(START):
            assert allowed(50, subject="user:1") == 50
            assert count_what_waits()

            assert checks_of("user:1") == {"hot": (50, 0)}

    def test_counts_its_units_for_the_day(self) -> None:
        with freeze(START):
            allowed(8, subject="user:1")
            assert all(check(HOT, "user:1", 3).approximate for _ in range(5))
            assert count_what_waits()

            assert (checks_of("user:1"), units_of("user:1")) == ({"hot": (13, 0)}, {"hot": 23})

    def test_is_counted_by_day_in_the_round_of_that_job(self) -> None:
        with freeze(START):
            allowed(20, subject="user:1")
            get_limiter().unasked.flush()

            assert checks_of("user:1") == {"hot": (20, 0)}

    def test_is_counted_in_the_metrics_in_the_round_of_that_job(self) -> None:
        with freeze(START):
            allowed(20, subject="user:1")
            get_limiter().metrics.flush()

            assert checks_of_today() == {"hot": (20, 0, 0)}

    def test_counts_its_units_once_though_others_follow(self) -> None:
        with freeze(START):
            allowed(8, subject="user:1")
            for _ in range(2):
                assert check(HOT, "user:1", 3).approximate
                assert count_what_waits()

            assert (checks_of("user:1"), units_of("user:1")) == ({"hot": (10, 0)}, {"hot": 14})

    def test_is_counted_though_a_test_clears_the_process(self) -> None:
        with freeze(START):
            allowed(20)
            clear()
            assert count_what_waits()

            assert checks_of_today() == {"hot": (20, 0, 0)}

    def test_is_counted_in_the_metrics(self) -> None:
        with freeze(START):
            assert allowed(50, subject="user:1") == 50
            assert count_what_waits()

            assert checks_of_today() == {"hot": (50, 0, 0)}

    def test_leads_to_one_event_that_the_limit_is_near(self) -> None:
        shares: list[float] = []

        def note(share: float, **_: Any) -> None:
            shares.append(share)

        with received(near_limit, note), freeze(START):
            allowed(950)
        assert shares == [0.8]


@pytest.mark.usefixtures("memory_store")
class TestConcurrently:
    RULE = Rule.make("many", "3000/h", prefetch=True)

    def test_threads_admit_exactly_the_limit(self) -> None:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda _: allowed(500, self.RULE), range(8)))
        assert sum(found) == 3_000

    def test_tasks_admit_exactly_the_limit(self) -> None:
        async def some() -> int:
            return sum([(await acheck(self.RULE, SUBJECT)).allowed for _ in range(500)])

        async def all_of_them() -> int:
            return sum(await asyncio.gather(*(some() for _ in range(8))))

        assert asyncio.run(all_of_them()) == 3_000


@pytest.mark.usefixtures("redis_cache")
def test_a_share_is_at_most_half_of_what_is_left_divided_by_the_processes() -> None:
    know_of_processes(100)
    with freeze(START):
        allowed(8)
        assert peek(HOT, SUBJECT).remaining == 1_000 - 8 - 4


def test_the_status_of_a_subject_says_how_many_units_are_out(either_store: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"hot": {"rate": "1000/m", "prefetch": True}}}
    with freeze(START):
        allowed(8, "hot")
        (limit,) = [each for each in load_snapshot(SUBJECT).limits if each.rule == "hot"]
        assert (limit.used, limit.taken_ahead) == (8 + 16, 16)


def test_the_status_of_a_subject_has_what_all_processes_have_out(either_store: Any, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"hot": {"rate": "1000/m", "prefetch": True}}}
    with freeze(START):
        for _ in range(2):
            allowed(8, "hot")
            get_limiter().prefetch.after_fork()  # another process goes on
        (limit,) = [each for each in load_snapshot(SUBJECT).limits if each.rule == "hot"]
        assert (limit.used, limit.taken_ahead) == (2 * (8 + 16), 2 * 16)


class TestQuotaStatus:
    @pytest.fixture(autouse=True)
    def some_are_taken_ahead(self, redis_cache: None, settings: Any) -> Iterator[None]:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"hot": {"rate": "1000/m", "prefetch": True}}}
        with freeze(START):
            allowed(8, "hot")
            yield

    def test_says_that_a_rule_takes_units_ahead(self) -> None:
        assert "hot: 1000/m by sliding_window, prefetch for 1.2 s" in said("quota_status", SUBJECT)

    def test_says_how_many_are_out(self) -> None:
        assert "24 of 1000 used (16 of them taken ahead), 976 left" in said("quota_status", SUBJECT)

    def test_says_both_as_json(self) -> None:
        (limit,) = [each for each in said("quota_status", SUBJECT, "--json")["limits"] if each["rule"] == "hot"]
        assert (limit["prefetch"], limit["taken_ahead"]) == (1.2, 16)


@pytest.mark.usefixtures("memory_store")
def test_a_refusal_is_repeated_for_a_lease(asked: list[int]) -> None:
    with freeze(START):
        allowed(1_000)
        asked.clear()
        assert allowed(100) == 0
    assert len(asked) == 1
    with freeze(START + LEASE):
        assert allowed(100) == 0
    assert len(asked) == 2


@pytest.mark.usefixtures("memory_store")
def test_a_busy_subject_keeps_its_share_when_many_others_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_DEMANDS", 10)
    with freeze(START):
        allowed(8)
        for number in range(100):
            check(HOT, f"user:{number}")
        assert check(HOT, SUBJECT).approximate
        assert len(get_limiter().prefetch.table) <= 10


@pytest.mark.usefixtures("memory_store")
def test_a_process_counts_the_demand_of_4096_subjects() -> None:
    taken, known = get_limiter().prefetch, []
    for number in range(4_097):
        taken._entry(Ask(HOT, f"user:{number}", 1), START)
        known.append(len(taken.table))

    assert known[-2:] == [4_096, 1]


@pytest.mark.usefixtures("memory_store")
def test_a_subject_that_becomes_busy_gets_a_share_after_many_others_have_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "MAX_DEMANDS", 10)
    with freeze(START):
        for number in range(100):
            check(HOT, f"user:{number}")
    with freeze(START + SECOND):
        allowed(8)

        assert check(HOT, SUBJECT).approximate


@pytest.mark.usefixtures("memory_store")
def test_what_was_spent_is_counted_though_many_others_take_the_place_of_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetch, "MAX_DEMANDS", 10)
    with freeze(START):
        allowed(20)
    with freeze(START + 2 * LEASE):
        for number in range(100):
            check(HOT, f"user:{number}")
        count_what_waits()

        assert checks_of_today() == {"hot": (120, 0, 0)}


@pytest.mark.usefixtures("memory_store")
def test_a_subject_that_becomes_busy_gets_a_share_though_it_has_asked_long_ago() -> None:
    with freeze(START):
        check(HOT, SUBJECT)
    with freeze(START + 10 * LEASE):
        allowed(9)

        assert check(HOT, SUBJECT).approximate


@pytest.mark.usefixtures("memory_store")
def test_a_subject_that_asks_for_fewer_than_eight_units_in_a_lease_gets_no_share() -> None:
    with freeze(START):
        allowed(7)
    with freeze(START + LEASE * 3 // 2):
        allowed(1)

        assert not check(HOT, SUBJECT).approximate


@pytest.mark.usefixtures("memory_store")
def test_units_that_are_given_back_do_not_make_a_subject_busy() -> None:
    with freeze(START):
        allowed(6)
        refund(HOT, SUBJECT)
        check(HOT, SUBJECT)

        assert not check(HOT, SUBJECT).approximate


@pytest.mark.usefixtures("memory_store")
def test_a_share_that_was_taken_in_a_frozen_test_is_not_spent_after_it() -> None:
    with freeze(START):
        allowed(50)
    assert not check(HOT, SUBJECT).approximate


@pytest.mark.usefixtures("memory_store")
def test_a_forked_process_begins_without_shares() -> None:
    with freeze(START):
        allowed(50)
        get_limiter().prefetch.after_fork()  # as `os.fork` calls it
        assert not check(HOT, SUBJECT).approximate


def test_what_was_sent_without_an_answer_is_not_spent(memory_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Callable[..., Any] = get_limiter().store.run
    with freeze(START):
        allowed(8 + 16)  # the share is spent
        monkeypatch.setattr(get_limiter().store, "run", lambda *given: (run(*given), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            check(HOT, SUBJECT)
        monkeypatch.undo()
        assert not check(HOT, SUBJECT).approximate
        assert (peek(HOT, SUBJECT).remaining or 0) < 1_000 - 26
