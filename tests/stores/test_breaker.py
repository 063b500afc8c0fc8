"""The breaker: opens after failures in a row, lets one ask at a time, closes with the first answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from django_quota.stores.breaker import FREELY, LONGEST_TRY, Breaker, holding
from tests.inputs import inputs


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
        turn = breaker.ask()
        assert turn is not None
        breaker.failed(turn)


def turn_of(breaker: Breaker) -> int:
    """Take the turn of the one who asks while it is open."""
    turn = breaker.ask()
    assert turn
    return turn


def test_single_failures_between_answers_never_open_it(breaker: Breaker) -> None:
    for _ in range(10):
        fail(breaker, 2)
        breaker.succeeded()
    assert not breaker.is_open


def test_failures_in_a_row_open_it_and_nobody_asks(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    assert breaker.is_open
    clock.now += 0.999
    assert {breaker.ask() for _ in range(100)} == {None}
    assert breaker.is_shut()


def test_after_a_pause_one_caller_asks_and_its_failure_begins_another_pause(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    for _ in range(5):
        clock.now += 1
        assert not breaker.is_shut()
        turn = turn_of(breaker)
        assert [breaker.ask() for _ in range(4)] == [None] * 4
        breaker.failed(turn)
        assert breaker.ask() is None


def test_its_answer_closes_it_for_all(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    turn_of(breaker)
    breaker.succeeded()
    assert [breaker.ask() for _ in range(5)] == [FREELY] * 5
    assert not breaker.is_open


def test_nobody_else_asks_while_the_one_waits(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    turn = turn_of(breaker)
    for _ in range(20):
        clock.now += LONGEST_TRY / 25
        assert breaker.is_shut()
        assert breaker.ask() is None
    breaker.failed(turn)
    clock.now += 1
    assert breaker.ask()


def test_who_leaves_without_an_answer_hands_the_turn_on_at_once(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    breaker.left(turn_of(breaker))
    assert not breaker.is_shut()
    assert breaker.ask()


def test_who_never_comes_back_counts_as_lost_in_the_end(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    lost = turn_of(breaker)
    clock.now += LONGEST_TRY
    turn = turn_of(breaker)
    breaker.left(lost)  # after all
    assert breaker.ask() is None
    breaker.left(turn)
    assert breaker.ask()


def test_who_began_while_it_was_closed_does_not_end_the_turn_of_another(breaker: Breaker, clock: Clock) -> None:
    early = [breaker.ask() for _ in range(2)]
    assert early == [FREELY] * 2
    fail(breaker, 3)
    clock.now += 1
    turn_of(breaker)
    breaker.left(FREELY)
    breaker.failed(FREELY)
    clock.now += 1
    assert breaker.ask() is None


class Overtaken:
    """A lock that another thread gets first, once, and which closes the breaker."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._lock = breaker._guard

    def __enter__(self) -> None:
        self._breaker._guard = self._lock
        self._breaker.succeeded()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_who_finds_it_closed_meanwhile_asks_as_everybody_does(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    breaker._guard = Overtaken(breaker)  # type: ignore[assignment]
    assert breaker.ask() == FREELY
    breaker.succeeded()
    fail(breaker, 3)
    clock.now += 1
    assert breaker.ask()


def race(times: int, work: Callable[[], None]) -> None:
    """Do something in so many threads at once."""
    barrier = threading.Barrier(times)

    def run() -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_of_many_threads_one_asks(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    turns: list[int | None] = []
    for _ in range(20):
        clock.now += 1
        turns.clear()
        race(16, lambda: turns.append(breaker.ask()))
        (turn,) = [turn for turn in turns if turn is not None]
        breaker.failed(turn)


def test_threads_that_ask_and_fail_and_leave_never_ask_at_the_same_time() -> None:
    breaker = Breaker(failures=3, pause=0.0)
    fail(breaker, 3)
    inside, most, guard = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for number in range(200):
            turn = breaker.ask()
            if turn is None:
                continue
            with guard:
                inside += 1
                most = max(most, inside)
            with guard:
                inside -= 1
            breaker.failed(turn) if number % 2 else breaker.left(turn)

    race(8, work)
    assert most == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_waits_for_nobody_who_is_not_in_it(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 1
    turn_of(breaker)
    with breaker._guard:  # as another thread may at the moment of the fork
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # where the lock never came free
            os._exit(0 if breaker.ask() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert breaker.ask() is None


class Life(RuleBasedStateMachine):
    """Held to a plain account of what a breaker is: how many failed in a row, who asks, and when it is somebody's turn.

    Callers come back in any order, or after they counted as lost.
    """

    asking = Bundle[int]("asking")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(failures=3, pause=1.0, clock=self.clock)
        self.row = 0
        self.turn = 0.0
        self.probe: int | None = None
        self.lost_at = 0.0

    @property
    def lets_one(self) -> bool:
        is_probed = self.probe is not None and self.clock.now < self.lost_at
        return self.row < 3 or (self.clock.now >= self.turn and not is_probed)

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 5.0, LONGEST_TRY - 5, LONGEST_TRY]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(target=asking)
    def ask(self) -> int | MultipleResults[int]:
        expected, is_open = self.lets_one, self.row >= 3
        assert self.breaker.is_shut() is not expected
        turn = self.breaker.ask()
        assert (turn is not None) is expected
        if turn is None:
            return multiple()
        assert (turn != FREELY) is is_open
        if is_open:
            self.probe = turn
            self.lost_at = self.clock.now + LONGEST_TRY
        return turn

    @rule(turn=consumes(asking))
    def is_answered(self, turn: int) -> None:
        self.breaker.succeeded()
        if self.row:
            self.probe = None
        self.row = 0

    @rule(turn=consumes(asking))
    def fails(self, turn: int) -> None:
        self.breaker.failed(turn)
        self.row += 1
        self.turn = self.clock.now + 1
        self._over(turn)

    @rule(turn=consumes(asking))
    def leaves(self, turn: int) -> None:
        self.breaker.left(turn)
        self._over(turn)

    def _over(self, turn: int) -> None:
        if turn == self.probe:
            self.probe = None

    @invariant()
    def open_after_three(self) -> None:
        assert self.breaker.is_open is (self.row >= 3)
        assert self.breaker.is_shut() is not self.lets_one


TestLife = Life.TestCase
TestLife.settings = inputs(200, stateful_step_count=50)


class TestABlockThatHoldsATurn:
    def test_calls_within_it_belong_to_its_turn_and_others_wait(self, breaker: Breaker, clock: Clock) -> None:
        fail(breaker, 3)
        clock.now += 1
        turn = turn_of(breaker)
        others: list[object] = []
        with holding(turn):
            assert (breaker.ask(), breaker.is_shut()) == (turn, False)
            other = threading.Thread(target=lambda: others.extend((breaker.ask(), breaker.is_shut())))
            other.start()
            other.join()
        assert others == [None, True]
        assert (breaker.ask(), breaker.is_shut()) == (None, True)

    @pytest.mark.parametrize("how", ["failed", "left"])
    def test_the_first_of_them_ends_it(self, how: str, breaker: Breaker, clock: Clock) -> None:
        fail(breaker, 3)
        clock.now += 1
        turn = turn_of(breaker)
        with holding(turn):
            getattr(breaker, how)(turn)
            asked = breaker.ask()
        assert asked != turn
        assert (asked is None) == (how == "failed")  # or it is anybody's

    def test_one_that_counts_as_lost_lets_nobody_in(self, breaker: Breaker, clock: Clock) -> None:
        fail(breaker, 3)
        clock.now += 1
        turn = turn_of(breaker)
        with holding(turn):
            clock.now += LONGEST_TRY
            next_turn = threading.Thread(target=breaker.ask)
            next_turn.start()
            next_turn.join()
            assert breaker.ask() is None

    def test_the_turn_of_one_breaker_is_none_of_another(self, breaker: Breaker, clock: Clock) -> None:
        other = Breaker(failures=3, clock=clock)
        fail(breaker, 3)
        fail(other, 3)
        with holding(FREELY):
            assert other.ask() is None
        clock.now += 1
        turn = turn_of(breaker)
        with holding(turn):
            assert turn_of(other) != turn

    def test_blocks_may_lie_in_each_other(self, breaker: Breaker, clock: Clock) -> None:
        fail(breaker, 3)
        clock.now += 1
        turn = turn_of(breaker)
        with holding(turn):
            with holding(FREELY):
                assert breaker.ask() == turn
            assert breaker.ask() == turn
