"""Reserving and settling, under every algorithm, on the real Redis and in memory."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from django_quota import QuotaExceeded, acheck, areserve, check, peek, refund, reserve, reset
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import calls_of
from tests.support.inputs import inputs
from tests.support.published import override
from tests.support.steps import ALGORITHMS, SECOND, START

SUBJECT = "user:42"
MINUTE = 60 * SECOND

pytestmark = pytest.mark.usefixtures("either_store")


def left(rate: str = "1000/h", **options: Any) -> int | None:
    return peek(rate, SUBJECT, **options).remaining


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEveryAlgorithm:
    def test_the_estimate_is_spent_and_settling_gives_the_rest_back(self, algorithm: Any) -> None:
        with freeze(START):
            with reserve("1000/h", SUBJECT, 600, algorithm=algorithm) as hold:
                assert left(algorithm=algorithm) == 400
                hold.settle(150)
            assert left(algorithm=algorithm) == 850

    def test_more_than_the_estimate_is_taken_and_past_the_limit_the_next_one_pays(self, algorithm: Any) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600, algorithm=algorithm)
            assert hold.settle(1_500).remaining == 0
            decision = check("1000/h", SUBJECT, algorithm=algorithm)
        assert not decision
        assert decision.retry_after is not None
        assert decision.retry_after > 0

    def test_what_goes_past_the_limit_is_owed_in_full(self, algorithm: Any) -> None:
        with freeze(START):
            check("1000/h", SUBJECT, 300, algorithm=algorithm)
            reserve("1000/h", SUBJECT, 600, algorithm=algorithm).settle(1_500)
            if algorithm == "leaky_bucket":  # of which a refund takes nothing
                assert peek("1000/h", SUBJECT, algorithm=algorithm).reset_after == 1_800 * 3.6
                return
            assert refund("1000/h", SUBJECT, 300, algorithm=algorithm).remaining == 0
            assert refund("1000/h", SUBJECT, 600, algorithm=algorithm).remaining == 100

    def test_cancelling_gives_all_of_it_back(self, algorithm: Any) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600, algorithm=algorithm)
            hold.cancel()
            assert left(algorithm=algorithm) == 1_000

    def test_an_abandoned_hold_returns_by_itself_at_its_ttl(self, algorithm: Any) -> None:
        with freeze(START):
            reserve("1000/h", SUBJECT, 1_000, ttl=60, algorithm=algorithm)
        with freeze(START + MINUTE - 1):
            assert not check("1000/h", SUBJECT, 500, algorithm=algorithm)
        with freeze(START + MINUTE):
            assert check("1000/h", SUBJECT, 500, algorithm=algorithm)
            assert left(algorithm=algorithm) in (500, 499)  # a bucket gives whole units back

    def test_settling_twice_changes_nothing(self, algorithm: Any) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600, algorithm=algorithm)
            hold.settle(100)
            hold.settle(0)
            hold.cancel()
            assert left(algorithm=algorithm) == 900

    @pytest.mark.parametrize("is_returned", [False, True])
    def test_settling_after_the_ttl_charges_what_was_used_and_says_so(self, algorithm: Any, is_returned: bool) -> None:
        with freeze(START):
            hold = reserve("1000/d", SUBJECT, 600, ttl=1, algorithm=algorithm)
        with freeze(START + 2 * SECOND):
            if is_returned:
                check("1000/d", SUBJECT, 0, algorithm=algorithm)
            assert left("1000/d", algorithm=algorithm) == 1_000
            decision = hold.settle(300)
            assert decision.late
            assert decision.remaining == 700
            assert decision.explain() == (
                "Settled after the ttl of the reservation: the real cost is charged now. "
                f"Allowed by rule '1000/d' for {SUBJECT}. 700 left."
            )
            again = hold.settle(300)
            assert not again.late
            assert left("1000/d", algorithm=algorithm) == 700

    def test_settling_in_time_is_not_late(self, algorithm: Any) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600, ttl=2, algorithm=algorithm)
        with freeze(START + 2 * SECOND - 1):
            assert not hold.settle(900).late

    def test_what_has_left_the_window_is_not_given_back_once_more(self, algorithm: Any) -> None:
        with freeze(START):
            hold = reserve("1000/h", SUBJECT, 600, ttl=4 * 3_600, algorithm=algorithm)
        with freeze(START + 2 * 3_600 * SECOND):
            check("1000/h", SUBJECT, 700, algorithm=algorithm)
            hold.cancel()
            assert left(algorithm=algorithm) == 300


class TestBuckets:
    """A hold gives back what is left of it, wherever in the queue it stands by then."""

    tokens: ClassVar[dict[str, Any]] = {"algorithm": "token_bucket"}
    leaky: ClassVar[dict[str, Any]] = {"algorithm": "leaky_bucket"}

    def test_what_has_flowed_back_since_the_hold_moved_up_does_not_come_back_again(self) -> None:
        with freeze(START):
            first, second = (reserve("60/m", SUBJECT, 20, **self.tokens) for _ in range(2))
            first.cancel()
        with freeze(START + 25 * SECOND):
            assert check("60/m", SUBJECT, 30, **self.tokens)
        with freeze(START + 30 * SECOND):
            assert second.cancel().remaining == 35

    def test_a_refund_ahead_of_a_hold_moves_it_up_too(self) -> None:
        with freeze(START):
            check("60/m", SUBJECT, 20, **self.tokens)
            hold = reserve("60/m", SUBJECT, 20, **self.tokens)
            refund("60/m", SUBJECT, 20, **self.tokens)
        with freeze(START + 25 * SECOND):
            assert check("60/m", SUBJECT, 30, **self.tokens)
        with freeze(START + 30 * SECOND):
            assert hold.cancel().remaining == 35

    def test_what_a_refund_has_given_back_of_a_hold_is_not_given_back_again(self) -> None:
        with freeze(START):
            hold = reserve("60/m", SUBJECT, 20, **self.tokens)
            assert refund("60/m", SUBJECT, 20, **self.tokens).remaining == 60
            check("60/m", SUBJECT, 10, **self.tokens)
            assert hold.cancel().remaining == 50

    def test_nor_hours_later(self) -> None:
        with freeze(START):
            hold = reserve("24/d", SUBJECT, 20, ttl=86_400, **self.tokens)
            refund("24/d", SUBJECT, 20, **self.tokens)
        with freeze(START + 10 * 3_600 * SECOND):
            check("24/d", SUBJECT, 10, **self.tokens)
            assert hold.cancel().remaining == 14

    def test_what_was_refunded_before_a_hold_is_remembered_as_long_as_it_lasts(self) -> None:
        with freeze(START):
            check("6/m", SUBJECT, **self.tokens)
            refund("6/m", SUBJECT, **self.tokens)
        with freeze(START + 9 * SECOND):
            hold = reserve("6/m", SUBJECT, 3, **self.tokens)
        with freeze(START + 12 * SECOND):
            check("6/m", SUBJECT, 3, **self.tokens)
            assert hold.cancel().remaining == 3

    def test_many_at_a_time_give_back_what_was_too_much_whichever_is_settled_first(self) -> None:
        with freeze(START):
            holds = [reserve("100000/m", SUBJECT, 2_000, **self.tokens) for _ in range(10)]
        with freeze(START + SECOND // 10):  # 166 have flowed back
            for hold in reversed(holds):
                hold.settle(500)
            assert left("100000/m", **self.tokens) == 100_000 - 5_000 + 166

    def test_an_abandoned_reservation_returns_its_time_though_the_rate_was_lowered(self) -> None:
        with freeze(START):
            check("60/m", SUBJECT, 40, **self.tokens)
            reserve("60/m", SUBJECT, 10, ttl=5, **self.tokens)
            override("r 0 0 30/m", "60/m", SUBJECT)
        with freeze(START + 5 * SECOND):
            check("60/m", SUBJECT, 0, **self.tokens)
            override("", "60/m", SUBJECT)
            assert left("60/m", **self.tokens) == 25

    def test_a_peek_foresees_what_several_abandoned_holds_give_back(self) -> None:
        with freeze(START):
            for ttl in (3, 2, 1):
                reserve("60/m", SUBJECT, 15, ttl=ttl, **self.tokens)
        with freeze(START + 5 * SECOND):
            foreseen = left("60/m", **self.tokens)
            check("60/m", SUBJECT, 0, **self.tokens)
            assert left("60/m", **self.tokens) == foreseen
            assert foreseen is not None
            assert foreseen < 60  # the first two to return stand behind the last: nobody knows that they did

    def test_a_hold_with_a_later_one_keeps_its_place_in_a_leaky_bucket(self) -> None:
        with freeze(START):
            holds = [reserve("60/m", SUBJECT, 10, **self.leaky) for _ in range(3)]
            assert [hold.decision.delay for hold in holds] == [0, 10, 20]
            holds[1].settle(4)
            assert check("60/m", SUBJECT, **self.leaky).delay == 30

    def test_the_last_in_a_leaky_bucket_gives_its_place_back(self) -> None:
        with freeze(START):
            first, second = (reserve("60/m", SUBJECT, 10, **self.leaky) for _ in range(2))
            second.cancel()
            first.settle(4)
            assert check("60/m", SUBJECT, **self.leaky).delay == 4
            assert refund("60/m", SUBJECT, **self.leaky).remaining == 55


# A fixed window begins with the hit that comes first: two limiters with other hits are not to be compared.
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
        moments.append((now, "reserve", estimate, actual))
        moments.append((now + after * SECOND, "settle", estimate, actual))
    with freeze(START):
        reset("1000/h", SUBJECT, algorithm=algorithm)
        reset("1000/h", SUBJECT, algorithm=algorithm, name="known")
    holds: dict[tuple[int, int], Any] = {}
    for moment, what, estimate, actual in sorted(moments):
        with freeze(moment):
            if what == "reserve":
                try:
                    holds[estimate, actual] = reserve("1000/h", SUBJECT, estimate, ttl=86_400, algorithm=algorithm)
                except QuotaExceeded:
                    continue
                if actual:
                    check("1000/h", SUBJECT, min(estimate, actual), algorithm=algorithm, name="known")
            elif (estimate, actual) in holds:
                holds.pop((estimate, actual)).settle(actual)
    with freeze(max(moments)[0]):
        for hold in holds.values():
            hold.settle(0)
        known = peek("1000/h", SUBJECT, algorithm=algorithm, name="known").remaining
        remaining = left(algorithm=algorithm)
        assert known is not None
        assert remaining is not None
        assert remaining <= known


def test_an_estimate_without_room_raises_and_takes_nothing() -> None:
    with freeze(START):
        check("1000/h", SUBJECT, 700)
        with pytest.raises(QuotaExceeded) as caught:
            reserve("1000/h", SUBJECT, 400)
        assert left() == 300
    assert caught.value.decision.remaining == 300


def test_an_error_inside_cancels_and_a_block_that_ends_unsettled_keeps_the_estimate() -> None:
    with freeze(START):
        with pytest.raises(ZeroDivisionError), reserve("1000/h", SUBJECT, 400):
            1 / 0  # noqa: B018
        assert left() == 1_000
        with reserve("1000/h", SUBJECT, 400):
            pass
        assert left() == 600
    with freeze(START + 10 * MINUTE):
        assert left() == 600


def test_a_peek_counts_an_abandoned_reservation_and_leaves_it_to_the_next_check() -> None:
    with freeze(START):
        reserve("1000/h", SUBJECT, 1_000, ttl=1)
        assert not peek("1000/h", SUBJECT)
    with freeze(START + SECOND):
        assert [left() for _ in range(3)] == [1_000] * 3
        assert check("1000/h", SUBJECT).remaining == 999


def test_where_limiting_is_off_nothing_is_reserved(settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
    holds = [reserve("1/m", SUBJECT, 1) for _ in range(3)]
    assert not any(hold.is_open for hold in holds)
    assert not reset("1/m", SUBJECT)


class TestSlidingWindow:
    """Each hit leaves the window when its own time has come, whatever holds beside it do."""

    def test_a_cancelled_hold_takes_its_own_units_out_and_leaves_those_of_others(self) -> None:
        with freeze(START):
            check("100/h", SUBJECT, 50)
        with freeze(START + 59 * MINUTE):
            reserve("100/h", SUBJECT, 50).cancel()
            assert left("100/h") == 50
        with freeze(START + 60 * MINUTE):
            assert left("100/h") == 100

    def test_so_does_one_that_is_abandoned_and_a_peek_foresees_it(self) -> None:
        with freeze(START):
            check("100/h", SUBJECT, 50)
        with freeze(START + 58 * MINUTE):
            reserve("100/h", SUBJECT, 40, ttl=60)
            check("100/h", SUBJECT, 10)
        with freeze(START + 59 * MINUTE):
            foreseen = peek("100/h", SUBJECT, 100)
            refused = check("100/h", SUBJECT, 100)
            assert (refused.remaining, refused.retry_after, refused.reset_after) == (40, 59 * 60, 59 * 60)
            assert peek("100/h", SUBJECT, 100) == foreseen == refused
        with freeze(START + 60 * MINUTE):
            assert left("100/h") == 90

    def test_what_a_refund_has_taken_of_a_hold_comes_back_from_the_oldest_hits(self) -> None:
        with freeze(START):
            hold = reserve("100/h", SUBJECT, 50)
        with freeze(START + MINUTE):
            check("100/h", SUBJECT, 30)
            refund("100/h", SUBJECT, 30)
            assert hold.cancel().remaining == 100

    def test_settling_above_the_estimate_leaves_the_hits_of_others_as_they_are(self) -> None:
        with freeze(START):
            hold = reserve("100/h", SUBJECT, 5, ttl=2 * 3_600)
            check("100/h", SUBJECT, 85)
        with freeze(START + 59 * MINUTE):
            hold.settle(15)
            assert left("100/h") == 0
        with freeze(START + 60 * MINUTE):
            assert left("100/h") == 90
        with freeze(START + 119 * MINUTE):
            assert left("100/h") == 100


def test_all_limits_of_a_rule_are_settled() -> None:
    with freeze(START):
        reserve("1000/h; 5000/d", SUBJECT, 600).settle(100)
        decision = peek("1000/h; 5000/d", SUBJECT)
    assert [outcome.remaining for outcome in decision.outcomes] == [900, 4_900]


def test_reserving_and_settling_is_one_call_each(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch)
    with freeze(START):
        hold = reserve("1000/h", SUBJECT, 600)
        assert len(calls) == 1
        hold.settle(100)
        assert len(calls) == 2
        check("1000/h", SUBJECT, 50)
        assert hold.settle(700).remaining == 850  # a second time it changes nothing, and says how the limit stands


def test_each_hold_is_settled_by_itself() -> None:
    with freeze(START):
        holds = [reserve("1000/h", SUBJECT, 100) for _ in range(10)]
        for number, hold in enumerate(holds):
            hold.settle(number)
        assert left() == 1_000 - sum(range(10))


def test_more_abandoned_holds_than_one_call_gives_back_return_all_the_same() -> None:
    with freeze(START):
        for _ in range(250):
            reserve("1000/h", SUBJECT, 4, ttl=1)
    with freeze(START + 2 * SECOND):
        assert left() == 1_000
        assert check("1000/h", SUBJECT, 1_000)


def test_async_they_do_too() -> None:
    with freeze(START):
        for _ in range(250):
            reserve("1000/h", SUBJECT, 4, ttl=1)
    with freeze(START + 2 * SECOND):
        assert asyncio.run(acheck("1000/h", SUBJECT, 1_000))


def test_an_exempt_subject_reserves_nothing_and_settles_nothing() -> None:
    with freeze(START):
        override("x 0 0 ", "1000/h", SUBJECT)
        hold = reserve("1000/h", SUBJECT, 10**6)
        assert not hold.is_open
        hold.settle(10**6)
        override("", "1000/h", SUBJECT)
        assert left() == 1_000


def test_an_override_that_begins_meanwhile_does_not_keep_a_hold_from_being_settled() -> None:
    with freeze(START):
        hold = reserve("1000/h", SUBJECT, 600)
        override("r 0 0 50/d", "1000/h", SUBJECT)
        assert check("1000/h", SUBJECT).limit == 50
        hold.settle(100)
        override("", "1000/h", SUBJECT)
        assert left() == 900


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hold_that_falls_due_under_an_override_comes_back_where_it_was_spent(algorithm: Any) -> None:
    with freeze(START):
        reserve("1000/h; 2000/2d", SUBJECT, 600, ttl=1, algorithm="sliding_window", name="mixed")
        reserve("1000/d", SUBJECT, 600, ttl=1, algorithm=algorithm)
        override("r 0 0 50/m; 500/2d", "mixed", SUBJECT)
        override("r 0 0 50/m", "1000/d", SUBJECT)
    with freeze(START + SECOND):
        assert check("1000/d", SUBJECT, 0, algorithm=algorithm).limit == 50
        assert check("1000/h; 2000/2d", SUBJECT, 0, name="mixed").limit == 50
        override("", "1000/d", SUBJECT)
        override("", "mixed", SUBJECT)
        assert left("1000/d", algorithm=algorithm) == 1_000
        mixed = peek("1000/h; 2000/2d", SUBJECT, name="mixed")
    assert [outcome.remaining for outcome in mixed.outcomes] == [1_000, 2_000]


def test_a_hold_of_an_override_that_is_over_comes_back_where_it_was_spent() -> None:
    with freeze(START):
        override("r 0 0 700/d", "1000/h", SUBJECT)
        reserve("1000/h", SUBJECT, 600, ttl=1)
        override("", "1000/h", SUBJECT)
    with freeze(START + SECOND):
        assert check("1000/h", SUBJECT, 0).limit == 1_000
        override("r 0 0 700/d", "1000/h", SUBJECT)
        assert left() == 700


def test_a_hold_of_nothing_and_one_that_a_shadow_rule_would_refuse_hold_nothing() -> None:
    with freeze(START):
        assert not reserve("1000/h", SUBJECT, 0).is_open
        assert not reserve("1000/h", SUBJECT, 1_001, shadow=True, name="shadow").is_open
        assert reserve("1000/h", SUBJECT, 1_000, shadow=True, name="shadow").is_open
        assert left() == 1_000


def test_async_reserving_is_entered_or_awaited() -> None:
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


@pytest.mark.parametrize("ttl", [0, -1, "60", True, None, float("inf"), float("nan"), 367 * 86_400])
def test_a_ttl_that_is_none_is_an_error(ttl: Any) -> None:
    with pytest.raises(RuleError, match="Use, for example, 60"):
        reserve("1000/h", SUBJECT, 1, ttl=ttl)


@pytest.mark.parametrize("actual", [-1, 1.5, "3", True, 10**12 + 1])
def test_settling_for_what_is_no_cost_is_an_error_and_leaves_the_hold_open(actual: Any) -> None:
    with freeze(START):
        hold = reserve("1000/h", SUBJECT, 600)
        with pytest.raises(RuleError, match="not a whole number"):
            hold.settle(actual)
        assert hold.is_open
        hold.cancel()
        assert left() == 1_000


def test_different_values_are_not_reserved() -> None:
    with pytest.raises(RuleError, match="counts different values"):
        reserve("3/d", SUBJECT, distinct=True)
