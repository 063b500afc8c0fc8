"""Counters as entries of check_all, peek_all and reserve_all: limits and credits, all or nothing."""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from unittest.mock import Mock

import pytest

from django_quota import (
    Entry,
    Rule,
    acheck_all,
    apeek_all,
    areserve_all,
    check_all,
    counter,
    peek,
    peek_all,
    reserve_all,
)
from django_quota.adapters import refusal_response
from django_quota.conf import current
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.features.events import newest_events
from django_quota.limiting.registry import get_limiter
from django_quota.signals import refused
from django_quota.testing import freeze
from tests.support.calls import both_ways, called, calls_of, get
from tests.support.counts import checks_of
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.signals import received
from tests.support.steps import MINUTE, START
from tests.support.stores import current_store

USER, ORG = "user:42", "org:7"
RULES = {"tokens": "1000/m", "rpm": "3/m"}
CREDITS = counter("credits", group="shop")
OWN = counter("points")
SALE: list[Any] = [("9/m", USER), (CREDITS, ORG, 10)]

both_stores = pytest.mark.usefixtures("either_store", "credit")
in_memory = pytest.mark.usefixtures("memory_store", "credit")


@pytest.fixture
def credit(settings: Any) -> None:
    """The organisation has 1,000 credits."""
    settings.QUOTA = {**settings.QUOTA, "RULES": RULES}
    CREDITS.set(ORG, 1_000)


def entries(units: int = 900, tokens: int = 900) -> list[Any]:
    return [("rpm", USER), ("tokens", USER, tokens), (CREDITS, ORG, units)]


def refused_reservation(entries: list[Any]) -> None:
    with pytest.raises(QuotaExceeded):
        reserve_all(entries)


def left() -> list[int | None]:
    return [peek("rpm", USER).remaining, peek("tokens", USER).remaining, CREDITS.get(ORG)]


@both_stores
class TestCheckAll:
    @both_ways
    def test_it_is_one_call(self, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        left()
        calls = calls_of(monkeypatch)

        called(is_async, check_all, acheck_all, entries())

        assert len(calls) == 1

    @both_ways
    def test_both_are_taken(self, is_async: bool) -> None:
        with freeze(START):
            called(is_async, check_all, acheck_all, entries())

            assert left() == [2, 100, 100]

    @both_ways
    def test_the_decision_has_both(self, is_async: bool) -> None:
        with freeze(START):
            decision = called(is_async, check_all, acheck_all, entries())

        shown = [(each.rule, each.subject, each.cost, each.remaining, each.limit) for each in decision.outcomes]
        assert shown[1:] == [("tokens", USER, 900, 100, 1_000), ("credits", ORG, 900, 100, 100)]
        assert str(decision.outcomes[2].rate) == "100 left"

    @both_ways
    def test_without_enough_credits_the_counter_refuses(self, is_async: bool) -> None:
        decision = called(is_async, check_all, acheck_all, entries(1_001))

        assert (decision.allowed, decision.rule, decision.subject) == (False, "credits", ORG)
        assert (decision.retry_after, decision.remaining, decision.enforced) == (None, 1_000, True)
        assert decision.explain() == "This hit needs 1,001 of counter 'credits' of org:7; 1,000 are left."

    @both_ways
    def test_without_room_the_limit_refuses(self, is_async: bool) -> None:
        decision = called(is_async, check_all, acheck_all, entries(tokens=1_001))

        assert (decision.allowed, decision.rule) == (False, "tokens")

    @both_ways
    @pytest.mark.parametrize(
        ("units", "tokens"), [(1_001, 900), (900, 1_001)], ids=["without enough credits", "without room"]
    )
    def test_a_refused_check_takes_nothing(self, units: int, tokens: int, is_async: bool) -> None:
        with freeze(START):
            called(is_async, check_all, acheck_all, entries(units, tokens))

            assert left() == [3, 1_000, 1_000]

    @both_ways
    @pytest.mark.parametrize(("units", "allowed"), [(1_000, True), (1_001, False)], ids=["enough", "too few"])
    def test_a_peek_says_whether_there_are_enough(self, units: int, allowed: bool, is_async: bool) -> None:
        decision = called(is_async, peek_all, apeek_all, entries(units))

        assert (decision.allowed, decision.outcomes[2].remaining) == (allowed, 1_000)

    @both_ways
    @pytest.mark.parametrize("units", [1_000, 1_001], ids=["enough", "too few"])
    def test_a_peek_takes_nothing(self, units: int, is_async: bool) -> None:
        with freeze(START):
            called(is_async, peek_all, apeek_all, entries(units))

            assert left() == [3, 1_000, 1_000]

    def test_a_reservation_without_enough_credits_is_refused(self) -> None:
        with pytest.raises(QuotaExceeded, match="needs 1,001 of counter 'credits'"):
            reserve_all(entries(1_001))

        assert CREDITS.get(ORG) == 1_000

    def test_totals_are_exact_where_no_float_is(self) -> None:
        CREDITS.set(ORG, 2**63 - 1)

        reservation = reserve_all([(CREDITS, ORG, 10**12)])

        assert (reservation.decision.remaining, CREDITS.get(ORG)) == (10**15, 2**63 - 1 - 10**12)
        reservation.settle(1)
        assert CREDITS.get(ORG) == 2**63 - 2

    @pytest.mark.parametrize(
        ("total", "actual", "allowed"),
        [(2**63 - 3, 7, True), (3 - 2**63, 14, False)],
        ids=["above the largest number", "below the smallest number"],
    )
    def test_a_settlement_that_would_leave_64_bits_changes_no_total(
        self, total: int, actual: int, allowed: bool
    ) -> None:
        CREDITS.set(ORG, 2**63 - 2)
        reservation = reserve_all([("9/m", USER), (CREDITS, ORG, 10)])
        CREDITS.set(ORG, total)

        assert reservation.settle([1, actual]).allowed is allowed
        assert CREDITS.get(ORG) == total


@both_stores
def test_a_top_up_holds_at_once_although_refusals_are_cached(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "CACHE_REFUSALS": 60}
    if not current_store().is_shared:
        CREDITS.set(ORG, 1_000)  # the settings have replaced the store
    assert not check_all(entries(1_001))
    CREDITS.incr(ORG)
    assert check_all(entries(1_001))


@both_stores
@pytest.mark.parametrize("actual", [0, 640, 1_000, 1_040])
class TestSettle:
    """900 are reserved."""

    def test_it_gives_back_or_takes_the_difference(self, actual: int) -> None:
        with freeze(START), reserve_all(entries()) as reservation:
            assert left() == [2, 100, 100]

            reservation.settle({"tokens": actual, "credits": actual})

            assert left() == [2, max(0, 1_000 - actual), 1_000 - actual]

    def test_a_cancel_after_it_changes_nothing(self, actual: int) -> None:
        with freeze(START):
            with reserve_all(entries()) as reservation:
                reservation.settle({"tokens": actual, "credits": actual})

            reservation.cancel()

            assert left() == [2, max(0, 1_000 - actual), 1_000 - actual]

    def test_its_answer_says_what_is_left_or_owed(self, actual: int) -> None:
        with freeze(START), reserve_all(entries()) as reservation:
            outcome = reservation.settle({"tokens": actual, "credits": actual}).of_rule("credits")

        assert outcome is not None
        assert (outcome.remaining, outcome.over) == (max(0, 1_000 - actual), max(0, actual - 1_000))
        assert outcome.allowed == (actual <= 1_000)


@in_memory
def test_without_an_amount_it_is_one() -> None:
    assert check_all([(CREDITS, ORG)]).explain() == "Allowed by counter 'credits' of org:7; 999 are left."


@in_memory
def test_what_is_left_can_be_taken() -> None:
    check_all([(CREDITS, ORG)])

    assert check_all([(CREDITS, ORG, 99)])
    assert not check_all([(CREDITS, ORG, 901)])


class TestDebt:
    """A settlement may take more credits than there are: the rest is owed."""

    @pytest.fixture(autouse=True)
    def fifteen_are_owed(self, memory_store: None, credit: None) -> None:
        async def owe() -> None:
            await (await areserve_all([(CREDITS, ORG, 900)])).asettle(914)

        CREDITS.incr(ORG, -100)
        asyncio.run(owe())
        CREDITS.incr(ORG, -1)

    def test_a_refusal_says_what_is_owed(self) -> None:
        decision = check_all([(CREDITS, ORG)])

        assert decision.explain() == "This hit needs 1 of counter 'credits' of org:7; 15 are owed."

    def test_a_top_up_pays_what_is_owed_first(self) -> None:
        assert CREDITS.incr(ORG, 20) == 5
        assert check_all([(CREDITS, ORG, 5)])


EACH_COUNTER = pytest.mark.parametrize("of", [OWN, counter("pooled", group="shop")], ids=["no group", "a group"])
ENTRIES = [
    pytest.param([], id="by itself"),
    pytest.param([("9/m", USER), ("tokens", ORG)], id="with limits"),
]


@both_stores
class TestEvents:
    def events(self) -> list[tuple[Any, ...]]:
        found = newest_events(get_limiter().store, current().prefix, 5)
        return [(each.kind, each.rule, each.subject, each.remaining, each.capacity) for each in found]

    @EACH_COUNTER
    @pytest.mark.parametrize("others", ENTRIES)
    @pytest.mark.parametrize("take", [check_all, refused_reservation], ids=["check_all", "reserve_all"])
    def test_a_refusal_is_an_event_with_what_is_left(
        self, of: Any, others: list[Any], take: Callable[[list[Any]], object]
    ) -> None:
        of.set(ORG, 7)

        take([*others, (of, ORG, 1_900)])

        assert self.events() == [("refused", of.name, ORG, 7, 7)]

    @EACH_COUNTER
    def test_each_subject_has_its_events(self, of: Any) -> None:
        check_all([(of, ORG), ("9/m", USER)])
        check_all([(of, USER), ("9/m", ORG)])

        assert {(rule, subject) for _, rule, subject, *_ in self.events()} == {(of.name, ORG), (of.name, USER)}

    @EACH_COUNTER
    def test_a_flood_is_one_event_a_second(self, of: Any) -> None:
        with received(refused, heard := Mock()), freeze(START):
            for _ in range(3):
                check_all([(of, ORG), ("9/m", USER)])

        assert heard.call_count == 1


@pytest.mark.thorough("slow")
@both_stores
def test_settlements_in_sixteen_threads_lose_no_unit() -> None:
    def work(number: int) -> int:
        try:
            reservation = reserve_all([("100000/d", USER, 50), (CREDITS, ORG, 50)])
        except QuotaExceeded:
            return 0
        reservation.settle(number % 51)
        return number % 51

    with ThreadPoolExecutor(16) as threads:
        used = sum(threads.map(work, range(16 * 8)))
    used += sum(map(work, range(16 * 8)))  # a thread that is slow to settle has made others be refused
    assert (CREDITS.get(ORG), peek("100000/d", USER).remaining) == (1_000 - used, 100_000 - used)
    assert used > 900


@in_memory
class TestData:
    """A counter is data: what is for limits does not change it."""

    @pytest.fixture
    def limiting_is_off(self, memory_store: None, credit: None, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        CREDITS.set(ORG, 1_000)  # the settings have replaced the store

    @pytest.mark.usefixtures("limiting_is_off")
    def test_if_limiting_is_off_credits_are_taken_all_the_same(self) -> None:
        decision = check_all(entries(600, 9_000))

        assert [outcome.rule for outcome in decision.outcomes] == ["credits"]
        assert CREDITS.get(ORG) == 400

    @pytest.mark.usefixtures("limiting_is_off")
    def test_if_limiting_is_off_credits_are_settled_all_the_same(self) -> None:
        with reserve_all(entries(tokens=9_000)) as reservation:
            reservation.settle({"credits": 300})

        assert CREDITS.get(ORG) == 700

    @pytest.mark.usefixtures("limiting_is_off")
    def test_if_limiting_is_off_credits_may_run_out(self) -> None:
        CREDITS.set(ORG, 100)

        assert not check_all(entries(600))

    @pytest.mark.usefixtures("limiting_is_off")
    def test_if_limiting_is_off_limits_are_not_asked(self) -> None:
        assert check_all(entries()[:2]).outcomes == ()

    def test_no_exemption_makes_it_free(self) -> None:
        override("x 0 0 ", "*", ORG)
        override("x 0 0 ", "tokens", USER)

        assert check_all(entries(tokens=9_000))
        assert CREDITS.get(ORG) == 100

    def test_a_block_of_another_rule_takes_nothing(self) -> None:
        override("b 0 0 ", "tokens", USER)

        assert not check_all(entries(100))
        assert CREDITS.get(ORG) == 1_000

    def test_while_the_store_does_not_answer_nothing_is_sold(self) -> None:
        with no_answer():
            decision = check_all(SALE)

        assert (decision.allowed, decision.degraded, decision.enforced) == (False, True, True)
        assert decision.explain() == "Rule 'credits' refuses, since the store did not answer; try again shortly."
        assert CREDITS.get(ORG) == 1_000

    def test_while_the_store_does_not_answer_a_sale_is_a_503(self) -> None:
        with no_answer():
            response = refusal_response(get(), check_all(SALE))

        assert (response.status_code, response["Retry-After"]) == (503, "1")

    def test_while_the_store_does_not_answer_nothing_is_reserved(self) -> None:
        with no_answer(), pytest.raises(QuotaExceeded):
            reserve_all(SALE)

        assert CREDITS.get(ORG) == 1_000

    def test_while_the_store_does_not_answer_nothing_is_settled(self) -> None:
        reservation = reserve_all(SALE)

        with no_answer():
            assert reservation.settle({"credits": 3}).degraded

        assert CREDITS.get(ORG) == 990

    @EACH_COUNTER
    def test_a_refusal_sends_the_signal(self, of: Any) -> None:
        with received(refused, heard := Mock()):
            check_all([("rpm", USER), (of, ORG, 1)])

        assert [(call.kwargs["rule"].name, call.kwargs["subject"]) for call in heard.call_args_list] == [(of.name, ORG)]

    def test_the_counts_of_the_day_do_not_have_it(self) -> None:
        check_all(entries(1_001, 1_001))
        CREDITS.set(USER, 9)

        assert check_all([("rpm", USER), (CREDITS, USER, 5)])
        assert set(checks_of(USER)) == {"rpm", "tokens"}

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ((CREDITS, ORG, 0), "cost=0 of rule 'credits' takes nothing"),
            ((CREDITS, ORG, 10**12 + 1), "is not a whole number from 0 to 1000000000000"),
            (Entry(CREDITS, ORG, 1, "team"), "Counter 'credits' has no tier 'team'"),
            ((CREDITS, ""), "An empty string is not a subject"),
            ((counter("paid", group="shop"), ORG, 9), "Counter 'paid' is listed twice for org:7. Give it once"),
            ((Rule.make("paid", "9/m"), ORG), "Rule 'paid' is listed twice"),
        ],
    )
    def test_a_wrong_entry_is_named(self, wrong: Any, message: str) -> None:
        with pytest.raises(RuleError, match=message):
            check_all([(counter("paid"), ORG), wrong])

    def test_a_call_for_one_rule_takes_no_counter(self) -> None:
        with pytest.raises(RuleError, match=r"^counter\('credits'.* is not a rule or a rate. Use its take\(\)"):
            peek(cast("Any", CREDITS), ORG, 5)

    @pytest.mark.parametrize("accept", ["application/json", "text/html", "text/plain"])
    def test_the_answer_says_that_not_enough_is_left(self, accept: str) -> None:
        response = refusal_response(get(HTTP_ACCEPT=accept), check_all([("9/m", USER), (CREDITS, ORG, 1_900)]))

        assert response.status_code == 429
        assert "This request needs 1,900 credits, and 1,000 are left." in response.content.decode()
        assert response["RateLimit-Policy"].endswith('"credits";q=1000;qu="units"')
        assert response["RateLimit"].endswith('"credits";r=1000')

    @pytest.mark.parametrize(
        ("entry", "status"),
        [((CREDITS, ORG, 1_900), 402), (("0/m", ORG), 429)],
        ids=["without enough credits", "under a limit"],
    )
    def test_a_setting_chooses_the_status_without_enough_credits(self, entry: Any, status: int, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "CREDITS_STATUS": 402}

        response = refusal_response(get(HTTP_ACCEPT="application/json"), check_all([entry]))

        assert (response.status_code, json.loads(response.content)["status"]) == (status, status)

    @pytest.mark.parametrize("accept", ["application/json", "text/html", "text/plain"])
    def test_the_answer_names_no_time(self, accept: str) -> None:
        response = refusal_response(get(HTTP_ACCEPT=accept), check_all([("9/m", USER), (CREDITS, ORG, 1_900)]))

        text = response.content.decode()
        assert "Retry-After" not in response
        assert not [words for words in ("retry_after", "<meter") if words in text]


@pytest.mark.usefixtures("redis_cache")
class TestKey:
    CREDIT = counter("credits", ttl=1_000)

    @pytest.fixture
    def key(self, redis_cache: Any, raw: Any) -> Any:
        """The key of ten credits."""
        self.CREDIT.set(ORG, 10)
        (key,) = raw.scan_iter()
        return key

    def test_a_check_lets_it_live_for_its_ttl_again(self, key: Any, raw: Any) -> None:
        raw.pexpire(key, 5_000)

        check_all([(self.CREDIT, ORG, 3)])

        assert 900_000 < raw.pttl(key) <= 1_000_001

    def test_a_settlement_lets_it_live_for_its_ttl_again(self, key: Any, raw: Any) -> None:
        reservation = reserve_all([(self.CREDIT, ORG, 3)])
        raw.pexpire(key, 5_000)

        reservation.settle(1)

        assert 900_000 < raw.pttl(key) <= 1_000_001

    def test_a_refusal_does_not(self, key: Any, raw: Any) -> None:
        raw.pexpire(key, 5_000)

        assert not check_all([(self.CREDIT, ORG, 30)])
        assert raw.pttl(key) <= 5_000

    @pytest.mark.parametrize("foreign", ["12.5", "ten"])
    def test_one_that_holds_no_counter_sells_nothing(self, foreign: str, key: Any, raw: Any) -> None:
        raw.set(key, foreign)

        decision = check_all([("9/m", USER), (self.CREDIT, ORG, 3)])

        assert (decision.allowed, decision.degraded) == (False, True)
        assert peek("9/m", USER).remaining == 9


DAY = 1_440 * MINUTE
ORDER = "order:17"
ORDERS: list[Any] = [("1/d", ORDER), (CREDITS, ORG, 900)]


@both_stores
class TestAKeyThatIsUsedOnce:
    """A limit of one beside the others: an idempotency key that a refused request does not use up."""

    @both_ways
    def test_a_second_request_takes_nothing(self, is_async: bool) -> None:
        called(is_async, check_all, acheck_all, ORDERS)
        CREDITS.set(ORG, 1_000)

        decision = called(is_async, check_all, acheck_all, ORDERS)

        assert (decision.allowed, decision.outcomes[0].allowed, CREDITS.get(ORG)) == (False, False, 1_000)

    @both_ways
    def test_a_request_that_is_refused_does_not_use_it_up(self, is_async: bool) -> None:
        CREDITS.set(ORG, 899)
        assert not called(is_async, check_all, acheck_all, ORDERS)
        CREDITS.set(ORG, 900)

        assert called(is_async, check_all, acheck_all, ORDERS)

    def test_settling_the_credits_keeps_it(self) -> None:
        reserve_all(ORDERS).settle({"credits": 640})

        with pytest.raises(QuotaExceeded):
            reserve_all([("1/d", ORDER), (CREDITS, ORG, 1)])

    def test_cancelling_frees_it(self) -> None:
        reserve_all(ORDERS).cancel()

        assert check_all(ORDERS)

    def test_a_day_later_it_is_forgotten(self) -> None:
        with freeze(START):
            CREDITS.set(ORG, 1_000)
            check_all(ORDERS)

        with freeze(START + DAY):
            CREDITS.set(ORG, 1_000)

            assert check_all(ORDERS)
