"""Reserving and settling under every algorithm.

What each algorithm gives back, and for how long, is in tests/core/test_adjust.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import areserve, check, peek, refund, reserve, reset
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.signals import near_limit
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.counts import checks_of, count_what_waits, units_of
from tests.support.inputs import inputs
from tests.support.overridden import override
from tests.support.steps import ALGORITHMS, MINUTE, SECOND, START

SUBJECT = "user:42"
DAY = 1_440 * MINUTE
TOKENS: dict[str, Any] = {"algorithm": "token_bucket"}

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")


def left(rate: str = "1000/h", **options: Any) -> int | None:
    return peek(rate, SUBJECT, **options).remaining


@both_stores
@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEveryAlgorithm:
    def test_settling_gives_the_rest_back_once_and_cancelling_all_of_it(self, algorithm: Any) -> None:
        with freeze(START):
            with reserve("1000/h", SUBJECT, 600, algorithm=algorithm) as hold:
                assert left(algorithm=algorithm) == 400
                hold.settle(150)
            hold.settle(0)  # a second time it changes nothing
            hold.cancel()
            assert left(algorithm=algorithm) == 850
            reserve("1000/h", SUBJECT, 600, algorithm=algorithm).cancel()
            assert left(algorithm=algorithm) == 850

    def test_more_than_the_estimate_is_taken_and_past_the_limit_it_is_owed_in_full(self, algorithm: Any) -> None:
        with freeze(START):
            check("1000/h", SUBJECT, 300, algorithm=algorithm)
            assert reserve("1000/h", SUBJECT, 600, algorithm=algorithm).settle(1_500).remaining == 0
            decision = check("1000/h", SUBJECT, algorithm=algorithm)
            assert (decision.allowed, bool(decision.retry_after)) == (False, True)
            if algorithm == "leaky_bucket":  # of which a refund takes nothing
                assert peek("1000/h", SUBJECT, algorithm=algorithm).reset_after == 1_800 * 3.6
                return
            assert refund("1000/h", SUBJECT, 300, algorithm=algorithm).remaining == 0
            assert refund("1000/h", SUBJECT, 600, algorithm=algorithm).remaining == 100

    def test_what_has_left_the_window_is_not_given_back_once_more(self, algorithm: Any) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600, algorithm=algorithm)
        with freeze(START + 2 * 60 * MINUTE):
            check("1000/h", SUBJECT, 700, algorithm=algorithm)
            hold.cancel()
            assert left(algorithm=algorithm) == 300


@in_memory
class TestWhatIsGivenBack:
    @pytest.mark.parametrize("is_refunded", [False, True])
    def test_a_bucket_gives_back_what_has_not_refilled_since(self, is_refunded: bool) -> None:
        with freeze(START):
            first, second = (reserve("60/m", SUBJECT, 20, **TOKENS) for _ in range(2))
            if is_refunded:
                refund("60/m", SUBJECT, 20, **TOKENS)
            else:
                first.cancel()
        with freeze(START + 25 * SECOND):
            assert check("60/m", SUBJECT, 30, **TOKENS)
        with freeze(START + 30 * SECOND):
            assert second.cancel().remaining == 35

    def test_many_at_a_time_give_back_what_was_too_much_whichever_is_settled_first(self) -> None:
        with freeze(START):
            holds = [reserve("100000/m", SUBJECT, 2_000, **TOKENS) for _ in range(10)]
        with freeze(START + SECOND // 10):  # 166 have flowed back
            for hold in reversed(holds):
                hold.settle(500)
            assert left("100000/m", **TOKENS) == 100_000 - 5_000 + 166

    def test_of_a_leaky_bucket_only_the_last_gives_its_place_back(self) -> None:
        leaky: dict[str, Any] = {"algorithm": "leaky_bucket"}
        holds = []
        for number in range(3):
            with freeze(START + number * SECOND):
                holds.append(reserve("60/m", SUBJECT, 10, **leaky))
        assert [hold.decision.delay for hold in holds] == [0, 9, 18]
        with freeze(START + 2 * SECOND):
            holds[1].settle(4)
            holds[2].settle(4)
            assert check("60/m", SUBJECT, **leaky).delay == 22

    def test_a_sliding_window_gives_back_the_units_of_the_hold_and_no_others(self) -> None:
        with freeze(START):
            hold = reserve("100/h", SUBJECT, 5)
            check("100/h", SUBJECT, 45)
        with freeze(START + 59 * MINUTE):
            reserve("100/h", SUBJECT, 50).cancel()
            assert left("100/h") == 50
            hold.settle(15)
            assert left("100/h") == 40
        for minutes, remaining in ((60, 90), (119, 100)):
            with freeze(START + minutes * MINUTE):
                assert left("100/h") == remaining

    def test_all_limits_of_a_rule_are_settled(self) -> None:
        with freeze(START):
            reserve("1000/h; 5000/d", SUBJECT, 600).settle(100)
            assert [outcome.remaining for outcome in peek("1000/h; 5000/d", SUBJECT).outcomes] == [900, 4_900]


# A fixed window begins with the hit that comes first: two limiters with other hits are not to be compared.
@in_memory
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "fixed_window"])
@given(
    st.lists(
        st.tuples(st.integers(0, 40 * 60), st.integers(1, 400), st.integers(0, 500), st.integers(0, 90 * 60)),
        min_size=1,
        max_size=8,
    )
)
@inputs(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_settling_never_mints(algorithm: Any, work: list[tuple[int, int, int, int]]) -> None:
    """What is left is never more than a limiter that had known the real costs beforehand would leave."""
    moments = []
    now = START
    for gap, estimate, actual, after in work:
        now += gap * SECOND
        moments += [(now, "reserve", estimate, actual), (now + after * SECOND, "settle", estimate, actual)]
    with freeze(START):
        reset("1000/h", SUBJECT, algorithm=algorithm)
        reset("1000/h", SUBJECT, algorithm=algorithm, name="known")
    holds: dict[tuple[int, int], Any] = {}
    for moment, what, estimate, actual in sorted(moments):
        with freeze(moment):
            if what == "reserve":
                try:
                    holds[estimate, actual] = reserve("1000/h", SUBJECT, estimate, algorithm=algorithm)
                except QuotaExceeded:
                    continue
                if actual:
                    check("1000/h", SUBJECT, min(estimate, actual), algorithm=algorithm, name="known")
            elif (estimate, actual) in holds:
                holds.pop((estimate, actual)).settle(actual)
    with freeze(max(moments)[0]):
        for hold in holds.values():
            hold.settle(0)
        known, remaining = left(algorithm=algorithm, name="known"), left(algorithm=algorithm)
        assert known is not None
        assert remaining is not None
        assert remaining <= known


@in_memory
class TestReserving:
    def test_an_estimate_without_room_raises_and_takes_nothing(self) -> None:
        with freeze(START):
            check("1000/h", SUBJECT, 700)
            with pytest.raises(QuotaExceeded) as caught:
                reserve("1000/h", SUBJECT, 400)
            assert caught.value.decision.remaining == left() == 300

    def test_an_error_inside_cancels_and_a_block_that_ends_unsettled_keeps_the_estimate(self) -> None:
        with freeze(START):
            with pytest.raises(ZeroDivisionError), reserve("100/h", SUBJECT, 40):
                1 / 0  # noqa: B018
            assert left("100/h") == 100
            with reserve("100/h", SUBJECT, 40):
                pass
        for moment, remaining in ((START, 60), (START + 60 * MINUTE - 1, 60), (START + 60 * MINUTE, 100)):
            with freeze(moment):
                assert left("100/h") == remaining

    def test_async_it_is_entered_or_awaited(self) -> None:
        async def work() -> None:
            async with areserve("1000/h", SUBJECT, 600) as hold:
                await hold.asettle(100)
            hold = await areserve("1000/h", SUBJECT, 600)
            await hold.acancel()
            with pytest.raises(ZeroDivisionError):
                async with areserve("1000/h", SUBJECT, 600):
                    1 / 0  # noqa: B018
            with pytest.raises(QuotaExceeded):
                await areserve("1000/h", SUBJECT, 901)

        with freeze(START):
            asyncio.run(work())
            assert left() == 900

    def test_reserving_and_settling_is_one_call_each(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = calls_of(monkeypatch)
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600)
            assert (len(calls), hold.decided_at) == (1, START)
            hold.settle(100)
            assert len(calls) == 2
            check("1000/h", SUBJECT, 50)
            assert hold.settle(700).remaining == 850  # a second time it only says how the limit stands

    def test_settling_says_how_the_limits_stand_now(self) -> None:
        with freeze(START):
            check("100/m", SUBJECT, 10)
            for estimate, actual, allowed, remaining in ((80, 40, True, 50), (50, 60, False, 0)):
                decision = reserve("100/m", SUBJECT, estimate).settle(actual)
                assert (decision.allowed, decision.remaining) == (allowed, remaining)

    def test_if_limiting_is_off_or_a_shadow_would_refuse_nothing_is_reserved(self, settings: Any) -> None:
        with freeze(START):
            assert not reserve("1000/h", SUBJECT, 1_001, shadow=True, name="shadow").is_open
            assert reserve("1000/h", SUBJECT, 1_000, shadow=True, name="shadow").is_open
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        assert not any(reserve("1/m", SUBJECT, 1).is_open for _ in range(3))
        assert not reset("1/m", SUBJECT)

    @pytest.mark.parametrize("actual", [-1, 1.5, "3", True, 10**12 + 1])
    def test_settling_for_what_is_no_cost_is_an_error_and_leaves_the_hold_open(self, actual: Any) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600)
            with pytest.raises(RuleError, match="not a whole number"):
                hold.settle(actual)
            hold.cancel()
            assert left() == 1_000

    def test_different_values_are_not_reserved(self) -> None:
        with pytest.raises(RuleError, match="counts different values"):
            reserve("3/d", SUBJECT, distinct=True)

    def test_near_is_told_on_what_was_really_used(self) -> None:
        heard: list[str] = []

        def hear(rule: Any, **_: Any) -> None:
            heard.append(rule.name)

        near_limit.connect(hear)
        try:
            with freeze(START):
                reserve("100/m", SUBJECT, 90).settle(40)
                assert not heard
                reserve("100/m", SUBJECT, 60).settle(45)
                assert heard == ["100/m"]
        finally:
            near_limit.disconnect(hear)


@both_stores
@pytest.mark.parametrize("is_exempt", [False, True])
def test_the_day_of_the_hit_counts_the_units_that_were_settled(is_exempt: bool) -> None:
    with freeze(START):
        if is_exempt:
            override("x 0 0 ", "9000/h", SUBJECT)
        more, less, _open, cancelled = [reserve("9000/h", SUBJECT, 100) for _ in range(4)]
        check("9000/h", SUBJECT)
        more.settle(900)
        assert count_what_waits()
        assert (checks_of(SUBJECT), units_of(SUBJECT)) == ({"9000/h": (5, 0)}, {"9000/h": 1_201})
    with freeze(START + DAY):
        less.settle(7)
        cancelled.cancel()
        cancelled.cancel()
        assert count_what_waits()
        assert (checks_of(SUBJECT), units_of(SUBJECT)) == ({"9000/h": (4, 0)}, {"9000/h": 1_008})


@in_memory
class TestOverrides:
    def test_one_with_another_window_is_charged_and_gives_nothing_back(self) -> None:
        with freeze(START):
            hold, less = reserve("1000/h", SUBJECT, 10), reserve("1000/h", SUBJECT, 100)
            override("r 0 0 500/m", "1000/h", SUBJECT)
            assert less.settle(0).remaining == 500
            assert not hold.settle(5_000)
            assert not check("1000/h", SUBJECT, 500)
            override("", "1000/h", SUBJECT)
            assert left() == 890

    @pytest.mark.parametrize(("rate", "remaining"), [("50/h", 1_960), ("5000/h", 1_966)])
    def test_one_of_the_same_window_gives_back_where_it_was_counted(self, rate: str, remaining: int) -> None:
        with freeze(START):
            check("2000/h", SUBJECT, 30)
            hold = reserve("2000/h", SUBJECT, 10)
            override(f"r 0 0 {rate}", "2000/h", SUBJECT)
            hold.settle(4)
            override("", "2000/h", SUBJECT)
            assert left("2000/h") == remaining  # with 50/h: exact now, a slice then, not to be told apart

    @pytest.mark.parametrize("mode", ["b", "x"])
    @pytest.mark.parametrize("actual", [100, 900])
    def test_a_subject_that_was_blocked_or_exempted_since_can_still_be_settled(self, mode: str, actual: int) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600)
            override(f"{mode} 0 0 ", "1000/h", SUBJECT)
            found = [(outcome.allowed, outcome.why) for outcome in hold.settle(actual).outcomes]
            assert found == [(False, "blocked") if mode == "b" else (True, "exempt")]
            override("", "1000/h", SUBJECT)
            assert left() == 1000 - actual

    def test_an_exempt_subject_reserves_nothing_and_settles_nothing(self) -> None:
        with freeze(START):
            override("x 0 0 ", "1000/h", SUBJECT)
            hold, again = reserve("1000/h", SUBJECT, 10**6), reserve("1000/h", SUBJECT, 10**6)
            hold.settle(10**6)
            override("", "1000/h", SUBJECT)
            again.settle(10**6)
            assert left() == 1_000
