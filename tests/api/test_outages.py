"""While Redis does not answer, no call waits long and one log line says so; afterwards everything works by itself."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_quota import Rule, acheck, check, concurrency, counter, reserve
from django_quota.adapters import adecide, decide
from django_quota.exceptions import StoreUnavailable
from django_quota.signals import store_lost
from django_quota.testing import RedisServer, freeze, running_redis
from tests.support.calls import both, get
from tests.support.memory import know_of_processes
from tests.support.outages import FAILURES, FULL, Mute, ask, fail, heard, no_answer, with_clock
from tests.support.steps import SECOND, START, Clock
from tests.support.stores import caches

SUBJECT = "ip:203.0.113.9"


@both
def test_a_server_that_hangs_is_probed_by_one_caller_and_meanwhile_nobody_asks_it(
    kind: str, mute: Mute, clock: Clock
) -> None:
    with_clock(clock)
    assert all(decision.allowed and decision.degraded for decision in ask(kind, 50))
    before = mute.met
    assert before <= FAILURES
    decision = check("1/m", SUBJECT) if kind == "async" else asyncio.run(acheck("1/m", SUBJECT))  # in the other way
    assert (decision.allowed, decision.degraded, decision.rule, decision.subject) == (True, True, "1/m", SUBJECT)
    assert not check(Rule.make("unlimited", None), SUBJECT).degraded
    assert not check("1/m", SUBJECT, on_unavailable="deny")
    assert [check("1/m", SUBJECT, on_unavailable="local").allowed for _ in range(2)] == [True, False]
    with pytest.raises(StoreUnavailable, match="several times in a row"):
        counter("clicks").incr("user:1")
    rules = [Rule.make("a", "1/m"), Rule.make("b", "1/m", on_unavailable="allow")]
    with no_answer(AssertionError("the store was asked")):  # type: ignore[arg-type]
        allowed = decide(get(), rules) if kind == "sync" else asyncio.run(adecide(get(), rules))
    assert (allowed.allowed, allowed.degraded, allowed.rule, allowed.outcomes) == (True, True, "a", ())
    assert not decide(get(), []).degraded
    assert mute.met == before
    clock.now += 1
    ask(kind, 10)
    assert mute.met == before + 1


@both
def test_decisions_recover_when_redis_is_back_and_async_receivers_hear_of_it(
    kind: str, redis_cache: RedisServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = with_clock(clock)
    told: list[str] = []

    async def lost(**carried: Any) -> None:
        told.append(carried["reason"])

    store_lost.connect(lost)
    try:
        with heard() as reported:
            fail(store.server.breaker)
            assert ask(kind)[0].degraded
            clock.now += 1
            assert not any(decision.degraded for decision in ask(kind, 4))
    finally:
        store_lost.disconnect(lost)
    assert ([what for what, _ in reported], len(told)) == (["lost", "back"], 1)
    assert reported[1][1]["seconds"] >= 0
    assert "answers again, after" in caplog.text


def test_a_late_settlement_charges_nothing_in_this_process(redis_server: RedisServer, settings: Any) -> None:
    with running_redis(redis_server.program) as server, freeze(START):
        settings.CACHES = caches(server)
        reservation = reserve("9/m", "user:1", 5, on_unavailable="local")
    with freeze(START + 2 * SECOND):
        assert reservation.settle(7).degraded
        assert check("9/m", "user:1", on_unavailable="local").remaining == 8


class TestARedisThatIsFull:
    """A client that fills the memory of Redis does not switch the limits off."""

    @pytest.fixture(autouse=True)
    def full_redis(self, redis_server: RedisServer, settings: Any) -> Iterator[None]:
        with running_redis(redis_server.program) as server, redis.Redis.from_url(server.url) as client:
            settings.CACHES = caches(server)
            assert not check("9/m", "ip:192.0.2.9").degraded
            client.execute_command(*FULL)
            yield
            client.execute_command("CONFIG", "SET", "maxmemory", "0")

    @both
    @pytest.mark.parametrize(
        ("rule", "setting", "processes", "admitted"),
        [
            (None, None, 1, 9), (None, None, 3, 3), (None, "allow", 1, 9), (None, "deny", 1, 0), (None, "local", 1, 9),
            ("allow", None, 1, 30), ("deny", None, 1, 0), ("local", None, 1, 9),
        ],
    )  # fmt: skip
    def test_each_process_counts_its_part_unless_the_rule_says_otherwise_or_the_setting_denies(
        self, kind: str, rule: Any, setting: str | None, processes: int, admitted: int, settings: Any
    ) -> None:
        settings.QUOTA = {"ON_UNAVAILABLE": setting} if setting else {}
        know_of_processes(processes)
        limit = Rule.make("r", "9/m", on_unavailable=rule)

        async def acheck_all() -> list[Any]:
            return [await acheck(limit, "user:1") for _ in range(30)]

        decisions = asyncio.run(acheck_all()) if kind == "async" else [check(limit, "user:1") for _ in range(30)]
        assert all(decision.degraded for decision in decisions)
        assert sum(decision.allowed for decision in decisions) == admitted
        if admitted in (3, 9):
            assert decisions[-1].binding is not None  # a real refusal with its wait, and no 503

    def test_slots_of_views_are_counted_in_this_process(self, rf: RequestFactory) -> None:
        inner: list[int] = []

        @concurrency(2, key="global", name="export")
        def view(request: HttpRequest) -> HttpResponse:
            inner.append(view(request).status_code)
            return HttpResponse()

        assert view(rf.get("/")).status_code == 200
        assert inner == [429, 200]
