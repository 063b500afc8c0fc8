"""A reservation of a counter may have a lease: units of a process that was killed go back by themselves."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from django_quota import areserve, areserve_all, counter, peek, reserve, reserve_all
from django_quota.core.flow import run_sync
from django_quota.engine.operations import DictStates
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.features.reservations.calls import RenewLeases
from django_quota.features.slots.renewal import renewer
from django_quota.limiting.flusher import flusher
from django_quota.testing import freeze, server_programs
from django_quota.types import Reservation
from tests.support.commands import said
from tests.support.outages import no_answer
from tests.support.selection import thorough
from tests.support.steps import MINUTE, START

USER, ORG = "user:42", "org:7"
CREDITS = counter("credits")
POOLED = counter("pooled", group="shop")
LEASE = 10 * MINUTE

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")


@pytest.fixture(params=[CREDITS, POOLED], ids=["no group", "a group"])
def credit(request: pytest.FixtureRequest) -> Any:
    return request.param


@both_stores
class TestALease:
    @pytest.fixture(autouse=True)
    def account(self, either_store: None, credit: Any) -> Iterator[None]:
        with freeze(START):
            credit.set(ORG, 1_000)
            yield

    def test_its_units_are_taken(self, credit: Any) -> None:
        reserve(credit, ORG, 900, lease="10m")

        assert credit.get(ORG) == 100

    def test_until_it_ends_nobody_else_gets_its_units(self, credit: Any) -> None:
        held = reserve(credit, ORG, 900, lease="10m")

        with freeze(START + LEASE - 1), pytest.raises(QuotaExceeded):
            reserve(credit, ORG, 101, lease="10m")

        assert held.is_open

    def test_after_it_has_ended_the_next_reservation_gets_its_units(self, credit: Any) -> None:
        reserve(credit, ORG, 900, lease="10m")

        with freeze(START + LEASE):
            reserve(credit, ORG, 1_000, lease="10m")

            assert credit.get(ORG) == 0

    def test_a_refused_reservation_gives_back_what_has_ended(self, credit: Any) -> None:
        reserve(credit, ORG, 900, lease="10m")

        with freeze(START + LEASE):
            with pytest.raises(QuotaExceeded):
                reserve(credit, ORG, 1_001, lease="10m")

            assert credit.get(ORG) == 1_000

    @pytest.mark.parametrize("actual", [0, 640, 900, 1_100])
    def test_settling_takes_the_real_cost(self, credit: Any, actual: int) -> None:
        reserve(credit, ORG, 900, lease="10m").settle(actual)

        assert credit.get(ORG) == 1_000 - actual

    @pytest.mark.parametrize("actual", [0, 640, 900, 1_100])
    @pytest.mark.parametrize("is_given_back", [False, True], ids=["nobody came", "the units went back"])
    def test_settling_after_it_has_ended_takes_the_real_cost(
        self, credit: Any, actual: int, is_given_back: bool
    ) -> None:
        late = reserve(credit, ORG, 900, lease="10m")

        with freeze(START + LEASE):
            if is_given_back:
                reserve(credit, ORG, 1, lease="10m").cancel()
            late.settle(actual)

            assert credit.get(ORG) == 1_000 - actual

    def test_what_was_settled_does_not_go_back(self, credit: Any) -> None:
        reserve(credit, ORG, 900, lease="10m").settle(640)

        with freeze(START + LEASE):
            reserve(credit, ORG, 1, lease="10m").cancel()

            assert credit.get(ORG) == 360

    def test_the_estimate_of_a_block_that_settles_nothing_does_not_go_back(self, credit: Any) -> None:
        with reserve(credit, ORG, 900, lease="10m"):
            pass

        with freeze(START + LEASE):
            reserve(credit, ORG, 1, lease="10m").cancel()

            assert credit.get(ORG) == 100

    @pytest.mark.parametrize("is_late", [False, True], ids=["in time", "after it has ended"])
    def test_a_string_is_settled_once(self, credit: Any, is_late: bool) -> None:
        text = reserve(credit, ORG, 900, lease="10m").dumps()

        with freeze(START + (LEASE if is_late else 0)):
            for actual in (640, 0, 900):
                Reservation.loads(text).settle(actual)

            assert credit.get(ORG) == 360

    def test_what_was_added_has_a_lease_too(self, credit: Any) -> None:
        reserve(credit, ORG, 500, lease="10m").extend(400)

        with freeze(START + LEASE):
            reserve(credit, ORG, 1, lease="10m").cancel()

            assert credit.get(ORG) == 1_000

    @pytest.mark.parametrize("actual", [0, 450, 640, 1_100])
    def test_settling_settles_what_was_added(self, credit: Any, actual: int) -> None:
        reservation = reserve(credit, ORG, 500, lease="10m")
        reservation.extend(400)

        reservation.settle(actual)

        assert credit.get(ORG) == 1_000 - actual

    def test_a_refused_reservation_of_several_entries_takes_nothing(self, credit: Any) -> None:
        with pytest.raises(QuotaExceeded):
            reserve_all([(credit, ORG, 900), ("1/m", USER, 2)], lease="10m")

        with freeze(START + LEASE):
            reserve(credit, ORG, 1, lease="10m").cancel()

            assert credit.get(ORG) == 1_000

    def test_each_process_has_a_lease_of_its_own(self, credit: Any) -> None:
        reserve(credit, ORG, 400, lease="5m")
        held = reserve(credit, ORG, 400, lease="10m")

        with freeze(START + 5 * MINUTE):
            reserve(credit, ORG, 1, lease="10m").cancel()

            assert credit.get(ORG) == 600
        assert held.is_open


@both_stores
class TestRenewing:
    @pytest.fixture(autouse=True)
    def account(self, either_store: None, credit: Any) -> None:
        with freeze(START):
            credit.set(ORG, 1_000)

    def kept(self, reservation: Reservation, moment: int) -> None:
        """Let the background renew its leases at a moment."""
        with freeze(moment):
            run_sync(reservation.keeping())

    @pytest.mark.parametrize("is_string", [False, True], ids=["here", "from a string"])
    def test_a_renewed_lease_begins_again(self, credit: Any, is_string: bool) -> None:
        with freeze(START):
            reservation = reserve(credit, ORG, 500, lease="10m")
            reservation.extend(400)
            if is_string:
                reservation = Reservation.loads(reservation.dumps())
        self.kept(reservation, START + 9 * MINUTE)

        with freeze(START + 19 * MINUTE - 1), pytest.raises(QuotaExceeded):
            reserve(credit, ORG, 101, lease="10m")

    def test_the_lease_of_each_subject_begins_again(self, credit: Any) -> None:
        with freeze(START):
            credit.set(USER, 1_000)
            reservation = reserve_all([(credit, ORG, 900), (credit, USER, 800)], lease="10m")
        self.kept(reservation, START + 9 * MINUTE)

        with freeze(START + 19 * MINUTE - 1):
            for subject in (ORG, USER):
                reserve(credit, subject, 1, lease="10m")  # gives back what has ended

            assert (credit.get(ORG), credit.get(USER)) == (99, 199)

    def test_it_ends_when_nobody_renews_it_any_more(self, credit: Any) -> None:
        with freeze(START):
            reservation = reserve(credit, ORG, 900, lease="10m")
        self.kept(reservation, START + 9 * MINUTE)

        with freeze(START + 19 * MINUTE):
            assert reserve(credit, ORG, 1_000, lease="10m").is_open

    def test_a_lease_that_has_ended_is_renewed_if_its_units_are_still_taken(self, credit: Any) -> None:
        with freeze(START):
            reservation = reserve(credit, ORG, 900, lease="10m")
        self.kept(reservation, START + 11 * MINUTE)

        with freeze(START + 12 * MINUTE), pytest.raises(QuotaExceeded):
            reserve(credit, ORG, 101, lease="10m")

    def test_a_lease_whose_units_went_back_stays_ended(self, credit: Any) -> None:
        with freeze(START):
            reservation = reserve(credit, ORG, 900, lease="10m")
        with freeze(START + LEASE):
            reserve(credit, ORG, 1, lease="10m").cancel()
        self.kept(reservation, START + LEASE)

        with freeze(START + LEASE):
            assert reserve(credit, ORG, 1_000, lease="10m").is_open


@in_memory
class TestTheBackground:
    def test_it_renews_a_reservation_as_long_as_there_is_one(self) -> None:
        CREDITS.set(ORG, 1_000)
        reservation = reserve(CREDITS, ORG, 900, lease="10m")
        assert len(renewer) == 1

        reservation.settle(1)

        assert len(renewer) == 0

    @pytest.mark.thorough("slow")
    def test_it_renews_one_from_a_string(self) -> None:
        CREDITS.set(ORG, 1_000)
        text = reserve(CREDITS, ORG, 900, lease="10m").dumps()
        gc.collect()

        reservation = Reservation.loads(text)

        assert len(renewer) == 1
        assert reservation.is_open

    @pytest.fixture
    def moments(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """When the background is to renew a lease, in seconds from now."""
        moments: list[float] = []
        monkeypatch.setattr("django_quota.core.clock.elapsed", lambda: 0.0)
        monkeypatch.setattr(flusher, "call_at", lambda moment, _: moments.append(moment))
        return moments

    def test_it_renews_a_lease_when_a_third_of_it_is_over(self, moments: list[float]) -> None:
        CREDITS.set(ORG, 1_000)

        reservation = reserve_all([("9/m", USER), (CREDITS, ORG, 900)], lease="10m")

        assert moments == [200.0]
        assert reservation.is_open

    def test_it_renews_one_from_a_string_within_a_second(self, moments: list[float]) -> None:
        CREDITS.set(ORG, 1_000)
        text = reserve(CREDITS, ORG, 900, lease="10m").dumps()

        reservation = Reservation.loads(text)

        assert moments == [200.0, 1.0]
        assert reservation.is_open

    def test_it_has_nothing_to_do_for_the_string_of_a_settled_reservation(self) -> None:
        CREDITS.set(ORG, 1_000)
        settled = reserve(CREDITS, ORG, 900, lease="10m")
        settled.settle(1)

        reservation = Reservation.loads(settled.dumps())

        assert len(renewer) == 0
        assert not reservation.is_open

    @pytest.mark.thorough("slow")
    def test_it_forgets_a_reservation_that_nobody_has(self) -> None:
        CREDITS.set(ORG, 1_000)
        gc.collect()

        reserve(CREDITS, ORG, 900, lease="10m")
        gc.collect()

        assert len(renewer) == 0

    @pytest.mark.thorough("slow")
    @pytest.mark.parametrize("entry", [(CREDITS, ORG, 900), ("9/m", ORG, 9)], ids=["a counter", "a rule"])
    def test_it_has_nothing_to_do_for_a_reservation_without_a_lease(self, entry: Any) -> None:
        CREDITS.set(ORG, 1_000)
        gc.collect()

        reservation = reserve(*entry)

        assert len(renewer) == 0
        assert reservation.is_open


@pytest.mark.parametrize(
    "either_store",
    [*server_programs()[:1], thorough("cluster", "cluster"), "sqlite"],
    indirect=True,
    ids=["redis", "cluster", "sqlite"],
)
@both_stores
class TestTheSweep:
    def swept(self, *options: str) -> Any:
        return said("quota_sweep", "--json", *options)

    def test_it_gives_back_what_has_ended(self, credit: Any) -> None:
        with freeze(START):
            credit.set(ORG, 1_000)
            reserve(credit, ORG, 900, lease="10m")
            held = reserve(credit, ORG, 60, lease="20m")

        with freeze(START + LEASE):
            self.swept()

            assert credit.get(ORG) == 940
        assert held.is_open

    def test_a_dry_run_gives_nothing_back(self, credit: Any) -> None:
        with freeze(START):
            credit.set(ORG, 1_000)
            reserve(credit, ORG, 900, lease="10m")

        with freeze(START + LEASE):
            self.swept("--dry-run")

            assert credit.get(ORG) == 100


@pytest.mark.usefixtures("redis_cache")
def test_its_key_lives_as_long_as_the_counter(raw: Any) -> None:
    CREDITS.set(ORG, 1_000)
    reservation = reserve(CREDITS, ORG, 900, lease="10m")

    (key,) = raw.keys("*:leased:*")

    assert raw.pttl(key) >= raw.pttl(f"quota:1:{{{ORG}}}:c:credits") > 0
    assert reservation.is_open


@pytest.mark.usefixtures("redis_cache")
def test_a_renewal_keeps_its_key_as_long_as_the_counter_lives(raw: Any) -> None:
    CREDITS.set(ORG, 1_000)
    reservation = reserve(CREDITS, ORG, 900, lease="10m")
    (key,) = raw.keys("*:leased:*")
    raw.pexpire(key, 60_000)

    run_sync(reservation.keeping())

    assert raw.pttl(key) >= raw.pttl(f"quota:1:{{{ORG}}}:c:credits") > 0


@pytest.mark.usefixtures("redis_cache")
def test_settling_on_a_full_server_gives_back(raw: Any) -> None:
    CREDITS.set(ORG, 1_000)
    text = reserve(CREDITS, ORG, 900, lease="10m").dumps()
    raw.config_set("maxmemory", 1)
    try:
        Reservation.loads(text).settle(640)
    finally:
        raw.config_set("maxmemory", 0)

    assert CREDITS.get(ORG) == 360


@both_stores
def test_while_the_store_does_not_answer_nothing_is_reserved() -> None:
    with no_answer(), pytest.raises(QuotaExceeded):
        reserve(CREDITS, ORG, 900, lease="10m")


@in_memory
class TestAsync:
    def test_async_a_counter_is_reserved_with_a_lease(self) -> None:
        async def work() -> None:
            async with areserve(CREDITS, ORG, 900, lease="10m") as reservation:
                await reservation.asettle(640)

        CREDITS.set(ORG, 1_000)
        asyncio.run(work())

        assert CREDITS.get(ORG) == 360

    def test_async_several_entries_are_reserved_with_a_lease(self) -> None:
        async def work() -> None:
            await areserve_all([("9/m", USER), (CREDITS, ORG, 900)], lease="10m")

        with freeze(START):
            CREDITS.set(ORG, 1_000)
            asyncio.run(work())
        with freeze(START + LEASE):
            reserve(CREDITS, ORG, 1_000, lease=1)

            assert (CREDITS.get(ORG), peek("9/m", USER).remaining) == (0, 9)


@in_memory
class TestWrongCalls:
    @pytest.mark.parametrize(
        "reserving",
        [
            pytest.param(lambda: reserve("9/m", USER, lease="10m"), id="reserve"),
            pytest.param(lambda: reserve_all([("9/m", USER)], lease="10m"), id="reserve_all"),
        ],
    )
    def test_a_lease_without_a_counter_is_an_error(self, reserving: Any) -> None:
        with pytest.raises(RuleError) as caught:
            reserving()

        assert str(caught.value) == (
            "lease='10m' is for counters, and '9/m' is a rule. Leave it out: an estimate under a rule "
            "ends with its window."
        )

    @pytest.mark.parametrize("lease", [0, -1, "soon", "367d"])
    def test_a_wrong_lease_is_an_error(self, lease: Any) -> None:
        with pytest.raises(RuleError) as caught:
            reserve(CREDITS, ORG, 900, lease=lease)

        assert str(caught.value) == (
            f"lease={lease!r} is not a duration above 0 and up to 366 days. Use, for example, 30 (seconds), '10m' or "
            "timedelta(days=1)."
        )

    def test_a_counter_with_an_option_of_rules_is_an_error(self) -> None:
        with pytest.raises(RuleError) as caught:
            reserve(CREDITS, ORG, 900, algorithm="token_bucket")

        assert str(caught.value) == f"algorithm= is for rules, and {CREDITS!r} is a counter. Leave it out."


@pytest.mark.parametrize(
    ("members", "number", "kept"),
    [
        pytest.param(
            ["held", "gone"], 1, ({"held": START + MINUTE, "other": START + 9}, START + 61 * MINUTE), id="one"
        ),
        pytest.param(["gone"], 0, ({"held": START + 9, "other": START + 9}, START + 9), id="none"),
    ],
)
def test_only_leases_that_hold_their_units_are_renewed(members: list[str], number: int, kept: Any) -> None:
    states = DictStates()
    states.put("leased", {"held": START + 9, "other": START + 9}, START + 9)

    assert RenewLeases("leased", members, MINUTE, 60 * MINUTE).run(states, START) == number

    assert states.kept == {"leased": kept}
