"""Who is right: what each limiter admits when requests race and in the worst window, and what it keeps."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from tests.benchmarks.measure import Contender, Server, bytes_a_subject, fresh_ip
from tests.benchmarks.report import EACH, EDGE_RATE, MEMORY_RATES, RACE_RATE, REFUSED_HITS, THREADS, hits_of

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 60.0
BURST = 20
MILLISECOND = 0.001


def admitted_in_a_race(contender: Contender) -> int:
    """Return how many requests are admitted under 50/m when 16 threads make 400 each for one subject."""
    with contextlib.ExitStack() as stack:
        if contender.clock_windows:
            # Else the race could run over an edge, which is the other measurement.
            stack.enter_context(contender.at(time.time()))
        return sum(_race(contender.check(RACE_RATE), fresh_ip()))


def _race(hit: Callable[[str], bool], ip: str) -> list[int]:
    admitted: list[int] = []
    start = threading.Barrier(THREADS)

    def run() -> None:
        start.wait()
        admitted.append(sum(hit(ip) for _ in range(EACH)))

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(admitted) != THREADS:
        raise RuntimeError("a thread of the race failed")
    return admitted


def worst_window(contender: Contender) -> int:
    """Return the most that is admitted within one window of 60 seconds under 10/m.

    Two bursts two seconds apart, moved over every place that a window's edge could have; with and without a
    lone hit one window earlier, which is what opens a window that starts with its first hit. The clock is the
    limiter's own, moved by hand and by a millisecond from hit to hit.
    """
    base = (time.time() // WINDOW + 1) * WINDOW
    bursts = [59 + i * MILLISECOND for i in range(BURST)] + [61 + i * MILLISECOND for i in range(BURST)]
    hit = contender.check(EDGE_RATE)
    worst = 0
    for offset in range(0, int(WINDOW), 2):
        for pattern in (bursts, [0.0, *bursts]):
            ip = fresh_ip()
            times = [base + offset + moment for moment in pattern]
            worst = max(worst, _most_in_a_window([at for at in times if _hit_at(contender, hit, ip, at)]))
    return worst


def _hit_at(contender: Contender, hit: Callable[[str], bool], ip: str, seconds: float) -> bool:
    with contender.at(seconds):
        return hit(ip)


def _most_in_a_window(admitted: list[float]) -> int:
    return max((sum(first <= at < first + WINDOW for at in admitted) for first in admitted), default=0)


def memory_by_rate(contender: Contender, server: Server) -> list[int]:
    """Return the bytes that a subject takes once the limit is full, for each rate that it can be filled to."""

    def full(rate: str) -> int:
        return bytes_a_subject(lambda ip: contender.fill(rate, ip), server)

    return [full(rate) for rate in MEMORY_RATES if hits_of(rate) <= contender.fills_up_to]


def memory_after_refusals(contender: Contender, server: Server) -> int:
    """Return the bytes that a subject takes under 100/m after 100 admitted hits and 900 more."""
    hit = contender.check("100/m")

    def insist(ip: str) -> None:
        for _ in range(hits_of("100/m") + REFUSED_HITS):
            hit(ip)

    return bytes_a_subject(insist, server)
