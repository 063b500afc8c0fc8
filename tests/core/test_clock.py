"""Durations in words, and which clock decides. What `freeze` takes is in `tests/api/test_testing.py`."""

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, timezone

import freezegun
import pytest

from django_quota.core.clock import (
    SECOND,
    MovableClock,
    elapsed,
    frozen_now,
    in_words,
    machine_now,
    microseconds_of,
    moment_of,
    now,
    steady_now,
    time_alone,
    use_clock,
)
from django_quota.testing import freeze
from tests.support.steps import START

MINUTE, HOUR, DAY = 60, 3_600, 86_400


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "now"),
        (0, "now"),
        (0.000_001, "1 second"),
        (1, "1 second"),
        (1.000_001, "2 seconds"),
        (59, "59 seconds"),
        (59.5, "1 minute"),
        (MINUTE + 1, "1 minute 1 second"),
        (2 * MINUTE + 30, "2 minutes 30 seconds"),
        (HOUR - 1, "59 minutes 59 seconds"),
        (HOUR - 0.5, "1 hour"),
        (HOUR, "1 hour"),
        (HOUR + 1, "1 hour 1 minute"),
        (2 * HOUR + 5 * MINUTE, "2 hours 5 minutes"),
        (DAY - 1, "1 day"),
        (DAY, "1 day"),
        (DAY + 1, "1 day 1 hour"),
        (366 * DAY, "366 days"),
    ],
)
def test_a_duration_in_words_is_rounded_up_to_the_smaller_of_two_units(seconds: float, words: str) -> None:
    assert in_words(seconds * SECOND) == words


@pytest.fixture
def own_clock() -> Iterator[None]:
    """The test may change the clock of the process; it is put back."""
    kept = use_clock(None)
    yield
    use_clock(kept)


@pytest.mark.parametrize("moment", [START, 0], ids=["today", "the first moment of 1970"])
@pytest.mark.parametrize("clock", [frozen_now, now, steady_now])
def test_freeze_sets_every_clock(clock: Callable[[], int | None], moment: int) -> None:
    with freeze(moment):
        assert clock() == moment


@pytest.mark.parametrize("clock", [now, steady_now])
@pytest.mark.usefixtures("own_clock")
def test_the_clock_of_the_process_sets_every_clock(clock: Callable[[], int]) -> None:
    use_clock(lambda: START)

    assert clock() == START


@pytest.mark.usefixtures("own_clock")
def test_freeze_takes_precedence_over_the_clock_of_the_process() -> None:
    use_clock(lambda: START)

    with freeze(0):
        assert now() == 0


@pytest.mark.usefixtures("own_clock")
def test_a_clock_of_the_process_may_leave_the_time_to_the_store() -> None:
    use_clock(lambda: None)

    assert frozen_now() is None


@pytest.mark.usefixtures("own_clock")
def test_a_new_clock_of_the_process_returns_the_one_before_it() -> None:
    def clock() -> int:
        return START

    assert [use_clock(clock), use_clock(None)] == [None, clock]


def test_a_clock_that_was_set_during_a_journey_is_as_early_as_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int | None] = [START, None, START + HOUR]
    clock = MovableClock(START - DAY)
    found: list[int | None] = []

    for journey in moved:
        monkeypatch.setattr("django_quota.core.clock.moved_now", lambda journey=journey: journey)
        if journey == START:
            clock.set(START + DAY)
        found.append(clock())

    assert found == [START + DAY, START - DAY, START + HOUR]


def test_the_time_of_the_machine_is_never_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: (START + 7) * 1_000 + 999)

    with freeze(START):
        assert machine_now() == START + 7


def test_without_a_clock_of_a_test_now_is_the_time_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: (START + 7) * 1_000 + 999)

    assert now() == START + 7


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="This system has no clock that goes on in its sleep.")
def test_the_steady_clock_goes_on_while_the_machine_sleeps() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    found = steady_now()
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000

    assert before <= found <= after


def test_waits_are_measured_in_seconds_that_never_go_back() -> None:
    assert time.monotonic() <= elapsed() <= time.monotonic()


def test_waits_are_measured_while_freezegun_has_stopped_the_time() -> None:
    before = time.monotonic()

    with freezegun.freeze_time("2001-01-01"):
        found = elapsed()

    assert before <= found <= time.monotonic()


def test_a_moment_is_the_same_in_microseconds_and_as_a_datetime() -> None:
    moment = datetime(2026, 11, 21, 13, 30, 0, 5, tzinfo=timezone(timedelta(hours=1)))

    found = microseconds_of(moment)

    assert (found, moment_of(found)) == (1_795_264_200_000_005, moment)
    assert moment_of(found).tzinfo is UTC


def test_a_context_of_the_time_alone_has_no_other_variable() -> None:
    other: ContextVar[str] = ContextVar("other")
    token = other.set("secret")

    with freeze(START):
        alone = time_alone()
    other.reset(token)

    assert (alone.run(frozen_now), len(alone)) == (START, 1)
