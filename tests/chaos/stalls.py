"""Stalls: how long a process was ready to run, and a busy machine did not let it.

A timeout says that an answer came late, not why. If the worker or the server did not run meanwhile, the machine is the
reason. A worker measures that with its own clock. For a server Linux counts it; elsewhere no timeout is excused by it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.records import Stall

EVERY = 0.01
"""Seconds between two looks."""
LEAST = 0.01
"""What a process is later than that on a quiet machine, too, is noted."""


@contextmanager
def measured(into: list[Stall]) -> Iterator[None]:
    """Note the stalls of this process while the block lasts."""

    def look(late: float) -> None:
        if late >= LEAST:
            into.append(Stall(time.monotonic(), late))

    with _over_and_over(look):
        yield


@contextmanager
def measured_of(pids: Callable[[], Iterable[int]], into: dict[int, list[Stall]]) -> Iterator[None]:
    """Note the stalls of other processes while the block lasts, by their ids: those that there are at the moment."""
    before: dict[int, int] = {}

    def look(_: float) -> None:
        for pid in pids():
            waited = _waited(pid)
            if waited is not None:
                late = (waited - before.get(pid, waited)) / 1e9
                before[pid] = waited
                if late >= LEAST:
                    into.setdefault(pid, []).append(Stall(time.monotonic(), late))

    with _over_and_over(look):
        yield


def _waited(pid: int) -> int | None:
    """Return how many nanoseconds a process was ready to run and had no turn; None where nobody tells."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return None


@contextmanager
def _over_and_over(look: Callable[[float], None]) -> Iterator[None]:
    """Look at the clock while the block lasts; report by how much each look is late."""
    over = threading.Event()

    def go() -> None:
        due = time.monotonic() + EVERY
        while not over.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            look(now - due)
            due = now + EVERY

    meter = threading.Thread(target=go, daemon=True)
    meter.start()
    try:
        yield
    finally:
        over.set()
        meter.join()
