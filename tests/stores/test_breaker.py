"""The breaker: opens after failures in a row, lets one ask at a time, closes with the first answer."""

import threading
from collections.abc import Callable

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


def test_a_probe_without_a_result_counts_as_lost(opened: Breaker, clock: Clock) -> None:
    assert opened.acquire() is None
    clock.now += 1
    assert opened.acquire() is True
    clock.now += PROBE_TIMEOUT - 0.001
    assert opened.acquire() is None
    clock.now += 0.001
    assert opened.acquire() is True


def race(times: int, work: Callable[[], None]) -> None:
    """Do something in several threads at once."""
    barrier = threading.Barrier(times)

    def run() -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_one_of_many_threads_probes(opened: Breaker, clock: Clock) -> None:
    for _ in range(20):
        clock.now += 1
        probes: list[bool | None] = []
        race(16, lambda: probes.append(opened.acquire()))  # noqa: B023 — they have ended before the next
        assert probes.count(True) == 1
        assert probes.count(None) == 15
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

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 4.0, PROBE_TIMEOUT]))
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
TestLife.settings = inputs(60, stateful_step_count=50, always=True)
