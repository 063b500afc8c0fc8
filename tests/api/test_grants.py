"""Credits that expire: granted once for an id, spent the first to expire first, gone by themselves."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from django_quota import check_all, counter, reserve, reserve_all
from django_quota.core.algorithms import stock
from django_quota.core.algorithms.stock import KEPT_GRANTS, MAX_GRANTS
from django_quota.core.flow import run_sync
from django_quota.exceptions import ConfigurationError, CounterError, QuotaExceeded, RuleError
from django_quota.testing import freeze
from django_quota.types import Counter, Grant, Reservation
from tests.support.steps import MINUTE, SECOND, START

ORG, OTHER = "org:7", "org:8"
CREDITS, POOLED = counter("credits"), counter("pooled", group="shop")
HOUR, DAY = 60 * MINUTE, 86_400 * SECOND

in_memory = pytest.mark.usefixtures("memory_store")
both_stores = pytest.mark.usefixtures("either_store")


@pytest.fixture(params=[CREDITS, POOLED], ids=["no group", "a group"])
def credit(request: pytest.FixtureRequest) -> Any:
    return request.param


def at(moment: int) -> datetime:
    return datetime.fromtimestamp(moment // SECOND, UTC)


def left(of: Counter, subject: str = ORG) -> dict[str, int]:
    """Return what is left of grants, by their ids."""
    return {grant.id: grant.left for grant in of.grants(subject)}


@pytest.fixture
def account(either_store: None, credit: Any) -> Iterator[None]:
    """An account that holds 100 units for an hour, 200 for two, and 50 that never expire."""
    with freeze(START):
        credit.incr(ORG, 50)
        credit.grant(ORG, 200, id="later", expires="2h")
        credit.grant(ORG, 100, id="sooner", expires="1h")
        yield


@pytest.mark.usefixtures("account")
class TestExpiry:
    @pytest.mark.parametrize(
        ("passed", "total", "by_grant"),
        [
            (HOUR - 1, 350, {"sooner": 100, "later": 200}),
            (HOUR, 250, {"later": 200}),
            (2 * HOUR - 1, 250, {"later": 200}),
            (2 * HOUR, 50, {}),
            (300 * DAY, 50, {}),
        ],
        ids=["before", "the first", "between", "the last", "long after"],
    )
    def test_what_has_expired_is_gone(self, credit: Any, passed: int, total: int, by_grant: dict[str, int]) -> None:
        with freeze(START + passed):
            assert (credit.get(ORG), left(credit)) == (total, by_grant)

    @pytest.mark.parametrize(
        ("change", "total"),
        [
            (lambda of: of.incr(ORG, 1), 251),
            (lambda of: of.take(ORG, 250), 0),
            (lambda of: of.take(ORG, 251), 250),
            (lambda of: of.grant(ORG, 5, id="new"), 255),
            (lambda of: of.set(ORG, 7), 7),
            (lambda of: check_all([(of, ORG, 250)]), 0),
            (lambda of: check_all([(of, ORG, 251)]), 250),
            (lambda of: reserve(of, ORG, 250).cancel(), 250),
        ],
        ids=["incr", "take", "too much", "grant", "set", "an entry", "refused", "cancelled"],
    )
    def test_each_call_decides_without_what_has_expired(
        self, credit: Any, change: Callable[[Counter], object], total: int
    ) -> None:
        with freeze(START + HOUR):
            change(credit)

            assert credit.get(ORG) == total

    def test_pop_returns_what_has_not_expired(self, credit: Any) -> None:
        with freeze(START + HOUR):
            assert credit.pop(ORG) == 250

    @pytest.mark.parametrize("end", [lambda of: of.pop(ORG), lambda of: of.set(ORG, 9)], ids=["pop", "set"])
    def test_a_new_total_ends_all_grants(self, credit: Any, end: Callable[[Counter], object]) -> None:
        end(credit)

        assert credit.grants(ORG) == []

    def test_a_new_total_does_not_expire(self, credit: Any) -> None:
        credit.set(ORG, 9)

        with freeze(START + DAY):
            assert credit.get(ORG) == 9


@pytest.mark.usefixtures("account")
class TestSpending:
    @pytest.mark.parametrize(
        "spend",
        [
            lambda of: of.take(ORG, 120),
            lambda of: of.incr(ORG, -120),
            lambda of: check_all([(of, ORG, 120)]),
            lambda of: reserve(of, ORG, 120),
            lambda of: reserve(of, ORG, 120, lease="10m"),
            lambda of: reserve(of, ORG, 10).settle(120),
            lambda of: reserve(of, ORG, 10).extend(110),
        ],
        ids=["take", "incr", "an entry", "reserve", "a lease", "settled above", "extended"],
    )
    def test_what_expires_first_is_used_first(self, credit: Any, spend: Callable[[Counter], object]) -> None:
        spend(credit)

        assert (credit.get(ORG), left(credit)) == (230, {"later": 180})

    def test_what_never_expires_is_used_last(self, credit: Any) -> None:
        credit.take(ORG, 310)

        with freeze(START + DAY):
            assert credit.get(ORG) == 40

    def test_used_credits_do_not_expire_again(self, credit: Any) -> None:
        credit.take(ORG, 100)

        with freeze(START + HOUR):
            assert credit.get(ORG) == 250

    def test_a_debt_is_paid_of_the_next_grant(self, credit: Any) -> None:
        reserve(credit, ORG, 10).settle(380)

        assert credit.grant(ORG, 100, id="new", expires="1h") == 70
        assert left(credit) == {"new": 70}


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("credit", [POOLED], ids=["a group"])
class TestMoving:
    """A transfer on a Cluster needs a group."""

    def test_what_is_moved_keeps_its_time(self, credit: Any) -> None:
        POOLED.transfer(ORG, OTHER, 330)

        assert left(POOLED, OTHER) == {"sooner": 100, "later": 200}
        with freeze(START + HOUR):
            assert (POOLED.get(ORG), POOLED.get(OTHER)) == (20, 230)

    def test_what_is_moved_back_has_its_grant_again(self, credit: Any) -> None:
        before = POOLED.grants(ORG)
        POOLED.transfer(ORG, OTHER, 330)

        POOLED.transfer(OTHER, ORG, 330)

        assert POOLED.grants(ORG) == before

    @pytest.mark.parametrize(("source", "destination", "n"), [(ORG, OTHER, 251), (OTHER, ORG, 0)], ids=["from", "to"])
    def test_what_has_expired_is_not_moved(self, credit: Any, source: str, destination: str, n: int) -> None:
        with freeze(START + HOUR):
            POOLED.transfer(source, destination, n)

            assert (POOLED.get(ORG), POOLED.get(OTHER)) == (250, 0)

    def test_a_debt_is_paid_of_what_is_moved(self, credit: Any) -> None:
        POOLED.incr(OTHER, -30)

        POOLED.transfer(ORG, OTHER, 120)

        assert (POOLED.get(OTHER), left(POOLED, OTHER)) == (90, {"sooner": 70, "later": 20})


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize("lease", [None, "5h"], ids=["for good", "for a lease"])
class TestGivenBack:
    """An estimate of 320 takes 100 that expire after an hour, 200 after two, and 20 that never do."""

    @pytest.mark.parametrize(
        ("passed", "actual", "total", "by_grant"),
        [
            (0, 0, 350, {"sooner": 100, "later": 200}),
            (0, 30, 320, {"sooner": 70, "later": 200}),
            (0, 130, 220, {"later": 170}),
            (0, 310, 40, {}),
            (0, 340, 10, {}),
            (HOUR, 0, 250, {"later": 200}),
            (HOUR, 30, 250, {"later": 200}),
            (HOUR, 130, 220, {"later": 170}),
            (2 * HOUR, 0, 50, {}),
            (2 * HOUR, 310, 40, {}),
        ],
    )
    def test_it_goes_where_it_came_from_as_far_as_that_lives(
        self, credit: Any, lease: Any, passed: int, actual: int, total: int, by_grant: dict[str, int]
    ) -> None:
        reservation = reserve(credit, ORG, 320, lease=lease)

        with freeze(START + passed):
            reservation.settle(actual)

            assert (credit.get(ORG), left(credit)) == (total, by_grant)

    def test_a_string_knows_where_it_came_from(self, credit: Any, lease: Any) -> None:
        text = reserve(credit, ORG, 320, lease=lease).dumps()

        with freeze(START + HOUR):
            Reservation.loads(text).settle(130)

            assert (credit.get(ORG), left(credit)) == (220, {"later": 170})

    def test_an_extension_is_given_back_first(self, credit: Any, lease: Any) -> None:
        reservation = reserve(credit, ORG, 100, lease=lease)
        reservation.extend(220)

        with freeze(START + HOUR):
            reservation.settle(130)

            assert (credit.get(ORG), left(credit)) == (220, {"later": 170})

    def test_an_expired_grant_is_not_revived_by_others(self, credit: Any, lease: Any) -> None:
        reservation = reserve(credit, ORG, 100, lease=lease)
        with freeze(START + HOUR):
            credit.take(ORG, 200)

            reservation.cancel()

            assert (credit.get(ORG), left(credit)) == (50, {})

    def test_a_debt_is_paid_first_of_what_expires_first(self, credit: Any, lease: Any) -> None:
        reservation = reserve(credit, ORG, 350, lease=lease)
        credit.incr(ORG, -90)

        reservation.cancel()

        assert (credit.get(ORG), left(credit)) == (260, {"sooner": 10, "later": 200})


@pytest.mark.usefixtures("account")
class TestAKilledReservation:
    @pytest.mark.parametrize(
        ("passed", "total", "by_grant"),
        [(HOUR - 1, 350, {"sooner": 100, "later": 200}), (HOUR, 250, {"later": 200}), (2 * HOUR, 50, {})],
        ids=["both live", "one lives", "none lives"],
    )
    def test_it_goes_where_it_came_from_as_far_as_that_lives(
        self, credit: Any, passed: int, total: int, by_grant: dict[str, int]
    ) -> None:
        reserve(credit, ORG, 320, lease="10m")

        with freeze(START + passed):
            with pytest.raises(QuotaExceeded):
                reserve(credit, ORG, 1_000, lease="10m")

            assert (credit.get(ORG), left(credit)) == (total, by_grant)

    def test_a_renewed_lease_keeps_it(self, credit: Any) -> None:
        reservation = reserve(credit, ORG, 320, lease="10m")
        with freeze(START + 9 * MINUTE):
            run_sync(reservation.keeping())

        with freeze(START + 12 * MINUTE), pytest.raises(QuotaExceeded):
            reserve(credit, ORG, 31, lease="10m")

        assert reservation.is_open


@both_stores
class TestOnce:
    @pytest.fixture(autouse=True)
    def the_clock_stands(self, either_store: None) -> Iterator[None]:
        with freeze(START):
            yield

    def test_it_returns_the_total(self, credit: Any) -> None:
        credit.incr(ORG, 20)

        assert credit.grant(ORG, 500, id="order-17", expires="365d") == 520

    @pytest.mark.parametrize(
        "again", [{"n": 500, "expires": "365d"}, {"n": 9}, {"n": 500, "expires": "1s"}], ids=["same", "less", "shorter"]
    )
    def test_a_second_call_changes_nothing(self, credit: Any, again: dict[str, Any]) -> None:
        credit.grant(ORG, 500, id="order-17", expires="365d")

        credit.grant(ORG, id="order-17", **again)

        assert credit.get(ORG) == 500
        assert credit.grants(ORG) == [Grant("order-17", 500, 500, at(START + 365 * DAY))]

    def test_a_second_call_returns_the_first_answer(self, credit: Any) -> None:
        credit.grant(ORG, 500, id="order-17")
        credit.take(ORG, 400)

        assert credit.grant(ORG, 500, id="order-17") == 500

    @pytest.mark.parametrize("passed", [2 * HOUR, 400 * DAY - 1], ids=["expired", "the last moment"])
    def test_the_store_remembers_it_as_long_as_the_counter_lives(self, credit: Any, passed: int) -> None:
        credit.grant(ORG, 500, id="order-17", expires="1h")

        with freeze(START + passed):
            credit.grant(ORG, 500, id="order-17", expires="1h")

            assert credit.get(ORG) == 0

    def test_each_subject_has_ids_of_its_own(self, credit: Any) -> None:
        credit.grant(ORG, 500, id="welcome")

        assert credit.grant(OTHER, 500, id="welcome") == 500

    def test_without_expires_it_does_not_expire(self, credit: Any) -> None:
        credit.grant(ORG, 500, id="order-17")

        with freeze(START + 399 * DAY):
            assert credit.get(ORG) == 500

    def test_the_day_does_not_count_it(self, credit: Any) -> None:
        credit.grant(ORG, 500, id="order-17", expires="1d")

        assert credit.get(ORG, at(START).date()) == 0

    def test_grants_of_one_moment_are_two(self, credit: Any) -> None:
        credit.grant(ORG, 1, id="a", expires="1h")
        credit.grant(ORG, 2, id="b", expires="1h")

        assert left(credit) == {"a": 1, "b": 2}

    def test_it_has_async_forms(self, credit: Any) -> None:
        async def granted() -> list[Grant]:
            assert await credit.agrant(ORG, 500, id="order-17", expires="1h") == 500
            assert await credit.agrant(ORG, 500, id="order-17", expires="1h") == 500
            found: list[Grant] = await credit.agrants(ORG)
            return found

        assert asyncio.run(granted()) == [Grant("order-17", 500, 500, at(START + HOUR))]

    @pytest.mark.parametrize("name", ["a b:c", "é" * 20, "x" * 200, "{!}"])
    def test_any_id_is_shown_as_it_was_given(self, credit: Any, name: str) -> None:
        credit.grant(ORG, 1, id=name, expires="1h")

        assert left(credit) == {name: 1}


@in_memory
class TestWhatIsWrong:
    @pytest.mark.parametrize("name", ["", " ", None, 17, "x" * 201, "é" * 150], ids=repr)
    def test_an_id_that_cannot_be_kept_is_an_error(self, name: Any) -> None:
        with pytest.raises(ConfigurationError) as caught:
            CREDITS.grant(ORG, 1, id=name)

        assert str(caught.value) == (
            f"{name!r} is not the id of a grant: it has 1 to 200 characters. Use, for example, id='order-17'."
        )

    @pytest.mark.parametrize(
        ("n", "problem"),
        [
            (0, "0 is less than 1. Use 1 or more"),
            (-1, "-1 is less than 1. Use 1 or more"),
            (10**12 + 1, "1000000000001 is more than 1000000000000. Use 1000000000000 or less"),
            (1.5, "1.5 is not a whole number. Use, for example, 1"),
            (True, "True is not a whole number. Use, for example, 1"),
            ("9", "'9' is not a whole number. Use, for example, 1"),
        ],
        ids=repr,
    )
    def test_a_number_out_of_range_is_an_error(self, n: Any, problem: str) -> None:
        with pytest.raises(CounterError) as caught:
            CREDITS.grant(ORG, n, id="order-17")

        assert str(caught.value) == f"Counter 'credits' of org:7: {problem}"

    def test_a_grant_has_at_most_a_trillion_units(self) -> None:
        assert CREDITS.grant(ORG, 10**12, id="order-17") == 10**12

    @pytest.mark.parametrize("expires", [0, "0s", -1, "1 month", "soon"], ids=repr)
    def test_a_wrong_time_is_an_error(self, expires: Any) -> None:
        with pytest.raises(RuleError, match="expires="):
            CREDITS.grant(ORG, 1, id="order-17", expires=expires)

    def test_units_may_live_as_long_as_their_counter(self) -> None:
        assert counter("brief", ttl="1d").grant(ORG, 5, id="order-17", expires="1d") == 5

    def test_units_that_outlive_their_counter_are_an_error(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            CREDITS.grant(ORG, 1, id="order-17", expires="401d")

        assert str(caught.value) == (
            "expires='401d' is longer than counter 'credits' lives after a change, 400 days. Give it a longer ttl "
            "wherever you use it: counter('credits', ttl='401d')."
        )

    def test_a_counter_that_lives_longer_takes_them(self) -> None:
        lasting = counter("credits", ttl="800d")

        lasting.grant(ORG, 1, id="order-17", expires="730d")

        assert left(lasting) == {"order-17": 1}

    @pytest.mark.parametrize("expires", [None, "1h"])
    def test_a_total_above_64_bits_is_an_error(self, expires: Any) -> None:
        CREDITS.set(ORG, 2**63 - 5)

        with pytest.raises(CounterError, match=":c:credits beyond 64 bits"):
            CREDITS.grant(ORG, 9, id="order-17", expires=expires)

        assert CREDITS.get(ORG) == 2**63 - 5


@both_stores
class TestMany:
    @pytest.fixture(autouse=True)
    def the_clock_stands(self, either_store: None) -> Iterator[None]:
        with freeze(START):
            yield

    def grant_all(self, number: int, first: int = 0) -> None:
        for each in range(first, first + number):
            CREDITS.grant(ORG, 1, id=f"{each}", expires=timedelta(days=1, microseconds=each))

    def test_grants_that_are_used_up_do_not_stay(self) -> None:
        for number in range(3):
            self.grant_all(KEPT_GRANTS, number * KEPT_GRANTS)
            CREDITS.take(ORG, KEPT_GRANTS)

        self.grant_all(1, 5_000)
        assert left(CREDITS) == {"5000": 1}

    def test_units_that_come_back_to_the_oldest_kept_grant_have_its_id(self) -> None:
        CREDITS.grant(ORG, 9, id="first", expires="1h")
        reservation = reserve(CREDITS, ORG, 9)
        self.grant_all(KEPT_GRANTS - 1)

        reservation.cancel()

        assert CREDITS.grants(ORG)[0] == Grant("first", 9, 9, at(START + HOUR))

    def test_what_comes_back_to_a_forgotten_grant_still_expires(self) -> None:
        CREDITS.grant(ORG, 9, id="first", expires="1h")
        reservation = reserve(CREDITS, ORG, 9)
        self.grant_all(KEPT_GRANTS)

        reservation.cancel()

        assert CREDITS.grants(ORG)[0] == Grant("", 9, 9, at(START + HOUR))


ADDING: dict[str, Callable[[], object]] = {
    "a grant": lambda: CREDITS.grant(ORG, 1, id="one more", expires="1h"),
    "a transfer": lambda: CREDITS.transfer(OTHER, ORG, 1),
}
TOO_MANY = (
    "Counter 'credits' of org:7: quota:1:{org:7}:grants:credits would have more than 1000 grants that are not used up"
)


@in_memory
@pytest.mark.parametrize("add", ADDING.values(), ids=ADDING)
class TestThreeGrantsAtMost:
    """The specification in Python counts the grants; the next class tries the thousand that Redis counts."""

    @pytest.fixture(autouse=True)
    def at_most_three(self, memory_store: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(stock, "MAX_GRANTS", 3)
        monkeypatch.setattr(stock, "KEPT_GRANTS", 1)
        with freeze(START):
            CREDITS.grant(OTHER, 5, id="other", expires="2h")
            yield

    def test_the_last_one_fits(self, add: Callable[[], object]) -> None:
        grant_each("a", "b")

        add()

        assert (CREDITS.get(ORG), len(CREDITS.grants(ORG))) == (3, 3)

    def test_one_more_is_an_error_that_changes_nothing(self, add: Callable[[], object]) -> None:
        grant_each("a", "b", "c")

        with pytest.raises(CounterError) as caught:
            add()

        assert str(caught.value) == TOO_MANY
        assert (left(CREDITS), left(CREDITS, OTHER)) == ({"a": 1, "b": 1, "c": 1}, {"other": 5})


def grant_each(*names: str) -> None:
    """Grant a unit for each of these ids."""
    for name in names:
        CREDITS.grant(ORG, 1, id=name, expires="1h")


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("add", ADDING.values(), ids=ADDING)
class TestAsManyGrantsAsThereMayBe:
    def put(self, raw: redis.Redis, number: int) -> None:
        """Have so many grants of one unit, that are not used up, and another account with one."""
        members = {f"1:1:{START + DAY + each}:{each}": START + DAY + each for each in range(number)}
        raw.zadd(f"quota:1:{{{ORG}}}:grants:credits", members)
        raw.set(f"quota:1:{{{ORG}}}:c:credits", number)
        CREDITS.grant(OTHER, 5, id="other", expires="1h")

    def test_the_last_one_fits(self, raw: redis.Redis, add: Callable[[], object]) -> None:
        with freeze(START):
            self.put(raw, MAX_GRANTS - 1)

            add()

            assert (CREDITS.get(ORG), len(CREDITS.grants(ORG))) == (MAX_GRANTS, MAX_GRANTS)

    def test_one_more_is_an_error_that_changes_nothing(self, raw: redis.Redis, add: Callable[[], object]) -> None:
        with freeze(START):
            self.put(raw, MAX_GRANTS)
            before = {key: raw.dump(key) for key in raw.scan_iter()}

            with pytest.raises(CounterError) as caught:
                add()

        assert str(caught.value) == TOO_MANY
        assert {key: raw.dump(key) for key in raw.scan_iter()} == before


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("member", ["x", "5:9:soon:order-17", "5:9:order-17", "-5:9:17:order-17"])
def test_grants_that_another_program_has_written_are_an_error_that_changes_nothing(
    member: str, raw: redis.Redis
) -> None:
    CREDITS.set(ORG, 5)
    raw.zadd(f"quota:1:{{{ORG}}}:grants:credits", {member: START})
    before = {key: raw.dump(key) for key in raw.scan_iter()}

    with pytest.raises(CounterError, match="grants:credits in the store is not a counter"):
        CREDITS.take(ORG, 1)

    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


@pytest.mark.usefixtures("redis_cache")
@pytest.mark.parametrize("lost", ["c:credits", "grants:credits"])
def test_a_lost_key_makes_no_debt(raw: redis.Redis, lost: str) -> None:
    with freeze(START):
        CREDITS.grant(ORG, 100, id="order-17", expires="1h")
    raw.delete(f"quota:1:{{{ORG}}}:{lost}")

    with freeze(START + HOUR):
        assert CREDITS.incr(ORG, 5) == (5 if lost == "c:credits" else 105)


@both_stores
def test_a_refused_request_gives_back_where_it_came_from() -> None:
    with freeze(START):
        CREDITS.grant(ORG, 100, id="order-17", expires="1h")

        with pytest.raises(QuotaExceeded):
            reserve_all([(CREDITS, ORG, 60), ("1/m", "user:1", 2)])

        assert CREDITS.grants(ORG) == [Grant("order-17", 100, 100, at(START + HOUR))]


@both_stores
def test_a_grant_expires_although_a_lease_cannot_give_back() -> None:
    with freeze(START):
        CREDITS.set(ORG, 60)
        reserve(CREDITS, ORG, 60, lease="10m")
        CREDITS.incr(ORG, 2**63 - 1 - 5)
        CREDITS.grant(ORG, 5, id="short", expires="1m")

    with freeze(START + 11 * MINUTE):
        reserve(CREDITS, ORG, 1, lease="10m")
        assert CREDITS.get(ORG) == 2**63 - 1 - 5 - 1
