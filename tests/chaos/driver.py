"""The driver: starts a place and its workers, does the harm while traffic flows, and collects the accounts.

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

import django_quota
from django_quota.testing import server_programs
from tests.chaos.figures import Allowance, Figures, Times, figures
from tests.chaos.records import Account
from tests.chaos.scenes import Place, Scene
from tests.chaos.servers import until

ROOT = Path(django_quota.__file__).parent.parent
KINDS = ("sync", "async")
BLOW = 0.05
"""Seconds between two blows of a scene that has several."""
ENDING = 20.0
"""Seconds that a worker may take to end."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the parts of a scene last (seconds), and how many requests a second each worker makes."""

    before: float
    harm: float
    after: float
    rate: int


USUAL = Pace(before=4, harm=4.2, after=5, rate=200)
"""The harm is over shortly after a worker has asked in vain, which is once a second: the way back is a long one."""
BRIEF = Pace(before=1.7, harm=0.6, after=2.8, rate=60)


def play(scene: Scene, pace: Pace) -> tuple[Figures, list[Account]]:
    """Play a scene; return its figures and what the workers have to say."""
    program = server_programs()[0]
    with tempfile.TemporaryDirectory(prefix="quota-chaos-") as name:
        folder = Path(name)
        with scene.place(program, folder) as place, _workers(folder, place.caches, pace.rate) as workers:
            time.sleep(pace.before)
            times = _harm(scene, place, pace.harm)
            time.sleep(pace.after)
            for worker in workers:
                worker.stop()
            accounts = [worker.account() for worker in workers]
    return figures(accounts, times, Allowance(scene.losses, scene.outages)), accounts


def _harm(scene: Scene, place: Place, seconds: float) -> Times:
    harmed = time.monotonic()
    with scene.harm(place.server):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if scene.again is not None:
                scene.again(place.server)
            time.sleep(BLOW if scene.again else seconds)
    until(place.is_well, "limits that can be counted again")
    return Times(harmed, time.monotonic())


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
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("A worker did not start; its own words are above.")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def account(self) -> Account:
        if self._process.wait(ENDING):
            raise RuntimeError("A worker failed; its own words are above.")
        return Account.read(self._file)

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
