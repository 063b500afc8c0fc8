"""The breaker: opens after failures in a row, lets one ask at a time, closes with the first answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from django_quota.stores.breaker import CLOSED, PROBE_TIMEOUT, Breaker
from tests.support.inputs import inputs
from tests.support.steps import Clock


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(failures=3, reset_timeout=1.0, clock=clock)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        probe = breaker.acquire()
        assert probe is not None
        breaker.failed(probe)


def probe_of(breaker: Breaker) -> int:
    """Take the probe of the one who asks while it is open."""
    probe = breaker.acquire()
    assert probe
    return probe


def test_a_probe_without_a_result_counts_as_lost(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    lost = probe_of(breaker)
    clock.now += PROBE_TIMEOUT
    probe = probe_of(breaker)
    breaker.release(lost)  # after all
    assert breaker.acquire() is None
    breaker.release(probe)
    assert breaker.acquire()


def test_a_call_from_before_it_opened_does_not_end_a_probe(breaker: Breaker, clock: Clock) -> None:
    early = [breaker.acquire() for _ in range(2)]
    assert early == [CLOSED] * 2
    fail(breaker, 3)
    clock.now += 1
    probe_of(breaker)
    breaker.release(CLOSED)
    breaker.failed(CLOSED)
    clock.now += 1
    assert breaker.acquire() is None


class Overtaken:
    """A lock that another thread gets first, once, and which closes the breaker."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._lock = breaker._lock

    def __enter__(self) -> None:
        self._breaker._lock = self._lock
        self._breaker.succeeded()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_caller_may_ask_if_it_has_closed_meanwhile(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    breaker._lock = Overtaken(breaker)  # type: ignore[assignment]
    assert breaker.acquire() == CLOSED
    breaker.succeeded()
    fail(breaker, 3)
    clock.now += 1
    assert breaker.acquire()


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


def test_one_of_many_threads_probes(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    probes: list[int | None] = []
    for _ in range(20):
        clock.now += 1
        probes.clear()
        race(16, lambda: probes.append(breaker.acquire()))
        (probe,) = [probe for probe in probes if probe is not None]
        breaker.failed(probe)


def test_racing_threads_never_probe_at_the_same_time() -> None:
    breaker = Breaker(failures=3, reset_timeout=0.0)
    fail(breaker, 3)
    inside, most, guard = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for number in range(200):
            probe = breaker.acquire()
            if probe is None:
                continue
            with guard:
                inside += 1
                most = max(most, inside)
            with guard:
                inside -= 1
            breaker.failed(probe) if number % 2 else breaker.release(probe)

    race(8, work)
    assert most == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_its_parent(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    probe_of(breaker)
    with breaker._lock:  # as another thread may at the moment of the fork
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # where the lock never came free
            os._exit(0 if breaker.acquire() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert breaker.acquire() is None


class Life(RuleBasedStateMachine):
    """A breaker against a plain model of it. Callers come back in any order, or after they counted as lost."""

    asking = Bundle[int]("asking")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(failures=3, reset_timeout=1.0, clock=self.clock)
        self.row = 0
        self.next_probe_at = 0.0
        self.probe: int | None = None
        self.lost_at = 0.0

    @property
    def lets_one(self) -> bool:
        is_probed = self.probe is not None and self.clock.now < self.lost_at
        return self.row < 3 or (self.clock.now >= self.next_probe_at and not is_probed)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 5.0, PROBE_TIMEOUT - 5, PROBE_TIMEOUT]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(target=asking)
    def ask(self) -> int | MultipleResults[int]:
        expected, is_open = self.lets_one, self.row >= 3
        assert self.breaker.is_refusing() is not expected
        probe = self.breaker.acquire()
        assert (probe is not None) is expected
        if probe is None:
            return multiple()
        assert (probe != CLOSED) is is_open
        if is_open:
            self.probe = probe
            self.lost_at = self.clock.now + PROBE_TIMEOUT
        return probe

    @rule(probe=consumes(asking))
    def is_answered(self, probe: int) -> None:
        self.breaker.succeeded()
        if self.row:
            self.probe = None
        self.row = 0

    @rule(probe=consumes(asking))
    def fails(self, probe: int) -> None:
        self.breaker.failed(probe)
        self.row += 1
        self.next_probe_at = self.clock.now + 1
        self._over(probe)

    @rule(probe=consumes(asking))
    def leaves(self, probe: int) -> None:
        self.breaker.release(probe)
        self._over(probe)

    def _over(self, probe: int) -> None:
        if probe == self.probe:
            self.probe = None

    @invariant()
    def open_after_three(self) -> None:
        assert self.breaker.is_open is (self.row >= 3)
        assert self.breaker.is_refusing() is not self.lets_one


TestLife = Life.TestCase
TestLife.settings = inputs(60, stateful_step_count=50, always=True)
