"""Reserving and settling, here or from a text in another process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import date
from functools import partial
from typing import Any

import pytest
from django.core import signing
from django.http import HttpResponse, StreamingHttpResponse

from django_quota import Decision, Entry, Rule, areserve, check, counter, peek, reserve, reserve_all, usage
from django_quota.exceptions import QuotaExceeded, RuleError
from django_quota.models import QuotaOverride
from django_quota.signals import near_limit
from django_quota.testing import freeze
from django_quota.types import Reservation
from tests.support.counts import checks_of, count_what_waits, units_of
from tests.support.overridden import override
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
def test_settling_gives_the_rest_back_once_and_charges_more_in_full(algorithm: Any) -> None:
    with freeze(START):
        with reserve("1000/h", USER, 600, algorithm=algorithm) as reservation:
            assert left(algorithm=algorithm) == 400
            reservation.settle(150)
        reservation.settle(0)  # a second time it changes nothing
        reservation.cancel()
        reserve("1000/h", USER, 600, algorithm=algorithm).cancel()
        assert left(algorithm=algorithm) == 850
        assert reserve("1000/h", USER, 600, algorithm=algorithm).settle(1_500).remaining == 0
        decision = check("1000/h", USER, algorithm=algorithm)
        assert (decision.allowed, bool(decision.retry_after)) == (False, True)


def test_what_is_given_back_where_a_key_has_lost_its_ttl_deletes_no_count(redis_cache: None, raw: Any) -> None:
    check("9/h", USER, 3)
    reservation = reserve("9/h", USER, 5)
    assert all(raw.persist(key) for key in raw.keys(f"*{USER}*:r:*"))
    assert reservation.settle(2).remaining == 4


@in_memory
class TestReserving:
    def test_sync_it_raises_without_room_an_error_cancels_and_else_the_estimate_stays(self) -> None:
        with freeze(START):
            with pytest.raises(ZeroDivisionError), reserve("100/h", USER, 40):
                1 / 0  # noqa: B018
            assert left("100/h") == 100
            with reserve("100/h", USER, 70):
                pass
            with pytest.raises(QuotaExceeded) as caught:
                reserve("100/h", USER, 40)
            assert caught.value.decision.remaining == 30
        for moment, remaining in ((START + 60 * MINUTE - 1, 30), (START + 60 * MINUTE, 100)):
            with freeze(moment):
                assert left("100/h") == remaining

    def test_async_it_is_entered_or_awaited(self) -> None:
        async def work() -> None:
            async with areserve("1000/h", USER, 600) as reservation:
                await reservation.asettle(100)
            await (await areserve("1000/h", USER, 600)).acancel()
            with pytest.raises(ZeroDivisionError):
                async with areserve("1000/h", USER, 600):
                    1 / 0  # noqa: B018
            with pytest.raises(QuotaExceeded):
                await areserve("1000/h", USER, 901)

        with freeze(START):
            asyncio.run(work())
            assert left() == 900

    def test_if_limiting_is_off_or_a_shadow_would_refuse_nothing_is_reserved(self, settings: Any) -> None:
        with freeze(START):
            assert not reserve("1000/h", USER, 1_001, shadow=True, name="shadow").is_open
            assert reserve("1000/h", USER, 1_000, shadow=True, name="shadow").is_open
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        reservation, *more = [reserve("1/m", USER, 1) for _ in range(3)]
        assert not any(each.is_open for each in (reservation, *more))
        settings.QUOTA = {**settings.QUOTA, "ENABLED": True}
        assert later(reservation).settle(0).remaining == 1, "nothing is given back"

    def test_settling_for_what_is_no_cost_is_an_error_and_leaves_the_hold_open(self) -> None:
        with freeze(START):
            reservation = reserve("1000/h", USER, 600)
            for actual in (-1, 1.5, "3", True, 10**12 + 1):
                with pytest.raises(RuleError, match="not a whole number"):
                    reservation.settle(actual)  # type: ignore[arg-type]
            reservation.cancel()
            assert left() == 1_000
        with pytest.raises(RuleError, match="counts different values"):
            reserve("3/d", USER, distinct=True)

    def test_overrides_that_came_since_are_settled_too(self) -> None:
        with freeze(START):
            reservation, less = reserve("1000/h", USER, 10), reserve("1000/h", USER, 100)
            override("r 0 0 500/m", "1000/h", USER)  # a window of its own is charged, and gets nothing back
            assert less.settle(0).remaining == 500
            assert not reservation.settle(5_000)
            assert not check("1000/h", USER, 500)
            for mode, said in (("b", (False, "blocked")), ("x", (True, "exempt"))):
                override("", "1000/h", USER)
                reservation = reserve("1000/h", USER, 600)
                override(f"{mode} 0 0 ", "1000/h", USER)
                assert [(outcome.allowed, outcome.why) for outcome in reservation.settle(100).outcomes] == [said]
            override("", "1000/h", USER)
            assert left() == 1_000 - 110 - 200


@both_stores
@pytest.mark.parametrize("group", [None, "shop"])
def test_a_text_settles_counters_and_limits_together_and_once(group: str | None) -> None:
    credit = counter("credits", group=group)
    for org, actual in ((ORG, 0), ("org:8", 1_040)):
        credit.set(org, 1_000)
        with freeze(START):
            text = reserve_all([("9/m", USER), ("tokens", org, 900), (credit, org, 900)]).dumps()
        with freeze(START + 30 * MINUTE):
            reservation = Reservation.loads(text)
            assert (reservation.costs, reservation.is_open, reservation.decided_at) == ((1, 900, 900), True, START)
            reservation.settle({"tokens": actual, "credits": actual})
            reservation.cancel()  # a second time it changes nothing
            assert not later(reservation).is_open
            assert later(reservation).settle(0).outcomes
            assert (credit.get(org), peek("tokens", org).remaining) == (1_000 - actual, max(0, 1_000 - actual))


@in_memory
def test_an_exempt_hit_that_is_settled_after_its_override_was_lifted_counts_for_its_day_once() -> None:
    with freeze(START):
        override("x 0 0 ", "tokens", ORG)
        reservation = reserve("tokens", ORG, 100)
        override("", "tokens", ORG)
        reservation.settle(900)
        assert count_what_waits()
        assert (checks_of(ORG), units_of(ORG)) == ({"tokens": (1, 0)}, {"tokens": 900})
        assert peek("tokens", ORG).remaining == 1_000


@in_memory
def test_a_receipt_has_an_id_of_its_own_which_its_text_keeps() -> None:
    first, second = (reserve("tokens", ORG, 100) for _ in range(2))
    assert first._receipt.id == later(later(first))._receipt.id
    assert len({first._receipt.id, second._receipt.id, ""}) == 3


@both_stores
@pytest.mark.django_db
@pytest.mark.parametrize("is_exempt", [False, True])
def test_the_day_of_the_hit_counts_what_was_settled_and_a_bill_shows_it(is_exempt: bool) -> None:
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
def test_a_tier_a_share_and_options_of_a_rate_are_settled_by_their_own_rates() -> None:
    options: Any = {**BUCKET, "burst": 50, "share": 0.5, "warn_at": [0.5, 1.0], "daily": True}
    with freeze(START):
        reservation = reserve_all(
            [Entry("tiered", USER, 90, "pro"), ("shared", USER, 700), Entry("shared", ORG, 400, "anonymous")]
        )
        decision = later(reservation).settle([150, 600, 450])
        assert [(each.limit, each.remaining) for each in decision.outcomes] == [(1_000, 850), (1_000, 400), (500, 50)]
        reservation = reserve("60/m", ORG, 20, name="paid", block=False, **options)
        assert shown(later(reservation).settle(5)) == shown(peek("60/m", ORG, name="paid", block=False, **options))
        assert units_of(ORG) == {"paid": 5}


@in_memory
def test_functions_of_requests_are_left_out_and_an_entry_stays_short(rf: Any) -> None:
    options: Any = {"key": by_org, "skip": lambda request: False, "exempt": "10.0.0.0/8"}
    reservation = reserve(Rule.make("n" * 40, "10/s", "1000/h", "5000/d", **options), rf.get("/"), 3)
    assert len(reservation.dumps()) < 1_000
    assert [outcome.used for outcome in later(reservation).settle(5).outcomes] == [5, 5, 5]
    with freeze(START):  # rates of overrides and of functions
        override("r 0 0 500/h", "bucket", USER)
        assert later(reserve("bucket", USER, 400)).settle(100).remaining == 400
        assert later(reserve("dynamic", rf.get("/"), 40)).settle(10).remaining == 40


def _other(other: Any, text: str) -> Any:
    return other


def _with_another_estimate(text: str) -> str:
    """Return the text of a reservation as somebody would write it who does not know the key of the site."""
    data, signature = text.split(":", 1)
    changed = signing.b64_decode(data.encode()).replace(b",3,", b",9,")
    return f"{signing.b64_encode(changed).decode()}:{signature}"


@in_memory
@pytest.mark.parametrize(
    "changed",
    [
        *(
            pytest.param(partial(_other, each), id=repr(each))
            for each in ("", "[]", "7", "a:b:c", "é:é:é", None, 7, b"a:b")
        ),
        pytest.param(lambda text: text[:-9], id="the end is missing"),
        pytest.param(lambda text: signing.dumps(signing.loads(text, salt=SALT)), id="another salt"),
        pytest.param(_with_another_estimate, id="another estimate"),
    ],
)
def test_only_an_unchanged_text_is_a_reservation(changed: Any) -> None:
    text = reserve("9/m", ORG, 3).dumps()
    with pytest.raises(RuleError, match=r"is not a reservation of this site.* Use what reservation\.dumps"):
        Reservation.loads(changed(text))


@in_memory
def test_a_text_of_a_former_secret_key_is_read(settings: Any) -> None:
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
)
def test_a_rule_is_settled_as_the_settings_have_it_by_then(
    rule: str, options: Any, estimate: int, changed: Any, actual: int, remaining: int, settings: Any
) -> None:
    with freeze(START):
        text = reserve(rule, USER, estimate, **options).dumps()
        configure(settings, **changed)
        assert Reservation.loads(text).settle(actual).remaining == remaining


@in_memory
def test_a_rule_or_tier_that_no_longer_exists_is_named(settings: Any) -> None:
    plain, tiered = reserve("tokens", USER, 90).dumps(), reserve("tiered", USER, 90, tier="pro").dumps()
    configure(settings, token="1/m", tiered={**RULES["tiered"], "rate": {"x": "1/m"}})
    del settings.QUOTA["RULES"]["tokens"]
    with pytest.raises(RuleError, match=r"There is no rule 'tokens' in QUOTA.* Did you mean 'token'\?"):
        Reservation.loads(plain)
    with pytest.raises(RuleError, match=r"Rule 'tiered' has no tier 'pro'. Known: 'x'"):
        Reservation.loads(tiered)


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
def test_the_end_of_a_stream_its_error_and_a_client_that_leaves_settle_it() -> None:
    model = Model()
    stream = estimate().stream(model.parts(ZeroDivisionError), used=model.cost)
    assert left() == 400
    with pytest.raises(ZeroDivisionError):
        list(stream)
    assert left() == 970
    model, held = Model(), estimate()
    response = held.stream(StreamingHttpResponse(model.parts()), used=model.cost)
    assert response.getvalue() == b"part" * 3
    assert (left(), held.is_open) == (940, False)
    response.close()
    assert left() == 940
    model = Model()
    response = estimate().stream(StreamingHttpResponse(model.parts()), used=model.cost)
    next(iter(response))
    response.close()
    assert (model.is_closed, left()) == (True, 930)


@streaming
@pytest.mark.parametrize("is_async", [False, True])
def test_a_block_that_fails_after_it_has_made_a_stream_gives_the_estimate_back(is_async: bool) -> None:
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
def test_a_name_that_several_entries_have_cannot_be_settled_by_name() -> None:
    rule = Rule.make("tpm", "100/h")
    reservation = reserve_all([(rule, "user:1", 5), (rule, "user:2", 5)])
    with pytest.raises(RuleError, match=r"Rule 'tpm' has several entries. Use a list of 2 numbers."):
        reservation.settle({"tpm": 3})
    reservation.settle([1, 2])
    assert [peek(rule, subject).remaining for subject in ("user:1", "user:2")] == [99, 98]


@streaming
def test_if_used_fails_the_estimate_stays_spent_and_no_stream_is_named(caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[Any] = [lambda: 1 / 0, lambda: "many", lambda: -1]
    for number, used in enumerate(wrong, start=1):
        list(reserve("1000/h", USER, 100).stream(iter([b"part"]), used=used))
        assert caplog.text.count("the estimate of its reservation stays spent") == number
        assert left() == 1_000 - 100 * number
    no_streams: list[Any] = [HttpResponse(b"all"), b"all", 5]
    for no_stream in no_streams:
        with pytest.raises(RuleError, match=r"is not a stream. "):
            reserve("1000/h", USER, 1).stream(no_stream, used=lambda: 1)


@streaming
@pytest.mark.parametrize(("is_over", "times"), [(False, 1), (True, 1), (True, 2)])
def test_a_cancelled_task_and_a_client_that_goes_away_behind_the_last_part_pay(is_over: bool, times: int) -> None:
    reached = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"part"
        reached.set()
        if not is_over:  # else the task is about to settle it
            await asyncio.Event().wait()

    async def read() -> None:
        held = await areserve("1000/h", USER, 600)
        async for _ in held.stream(parts(), used=lambda: 10):
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
@pytest.mark.parametrize(("of_django", "parts"), [(False, 1), (True, 1), (True, 3)])
def test_its_end_aclose_or_django_which_closes_it_in_a_thread_settle_it(of_django: bool, parts: int) -> None:
    model = Model()

    async def work() -> None:
        stream: Any = model.aparts()
        async with areserve("1000/h", USER, 600) as held:
            response = held.stream(StreamingHttpResponse(stream) if of_django else stream, used=model.cost)
        async with aclosing(aiter(response)) as found:
            for _ in range(parts):
                assert await anext(found) == b"part"
            assert await anext(found, None) is None or parts < 3
        if of_django:
            await asyncio.to_thread(response.close)

    asyncio.run(work())
    assert (model.is_closed, left()) == (True, 1_000 - model.used)


@pytest.mark.usefixtures("either_store")
def test_a_settlement_that_reaches_the_share_of_a_warning_sends_near_limit() -> None:
    told: list[int] = []

    def hear(**values: Any) -> None:
        told.append(values["share"])

    hold = reserve("10/h", USER, 1)
    near_limit.connect(hear)
    try:
        hold.settle(9)
    finally:
        near_limit.disconnect(hear)
    assert told == [0.8]
