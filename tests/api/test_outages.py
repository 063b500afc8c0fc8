"""While Redis does not answer, no call waits long and one log line says so; afterwards everything works by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_quota import Rule, acheck, check, concurrency, counter, reserve
from django_quota.exceptions import StoreUnavailable
from django_quota.signals import store_lost
from django_quota.testing import RedisServer, freeze, running_redis
from tests.support.calls import both
from tests.support.memory import know_of_processes
from tests.support.outages import FAILURES, FULL, Mute, ask, fail, heard, with_clock
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
    assert mute.met == before
    clock.now += 1
    ask(kind, 10)
    assert mute.met == before + 1


@both
def test_decisions_recover_when_redis_is_back(
    kind: str, redis_cache: RedisServer, settings: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    store = with_clock(clock)
    with heard() as reported:
        fail(store.server.breaker)
        assert ask(kind)[0].degraded
        clock.now += 1
        assert not ask(kind)[0].degraded
        assert not ask(kind, 3)[0].degraded
    assert [what for what, _ in reported] == ["lost", "back"]
    assert reported[1][1]["seconds"] >= 0
    assert "answers again, after" in caplog.text


WELL_AGAIN = ("CONFIG", "SET", "maxmemory", "0")


@pytest.fixture
def full_redis(redis_server: RedisServer, settings: Any) -> Iterator[None]:
    with running_redis(redis_server.program) as server, redis.Redis.from_url(server.url) as client:
        settings.CACHES = caches(server)
        assert not check("9/m", "ip:192.0.2.9").degraded
        client.execute_command(*FULL)
        yield
        client.execute_command(*WELL_AGAIN)


def test_a_late_settlement_charges_nothing_in_this_process(redis_server: RedisServer, settings: Any) -> None:
    with running_redis(redis_server.program) as server, freeze(START):
        settings.CACHES = caches(server)
        reservation = reserve("9/m", "user:1", 5, on_unavailable="local")
    with freeze(START + 2 * SECOND):
        assert reservation.settle(7).degraded
        assert check("9/m", "user:1", on_unavailable="local").remaining == 8


class TestARedisThatIsFull:
    """A client that fills the memory of Redis does not switch the limits off."""

    @both
    def test_a_full_redis_makes_rules_count_in_each_process(self, kind: str, full_redis: None) -> None:
        decisions = ask(kind, 30)
        assert all(decision.degraded for decision in decisions)
        assert sum(decision.allowed for decision in decisions) == 9
        assert decisions[-1].binding is not None  # a real refusal with its wait, and no 503

    def test_each_process_takes_its_part_of_the_limit(self, full_redis: None) -> None:
        know_of_processes(3)
        assert sum(decision.allowed for decision in ask("sync", 30)) == 3

    @pytest.mark.parametrize(("says", "admitted"), [("allow", 30), ("deny", 0), ("local", 9)])
    def test_on_unavailable_of_a_rule_wins(self, says: Any, admitted: int, full_redis: None) -> None:
        assert sum(check("9/m", "user:1", on_unavailable=says).allowed for _ in range(30)) == admitted

    @pytest.mark.parametrize(("says", "admitted"), [("allow", 9), ("deny", 0), ("local", 9)])
    def test_of_the_setting_only_deny_is_stricter(
        self, says: str, admitted: int, full_redis: None, settings: Any
    ) -> None:
        settings.QUOTA = {**(getattr(settings, "QUOTA", None) or {}), "ON_UNAVAILABLE": says}
        assert sum(decision.allowed for decision in ask("sync", 30)) == admitted

    def test_slots_of_views_are_counted_in_this_process(self, full_redis: None, rf: RequestFactory) -> None:
        inner: list[int] = []

        @concurrency(2, key="global", name="export")
        def view(request: HttpRequest) -> HttpResponse:
            inner.append(view(request).status_code)
            return HttpResponse()

        assert view(rf.get("/")).status_code == 200
        assert inner == [429, 200]


def test_an_async_receiver_gets_the_signal(mute: Mute, clock: Clock) -> None:
    with_clock(clock)
    reported: list[str] = []

    async def lost(**carried: Any) -> None:
        reported.append(carried["reason"])

    store_lost.connect(lost)
    try:
        ask("async")
    finally:
        store_lost.disconnect(lost)
    assert len(reported) == 1
