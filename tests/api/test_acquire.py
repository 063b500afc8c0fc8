"""`acquire`: a hit that waits until its rule allows it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from django_quota import Decision, Rule, aacquire, acquire, ban, check, peek
from django_quota.testing import QuotaKit
from tests.support.calls import both

SUBJECT = "user:42"


@pytest.fixture
def slept(the_clock_stands: QuotaKit, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what was slept; sleeping moves the clock instead."""
    found: list[float] = []

    def sleep(seconds: float) -> None:
        found.append(seconds)
        the_clock_stands.advance(seconds)

    async def asleep(seconds: float) -> None:
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    return found


def take(kind: str, *given: Any, **options: Any) -> Decision:
    return acquire(*given, **options) if kind == "sync" else asyncio.run(aacquire(*given, **options))


@both
@pytest.mark.usefixtures("either_store")
class TestWaiting:
    def test_with_room_it_is_a_check(self, kind: str, slept: list[float]) -> None:
        decision = take(kind, "2/m", SUBJECT, timeout=5)
        assert (decision.allowed, decision.remaining, slept) == (True, 1, [])

    def test_it_waits_until_there_is_room(self, kind: str, slept: list[float]) -> None:
        check("2/m", SUBJECT, 2)
        assert take(kind, "2/m", SUBJECT, timeout=60).allowed
        assert slept == [pytest.approx(60, abs=0.01)]
        assert take(kind, "2/m", SUBJECT, 1, timeout=0).allowed

    def test_where_the_wait_would_be_too_long_it_refuses_at_once(self, kind: str, slept: list[float]) -> None:
        check("2/m", SUBJECT, 2)
        for timeout in (0, 5, 59.9):
            decision = take(kind, "2/m", SUBJECT, timeout=timeout)
            assert (decision.allowed, decision.retry_after) == (False, 60.0)
        assert not take(kind, "2/m", SUBJECT, 3, timeout=5).allowed  # a cost that it never admits
        assert slept == []
        assert peek("2/m", SUBJECT).remaining == 0

    def test_who_is_banned_does_not_wait(self, kind: str, slept: list[float]) -> None:
        rule = Rule.make("banning", "2/m", ban={"after": "9/m", "for": "1h"})
        ban(SUBJECT, rule, 600)
        assert take(kind, rule, SUBJECT, timeout=60).outcomes[0].why == "banned"
        assert slept == []

    def test_with_a_leaky_bucket_it_waits_for_its_place(self, kind: str, slept: list[float]) -> None:
        for _ in range(3):
            assert take(kind, "6/m", SUBJECT, timeout=60, algorithm="leaky_bucket").allowed
        assert slept == [pytest.approx(10, abs=0.01)] * 2


@pytest.mark.usefixtures("memory_store")
class TestTries:
    def test_who_finds_the_room_taken_waits_again_and_no_longer_than_the_timeout(
        self, slept: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sleep = time.sleep

        def beaten(seconds: float) -> None:
            sleep(seconds)
            check("1/10s", SUBJECT)  # another caller is faster each time

        monkeypatch.setattr(time, "sleep", beaten)
        check("1/10s", SUBJECT)
        assert not acquire("1/10s", SUBJECT, timeout=35).allowed
        assert slept == [pytest.approx(10, abs=0.01)] * 3

    @pytest.mark.usefixtures("the_clock_stands")
    def test_a_frozen_clock_does_not_make_it_wait_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "sleep", lambda _: None)
        check("1/10s", SUBJECT)
        assert not acquire("1/10s", SUBJECT, timeout=35).allowed
