"""Workers that take units ahead, and are killed and stopped while they hold shares, also while Redis is killed."""

from __future__ import annotations

import logging
import os
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.servers import Server, running
from tests.chaos.site import configure, one_alias
from tests.support.processes import ended, processes, started
from tests.support.windows import most_in_a_window, paced

SUBJECT = "user:7"
LIMIT, LEASE = 500, 0.05
"""Hits a second, and for how many seconds a worker takes them ahead."""

WORKERS, TIMES = 4, 3
"""How many workers there are, and how many times what the limit has they ask for."""

EVERY, STOPPED = 0.3, 0.1
"""Seconds between two kills, and for how long another worker is stopped before each."""

_ANSWER = struct.Struct("<qq??")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Workers that lose what they have taken ahead, for some seconds."""

    name: str
    title: str
    kills_redis: bool = False
    seconds: float = 8.0

    def for_seconds(self, seconds: float) -> Sharing:
        return replace(self, seconds=seconds)


SHARING = (
    Sharing("shares", "workers killed and stopped"),
    Sharing("shares-redis", "the same, and Redis killed; started again from its disk", kills_redis=True),
)


class Answer(NamedTuple):
    """What a worker has written down of a check."""

    asked: int
    allowed: int
    """When it was allowed (nanoseconds of a clock that all share); 0: it was refused."""
    spent: bool
    """Whether it was spent of what the worker had taken ahead."""
    degraded: bool


@dataclass(frozen=True, slots=True)
class SharingFigures:
    """What came of it."""

    tried: int
    admitted: int
    spent: int
    """How many of these were admitted without a call."""
    killed: int
    most: int
    """The most that were admitted within any second."""
    degraded: int

    @property
    def broken(self) -> list[str]:
        """Which promises were broken, in words."""
        found = [] if self.most <= LIMIT else [f"{self.most} hits were admitted in a second under {LIMIT}/s"]
        if not self.spent:
            found.append("no worker has spent anything that it had taken ahead")
        return found


def play_sharing(sharing: Sharing, program: Path) -> SharingFigures:
    """Run workers on a Redis of their own that hands each change to the system before it answers."""
    lasting = "--appendonly", "yes", "--appendfsync", "no"
    with (
        tempfile.TemporaryDirectory(prefix="quota-share-") as folder,
        tempfile.TemporaryDirectory(prefix="quota-share-") as written,
        running(Server(program, Path(folder), *lasting)) as redis,
        _site(redis.url, Path(written), sharing.seconds) as wait,
    ):
        if sharing.kills_redis:
            time.sleep(sharing.seconds / 3)
            redis.process.kill()
            time.sleep(sharing.seconds / 10)
            redis.start()
        killed = wait()
        answers = sorted(_answers(Path(written)))
    hits = [(answer.asked, answer.allowed) for answer in answers if answer.allowed]
    spent, degraded = (sum(getattr(answer, what) for answer in answers) for what in ("spent", "degraded"))
    return SharingFigures(len(answers), len(hits), spent, killed, most_in_a_window(hits, 10**9), degraded)


def _answers(folder: Path) -> Iterator[Answer]:
    """Yield all answers. A worker may be killed while it writes."""
    for file in folder.iterdir():
        written = file.read_bytes()
        whole = len(written) // _ANSWER.size * _ANSWER.size
        yield from (Answer(*each) for each in _ANSWER.iter_unpack(written[:whole]))


@contextmanager
def _site(url: str, folder: Path, seconds: float) -> Iterator[Callable[[], int]]:
    """Start a process that runs the workers; yield what waits for its end, and returns how many it has killed."""
    spawn = get_context("spawn")
    killed = spawn.Value("i", -1)
    site = spawn.Process(target=_run_workers, args=(url, folder, seconds, killed))
    site.start()

    def wait() -> int:
        site.join()
        assert site.exitcode == 0
        return int(killed.value)

    try:
        while killed.value < 0 and site.is_alive():
            time.sleep(0.05)
        yield wait
    finally:
        site.kill()
        site.join()


def _run_workers(url: str, folder: Path, seconds: float, killed: Any) -> None:
    """Fork workers as a server does, and kill and stop one after the other."""
    configure(one_alias(url))
    logging.disable()  # that Redis is gone is no news here
    until, names = time.monotonic_ns() + int(seconds * 10**9), count()
    killed.value = 0

    def start() -> int:
        return started(partial(_ask, folder / str(next(names)), until))

    with processes() as workers:
        workers.extend(start() for _ in range(WORKERS))
        while time.monotonic_ns() < until - EVERY * 10**9:
            time.sleep(EVERY)
            victim, other = workers.pop(0), workers[0]
            os.kill(other, signal.SIGSTOP)
            time.sleep(STOPPED)
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            os.kill(other, signal.SIGCONT)
            killed.value += 1
            workers.append(start())
        assert set(ended(workers)) == {0}


def _ask(file: Path, until: int) -> None:
    """Check the subject again and again until a moment; write each answer down at once."""
    from django_quota import Rule, check

    rule = Rule.make("shared", f"{LIMIT}/s", key="user", prefetch=LEASE, on_unavailable="deny")
    pause = int(10**9 * WORKERS / LIMIT / TIMES)
    out = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for asked in paced(until, pause):
        decision = check(rule, SUBJECT)
        at = time.monotonic_ns() if decision.allowed else 0
        os.write(out, _ANSWER.pack(asked, at, decision.approximate, decision.degraded))
