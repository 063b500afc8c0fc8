"""The flusher: one thread that does its jobs while the process is busy, even if one of them fails."""

import threading
from collections.abc import Iterator

import pytest

from django_quota.limiting.flusher import Flusher
from tests.support.commands import PATIENCE, wait_until
from tests.support.processes import ended, forks, processes, started, threads_ran


class Counting:
    purpose = "count"

    def __init__(self, *, at_exit: bool = False) -> None:
        self.at_exit = at_exit
        self.rounds = 0
        self.threads: set[str] = set()
        self.fails = False

    def flush(self) -> None:
        self.rounds += 1
        self.threads.add(threading.current_thread().name)
        if self.fails:
            raise RuntimeError("no event loop")


@pytest.fixture
def flusher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flusher]:
    monkeypatch.setattr("django_quota.limiting.flusher.INTERVAL", 0.001)
    made = Flusher()
    yield made
    made.stop(PATIENCE)


def test_a_job_that_fails_is_tried_again_logged_once_and_stops_no_other(
    flusher: Flusher, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = Counting(), Counting()
    failing.fails = True
    flusher.add(failing)
    flusher.add(other)
    flusher.wake()
    wait_until(lambda: failing.rounds > 3)
    assert other.rounds > 2
    assert caplog.messages == ["Cannot count, and will try again: no event loop"]
    failing.fails = False
    rounds = failing.rounds
    wait_until(lambda: failing.rounds > rounds)


def test_it_does_one_round_when_it_is_woken_and_at_the_end_the_jobs_that_ask_for_it(flusher: Flusher) -> None:
    last, other = Counting(at_exit=True), Counting()
    flusher.add(last)
    flusher.add(other)
    assert last.rounds == 0
    for rounds in (1, 2, 3):
        flusher.wake()
        wait_until(lambda rounds=rounds: other.rounds == last.rounds == rounds)  # type: ignore[misc]
    assert last.threads == {"django-quota-flusher"}
    for _ in range(2):
        flusher.stop(PATIENCE)
        assert (last.rounds, other.rounds) == (4, 3)
        flusher.wake()


@forks
@threads_ran
def test_a_forked_process_has_a_thread_of_its_own(flusher: Flusher) -> None:
    flusher.add(job := Counting())
    flusher.wake()
    wait_until(lambda: job.rounds)

    def work() -> None:
        before = job.rounds
        flusher.wake()
        wait_until(lambda: job.rounds > before)

    with processes() as children:
        children += [started(work) for _ in range(2)]
        assert ended(children) == [0] * 2
