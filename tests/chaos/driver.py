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
from typing import Any

from tests.chaos.figures import Account, Figures, Times, figures
from tests.chaos.scenes import Place, Scene
from tests.chaos.servers import until
from tests.support.commands import ROOT


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
    with tempfile.TemporaryDirectory(prefix="quota-chaos-") as name:
        folder = Path(name)
        with scene.place(program, folder) as place, _workers(folder, _patient(place.caches, pace), pace.rate) as both:
            for worker in both:
                worker.hears("known")
            time.sleep(pace.before)
            times = _break(scene, place, pace.fault, both)
            time.sleep(pace.after)
            for word, answer in (("enough", "done"), ("look", "")):
                for worker in both:
                    worker.say(word)
                for worker in both:
                    worker.hears(answer)
            accounts = [Account.read(worker.file) for worker in both]
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
    def __init__(self, kind: str, folder: Path, caches: Mapping[str, Any], rate: int) -> None:
        self.file = folder / f"{kind}.json"
        words = (kind, str(self.file), str(rate), json.dumps(caches))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worker", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        self._pipes: Any = self._process.stdin, self._process.stdout

    def has_lost(self, since: float) -> bool:
        """Say whether it has found Redis gone since a moment, or before and not back since then."""
        told = Path(f"{self.file}.told")
        lines = [line.split() for line in told.read_text().splitlines()] if told.exists() else []
        return any(word == "lost" and (float(at) >= since or [at, word] == lines[-1]) for at, word in lines)

    def say(self, word: str) -> None:
        print(word, file=self._pipes[0], flush=True)

    def hears(self, word: str) -> None:
        """Wait until it says a word; an empty one: until it has ended."""
        if self._pipes[1].readline().strip() != word or (not word and self._process.wait()):
            raise RuntimeError(f"A worker did not say {word!r}; its own words are above.")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in self._pipes:
            pipe.close()


@contextmanager
def _workers(folder: Path, caches: Mapping[str, Any], rate: int) -> Iterator[list[_Worker]]:
    """Run a sync and an async worker, which begin together."""
    workers: list[_Worker] = []
    try:
        workers.extend(_Worker(kind, folder, caches, rate) for kind in ("sync", "async"))
        for worker in workers:
            worker.hears("ready")
        for worker in workers:
            worker.say("go")
        yield workers
    finally:
        for worker in workers:
            worker.end()
