"""An outage is reported once at its start and once at its end; a key of the wrong type is no outage."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from django_quota import acheck, aonce, check, counter, once, peek, slot
from django_quota.core.errors import StoreFull, StoreOutOfMemory
from django_quota.exceptions import StoreUnavailable
from django_quota.testing import RedisServer, freeze
from tests.support.calls import both
from tests.support.outages import SETTLE_TIME, heard, log_everything_again, new_outages, no_answer
from tests.support.steps import START, Clock

GONE, FULL = StoreUnavailable("gone"), StoreOutOfMemory("OOM")


@pytest.fixture(autouse=True)
def nothing_was_logged() -> None:
    log_everything_again()


class Reported:
    """The outages of the memory store, on a clock that the test moves."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.outages = new_outages(clock)
        self.numbers = itertools.count()

    def check(self, error: StoreUnavailable | None = None) -> None:
        """Check a limit; where there is an error, the store does not answer."""
        with no_answer(error) if error else nullcontext():
            check("9/m", f"user:{next(self.numbers)}")

    def read(self) -> None:
        peek("9/m", "user:1")


@pytest.fixture
def site(memory_store: None, clock: Clock) -> Reported:
    return Reported(clock)


def test_a_store_that_comes_and_goes_is_one_outage_until_it_answers_after_a_second(
    site: Reported, caplog: pytest.LogCaptureFixture
) -> None:
    with heard() as reported:
        for _ in range(100):
            site.check()
            site.check(GONE)
            site.clock.now += SETTLE_TIME / 10
            site.check()
        assert [(what, carried.get("seconds")) for what, carried in reported] == [("lost", None)]
        site.clock.now += SETTLE_TIME
        site.check()
    assert reported[1][0] == "back"
    assert reported[1][1]["seconds"] == pytest.approx(11 * SETTLE_TIME)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    with heard() as reported, no_answer(StoreFull()):  # a full memory store is none
        with pytest.raises(StoreFull):
            counter("hits").incr("user:1")
        assert check("9/m", "user:1").degraded
    assert reported == []


@given(st.lists(st.tuples(st.sampled_from(["gone", "full", "wrote", "read"]), st.floats(0, 3))))
def test_store_lost_and_store_back_alternate(happenings: list[tuple[str, float]]) -> None:
    with override_settings(QUOTA={"STORE": "memory"}), heard() as reported:
        site, last_failure, is_full = Reported(Clock()), 0.0, False
        for what, later in happenings:
            site.clock.now += later
            before = len(reported)
            match what:
                case "gone" | "full":
                    site.check(GONE if what == "gone" else FULL)
                    last_failure, is_full = site.clock.now, is_full or what == "full"
                case "wrote":
                    site.check()
                case "read":
                    site.read()
            if reported[before:] and reported[-1][0] == "back":
                assert site.clock.now >= last_failure + SETTLE_TIME
                assert not (what == "read" and is_full), "a read says nothing of writing"
                is_full = False
    assert [what for what, _ in reported] == (["lost", "back"] * len(reported))[: len(reported)]


BAN = {"after": "100/m", "for": "1h"}


@pytest.mark.parametrize("what", ["r:9/m:sw.60s", "s", "day:2025-11-21", "l:export-0"])
@both
def test_a_key_of_another_type_is_logged_once_and_is_no_outage(
    what: str, kind: str, redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    subject = "global" if "export" in what else "user:1"
    with heard() as reported, freeze(START):
        raw.set(f"quota:1:{{{subject}}}:{what}", "alien")
        for _ in range(5):
            if subject == "global":
                with pytest.raises(StoreUnavailable):
                    written(kind, "slot", 0)
                continue
            assert (check if kind == "sync" else async_to_sync(acheck))("9/m", subject, ban=BAN).degraded
            assert not peek("9/m", "user:2", ban=BAN).degraded
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert (reported, subject in line, "WRONGTYPE" in line) == ([], True, True)


WRITES: dict[str, Callable[[int], tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]]] = {
    "counter": lambda _: (counter("hits").incr, counter("hits").aincr, ("user:1",)),
    "take": lambda _: (counter("stock").take, counter("stock").atake, ("sku:1", 1)),
    "unique": lambda n: (counter("seen").unique, counter("seen").aunique, ("user:1", f"{n}")),
    "once": lambda n: (once, aonce, ("event", n)),
    "slot": lambda n: (slot(f"export-{n}", 3).acquire, slot(f"export-{n}", 3).aacquire, ()),
}


def written(kind: str, what: str, number: int) -> None:
    """Have a service change something in the store."""
    write, awrite, given = WRITES[what](number)
    asyncio.run(awrite(*given)) if kind == "async" else write(*given)


@pytest.mark.parametrize("what", WRITES)
@both
def test_an_outage_that_only_a_service_meets_is_reported_once(
    kind: str, what: str, redis_cache: RedisServer, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    counter("stock").set("sku:1", 9)
    clock = Clock()
    outages = new_outages(clock)
    written(kind, what, 0)
    raw.config_set("maxmemory", 1)
    try:
        for number in range(3):
            with pytest.raises(StoreUnavailable):
                written(kind, what, number + 1)
            clock.now += 10
            assert counter("stock").get("sku:1") > 0  # which says nothing of writing
            assert counter("stock").transfer("sku:1", "sku:1", 1)  # nor does this
            assert outages.is_on
    finally:
        raw.config_set("maxmemory", 0)
    written(kind, what, 9)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_a_forbidden_command_of_a_service_is_reported_once_and_is_no_outage(
    redis_cache: RedisServer, raw: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outages = new_outages(clock)
    raw.execute_command("ACL", "SETUSER", "default", "-pfadd")
    try:
        for number in range(3):
            with pytest.raises(StoreUnavailable):
                written("sync", "unique", number)
            assert not check("9/m", "user:1").degraded
            clock.now += 10
        (line,) = caplog.records
        assert ("does not permit a command" in line.getMessage(), outages.is_on) == (True, False)
        raw.execute_command("ACL", "SETUSER", "default", "-zadd")
        assert check("9/m", "user:1").degraded
        assert outages.is_on
    finally:
        raw.execute_command("ACL", "SETUSER", "default", "+@all")
