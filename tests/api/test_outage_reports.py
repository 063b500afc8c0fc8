"""An outage is reported once at its start and once at its end; a key of the wrong type is no outage."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_quota import aonce, check, concurrency, counter, once, slot
from django_quota.core.days import day_of
from django_quota.exceptions import StoreCommandDenied, StoreFull, StoreOutOfMemory, StoreUnavailable
from django_quota.services.outages import (
    PERMISSION_SETTLE_TIME,
    SETTLE_TIME,
    Outages,
    _log_denied_command,
    _log_foreign_data,
    ongoing,
)
from django_quota.services.registry import get_limiter
from django_quota.signals import store_back, store_lost
from django_quota.testing import RedisServer, freeze
from tests.support.calls import get, run
from tests.support.steps import START, Clock
from tests.support.stores import current_store

GONE = StoreUnavailable("gone")
FULL = StoreOutOfMemory("OOM")


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    _log_foreign_data.cache_clear()
    _log_denied_command.cache_clear()


def reported(announcements: list[Any]) -> list[str]:
    return [{store_lost: "lost", store_back: "back"}[signal] for signal, _ in announcements]


def test_an_outage_ends_with_an_answer_after_the_settle_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = Outages(clock)
    assert reported(outages.answered()) == []
    assert reported(outages.failed(GONE, ["user:1"])) == ["lost"]
    assert outages in ongoing
    clock.now += 4
    assert reported(outages.failed(GONE, ["user:1"])) == []
    clock.now += SETTLE_TIME
    assert outages.answered() == [(store_back, {"seconds": 4 + SETTLE_TIME})]
    assert outages not in ongoing
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_store_that_comes_and_goes_is_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outages = Outages(clock)
    found: list[str] = []
    for _ in range(100):
        clock.now += SETTLE_TIME / 10
        found += reported(outages.failed(GONE, [])) + reported(outages.answered())
    clock.now += SETTLE_TIME
    assert [*found, *reported(outages.answered())] == ["lost", "back"]
    assert len(caplog.records) == 2


def test_a_read_does_not_end_an_outage_of_writes() -> None:
    clock = Clock()
    outages = Outages(clock)
    outages.failed(FULL, [])
    clock.now += 10
    assert reported(outages.answered(wrote=False)) == []
    assert reported(outages.answered()) == ["back"]
    outages.failed(GONE, [])
    clock.now += 10
    assert reported(outages.answered(wrote=False)) == ["back"]


@given(st.lists(st.tuples(st.sampled_from(["gone", "full", "wrote", "read"]), st.floats(0, 3))))
def test_store_lost_and_store_back_alternate(
    happenings: list[tuple[str, float]],
) -> None:
    clock = Clock()
    outages = Outages(clock)
    found: list[str] = []
    last_failure = 0.0
    for what, later in happenings:
        clock.now += later
        if what in ("gone", "full"):
            announced = outages.failed(GONE if what == "gone" else FULL, [])
            last_failure = clock.now
        else:
            announced = outages.answered(wrote=what == "wrote")
            assert not announced or clock.now >= last_failure + SETTLE_TIME
        found += reported(announced)
        assert outages.is_on == (outages in ongoing) == (len(found) % 2 == 1)
    ongoing.discard(outages)
    assert found == ["lost", "back"] * (len(found) // 2) + ["lost"] * (len(found) % 2)


@pytest.mark.parametrize("what", ["r:9/m:sw.60s", "s", f"day:{day_of(START, 'UTC').date}"])
def test_a_key_of_another_type_is_logged_once_and_is_no_outage(
    what: str, redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    subject = "user:1"
    heard: list[object] = []

    def lost(**carried: object) -> None:
        heard.append(carried)

    store_lost.connect(lost)
    try:
        with freeze(START):
            raw.set(f"quota:1:{{{subject}}}:{what}", "alien")
            for _ in range(5):
                assert check("9/m", subject).degraded
                assert not check("9/m", "user:2", cost=0).degraded
    finally:
        store_lost.disconnect(lost)
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (len(lines), heard) == (1, [])
    assert repr(subject) in lines[0].getMessage()
    assert "WRONGTYPE" in lines[0].getMessage()


def test_a_slot_of_another_type_is_no_outage(
    redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    view: Any = concurrency(1, key="global", name="spoilt", on_unavailable="deny")(lambda request: None)
    raw.set("quota:1:{global}:l:spoilt", "alien")
    assert [run(view, get()).status_code for _ in range(3)] == [503] * 3
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_answers_of_healthy_servers_do_not_end_an_outage() -> None:
    clock = Clock()
    whole = False
    outages = Outages(clock, lambda: whole)
    assert outages.failed(StoreUnavailable("gone"), [])
    clock.now += 60
    assert outages.answered() == []
    assert outages.failed(StoreUnavailable("gone"), []) == []
    whole = True
    clock.now += 60
    assert [what for what, _ in outages.answered()] == [store_back]


def write(what: str, number: int) -> None:
    match what:
        case "counter":
            counter("hits").incr("user:1")
        case "take":
            counter("stock").take("sku:1", 1)
        case "unique":
            counter("seen").unique("user:1", str(number))
        case "once":
            once("event", number)
        case "slot":
            with slot("export", 3):
                pass


async def awrite(what: str, number: int) -> None:
    match what:
        case "counter":
            await counter("hits").aincr("user:1")
        case "take":
            await counter("stock").atake("sku:1", 1)
        case "unique":
            await counter("seen").aunique("user:1", str(number))
        case "once":
            await aonce("event", number)
        case "slot":
            async with slot("export", 3):
                pass


def written(kind: str, what: str, number: int) -> None:
    """Have a service change something in the store."""
    asyncio.run(awrite(what, number)) if kind == "async" else write(what, number)


@pytest.mark.parametrize("what", ["counter", "take", "unique", "once", "slot"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_outage_that_only_a_service_meets_is_reported_once(
    kind: str, what: str, redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    counter("stock").set("sku:1", 9)
    limiter, clock = get_limiter(), Clock()
    limiter.outages = Outages(clock)
    written(kind, what, 0)
    raw.config_set("maxmemory", 1)
    try:
        for number in range(3):
            with pytest.raises(StoreUnavailable):
                written(kind, what, number + 1)
            clock.now += 10
            assert counter("stock").get("sku:1") > 0  # which says nothing of writing
            assert counter("stock").transfer("sku:1", "sku:1", 1)  # nor does this
            assert limiter.outages.is_on
    finally:
        raw.config_set("maxmemory", 0)
    written(kind, what, 9)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_key_of_another_type_in_a_service_is_logged_once(
    kind: str, redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw.set("quota:1:{global}:l:export", "alien")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            written(kind, "slot", 0)
    assert not get_limiter().outages.is_on
    (line,) = caplog.records
    assert "holds for 'global'" in line.getMessage()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_forbidden_command_of_a_service_is_reported_once_and_is_no_outage(
    kind: str, redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    limiter, clock = get_limiter(), Clock()
    limiter.outages = Outages(clock)
    raw.execute_command("ACL", "SETUSER", "default", "-pfadd")
    try:
        for number in range(3):
            with pytest.raises(StoreUnavailable) as raised:
                written(kind, "unique", number)
            get_limiter().note_failure(raised.value)
            assert not limiter.outages.is_on
            assert not check("9/m", "user:1").degraded
            clock.now += 10
        (line,) = caplog.records
        assert "does not permit a command" in line.getMessage()
        raw.execute_command("ACL", "SETUSER", "default", "-zadd")
        assert check("9/m", "user:1").degraded
        assert limiter.outages.is_on
    finally:
        raw.execute_command("ACL", "SETUSER", "default", "+@all")


def test_a_command_forbidden_to_some_decisions_is_reported_once() -> None:
    clock = Clock()
    outages = Outages(clock)
    lacking = StoreCommandDenied("may not use 'hincrby'")
    reported = []
    for _ in range(20):
        reported += [signal for signal, _ in outages.failed(lacking, ["user:1"])]
        for _ in range(5):
            clock.now += PERMISSION_SETTLE_TIME / 6
            reported += [signal for signal, _ in outages.answered()]
    assert reported == [store_lost]
    clock.now += PERMISSION_SETTLE_TIME
    assert [signal for signal, _ in outages.answered()] == [store_back]
    outages.failed(StoreUnavailable("gone"), ["user:1"])
    clock.now += SETTLE_TIME
    assert [signal for signal, _ in outages.answered()] == [store_back]


def test_a_full_memory_store_is_no_outage(memory_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise StoreFull

    monkeypatch.setattr(current_store(), "run", full)
    with pytest.raises(StoreFull):
        counter("hits").incr("user:1")
    get_limiter().note_failure(StoreFull())
    assert not get_limiter().outages.is_on
