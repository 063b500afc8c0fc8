"""A reservation is settled once, in whichever process, however often it is tried."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from django_quota import areserve, check, counter, peek, reserve, reserve_all
from django_quota.core.flow import IOCall, run_sync
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from django_quota.types import Reservation
from tests.support.calls import both_ways, calls_of
from tests.support.counts import count_what_waits, units_of
from tests.support.outages import no_answer
from tests.support.overridden import override
from tests.support.steps import ALGORITHMS, MINUTE, START

USER, ORG = "user:42", "org:7"
WEEK = 7 * 1_440 * MINUTE
CREDITS = counter("credits")
POOLED = counter("pooled", group="shop")

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")

AGAIN: dict[str, Callable[[Reservation], Any]] = {
    "settle": lambda reservation: reservation.settle(0),
    "settle more": lambda reservation: reservation.settle(1_500),
    "cancel": Reservation.cancel,
}
each_way_again = pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)


def shown(decision: Any) -> list[Any]:
    return [(each.rule, each.allowed, each.remaining, each.over, each.reset_after) for each in decision.outcomes]


@both_stores
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@each_way_again
class TestALimit:
    def test_settling_a_string_again_changes_nothing(self, algorithm: Any, again: Callable[[Reservation], Any]) -> None:
        with freeze(START):
            text = reserve("1000/h", USER, 600, algorithm=algorithm).dumps()
            Reservation.loads(text).settle(150)

            again(Reservation.loads(text))

            assert peek("1000/h", USER, algorithm=algorithm).remaining == 850

    def test_settling_a_string_again_returns_the_first_answer(
        self, algorithm: Any, again: Callable[[Reservation], Any]
    ) -> None:
        with freeze(START):
            text = reserve("1000/h", USER, 600, algorithm=algorithm).dumps()
            first = Reservation.loads(text).settle(150)
        with freeze(START + MINUTE):
            check("1000/h", USER, 300, algorithm=algorithm)

            assert shown(again(Reservation.loads(text))) == shown(first)


@both_stores
@each_way_again
@pytest.mark.parametrize("credit", [CREDITS, POOLED], ids=["no group", "a group"])
class TestSeveralEntries:
    """A request, and credits of two accounts."""

    @pytest.fixture(autouse=True)
    def accounts(self, either_store: None, credit: Any) -> None:
        credit.set(ORG, 1_000)
        credit.set(USER, 1_000)

    def reserved(self, credit: Any) -> str:
        return reserve_all([("1000/h", USER, 900), (credit, ORG, 900), (credit, USER, 900)]).dumps()

    def left(self, credit: Any) -> list[int | None]:
        return [peek("1000/h", USER).remaining, credit.get(ORG), credit.get(USER)]

    def test_settling_again_changes_nothing(self, credit: Any, again: Callable[[Reservation], Any]) -> None:
        with freeze(START):
            text = self.reserved(credit)
            Reservation.loads(text).settle([100, 200, 300])

            again(Reservation.loads(text))

            assert self.left(credit) == [900, 800, 700]

    def test_settling_again_returns_the_first_answer(self, credit: Any, again: Callable[[Reservation], Any]) -> None:
        with freeze(START):
            text = self.reserved(credit)
            first = Reservation.loads(text).settle([100, 200, 300])
        credit.incr(ORG, 5_000)
        with freeze(START + MINUTE):
            assert shown(again(Reservation.loads(text))) == shown(first)


@both_stores
class TestWhoSettles:
    @pytest.fixture(autouse=True)
    def account(self, either_store: None) -> None:
        CREDITS.set(ORG, 1_000)

    def test_the_reservation_itself_settles_only_if_its_string_was_not(self) -> None:
        reservation = reserve(CREDITS, ORG, 900)
        Reservation.loads(reservation.dumps()).settle(200)

        reservation.settle(0)

        assert CREDITS.get(ORG) == 800

    def test_a_string_settles_only_if_the_reservation_itself_was_not(self) -> None:
        reservation = reserve(CREDITS, ORG, 900)
        text = reservation.dumps()
        reservation.settle(200)

        Reservation.loads(text).settle(0)

        assert CREDITS.get(ORG) == 800

    def test_a_block_that_ends_leaves_a_settled_string_alone(self) -> None:
        with reserve(CREDITS, ORG, 900) as reservation:
            Reservation.loads(reservation.dumps()).settle(200)

        assert CREDITS.get(ORG) == 800

    @both_ways
    def test_a_block_that_made_a_string_leaves_it_to_be_settled(self, is_async: bool) -> None:
        texts = []

        async def work() -> None:
            async with areserve(CREDITS, ORG, 900) as reservation:
                texts.append(reservation.dumps())

        if is_async:
            asyncio.run(work())
        else:
            with reserve(CREDITS, ORG, 900) as reservation:
                texts.append(reservation.dumps())

        Reservation.loads(texts[0]).settle(200)

        assert CREDITS.get(ORG) == 800

    def test_a_block_that_fails_gives_back_though_it_made_a_string(self) -> None:
        texts = []

        def fails() -> None:
            with reserve(CREDITS, ORG, 900) as reservation:
                texts.append(reservation.dumps())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails()
        Reservation.loads(texts[0]).settle(200)

        assert CREDITS.get(ORG) == 1_000

    def test_two_reservations_are_each_settled(self) -> None:
        texts = [reserve(CREDITS, ORG, 400).dumps() for _ in range(2)]

        for text in texts:
            Reservation.loads(text).settle(100)

        assert CREDITS.get(ORG) == 800

    def test_after_an_answer_that_was_lost_settling_again_changes_nothing(self) -> None:
        text = reserve(CREDITS, ORG, 900).dumps()
        with no_answer(done=True):
            assert Reservation.loads(text).settle(200).degraded

        Reservation.loads(text).settle(200)

        assert CREDITS.get(ORG) == 800

    def test_without_a_string_settling_again_changes_nothing_after_an_answer_that_was_lost(self) -> None:
        reservation = reserve(CREDITS, ORG, 900)
        with no_answer(done=True):
            assert reservation.settle(200).degraded

        reservation.settle(200)

        assert CREDITS.get(ORG) == 800

    def test_a_string_that_could_not_be_settled_is_settled_by_the_next_call(self) -> None:
        reservation = Reservation.loads(reserve(CREDITS, ORG, 900).dumps())
        with no_answer():
            assert reservation.settle(200).degraded

        assert not reservation.settle(200).degraded

        assert CREDITS.get(ORG) == 800

    @pytest.mark.parametrize("fails", [False, True], ids=["which ends", "which fails"])
    def test_a_block_whose_settlement_was_not_answered_does_not_settle_the_estimate(self, fails: bool) -> None:
        with suppress(KeyError), reserve(CREDITS, ORG, 900) as reservation:
            text = reservation.dumps()
            with no_answer():
                reservation.settle(200)
            if fails:
                raise KeyError

        Reservation.loads(text).settle(200)

        assert CREDITS.get(ORG) == 800


@both_stores
@pytest.mark.parametrize("mode", ["", "x"], ids=["limited", "exempt"])
def test_the_day_counts_a_reservation_that_is_settled_twice_once(mode: str, settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": {"rate": "1000/h", "daily": True}}}
    with freeze(START):
        override(f"{mode} 0 0 " if mode else "", "tokens", ORG)
        text = reserve("tokens", ORG, 100).dumps()
        assert count_what_waits()
        for actual in (40, 7, 900):
            Reservation.loads(text).settle(actual)
        assert count_what_waits()

        assert units_of(ORG) == {"tokens": 40}


@in_memory
def test_the_day_of_an_exempt_subject_is_settled_by_the_next_call_if_the_store_did_not_answer(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": {"rate": "1000/h", "daily": True}}}
    with freeze(START):
        override("x 0 0 ", "tokens", ORG)
        text = reserve("tokens", ORG, 100).dumps()
        assert count_what_waits()

        with no_answer():
            first = Reservation.loads(text).settle(40)
        second = Reservation.loads(text).settle(40)

        assert (first.degraded, second.degraded) == (True, False)
        assert units_of(ORG) == {"tokens": 40}


@both_stores
class TestTheLastMoment:
    def test_a_string_is_settled_for_a_week(self) -> None:
        with freeze(START):
            CREDITS.set(ORG, 1_000)
            text = reserve(CREDITS, ORG, 900).dumps()

        with freeze(START + WEEK - 1):
            Reservation.loads(text).settle(200)

            assert CREDITS.get(ORG) == 800

    def test_a_week_later_it_is_an_error(self) -> None:
        with freeze(START):
            CREDITS.set(ORG, 1_000)
            text = reserve(CREDITS, ORG, 900).dumps()

        with freeze(START + WEEK), pytest.raises(RuleError) as caught:
            Reservation.loads(text).settle(200)

        assert str(caught.value) == (
            "The estimate of 'credits' was spent more than seven days ago. It stays counted: settle a reservation "
            "with a string within seven days."
        )

    def test_until_then_a_second_settlement_changes_nothing(self) -> None:
        with freeze(START):
            CREDITS.set(ORG, 1_000)
            text = reserve(CREDITS, ORG, 900).dumps()
            Reservation.loads(text).settle(200)

        with freeze(START + WEEK - 1):
            Reservation.loads(text).settle(0)

            assert CREDITS.get(ORG) == 800


@pytest.mark.usefixtures("redis_cache")
class TestWhatRedisKeeps:
    def test_a_reservation_without_a_string_leaves_no_key(self, raw: redis.Redis) -> None:
        reserve("1000/h", USER, 600).settle(1)

        assert raw.keys("*:settled:*") == []

    def test_each_key_ends_a_week_after_the_estimate(self, raw: Any) -> None:
        Reservation.loads(reserve("1000/h", USER, 600).dumps()).settle(1)

        (key,) = raw.keys("*:settled:*")
        assert WEEK // 1_000 - 60_000 < raw.pttl(key) <= WEEK // 1_000 + 1

    def test_a_counter_that_holds_something_else_is_not_settled_twice(self, raw: Any) -> None:
        """The script fails at the second entry, and Redis keeps what it did before."""
        CREDITS.set(ORG, 1_000)
        bonus = counter("bonus")
        bonus.set(ORG, 1_000)
        text = reserve_all([(CREDITS, ORG, 900), (bonus, ORG, 900)]).dumps()
        raw.set(f"quota:1:{{{ORG}}}:c:bonus", "nothing to count")

        settled = [Reservation.loads(text).settle(200).degraded for _ in range(2)]

        assert settled == [True, True]
        assert CREDITS.get(ORG) == 800


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize(
    ("before", "now", "left"),
    [
        pytest.param("1000/h", ["1000/h", "5000/d"], [900, 5_000], id="more limits"),
        pytest.param(["1000/h", "5000/d"], "5000/d", [4_900], id="fewer limits"),
    ],
)
def test_a_rule_with_other_limits_by_now_answers_what_they_have_left(
    before: Any, now: Any, left: list[int], settings: Any
) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": before}}
    with freeze(START):
        text = reserve("tokens", USER, 600).dumps()
        Reservation.loads(text).settle(100)
        settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": now}}

        outcomes = Reservation.loads(text).settle(0).outcomes

    assert [outcome.remaining for outcome in outcomes] == left


@in_memory
def test_settling_a_string_asks_no_store_for_an_exempt_subject_of_a_rule_that_counts_no_days_any_more(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [{"tokens": {"rate": "1000/h", "daily": daily}} for daily in (True, False)]
    settings.QUOTA = {**settings.QUOTA, "RULES": rules[0]}
    override("x 0 0 ", "tokens", ORG)
    text = reserve("tokens", ORG, 100).dumps()
    settings.QUOTA = {**settings.QUOTA, "RULES": rules[1]}
    asked = calls_of(monkeypatch)

    assert Reservation.loads(text).settle(40).allowed

    assert asked == []


@in_memory
def test_settling_again_in_one_process_returns_the_first_answer() -> None:
    with freeze(START):
        reservation = reserve("1000/h", USER, 600)
        first = reservation.settle(150)

        assert reservation.settle(0) is first


@in_memory
def test_a_second_thread_that_settles_at_the_same_time_changes_nothing() -> None:
    with freeze(START):
        reservation = reserve("1000/h", USER, 600)
        seconds = iter([reservation])

        def perform(call: IOCall) -> Any:
            for second in seconds:
                second.settle(0)  # while the first waits for the store
            return call.run_sync()

        run_sync(reservation.settling(150), perform)

        assert peek("1000/h", USER).remaining == 850
