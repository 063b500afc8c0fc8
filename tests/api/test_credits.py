"""Counters as entries of check_all, peek_all and reserve_all: limits and credits, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from django_quota import (
    Decision,
    Rule,
    acheck_all,
    apeek_all,
    areserve_all,
    check,
    check_all,
    counter,
    peek,
    peek_all,
    reserve_all,
)
from django_quota.adapters import refusal
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.signals import refused
from django_quota.testing import freeze
from tests.support.calls import calls_of, get
from tests.support.counts import checks_of
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import SECOND, START
from tests.support.stores import current_store

USER, ORG = "user:42", "org:7"
RULES = {"tokens": "1000/m", "rpm": "3/m"}
CREDITS = [counter("credits"), counter("credits", group="shop")]

pytestmark = pytest.mark.usefixtures("stores")


@pytest.fixture
def stores(either_store: None, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}


@pytest.fixture(params=CREDITS, ids=["own", "group"])
def credit(request: pytest.FixtureRequest) -> Any:
    """A counter with 1,000 units, by itself and in a group."""
    request.param.set(ORG, 1_000)
    return request.param


def entries(credit: Any, units: int = 900, tokens: int = 900) -> list[Any]:
    return [("rpm", USER), ("tokens", USER, tokens), (credit, ORG, units)]


def left(credit: Any) -> list[int | None]:
    return [peek("rpm", USER).remaining, peek("tokens", USER).remaining, credit.get(ORG)]


def called(is_async: bool, sync: Callable[..., Decision], other: Callable[..., Any], *given: Any) -> Decision:
    return asyncio.run(other(*given)) if is_async else sync(*given)


class TestCheckAll:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_both_are_taken_in_one_call(self, credit: Any, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        with freeze(START):
            left(credit)
            calls = calls_of(monkeypatch)
            decision = called(is_async, check_all, acheck_all, entries(credit))
            assert len(calls) == 1
            assert left(credit) == [2, 100, 100]
        assert decision
        shown = [(each.rule, each.subject, each.cost, each.remaining, each.limit) for each in decision.outcomes]
        assert shown[1:] == [("tokens", USER, 900, 100, 1_000), ("credits", ORG, 900, 100, 100)]
        assert str(decision.outcomes[2].rate) == "100 left"

    @pytest.mark.parametrize("is_async", [False, True])
    def test_without_enough_credits_nothing_is_taken(self, credit: Any, is_async: bool) -> None:
        with freeze(START):
            decision = called(is_async, check_all, acheck_all, entries(credit, 1_001))
            assert (decision.allowed, decision.rule, decision.subject) == (False, "credits", ORG)
            assert (decision.retry_after, decision.remaining, decision.enforced) == (None, 1_000, True)
            assert decision.explain() == "This hit needs 1,001 of counter 'credits' of org:7; 1,000 are left."
            assert left(credit) == [3, 1_000, 1_000]

    def test_without_room_under_a_limit_no_credits_are_taken(self, credit: Any) -> None:
        with freeze(START):
            decision = check_all(entries(credit, tokens=1_001))
            assert (decision.allowed, decision.rule) == (False, "tokens")
            for _ in range(3):
                assert check_all([("rpm", USER), (credit, ORG)])
            decision = check_all([(credit, ORG), ("rpm", USER)])
            assert (decision.allowed, decision.rule, bool(decision.retry_after)) == (False, "rpm", True)
            assert left(credit) == [0, 1_000, 997]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_look_takes_nothing(self, credit: Any, is_async: bool) -> None:
        with freeze(START):
            for units, allowed in ((1_000, True), (1_001, False)):
                decision = called(is_async, peek_all, apeek_all, entries(credit, units))
                assert (decision.allowed, decision.outcomes[2].remaining) == (allowed, 1_000)
            assert left(credit) == [3, 1_000, 1_000]

    def test_without_an_amount_it_is_one_and_all_can_be_taken(self, credit: Any) -> None:
        assert check_all([(credit, ORG)]).explain() == "Allowed by counter 'credits' of org:7; 999 are left."
        assert check_all([(credit, ORG, 999)])
        assert not check_all([(credit, ORG)])
        assert credit.get(ORG) == 0

    def test_each_subject_has_its_own(self, credit: Any) -> None:
        credit.set(USER, 5)
        other = counter("other")
        other.set(ORG, 9)
        decision = check_all([(credit, ORG, 100), (credit, USER, 3), (other, ORG, 4)])
        assert [outcome.remaining for outcome in decision.outcomes] == [900, 2, 5]
        assert not check_all([(credit, ORG, 100), (credit, USER, 3), (other, ORG, 4)])
        assert [credit.get(ORG), credit.get(USER), other.get(ORG)] == [900, 2, 5]

    @pytest.mark.parametrize("total", [2**53 + 1, 2**63 - 1])
    def test_totals_that_no_float_can_hold_stay_exact(self, credit: Any, total: int) -> None:
        credit.set(ORG, total)
        hold = reserve_all([(credit, ORG, 10**12)])
        assert (hold.decision.remaining, credit.get(ORG)) == (10**15, total - 10**12)
        hold.settle(1)
        assert credit.get(ORG) == total - 1

    def test_a_total_that_would_leave_64_bits_stays(self, credit: Any) -> None:
        more, less = (reserve_all([("9/m", USER), (credit, ORG, 10)]) for _ in range(2))
        credit.set(ORG, 2**63 - 3)
        assert less.settle([1, 7]).allowed
        assert credit.get(ORG) == 2**63 - 3
        credit.set(ORG, 3 - 2**63)
        assert not more.settle([1, 14])
        assert credit.get(ORG) == 3 - 2**63

    def test_a_top_up_holds_at_once_although_refusals_are_cached(self, credit: Any, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": 60}
        if not current_store().is_shared:
            credit.set(ORG, 1_000)  # the settings have replaced the store
        assert not check_all(entries(credit, 1_001))
        credit.incr(ORG)
        assert check_all(entries(credit, 1_001))


class TestReserveAll:
    @pytest.mark.parametrize(("actual", "more"), [(0, 900), (640, 260), (900, 0), (1_000, -100), (1_040, -140)])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_settling_gives_back_or_takes_the_difference(
        self, credit: Any, is_async: bool, actual: int, more: int
    ) -> None:
        async def work() -> Decision:
            async with areserve_all(entries(credit)) as hold:
                return await hold.asettle([1, actual, actual])

        with freeze(START):
            if is_async:
                decision = asyncio.run(work())
            else:
                with reserve_all(entries(credit)) as hold:
                    assert left(credit) == [2, 100, 100]
                    decision = hold.settle({"tokens": actual, "credits": actual})
            assert left(credit) == [2, max(0, 100 + more), 100 + more]
        of_credits = decision.of_rule("credits")
        assert of_credits is not None
        assert (of_credits.remaining, of_credits.over) == (max(0, 100 + more), max(0, -100 - more))
        assert of_credits.allowed == (100 + more >= 0)

    def test_what_is_owed_is_paid_by_the_next_top_up(self, credit: Any) -> None:
        reserve_all([(credit, ORG, 900)]).settle(1_015)
        decision = check_all([(credit, ORG)])
        assert decision.explain() == "This hit needs 1 of counter 'credits' of org:7; 15 are owed."
        assert credit.incr(ORG, 20) == 5
        assert check_all([(credit, ORG, 5)])

    def test_a_second_call_and_an_error_inside_give_back_once(self, credit: Any) -> None:
        with pytest.raises(ZeroDivisionError), reserve_all(entries(credit)) as hold:
            raise ZeroDivisionError
        hold.cancel()
        assert credit.get(ORG) == 1_000
        with pytest.raises(QuotaExceeded, match="needs 1,001 of counter 'credits'"):
            reserve_all(entries(credit, 1_001))
        assert credit.get(ORG) == 1_000


def test_sixteen_threads_sell_exactly_what_there_is(credit: Any) -> None:
    asked = [("100000/d", USER, 7), (credit, ORG, 7)]
    with ThreadPoolExecutor(16) as threads:
        allowed = sum(threads.map(lambda _: check_all(asked).allowed, range(16 * 12)))
    # While a Cluster gives back what a later slot refuses, others find less.
    while check_all(asked):
        allowed += 1
    assert (allowed, credit.get(ORG), peek("100000/d", USER).remaining) == (142, 6, 100_000 - 142 * 7)


def test_sixteen_threads_reserve_and_settle_without_a_unit_lost(credit: Any) -> None:
    def work(number: int) -> int:
        try:
            hold = reserve_all([("100000/d", USER, 50), (credit, ORG, 50)])
        except QuotaExceeded:
            return 0
        hold.settle(number % 51)
        return number % 51

    with ThreadPoolExecutor(16) as threads:
        used = sum(threads.map(work, range(16 * 8)))
    assert (credit.get(ORG), peek("100000/d", USER).remaining) == (1_000 - used, 100_000 - used)
    assert used > 900


class TestData:
    """A counter is data: what is for limits does not change it."""

    def test_where_limiting_is_off_credits_are_taken_all_the_same(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        credit = CREDITS[0]
        credit.set(ORG, 1_000)
        with reserve_all(entries(credit, tokens=9_000)) as hold:
            hold.settle({"credits": 300})
        decision = check_all(entries(credit, 600, 9_000))
        assert [outcome.rule for outcome in decision.outcomes] == ["credits"]
        assert credit.get(ORG) == 100
        assert not check_all(entries(credit, 600))
        assert check_all(entries(credit)[:2]).outcomes == ()

    def test_no_override_makes_it_free_and_a_block_of_another_rule_takes_nothing(self, credit: Any) -> None:
        override("x 0 0 ", "*", ORG)
        override("x 0 0 ", "tokens", USER)
        assert check_all(entries(credit, tokens=9_000))
        assert credit.get(ORG) == 100
        override("b 0 0 ", "tokens", USER)
        assert not check_all(entries(credit, 100))
        assert credit.get(ORG) == 100

    def test_while_the_store_does_not_answer_nothing_is_sold(self, credit: Any) -> None:
        asked: list[Any] = [("9/m", USER), (credit, ORG, 10)]
        hold = reserve_all(asked)
        with no_answer():
            decision = check_all(asked)
            assert (decision.allowed, decision.degraded, decision.enforced) == (False, True, True)
            assert decision.explain() == "Rule 'credits' refuses, since the store did not answer; try again shortly."
            assert hold.settle(3).degraded
            with pytest.raises(QuotaExceeded):
                reserve_all(asked)
        assert credit.get(ORG) == 990

    def test_the_day_counts_limits_only(self, credit: Any) -> None:
        credit.set(USER, 9)
        assert check_all([("rpm", USER), (credit, USER, 5)])
        assert set(checks_of(USER)) == {"rpm"}

    def test_no_signal_is_sent_of_it(self, credit: Any) -> None:
        heard: list[str] = []

        def hear(rule: Any, **_: Any) -> None:
            heard.append(rule.name)

        refused.connect(hear)
        try:
            check_all(entries(credit, 1_001))
            check_all(entries(credit, 1_001, 1_001))
        finally:
            refused.disconnect(hear)
        assert heard == ["tokens"]


class TestEdges:
    """What is decided before the store, and after it."""

    @pytest.fixture
    def stores(self, memory_store: None) -> None: ...

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ((CREDITS[0], ORG, 0), "cost=0 of rule 'credits' takes nothing"),
            ((CREDITS[0], ORG, -1), "cost=-1 of rule 'credits' is not a whole number from 0"),
            ((CREDITS[0], ORG, 1.5), "cost=1.5 of rule 'credits' is not a whole number"),
            ((CREDITS[0], ORG, 10**12 + 1), "is not a whole number from 0 to 1000000000000"),
            ((CREDITS[0], ORG, 1, "team"), "Rule 'credits' has no tier 'team'"),
            ((CREDITS[0], ""), "An empty text is not a subject"),
            ((counter("paid"), ORG, 9), "Counter 'paid' is listed twice for org:7. Give it once"),
            ((counter("paid", group="shop"), ORG, 9), "listed twice"),
            ((Rule.make("paid", "9/m"), ORG), "Rule 'paid' is listed twice"),
        ],
    )
    def test_wrong_entries_are_named(self, wrong: Any, message: str) -> None:
        with pytest.raises(RuleError, match=message):
            check_all([(counter("paid"), ORG), wrong])

    def test_a_counter_that_has_expired_sells_nothing(self) -> None:
        credit = counter("credits", ttl=1_000)
        with freeze(START):
            credit.set(ORG, 9)
        with freeze(START + 999 * SECOND):
            assert check_all([(credit, ORG)])
        with freeze(START + 1_999 * SECOND):
            assert not check_all([(credit, ORG)])

    def test_one_call_for_one_rule_takes_no_counter(self) -> None:
        calls: list[Any] = [check, peek]
        for call in calls:
            with pytest.raises(RuleError, match=r"^counter\('credits'.* is not a rule or a rate. Use its take\(\)"):
                call(CREDITS[0], ORG, 5)

    def test_the_answer_says_that_not_enough_is_left_and_names_no_time(self) -> None:
        credit = counter("credits")
        credit.set(ORG, 120)
        for accept in ("application/json", "text/html", "text/plain"):
            response = refusal(get(HTTP_ACCEPT=accept), check_all([("9/m", USER), (credit, ORG, 900)]))
            assert response.status_code == 429
            assert "Retry-After" not in response
            assert response["RateLimit-Policy"].endswith('"credits";q=120;qu="units"')
            assert response["RateLimit"].endswith('"credits";r=120')
            assert "This request needs" in response.content.decode()
            assert "retry_after" not in response.content.decode()
            assert "<meter" not in response.content.decode()

    def test_the_answer_is_503_without_the_store(self) -> None:
        with no_answer():
            response = refusal(get(), check_all([("9/m", USER), (CREDITS[0], ORG)]))
        assert (response.status_code, response["Retry-After"]) == (503, "1")


class TestRedis:
    """What lies in Redis."""

    @pytest.fixture
    def stores(self, redis_cache: Any) -> None: ...

    def test_each_change_lets_it_live_for_its_ttl(self, raw: redis.Redis) -> None:
        credit = counter("credits", ttl=1_000)
        credit.set(ORG, 10)
        (key,) = raw.scan_iter()
        client: Any = raw
        hold = reserve_all([(credit, ORG, 3)])
        acts: list[Callable[[], object]] = [lambda: check_all([(credit, ORG, 3)]), lambda: hold.settle(1)]
        for act in acts:
            client.pexpire(key, 5_000)
            assert not check_all([(credit, ORG, 30)])
            assert client.pttl(key) <= 5_000
            act()
            assert 900_000 < client.pttl(key) <= 1_000_001

    @pytest.mark.parametrize("foreign", ["list", "text", "float"])
    def test_a_key_that_holds_no_counter_sells_nothing(self, raw: redis.Redis, foreign: str) -> None:
        credit, client = counter("credits"), raw
        credit.set(ORG, 10)
        (key,) = client.scan_iter()
        client.delete(key)
        if foreign == "list":
            client.rpush(key, "x")
        else:
            client.set(key, "12.5" if foreign == "float" else "ten")
        decision = check_all([("9/m", USER), (credit, ORG, 3)])
        assert (decision.allowed, decision.degraded) == (False, True)
        assert peek("9/m", USER).remaining == 9
