"""The flusher: one thread that does its jobs while the process is busy, even if one of them fails."""

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from django_quota.limiting.flusher import Flusher
from tests.support.commands import PATIENCE, wait_until
from tests.support.processes import ended, forks, processes, started, threads_ran


def job(*, at_exit: bool = False) -> Any:
    return Mock(purpose="count", at_exit=at_exit)


def rounds_of(made: Any) -> int:
    return int(made.flush.call_count)


@pytest.fixture
def flusher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flusher]:
    monkeypatch.setattr("django_quota.limiting.flusher.INTERVAL", 0.001)
    made = Flusher()
    yield made
    made.stop(PATIENCE)


def test_a_job_that_fails_is_tried_again_logged_once_and_stops_no_other(
    flusher: Flusher, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = job(), job()
    failing.flush.side_effect = RuntimeError("no event loop")
    flusher.add(failing)
    flusher.add(other)
    flusher.wake()
    wait_until(lambda: rounds_of(failing) > 3)
    assert rounds_of(other) > 2
    assert caplog.messages == ["Cannot count, and will try again: no event loop"]


def test_it_does_one_round_when_it_is_woken_and_at_the_end_the_jobs_that_ask_for_it(flusher: Flusher) -> None:
    last, other, threads = job(at_exit=True), job(), set[str]()
    other.flush.side_effect = lambda: threads.add(threading.current_thread().name)
    flusher.add(last)
    flusher.add(other)
    for rounds in (1, 2, 3):
        flusher.wake()
        wait_until(lambda rounds=rounds: rounds_of(other) == rounds_of(last) == rounds)  # type: ignore[misc]
    assert threads == {"django-quota-flusher"}
    for _ in range(2):
        flusher.stop(PATIENCE)
        assert (rounds_of(last), rounds_of(other)) == (4, 3)
        flusher.wake()


@forks
@threads_ran
def test_a_forked_process_has_a_thread_of_its_own(flusher: Flusher) -> None:
    def work() -> None:
        before = rounds_of(mine)
        flusher.wake()
        wait_until(lambda: rounds_of(mine) > before)

    flusher.add(mine := job())
    work()
    with processes() as children:
        children += [started(work) for _ in range(2)]
        assert ended(children) == [0] * 2
