"""`reservation.extend` takes more in the middle of the work, and `settle` settles the whole."""

import asyncio
from typing import Any

import pytest

from django_quota import areserve, check, counter, peek, reserve, reserve_all
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.features.usage.days import recent_usage
from django_quota.testing import freeze
from django_quota.types import Reservation
from tests.support.calls import both_ways
from tests.support.overridden import override
from tests.support.steps import ALGORITHMS, MINUTE, START

USER, ORG = "user:42", "org:7"
DAY = 1_440 * MINUTE
CREDITS = counter("credits")
RATE = "10000/h"

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")
each_actual = pytest.mark.parametrize(
    "actual",
    [
        pytest.param(0, id="nothing"),
        pytest.param(250, id="less than the estimate"),
        pytest.param(4_300, id="some of what was added"),
        pytest.param(5_200, id="more than both"),
    ],
)


def extend(reservation: Reservation, units: Any, *, is_async: bool = False) -> Any:
    return asyncio.run(reservation.aextend(units)) if is_async else reservation.extend(units)


@both_stores
@pytest.mark.usefixtures("at_one_time")
class TestExtending:
    @both_ways
    def test_it_takes_more(self, is_async: bool) -> None:
        extend(reserve(RATE, USER, 4_000), 500, is_async=is_async)

        assert peek(RATE, USER).remaining == 5_500

    @both_ways
    def test_its_decision_says_what_is_left(self, is_async: bool) -> None:
        assert extend(reserve(RATE, USER, 4_000), 500, is_async=is_async).remaining == 5_500

    @both_ways
    def test_without_room_it_raises(self, is_async: bool) -> None:
        reservation = reserve(RATE, USER, 4_000)

        with pytest.raises(QuotaExceeded):
            extend(reservation, 6_001, is_async=is_async)

        assert peek(RATE, USER).remaining == 6_000

    def test_without_room_the_reservation_stays_as_it_was(self) -> None:
        reservation = reserve(RATE, USER, 4_000)
        with pytest.raises(QuotaExceeded):
            reservation.extend(6_001)

        reservation.settle(1_000)

        assert peek(RATE, USER).remaining == 9_000

    def test_several_entries_are_extended_together_or_not_at_all(self) -> None:
        CREDITS.set(ORG, 1_000)
        reservation = reserve_all([(RATE, USER, 900), (CREDITS, ORG, 900)])

        with pytest.raises(QuotaExceeded):
            reservation.extend({RATE: 50, "credits": 101})

        assert (peek(RATE, USER).remaining, CREDITS.get(ORG)) == (9_100, 100)

    def test_one_of_several_entries_is_extended_by_name(self) -> None:
        CREDITS.set(ORG, 1_000)
        reservation = reserve_all([(RATE, USER, 900), (CREDITS, ORG, 900)])

        reservation.extend({"credits": 100})

        assert (peek(RATE, USER).remaining, CREDITS.get(ORG)) == (9_100, 0)

    def test_an_entry_that_is_not_extended_may_be_blocked_by_now(self) -> None:
        CREDITS.set(ORG, 1_000)
        reservation = reserve_all([(RATE, USER, 900), (CREDITS, ORG, 900)])
        override("b 0 0 ", RATE, USER)

        assert [each.rule for each in reservation.extend({"credits": 100}).outcomes] == ["credits"]

    def test_the_estimate_includes_what_was_added(self) -> None:
        CREDITS.set(ORG, 1_000)
        reservation = reserve_all([(RATE, USER, 900), (CREDITS, ORG, 900)])

        reservation.extend({"credits": 100})

        assert reservation.costs == (900, 1_000)


@both_stores
@pytest.mark.parametrize("algorithm", [each for each in ALGORITHMS if each != "leaky_bucket"])
@each_actual
def test_settling_settles_the_whole(algorithm: Any, actual: int) -> None:
    with freeze(START):
        reservation = reserve(RATE, USER, 4_000, algorithm=algorithm)
        reservation.extend(500)
        reservation.extend(500)
        reservation.settle(actual)

        assert peek(RATE, USER, algorithm=algorithm).remaining == 10_000 - actual


@both_stores
@each_actual
def test_a_string_knows_what_was_added(actual: int) -> None:
    CREDITS.set(ORG, 10_000)
    reservation = reserve(CREDITS, ORG, 4_000)
    reservation.extend(1_000)
    text = reservation.dumps()

    for _ in range(2):
        Reservation.loads(text).settle(actual)

    assert CREDITS.get(ORG) == 10_000 - actual


@both_stores
def test_a_string_is_extended_where_it_was_read() -> None:
    CREDITS.set(ORG, 10_000)
    reservation = Reservation.loads(reserve(CREDITS, ORG, 4_000).dumps())

    reservation.extend(1_000)
    reservation.settle(4_500)

    assert CREDITS.get(ORG) == 5_500


@both_stores
def test_what_was_not_used_is_given_back_where_it_was_taken() -> None:
    """Of 4,000 and, half an hour later, 1,000, all 1,000 go back, and the 4,000 leave with their window."""
    with freeze(START):
        reservation = reserve(RATE, USER, 4_000)
    with freeze(START + 30 * MINUTE):
        reservation.extend(1_000)
        reservation.settle(4_000)
    with freeze(START + 61 * MINUTE):
        assert peek(RATE, USER).remaining == 10_000


@both_stores
@pytest.mark.parametrize(
    ("actual", "units"), [(120, (100, 20)), (70, (70, 0)), (900, (100, 800))], ids=["some", "none", "more"]
)
def test_each_day_counts_what_was_used_of_its_units(actual: int, units: tuple[int, int], settings: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": {"rate": "1000/week", "daily": True}}}
    with freeze(START):
        reservation = reserve("tokens", ORG, 100)
    with freeze(START + DAY):
        reservation.extend(50)
        Reservation.loads(reservation.dumps()).settle(actual)
        found = [rules["tokens"].units for _, rules in sorted(recent_usage(ORG).items()) if "tokens" in rules]
    assert tuple(found) == units


@in_memory
class TestOverridesThatCameSince:
    def test_what_an_exempt_subject_added_is_counted_by_its_day_alone(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "RULES": {"tokens": {"rate": "1000/h", "daily": True}}}
        with freeze(START):
            reservation = reserve("tokens", ORG, 100)
            override("x 0 0 ", "tokens", ORG)
            reservation.extend(50)
            override("", "tokens", ORG)

            reservation.settle(20)

            assert peek("tokens", ORG).remaining == 980


NO_NAME = "got one number, 7, for 2 entries with different estimates, (1, 900). Name the entry:"


@in_memory
class TestWrongCalls:
    @pytest.mark.parametrize("units", [0, {}, [0]], ids=str)
    def test_to_extend_by_nothing_is_an_error(self, units: Any) -> None:
        with pytest.raises(RuleError) as caught:
            reserve(RATE, USER, 4_000).extend(units)

        assert str(caught.value) == f"extend({units}) takes nothing. Use 1 or more."

    @pytest.mark.parametrize("units", [-1, 1.5, "3", True, 10**12 + 1])
    def test_to_extend_by_what_is_not_a_cost_is_an_error(self, units: Any) -> None:
        with pytest.raises(RuleError) as caught:
            reserve(RATE, USER, 4_000).extend(units)

        assert str(caught.value) == (
            f"cost={units!r} of rule '10000/h' is not a whole number from 0 to 1000000000000. Use, for example, 1."
        )

    def test_to_extend_a_settled_reservation_is_an_error(self) -> None:
        reservation = reserve(RATE, USER, 4_000)
        reservation.settle(1)

        with pytest.raises(RuleError) as caught:
            reservation.extend(1)

        assert str(caught.value) == "The reservation is settled, so it cannot be extended. Reserve again."

    @pytest.mark.parametrize(
        ("call", "given", "problem"),
        [
            ("settle", 7, f"settle() {NO_NAME} settle({{'credits': 7}}); the others stay as they are."),
            ("extend", 7, f"extend() {NO_NAME} extend({{'credits': 7}}); the others stay as they are."),
            (
                "settle",
                {"credit": 7},
                "settle() names 'credit', which is not in the reservation. Did you mean 'credits'?",
            ),
            ("extend", {"tokens": 7}, "extend() names 'tokens', which is not in the reservation. Known: 9/m, credits."),
            ("settle", [7], "[7] has 1 numbers, but the reservation has 2 entries."),
            ("extend", (1, 2, 3), "(1, 2, 3) has 3 numbers, but the reservation has 2 entries."),
        ],
        ids=[
            "settle, one number", "extend, one number", "settle, almost a name", "extend, another name",
            "settle, a list", "extend, a tuple",
        ],
    )  # fmt: skip
    def test_the_error_says_what_to_write(self, call: str, given: Any, problem: str) -> None:
        CREDITS.set(ORG, 1_000)
        reservation = reserve_all([("9/m", USER), (CREDITS, ORG, 900)])

        with pytest.raises(RuleError) as caught:
            getattr(reservation, call)(given)

        assert str(caught.value) == problem


@in_memory
def test_an_extension_whose_caller_is_cancelled_takes_nothing() -> None:
    async def work() -> None:
        reservation = await areserve(RATE, USER, 4_000)
        task = asyncio.create_task(reservation.aextend(500))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await reservation.asettle(4_000)

    with freeze(START):
        asyncio.run(work())

        assert check(RATE, USER, 6_000)
