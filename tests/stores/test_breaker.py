"""The breaker: opens after failures in a row, lets one ask at a time, closes with the first answer."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from django_quota.stores.breaker import PROBE_TIMEOUT, Breaker
from tests.support.inputs import inputs
from tests.support.processes import forks, in_child, threads_ran
from tests.support.steps import Clock


@pytest.fixture
def opened(clock: Clock) -> Breaker:
    """A breaker that has just opened."""
    made = Breaker(failures=3, reset_timeout=1.0, clock=clock)
    for _ in range(3):
        assert made.acquire() is False
        made.failed()
    return made


def test_one_of_many_threads_probes(opened: Breaker, clock: Clock) -> None:
    barrier = threading.Barrier(16)

    def acquire(_: int) -> bool | None:
        barrier.wait()
        return opened.acquire()

    with ThreadPoolExecutor(16) as threads:
        for _ in range(20):
            clock.now += 1
            assert sorted(threads.map(acquire, range(16)), key=str) == [None] * 15 + [True]
            opened.failed()


@forks
@threads_ran
def test_a_forked_process_does_not_wait_for_its_parent(opened: Breaker, clock: Clock) -> None:
    clock.now += 1
    assert opened.acquire()
    with opened._lock:  # as another thread may at the moment of the fork
        assert in_child(lambda: opened.acquire() is True) == 1
    assert opened.acquire() is None


class Life(RuleBasedStateMachine):
    """A breaker against a plain model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(failures=3, reset_timeout=1.0, clock=self.clock)
        self.row = 0
        self.next_probe_at = 0.0

    @property
    def lets_one(self) -> bool:
        return self.row < 3 or self.clock.now >= self.next_probe_at

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, PROBE_TIMEOUT - 0.25, PROBE_TIMEOUT]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def ask(self) -> None:
        expected = (self.row >= 3) if self.lets_one else None
        assert self.breaker.acquire() is expected
        if expected:
            self.next_probe_at = self.clock.now + PROBE_TIMEOUT

    @rule()
    def is_answered(self) -> None:
        self.breaker.succeeded()
        self.row = 0

    @rule()
    def fails(self) -> None:
        self.breaker.failed()
        self.row += 1
        self.next_probe_at = self.clock.now + 1

    @rule()
    def a_probe_leaves(self) -> None:
        self.breaker.release()
        self.next_probe_at = 0.0

    @invariant()
    def open_after_three(self) -> None:
        assert self.breaker.is_open is (self.row >= 3)
        assert self.breaker.is_refusing() is not self.lets_one


TestLife = Life.TestCase
TestLife.settings = inputs(250, stateful_step_count=50)
