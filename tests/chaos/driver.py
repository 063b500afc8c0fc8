"""The driver: starts a place and its workers, breaks it while traffic flows, and collects the accounts."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.figures import Account, Figures, Times, figures
from tests.chaos.scenes import Place, Scene
from tests.chaos.servers import until
from tests.chaos.worker import work


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the parts of a scene last (seconds), and how many requests a second each worker makes."""

    before: float
    fault: float
    after: float
    rate: int
    timeout: float | None = None
    """Seconds that a worker waits for an answer; None: what the package has."""


USUAL = Pace(before=4, fault=4.2, after=5, rate=200)
"""The fault is over shortly after a worker has asked in vain, which is once a second: the way back is a long one."""
BRIEF = Pace(before=0.7, fault=0.6, after=3, rate=60, timeout=4)
"""It takes no busy machine for a Redis that is gone."""


def play(scene: Scene[Any], pace: Pace, program: Path) -> tuple[Figures, list[Account], Times]:
    """Play a scene with a server program; return the figures, and what they come from."""
    with (
        tempfile.TemporaryDirectory(prefix="quota-chaos-") as folder,
        scene.place(program, Path(folder)) as place,
        _workers(_patient(place.caches, pace), place.database, pace.rate) as workers,
    ):
        _say(workers, "go", "known")
        time.sleep(pace.before)
        times = _break(scene, place, 0 if scene.is_brief else pace.fault, workers)
        time.sleep(pace.after)
        _say(workers, "enough", "done")
        accounts = _say(workers, "look")
    return figures(accounts, times, scene.allowance), accounts, times


def _patient(caches: Mapping[str, Any], pace: Pace) -> Mapping[str, Any]:
    if pace.timeout is None:
        return caches
    options = {"SOCKET_TIMEOUT": pace.timeout, "SOCKET_CONNECT_TIMEOUT": pace.timeout}
    return {name: {**given, "OPTIONS": {**given["OPTIONS"], **options}} for name, given in caches.items()}


def _break(scene: Scene[Any], place: Place[Any], seconds: float, workers: list[_Worker]) -> Times:
    """Break the place for so long, and until each worker has met it."""
    broken = time.monotonic()
    with scene.fault(place.target):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if scene.again is not None:
                scene.again(place.target)
            time.sleep(scene.every if scene.again else seconds)
        if scene.allowance.outages[0]:
            until(lambda: all(worker.has_lost(since=broken) for worker in workers), "a worker that finds Redis gone")
    until(place.is_well, "a place where limits can be counted again")
    return Times(broken, time.monotonic())


class _Worker:
    def __init__(self, kind: str, caches: Mapping[str, Any], database: Mapping[str, Any] | None, rate: int) -> None:
        processes = multiprocessing.get_context("spawn")
        self.pipe, its_end = processes.Pipe()
        self._lost = processes.Array("d", 2)
        given = (kind, caches, database, rate, its_end, self._lost)
        self.process = processes.Process(target=work, args=given, daemon=True)
        self.process.start()
        its_end.close()

    def has_lost(self, since: float) -> bool:
        """Say whether it has found Redis gone since a moment, or before and not back since then."""
        return self._lost[0] >= since or bool(self._lost[1])


def _say(workers: list[_Worker], word: str, answer: str = "") -> list[Any]:
    for worker in workers:
        worker.pipe.send(word)
    answers = [worker.pipe.recv() for worker in workers]
    assert not answer or answers == [answer] * len(workers)
    return answers


@contextmanager
def _workers(caches: Mapping[str, Any], database: Mapping[str, Any] | None, rate: int) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    try:
        workers.extend(_Worker(kind, caches, database, rate) for kind in ("sync", "async"))
        assert [worker.pipe.recv() for worker in workers] == ["ready"] * 2
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
