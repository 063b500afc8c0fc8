"""`acquire`: a hit that waits for room, and is refused at once if that takes too long."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_quota import Rule, aacquire, acquire, ban, check, peek
from django_quota.testing import QuotaKit

Take = Callable[..., Any]


@pytest.fixture(params=[acquire, aacquire], ids=["sync", "async"])
def take(request: pytest.FixtureRequest) -> Take:
    """Take from a rate for one user, sync or async."""

    def call(rate: Any, cost: int = 1, **options: Any) -> Any:
        found = request.param(rate, "user:42", cost, **options)
        return asyncio.run(found) if request.param is aacquire else found

    return call


@pytest.fixture
def slept_exactly() -> list[float]:
    """The times for which calls have slept, to the microsecond."""
    return []


@pytest.fixture(autouse=True)
def slept(
    memory_store: None, the_clock_stands: QuotaKit, monkeypatch: pytest.MonkeyPatch, slept_exactly: list[float]
) -> list[float]:
    """The times for which calls have slept: a sleep sets the clock forward."""

    def sleep(seconds: float) -> None:
        times.append(round(seconds, 2))
        slept_exactly.append(round(seconds, 6))
        the_clock_stands.advance(seconds)

    async def asleep(seconds: float) -> None:
        sleep(seconds)

    times: list[float] = []
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    return times


def test_a_hit_with_room_does_not_wait(take: Take, slept: list[float]) -> None:
    decision = take("2/m", timeout=5)

    assert (decision.allowed, decision.remaining, slept) == (True, 1, [])


def test_a_hit_waits_for_room(take: Take, slept: list[float]) -> None:
    check("1/m", "user:42")

    assert take("1/m", timeout=60).allowed
    assert slept == [60]


def test_a_hit_waits_a_millisecond_longer_because_clocks_differ(take: Take, slept_exactly: list[float]) -> None:
    check("1/m", "user:42")

    take("1/m", timeout=60)

    assert slept_exactly == [60.001]


@pytest.mark.parametrize("timeout", [0, 59.9])
def test_a_hit_that_would_wait_too_long_is_refused_at_once(take: Take, slept: list[float], timeout: float) -> None:
    check("1/m", "user:42")

    decision = take("1/m", timeout=timeout)

    assert (decision.allowed, decision.retry_after, slept) == (False, 60.0, [])


def test_a_refused_hit_takes_nothing(take: Take) -> None:
    check("2/m", "user:42", 1)

    take("2/m", 2, timeout=5)

    assert peek("2/m", "user:42").remaining == 1


def test_a_cost_that_is_never_admitted_is_refused_at_once(take: Take, slept: list[float]) -> None:
    assert not take("2/m", 3, timeout=60)
    assert slept == []


def test_a_banned_subject_is_refused_at_once(take: Take, slept: list[float]) -> None:
    banning = Rule.make("banning", "2/m", ban={"after": "9/m", "for": "1h"})
    ban(banning, "user:42", 600)

    assert take(banning, timeout=60).outcomes[0].why == "banned"
    assert slept == []


def test_a_hit_waits_for_its_place_in_a_leaky_bucket(take: Take, slept: list[float]) -> None:
    assert all(take("6/m", timeout=60, algorithm="leaky_bucket") for _ in range(3))
    assert slept == [10, 10]


def test_a_hit_waits_again_if_another_caller_was_faster(
    take: Take, slept: list[float], monkeypatch: pytest.MonkeyPatch, the_clock_stands: QuotaKit
) -> None:
    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 2))
        the_clock_stands.advance(seconds)
        check("1/10s", "user:42")

    async def asleep(seconds: float) -> None:
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    check("1/10s", "user:42")

    assert not take("1/10s", timeout=35)
    assert slept == [10] * 3, "no longer than its timeout"
