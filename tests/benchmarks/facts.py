"""Who is right: what each limiter admits when requests race, and in the worst window."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tests.benchmarks.measure import Work, fresh_ip

RACE, THREADS, EACH = 50, 16, 400
EDGE = 10
WINDOW = 60.0
BURST = 20
MILLISECOND = 0.001

WorkOf = Callable[[int], Work]
"""Takes how many hits a minute has."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One limiter under so many hits a minute.

    `at(seconds)` sets its clock to a moment within the block; None if it has only that of Redis. `clock_windows`: its
    windows start by the clock, so a race must be held inside one.
    """

    package: str
    work: WorkOf
    at: Callable[[float], AbstractContextManager[object]] | None
    clock_windows: bool = False


def admitted_in_a_race(contender: Contender) -> int:
    """Return how many requests are admitted under 50/m when 16 threads make 400 each for one subject."""
    held = contender.at(time.time()) if contender.at and contender.clock_windows else nullcontext()
    work, ip, start = contender.work(RACE), fresh_ip(), threading.Barrier(THREADS)

    def run(_: int) -> int:
        start.wait()
        return sum(work.admits(ip) for _ in range(EACH))

    with held, ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(run, range(THREADS)))


def worst_window(contender: Contender) -> int | None:
    """Return the most that is admitted within one window of 60 seconds under 10/m.

    Two bursts two seconds apart, moved over every place that a window's edge could have; with and without a lone hit
    one window earlier, which opens a window that starts with its first hit. The clock is the limiter's own, moved by
    hand and by a millisecond from hit to hit.
    """
    if contender.at is None:
        return None
    base = (time.time() // WINDOW + 1) * WINDOW
    bursts = [second + i * MILLISECOND for second in (59, 61) for i in range(BURST)]
    work = contender.work(EDGE)
    ip, worst = fresh_ip(), 0  # some place the edges of their windows by the subject: so it stays the same one
    for offset in range(0, int(WINDOW), 2):
        for pattern in (bursts, [0.0, *bursts]):
            base += 10 * WINDOW
            admitted = []
            for moment in pattern:
                with contender.at(base + offset + moment):
                    if work.admits(ip):
                        admitted.append(moment)
            worst = max(worst, *(sum(first <= at < first + WINDOW for at in admitted) for first in admitted))
    return worst
