"""The breaker: opens after failures in a row, lets one ask a pause, closes with the first answer."""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from django_quota.stores.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(failures=3, pause=1.0, clock=clock)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        assert breaker.lets_through()
        breaker.failed()


def test_single_failures_between_answers_never_open_it(breaker: Breaker) -> None:
    for _ in range(10):
        fail(breaker, 2)
        breaker.succeeded()
    assert not breaker.is_open


def test_failures_in_a_row_open_it_and_nobody_asks(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    assert breaker.is_open
    clock.now += 0.999
    assert not any(breaker.lets_through() for _ in range(100))
    assert breaker.is_shut()


def test_after_a_pause_one_caller_asks_and_its_failure_begins_another_pause(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    for _ in range(5):
        clock.now += 1
        assert not breaker.is_shut()
        assert [breaker.lets_through() for _ in range(5)] == [True] + [False] * 4
        breaker.failed()
        assert not breaker.lets_through()


def test_its_answer_closes_it_for_all(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    assert breaker.lets_through()
    breaker.succeeded()
    assert all(breaker.lets_through() for _ in range(5))
    assert not breaker.is_open


def test_a_caller_that_never_comes_back_does_not_keep_it_open(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    assert breaker.lets_through()  # and was cancelled, say
    clock.now += 1
    assert breaker.lets_through()


def test_of_many_threads_one_asks(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    barrier, let = threading.Barrier(16), []

    def ask() -> None:
        barrier.wait()
        if breaker.lets_through():
            let.append(1)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert let == [1]


class Life(RuleBasedStateMachine):
    """Held to a plain account of what a breaker is: how many failed in a row, and when it is somebody's turn."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(failures=3, pause=1.0, clock=self.clock)
        self.row = 0
        self.turn = 0.0
        self.asking = 0

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def ask(self) -> None:
        expected = self.row < 3 or self.clock.now >= self.turn
        assert self.breaker.is_shut() is not expected
        assert self.breaker.lets_through() is expected
        if expected:
            self.asking += 1
            if self.row >= 3:
                self.turn = self.clock.now + 1

    @precondition(lambda self: self.asking)
    @rule(answered=st.booleans())
    def come_back(self, answered: bool) -> None:
        self.asking -= 1
        if answered:
            self.breaker.succeeded()
            self.row = 0
        else:
            self.breaker.failed()
            self.row += 1
            self.turn = self.clock.now + 1

    @invariant()
    def open_after_three(self) -> None:
        assert self.breaker.is_open is (self.row >= 3)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40)
