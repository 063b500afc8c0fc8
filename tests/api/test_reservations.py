"""Reserving and settling, here or from a string in another process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import date
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
from django.core import signing
from django.http import HttpResponse, StreamingHttpResponse

from django_quota import Decision, Entry, Rule, areserve, check, counter, peek, reserve, reserve_all, usage
from django_quota.engine.asks import Ask, Take
from django_quota.engine.receipts import Receipt
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.features.reservations.calls import read_receipt, sign_receipt
from django_quota.models import QuotaOverride
from django_quota.signals import near_limit
from django_quota.testing import freeze
from django_quota.types import Reservation
from tests.support.calls import both_ways, calls_of
from tests.support.counts import checks_of, count_what_waits, units_of
from tests.support.overridden import override
from tests.support.slots import calls
from tests.support.steps import ALGORITHMS, MINUTE, START

SALT = "django_quota.reservation"
USER, ORG = "user:42", "org:7"
DAY = 1_440 * MINUTE
BUCKET = {"algorithm": "token_bucket"}
RULES: dict[str, Any] = {
    "tokens": {"rate": "1000/h", "daily": True},
    "tiered": {"rate": {"free": "100/h", "pro": "1000/h"}, "tier": lambda _: "free"},
    "shared": {"rate": "1000/h", "share": {"anonymous": 0.5, "authenticated": 1.0}},
    "dynamic": {"rate": lambda _: "50/h"},
    "bucket": {"rate": "1000/h", **BUCKET},
}

both_stores = pytest.mark.usefixtures("either_store", "rules")
in_memory = pytest.mark.usefixtures("memory_store", "rules")


def configure(settings: Any, **rules: Any) -> None:
    settings.QUOTA = {**settings.QUOTA, "RULES": {**RULES, **rules}}


@pytest.fixture
def rules(settings: Any) -> None:
    configure(settings)


def by_org(request: Any) -> str:
    return ORG


def left(rate: str = "1000/h", **options: Any) -> int | None:
    return peek(rate, USER, **options).remaining


def later(reservation: Reservation) -> Reservation:
    return Reservation.loads(reservation.dumps())


def shown(decision: Decision) -> list[Any]:
    return [(each.allowed, each.remaining, each.used, each.over, each.reset_after) for each in decision.outcomes]


@both_stores
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.usefixtures("at_one_time")
class TestSettling:
    def test_a_reservation_is_spent_until_it_is_settled(self, algorithm: Any) -> None:
        reserve("1000/h", USER, 600, algorithm=algorithm)

        assert left(algorithm=algorithm) == 400

    def test_settling_gives_the_rest_back(self, algorithm: Any) -> None:
        with reserve("1000/h", USER, 600, algorithm=algorithm) as reservation:
            reservation.settle(150)

        assert left(algorithm=algorithm) == 850

    def test_settling_again_changes_nothing(self, algorithm: Any) -> None:
        reservation = reserve("1000/h", USER, 600, algorithm=algorithm)
        reservation.settle(150)

        reservation.settle(0)
        reservation.cancel()

        assert left(algorithm=algorithm) == 850

    def test_cancelling_gives_all_back(self, algorithm: Any) -> None:
        reserve("1000/h", USER, 600, algorithm=algorithm).cancel()

        assert left(algorithm=algorithm) == 1_000

    def test_settling_charges_more_than_the_estimate_in_full(self, algorithm: Any) -> None:
        assert reserve("1000/h", USER, 600, algorithm=algorithm).settle(1_500).remaining == 0

        decision = check("1000/h", USER, algorithm=algorithm)
        assert not decision.allowed
        assert decision.retry_after


def test_settling_a_key_that_has_lost_its_ttl_keeps_its_count(redis_cache: None, raw: Any) -> None:
    check("9/h", USER, 3)
    reservation = reserve("9/h", USER, 5)
    assert all(raw.persist(key) for key in raw.keys(f"*{USER}*:r:*"))

    assert reservation.settle(2).remaining == 4


@in_memory
class TestReserving:
    def test_an_error_in_the_block_cancels(self) -> None:
        with freeze(START):
            with pytest.raises(ZeroDivisionError), reserve("100/h", USER, 40):
                1 / 0  # noqa: B018

            assert left("100/h") == 100

    def test_without_room_it_raises_with_the_decision(self) -> None:
        with freeze(START):
            reserve("100/h", USER, 70)

            with pytest.raises(QuotaExceeded) as caught:
                reserve("100/h", USER, 40)

        assert caught.value.decision.remaining == 30

    @pytest.mark.parametrize(
        ("after", "remaining"),
        [pytest.param(60 * MINUTE - 1, 30, id="inside"), pytest.param(60 * MINUTE, 100, id="over")],
    )
    def test_a_block_that_settles_nothing_leaves_the_estimate_spent(self, after: int, remaining: int) -> None:
        with freeze(START), reserve("100/h", USER, 70):
            pass

        with freeze(START + after):
            assert left("100/h") == remaining

    def test_async_an_entered_reservation_is_settled(self) -> None:
        async def work() -> None:
            async with areserve("1000/h", USER, 600) as reservation:
                await reservation.asettle(100)

        with freeze(START):
            asyncio.run(work())

            assert left() == 900

    def test_async_an_awaited_reservation_is_cancelled(self) -> None:
        async def work() -> Reservation:
            reservation = await areserve("1000/h", USER, 600)
            await reservation.acancel()
            return reservation

        with freeze(START):
            reservation = asyncio.run(work())

            assert not reservation.is_open
            assert left() == 1_000

    def test_async_an_error_in_the_block_cancels(self) -> None:
        async def work() -> None:
            async with areserve("1000/h", USER, 600):
                1 / 0  # noqa: B018

        with freeze(START):
            with pytest.raises(ZeroDivisionError):
                asyncio.run(work())

            assert left() == 1_000

    def test_async_without_room_it_raises(self) -> None:
        async def work() -> None:
            await areserve("1000/h", USER, 901)

        with freeze(START):
            check("1000/h", USER, 100)

            with pytest.raises(QuotaExceeded):
                asyncio.run(work())

            assert left() == 900

    @pytest.mark.parametrize(
        ("cost", "is_open"),
        [pytest.param(1_001, False, id="no room"), pytest.param(1_000, True, id="room")],
    )
    def test_a_shadow_reserves_only_what_has_room(self, cost: int, is_open: bool) -> None:
        with freeze(START):
            assert reserve("1000/h", USER, cost, shadow=True, name="shadow").is_open == is_open

    def test_nothing_is_reserved_while_limiting_is_off(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}

        assert [reserve("1/m", USER, 1).is_open for _ in range(3)] == [False] * 3

    def test_what_was_asked_for_while_limiting_was_off_gives_nothing_back(self, settings: Any) -> None:
        on = settings.QUOTA
        settings.QUOTA = {**on, "ENABLED": False}
        reservation = reserve("1/m", USER, 1)
        settings.QUOTA = on

        assert later(reservation).settle(0).remaining == 1

    def test_the_end_of_a_block_that_took_nothing_asks_no_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = calls_of(monkeypatch)

        with reserve("1000/h", USER, 1_001, shadow=True, name="shadow"):
            asked.clear()

        assert asked == []

    def test_the_cost_of_several_entries_is_that_of_the_first(self) -> None:
        assert reserve_all([("1000/h", USER, 600), ("9/m", ORG)]).cost == 600

    @pytest.mark.parametrize("actual", [-1, 1.5, "3", True, 10**12 + 1])
    def test_settling_for_what_is_not_a_cost_is_an_error(self, actual: Any) -> None:
        reservation = reserve("1000/h", USER, 600)

        with pytest.raises(RuleError) as caught:
            reservation.settle(actual)

        assert str(caught.value) == (
            f"cost={actual!r} of rule '1000/h' is not a whole number from 0 to 1000000000000. Use, for example, 1."
        )

    @pytest.mark.parametrize("actual", [-1, 1.5, "3", True, 10**12 + 1])
    def test_settling_for_what_is_not_a_cost_leaves_the_reservation_open(self, actual: Any) -> None:
        with freeze(START):
            reservation = reserve("1000/h", USER, 600)
            with pytest.raises(RuleError):
                reservation.settle(actual)

            reservation.cancel()

            assert left() == 1_000

    def test_an_estimate_of_nothing_cannot_be_reserved(self) -> None:
        with pytest.raises(RuleError) as caught:
            reserve("1000/h", USER, 0)

        assert str(caught.value) == (
            "cost=0 of rule '1000/h' takes nothing. To look without counting, use peek() or apeek()."
        )

    def test_a_rule_that_counts_different_values_cannot_be_reserved(self, rf: Any) -> None:
        rule = Rule.make("devices", "3/d", distinct="header:X-Device")

        with pytest.raises(RuleError) as caught:
            reserve(rule, rf.get("/", headers={"X-Device": "a"}))

        assert str(caught.value) == "Rule 'devices' counts different values: a part of a value cannot be given back."


@in_memory
@pytest.mark.usefixtures("at_one_time")
class TestOverridesThatCameSince:
    """They came after the estimate was spent, before it is settled."""

    def test_a_window_of_its_own_gets_nothing_back(self) -> None:
        reservation = reserve("1000/h", USER, 100)
        override("r 0 0 500/m", "1000/h", USER)

        assert reservation.settle(0).remaining == 500

    def test_the_window_of_the_rule_gets_nothing_back_for_another(self) -> None:
        reservation = reserve("1000/h", USER, 100)
        override("r 0 0 500/m", "1000/h", USER)
        reservation.settle(0)
        override("", "1000/h", USER)

        assert left() == 900

    def test_a_window_of_its_own_is_charged(self) -> None:
        reservation = reserve("1000/h", USER, 10)
        override("r 0 0 500/m", "1000/h", USER)

        assert not reservation.settle(5_000)

        assert not check("1000/h", USER, 500)

    @pytest.mark.parametrize(("mode", "allowed", "why"), [("b", False, "blocked"), ("x", True, "exempt")])
    def test_a_block_or_exemption_is_the_answer(self, mode: str, allowed: bool, why: str) -> None:
        reservation = reserve("1000/h", USER, 600)
        override(f"{mode} 0 0 ", "1000/h", USER)

        decision = reservation.settle(100)

        assert [(outcome.allowed, outcome.why) for outcome in decision.outcomes] == [(allowed, why)]

    @pytest.mark.parametrize("mode", ["b", "x"], ids=["blocked", "exempt"])
    def test_the_rest_is_given_back_to_a_subject_that_no_store_is_asked_for(self, mode: str) -> None:
        reservation = reserve("1000/h", USER, 600)
        override(f"{mode} 0 0 ", "1000/h", USER)
        reservation.settle(100)
        override("", "1000/h", USER)

        assert left() == 900


@both_stores
@pytest.mark.parametrize("group", [None, "shop"], ids=["no group", "a group"])
class TestReservationsOfSeveralEntries:
    """A check, tokens, and credits of a counter: read from a string half an hour later."""

    def read(self, group: str | None) -> Reservation:
        credit = counter("credits", group=group)
        credit.set(ORG, 1_000)
        with freeze(START):
            text = reserve_all([("9/m", USER), ("tokens", ORG, 900), (credit, ORG, 900)]).dumps()
        return Reservation.loads(text)

    def left(self, group: str | None) -> tuple[int | None, int | None]:
        return counter("credits", group=group).get(ORG), peek("tokens", ORG).remaining

    def test_a_string_keeps_what_was_reserved(self, group: str | None) -> None:
        reservation = self.read(group)

        assert reservation.is_open
        assert reservation.costs == (1, 900, 900)
        assert reservation.decided_at == START

    @pytest.mark.parametrize(
        ("actual", "credits_left", "tokens_left"),
        [pytest.param(0, 1_000, 1_000, id="nothing was used"), pytest.param(1_040, -40, 0, id="more was used")],
    )
    def test_counters_settle_together_with_limits(
        self, actual: int, credits_left: int, tokens_left: int, group: str | None
    ) -> None:
        reservation = self.read(group)

        with freeze(START + 30 * MINUTE):
            reservation.settle({"tokens": actual, "credits": actual})

            assert self.left(group) == (credits_left, tokens_left)

    @pytest.mark.parametrize(("actual", "left"), [(0, (1_000, 1_000)), (1_040, (-40, 0))])
    def test_cancelling_after_settling_changes_nothing(self, actual: int, left: Any, group: str | None) -> None:
        reservation = self.read(group)

        with freeze(START + 30 * MINUTE):
            reservation.settle({"tokens": actual, "credits": actual})
            reservation.cancel()

            assert self.left(group) == left

    @pytest.mark.parametrize(("actual", "left"), [(0, (1_000, 1_000)), (1_040, (-40, 0))])
    def test_settling_a_string_of_a_settled_reservation_changes_nothing(
        self, actual: int, left: Any, group: str | None
    ) -> None:
        reservation = self.read(group)

        with freeze(START + 30 * MINUTE):
            reservation.settle({"tokens": actual, "credits": actual})
            again = later(reservation)
            assert not again.is_open
            assert again.settle(0).outcomes

            assert self.left(group) == left


@in_memory
def test_an_exempt_hit_counts_once_for_its_day_after_its_override_was_lifted() -> None:
    with freeze(START):
        override("x 0 0 ", "tokens", ORG)
        reservation = reserve("tokens", ORG, 100)
        override("", "tokens", ORG)
        reservation.settle(900)
        assert count_what_waits()
        assert (checks_of(ORG), units_of(ORG)) == ({"tokens": (1, 0)}, {"tokens": 900})
        assert peek("tokens", ORG).remaining == 1_000


@in_memory
def test_the_id_of_a_receipt_stays_in_its_string() -> None:
    reservation = reserve("tokens", ORG, 100)

    assert later(later(reservation))._receipt.id == reservation._receipt.id


@in_memory
def test_each_receipt_has_an_id_of_its_own() -> None:
    first, second = (reserve("tokens", ORG, 100) for _ in range(2))

    assert len({first._receipt.id, second._receipt.id, ""}) == 3


@both_stores
@pytest.mark.django_db
@pytest.mark.parametrize("is_exempt", [False, True], ids=["limited", "exempt"])
def test_the_day_of_the_hit_counts_what_was_settled(is_exempt: bool) -> None:
    with freeze(START):
        if is_exempt:
            QuotaOverride.objects.create(subject=ORG, rule="tokens", mode="exempt")
        more, less, cancelled, _open = [reserve("tokens", ORG, 100).dumps() for _ in range(4)]
    with freeze(START + DAY):
        Reservation.loads(more).settle(900)
        Reservation.loads(less).settle(7)
        Reservation.loads(cancelled).cancel()
        assert peek("tokens", ORG).outcomes[0].why == ("exempt" if is_exempt else "")
        assert count_what_waits()
        assert (checks_of(ORG), units_of(ORG)) == ({"tokens": (3, 0)}, {"tokens": 1_007})
        (bill,) = usage(ORG, date(2025, 11, 1), date(2025, 12, 1)).values()
    assert bill["tokens"] == (3, 0, 1_007)


@pytest.mark.usefixtures("redis_cache", "rules")
def test_while_limits_are_off_the_days_stay_as_they_are(settings: Any) -> None:
    on, off = settings.QUOTA, {**settings.QUOTA, "ENABLED": False}
    with freeze(START):
        override("x 0 0 ", "tokens", ORG)
        text = reserve("tokens", ORG, 100).dumps()
        assert count_what_waits()
        settings.QUOTA = off
        Reservation.loads(text).settle(900)
        assert count_what_waits()
        settings.QUOTA = on
        assert (checks_of(ORG), units_of(ORG)) == ({"tokens": (1, 0)}, {"tokens": 100})


@in_memory
def test_tiers_are_settled_by_their_own_rates() -> None:
    entries: list[Any] = [
        Entry("tiered", USER, 90, "pro"),
        ("shared", USER, 700),
        Entry("shared", ORG, 400, "anonymous"),
    ]
    with freeze(START):
        decision = later(reserve_all(entries)).settle([150, 600, 450])

    assert [(each.limit, each.remaining) for each in decision.outcomes] == [(1_000, 850), (1_000, 400), (500, 50)]


@in_memory
@pytest.mark.usefixtures("at_one_time")
class TestOptionsOfARate:
    OPTIONS: Any = MappingProxyType(
        {**BUCKET, "burst": 50, "share": 0.5, "warn_at": [0.5, 1.0], "daily": True, "name": "paid", "block": False}
    )

    def test_a_settlement_answers_with_the_limits_of_the_options(self) -> None:
        decision = later(reserve("60/m", ORG, 20, **self.OPTIONS)).settle(5)

        assert shown(decision) == shown(peek("60/m", ORG, **self.OPTIONS))

    def test_the_day_counts_what_was_settled(self) -> None:
        later(reserve("60/m", ORG, 20, **self.OPTIONS)).settle(5)

        assert units_of(ORG) == {"paid": 5}


@in_memory
class TestWhatAStringKeeps:
    OPTIONS: Any = MappingProxyType({"key": by_org, "skip": lambda request: False, "exempt": "10.0.0.0/8"})

    def test_an_entry_is_short(self, rf: Any) -> None:
        rule = Rule.make("n" * 40, "10/s", "1000/h", "5000/d", **self.OPTIONS)

        assert len(reserve(rule, rf.get("/"), 3).dumps()) < 1_000

    def test_functions_of_requests_are_left_out(self, rf: Any) -> None:
        reservation = reserve(Rule.make("n", "10/s", "1000/h", "5000/d", **self.OPTIONS), rf.get("/"), 3)

        assert [outcome.used for outcome in later(reservation).settle(5).outcomes] == [5, 5, 5]

    @pytest.mark.parametrize(
        ("option", "value", "more"),
        [
            ("algorithm", "fixed_window", {}),
            ("burst", 7, {"algorithm": "token_bucket"}),
            ("precision", 3, {}),
            ("tz", "Europe/Berlin", {"algorithm": "calendar"}),
            ("count_refused", True, {}),
            ("share", 0.5, {}),
            ("prefetch", 1.0, {}),
            ("block", False, {}),
            ("shadow", True, {}),
            ("daily", True, {}),
            ("on_unavailable", "deny", {}),
            ("warn_at", (0.25, 0.5), {}),
        ],
    )
    def test_an_option_that_settling_needs_is_kept(self, option: str, value: Any, more: Any) -> None:
        reservation = reserve(Rule.make("n", "9/h", **{option: value}, **more), USER, 1)
        before, after = (each._receipt.asks[0].rule for each in (reservation, later(reservation)))

        assert getattr(after, option) == getattr(before, option) != getattr(Rule.make("n", "9/h"), option)

    def test_the_rate_of_an_override_is_kept(self) -> None:
        with freeze(START):
            override("r 0 0 500/h", "bucket", USER)

            assert later(reserve("bucket", USER, 400)).settle(100).remaining == 400

    def test_the_rate_of_a_function_is_kept(self, rf: Any) -> None:
        with freeze(START):
            assert later(reserve("dynamic", rf.get("/"), 40)).settle(10).remaining == 40


def _other(other: Any, text: str) -> Any:
    return other


def _with_another_estimate(text: str) -> str:
    """Return the string of a reservation, changed by somebody who does not know the key of the site."""
    data, signature = text.split(":", 1)
    changed = signing.b64_decode(data.encode()).replace(b",3,", b",9,")
    return f"{signing.b64_encode(changed).decode()}:{signature}"


def _with(text: str, **fields: Any) -> str:
    """Return the string of a reservation with other fields, as the site itself would sign it."""
    return signing.dumps({**signing.loads(text, salt=SALT), **fields}, salt=SALT)


@in_memory
@pytest.mark.parametrize(
    "changed",
    [
        *(
            pytest.param(partial(_other, each), id=repr(each))
            for each in ("", "[]", "7", "a:b:c", "é:é:é", None, 7, b"a:b", [":"])
        ),
        pytest.param(lambda text: text[:-9], id="the end is missing"),
        pytest.param(lambda text: signing.dumps(signing.loads(text, salt=SALT)), id="another salt"),
        pytest.param(_with_another_estimate, id="another estimate"),
        pytest.param(lambda text: _with(text, reservation=2), id="a later format"),
    ],
)
def test_only_an_unchanged_string_is_a_reservation(changed: Any) -> None:
    text = reserve("9/m", ORG, 3).dumps()
    given = changed(text)

    with pytest.raises(RuleError) as caught:
        Reservation.loads(given)

    assert str(caught.value) == (
        f"{str(given)[:40]!r} is not a reservation of this site. Use what reservation.dumps() returned, unchanged, "
        "and the same SECRET_KEY."
    )


@in_memory
def test_the_error_shows_the_beginning_of_a_long_string() -> None:
    with pytest.raises(RuleError, match=f"^'{'a' * 40}' is not a reservation of this site"):
        Reservation.loads("a" * 90)


@in_memory
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(Take("credits", "shop", DAY, MINUTE, "database"), id="a counter"),
        pytest.param(Rule.make("plan", "9/month", algorithm="calendar", starts=date(2026, 1, 5)), id="a period"),
    ],
)
def test_a_string_keeps_all_that_says_where_something_was_taken(rule: Any) -> None:
    asks = [Ask(rule, ORG, 5, "a lease")]

    read = read_receipt(sign_receipt(Receipt(asks, {}, START, "an id")))

    assert (read.asks, read.decided_at, read.id) == (asks, START, "an id")


@in_memory
def test_a_settlement_with_an_error_can_be_repeated_if_there_is_a_string() -> None:
    reservation = reserve("1000/h", USER, 600)
    reservation.dumps()
    with calls(before=lambda operation: 1 // 0), pytest.raises(ZeroDivisionError):
        reservation.settle(100)

    reservation.settle(100)

    assert left() == 900


@in_memory
def test_a_string_of_the_first_release_is_read() -> None:
    hour = "quota:1:{user:42}:r:1000/h:sw.3600s", ("sliding_window", "1000", "3600000000", "36000000")
    rate = [{"name": "1000/h", "rates": ["1000/h"]}, USER, 600, "", [START, dict([hour]), ""]]
    take = {"counter": "credits", "group": None, "ttl": 400 * DAY, "lease": 0, "store": None}
    credits_key = "quota:1:{org:7}:c:credits", ("stock", str(10**15), str(400 * DAY), "0")
    of_counter = [take, ORG, 90, "", [START, dict([credits_key]), ""]]
    text = signing.dumps({"reservation": 1, "parts": [["931bcc9bee6c7d2d", START, [rate, of_counter]]]}, salt=SALT)
    with freeze(START):
        counter("credits").set(ORG, 1_000)
        reserve_all([("1000/h", USER, 600), (counter("credits"), ORG, 90)])

        Reservation.loads(text).settle([150, 20])

        assert (left(), counter("credits").get(ORG)) == (850, 980)


@in_memory
def test_a_reservation_from_a_string_was_allowed_without_outcomes() -> None:
    decision = later(reserve("tokens", ORG, 100)).decision

    assert decision.explain() == "Allowed: nothing limits this."
    assert (decision.rule, decision.subject) == ("tokens", ORG)


@in_memory
def test_a_string_of_a_former_secret_key_is_read(settings: Any) -> None:
    text = reserve("9/m", ORG, 3).dumps()
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "a new key"
    assert Reservation.loads(text).settle(1).remaining == 8


@pytest.mark.usefixtures("redis_cache", "rules")
@pytest.mark.parametrize(
    ("rule", "options", "estimate", "changed", "actual", "remaining"),
    [
        ("tokens", {}, 900, {"tokens": "2000/h"}, 640, 1_360),
        ("tokens", {}, 100, {"tokens": {"rate": "1000/m", "algorithm": "fixed_window"}}, 0, 1_000),
        ("bucket", {}, 350, {"bucket": {"rate": "2000/h", **BUCKET}}, 100, 1_300),  # nothing is given back
        ("tokens", {}, 90, {"tokens": {"rate": {"anonymous": "10/h", "authenticated": "500/h"}}}, 40, 460),
        ("tiered", {"tier": "pro"}, 90, {"tiered": "300/h"}, 40, 260),
    ],
    ids=["another rate", "another window", "another rate of a bucket", "tiers", "no tiers"],
)
def test_a_rule_is_settled_as_the_settings_have_it_by_then(
    rule: str, options: Any, estimate: int, changed: Any, actual: int, remaining: int, settings: Any
) -> None:
    with freeze(START):
        text = reserve(rule, USER, estimate, **options).dumps()
        configure(settings, **changed)
        assert Reservation.loads(text).settle(actual).remaining == remaining


@in_memory
@pytest.mark.parametrize(
    ("rule", "options", "says"),
    [
        pytest.param("tokens", {}, r"There is no rule 'tokens' in QUOTA.* Did you mean 'token'\?", id="a rule"),
        pytest.param("tiered", {"tier": "pro"}, r"Rule 'tiered' has no tier 'pro'. Known: 'x'", id="a tier"),
    ],
)
def test_what_no_longer_exists_is_named(rule: str, options: Any, says: str, settings: Any) -> None:
    text = reserve(rule, USER, 90, **options).dumps()
    configure(settings, token="1/m", tiered={**RULES["tiered"], "rate": {"x": "1/m"}})
    del settings.QUOTA["RULES"]["tokens"]

    with pytest.raises(RuleError, match=says):
        Reservation.loads(text)


# --- `reservation.stream`: a reservation is settled when its stream is over, however it ends --------------------------


@pytest.fixture
def frozen(memory_store: None) -> Iterator[None]:
    with freeze(START):
        yield


streaming = pytest.mark.usefixtures("frozen")


class Model:
    """Streams parts, and knows what they have cost so far."""

    used, is_closed = 0, False

    def parts(self, error: type[Exception] | None = None) -> Iterator[bytes]:
        try:
            for _ in range(3):
                self.used += 10
                yield b"part"
            if error is not None:
                raise error
        finally:
            self.is_closed = True

    async def aparts(self) -> AsyncIterator[bytes]:
        for part in self.parts():
            yield part

    def cost(self) -> int:
        return self.used


def estimate() -> Reservation:
    return reserve("1000/h", USER, 600)


@streaming
def test_an_estimate_stays_spent_until_its_stream_is_over() -> None:
    estimate().stream(Model().parts(), used=lambda: 5)

    assert left() == 400


@streaming
def test_a_stream_that_fails_settles_what_was_used() -> None:
    model = Model()

    with pytest.raises(ZeroDivisionError):
        list(estimate().stream(model.parts(ZeroDivisionError), used=model.cost))

    assert left() == 970


@streaming
def test_the_end_of_a_streaming_response_settles_what_was_used() -> None:
    model, reservation = Model(), estimate()
    response = reservation.stream(StreamingHttpResponse(model.parts()), used=model.cost)

    assert response.getvalue() == b"part" * 3

    assert not reservation.is_open
    assert left() == 970


@streaming
def test_closing_a_streaming_response_after_its_end_changes_nothing() -> None:
    model = Model()
    response = estimate().stream(StreamingHttpResponse(model.parts()), used=model.cost)
    response.getvalue()

    response.close()

    assert left() == 970


@streaming
def test_a_client_that_leaves_settles_what_was_used() -> None:
    model = Model()
    response = estimate().stream(StreamingHttpResponse(model.parts()), used=model.cost)
    next(iter(response))

    response.close()

    assert model.is_closed
    assert left() == 990


@streaming
@both_ways
def test_a_block_that_fails_after_making_a_stream_gives_the_estimate_back(is_async: bool) -> None:
    """Nobody sends the stream."""

    def fails() -> None:
        with estimate() as reservation:
            reservation.stream(Model().parts(), used=lambda: 5)
            raise ZeroDivisionError

    async def afails() -> None:
        async with areserve("1000/h", USER, 600) as reservation:
            reservation.stream(Model().parts(), used=lambda: 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(afails()) if is_async else fails()
    assert left() == 1_000


@streaming
class TestSeveralEntriesOfOneName:
    RULE = Rule.make("tpm", "100/h")

    def reserved(self) -> Reservation:
        return reserve_all([(self.RULE, "user:1", 5), (self.RULE, "user:2", 5)])

    def test_they_cannot_be_settled_by_name(self) -> None:
        with pytest.raises(RuleError) as caught:
            self.reserved().settle({"tpm": 3})

        assert str(caught.value) == "Rule 'tpm' has several entries. Use a list of 2 numbers."

    def test_they_are_settled_by_a_list(self) -> None:
        self.reserved().settle([1, 2])

        assert [peek(self.RULE, subject).remaining for subject in ("user:1", "user:2")] == [99, 98]

    def test_they_are_settled_after_an_error(self) -> None:
        reservation = self.reserved()
        with pytest.raises(RuleError):
            reservation.settle({"tpm": 3})

        reservation.settle([1, 2])

        assert [peek(self.RULE, subject).remaining for subject in ("user:1", "user:2")] == [99, 98]


@streaming
@pytest.mark.parametrize(
    "used",
    [
        pytest.param(lambda: 1 / 0, id="it raises"),
        pytest.param(lambda: "many", id="a string"),
        pytest.param(lambda: -1, id="a negative number"),
    ],
)
def test_if_used_fails_the_estimate_stays_spent(used: Any, caplog: pytest.LogCaptureFixture) -> None:
    list(reserve("1000/h", USER, 100).stream(iter([b"part"]), used=used))

    assert left() == 900
    assert caplog.messages == ["used= failed after a stream had ended: the estimate of its reservation stays spent."]
    assert (caplog.records[0].name, caplog.records[0].exc_info is None) == ("django_quota.reservations", False)


@streaming
@pytest.mark.parametrize(
    "no_stream",
    [
        pytest.param(HttpResponse(b"all"), id="a response"),
        pytest.param(b"all", id="bytes"),
        pytest.param("all", id="a string"),
        pytest.param(5, id="5"),
    ],
)
def test_what_is_not_a_stream_is_an_error(no_stream: Any) -> None:
    with pytest.raises(RuleError, match=r"is not a stream. "):
        reserve("1000/h", USER, 1).stream(no_stream, used=lambda: 1)


@streaming
@pytest.mark.parametrize(
    ("is_over", "times"),
    [
        pytest.param(False, 1, id="in the middle"),
        pytest.param(True, 1, id="after the last part"),
        pytest.param(True, 2, id="twice after the last part"),
    ],
)
def test_a_cancelled_task_pays_what_it_used(is_over: bool, times: int) -> None:
    reached = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"part"
        reached.set()
        if not is_over:  # else the task is about to settle it
            await asyncio.Event().wait()

    async def read() -> None:
        reservation = await areserve("1000/h", USER, 600)
        async for _ in reservation.stream(parts(), used=lambda: 10):
            pass

    async def work() -> None:
        task = asyncio.create_task(read())
        await reached.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert left() == 990


@streaming
@pytest.mark.parametrize(
    ("of_django", "parts"),
    [
        pytest.param(False, 1, id="aclose"),
        pytest.param(True, 1, id="Django closes it in a thread"),
        pytest.param(True, 3, id="its end"),
    ],
)
def test_the_end_of_an_async_stream_settles_it_however_it_ends(of_django: bool, parts: int) -> None:
    model = Model()

    async def work() -> None:
        stream: Any = model.aparts()
        async with areserve("1000/h", USER, 600) as reservation:
            response = reservation.stream(StreamingHttpResponse(stream) if of_django else stream, used=model.cost)
        async with aclosing(aiter(response)) as found:
            read = [await anext(found) for _ in range(parts)]
            assert read == [b"part"] * parts
            assert await anext(found, None) is None or parts < 3
        if of_django:
            await asyncio.to_thread(response.close)

    asyncio.run(work())
    assert (model.is_closed, left()) == (True, 1_000 - model.used)


@pytest.mark.usefixtures("either_store")
def test_a_settlement_that_reaches_the_share_of_a_warning_sends_near_limit() -> None:
    shares: list[float] = []

    def hear(**values: Any) -> None:
        shares.append(values["share"])

    reservation = reserve("10/h", USER, 1)
    near_limit.connect(hear)
    try:
        reservation.settle(9)
    finally:
        near_limit.disconnect(hear)

    assert shares == [0.8]
