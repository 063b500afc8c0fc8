"""The driver: starts a place and its workers, breaks it while traffic flows, and collects the accounts.

Whatever it starts it ends, by its own process id.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import django_quota
from tests.chaos.figures import Figures, Times, figures
from tests.chaos.records import BACK, Account, Stall, losses_beside
from tests.chaos.scenes import Place, Scene
from tests.chaos.servers import until
from tests.chaos.stalls import measured_of

ROOT = Path(django_quota.__file__).parent.parent
KINDS = ("sync", "async")
ENDING = 20.0
"""Seconds that a worker may take to end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the parts of a scene last (seconds), and how many requests a second each worker makes."""

    before: float
    fault: float
    after: float
    rate: int


USUAL = Pace(before=4, fault=4.2, after=5, rate=200)
"""The fault is over shortly after a worker has asked in vain, which is once a second: the way back is a long one."""
BRIEF = Pace(before=0.7, fault=0.6, after=2.8, rate=90)


class Played(NamedTuple):
    """What came of a scene, what the workers have to say, and when the fault began."""

    figures: Figures
    accounts: list[Account]
    times: Times


def play(scene: Scene[Any], pace: Pace, program: Path) -> Played:
    """Play a scene with a server program."""
    with tempfile.TemporaryDirectory(prefix="quota-chaos-") as name:
        folder = Path(name)
        with scene.place(program, folder) as place, _workers(folder, place.caches, pace.rate) as workers:
            stalls: dict[int, list[Stall]] = {}
            with measured_of(place.pids, stalls):
                for worker in workers:
                    worker.until_known()
                time.sleep(pace.before)
                times = _break(scene, place, pace.fault, workers)
                time.sleep(pace.after)
                for worker in workers:
                    worker.enough()
                for worker in workers:
                    worker.until_done()
            accounts = [worker.account() for worker in workers]
    return Played(figures(accounts, times, scene.allowance, stalls.values()), accounts, times)


def _break(scene: Scene[Any], place: Place[Any], seconds: float, workers: list[_Worker]) -> Times:
    """Break the place for so long, and until each worker has met it, which a busy machine may hold up."""
    broken = time.monotonic()
    with scene.fault(place.target):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if scene.again is not None:
                scene.again(place.target)
            time.sleep(scene.every if scene.again else seconds)
        if scene.allowance.outages[0]:
            until(lambda: all(worker.has_lost(since=broken) for worker in workers), "workers that find Redis gone")
    until(place.is_well, "limits that can be counted again")
    return Times(broken, time.monotonic())


class _Worker:
    def __init__(self, kind: str, folder: Path, caches: Mapping[str, Any], rate: int) -> None:
        self._file = folder / f"{kind}.json"
        words = (kind, str(self._file), str(rate), json.dumps(caches))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worker", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def until_ready(self) -> None:
        self._heard("ready")

    def go(self) -> None:
        self._say("go")

    def until_known(self) -> None:
        """Wait until it knows how many workers there are, which it may have missed at first on a busy machine."""
        self._heard("known")

    def has_lost(self, since: float) -> bool:
        """Say whether it has found Redis gone since a moment, or before on a busy machine and not back since then."""
        beside = losses_beside(self._file)
        lines = beside.read_text().splitlines() if beside.exists() else [BACK]
        return lines[-1] != BACK or any(float(at) >= since for at in lines if at != BACK)

    def enough(self) -> None:
        self._say("enough")

    def until_done(self) -> None:
        self._heard("done")

    def account(self) -> Account:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(ENDING):
            raise RuntimeError("A worker failed; its own words are above.")
        return Account.read(self._file)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def _heard(self, word: str) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != f"{word}\n".encode():
            raise RuntimeError(f"A worker did not say {word!r}; its own words are above.")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _workers(folder: Path, caches: Mapping[str, Any], rate: int) -> Iterator[list[_Worker]]:
    """Run a worker of each kind, which begin together; each is ended where it has not ended by itself."""
    workers: list[_Worker] = []
    try:
        workers.extend(_Worker(kind, folder, caches, rate) for kind in KINDS)
        for worker in workers:
            worker.until_ready()
        for worker in workers:
            worker.go()
        yield workers
    finally:
        for worker in workers:
            worker.end()
