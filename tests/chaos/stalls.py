"""How late a process comes to look at the clock: what a busy machine takes from it. It must not know Django or Redis.

A time-out says that an answer came late, not why. Where a process that asks for nothing was held up at the same time,
it was the machine; the server may have been held up likewise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.records import Stall

EVERY = 0.01
"""Seconds between two looks."""
LEAST = 0.01
"""What a process is later than that on a quiet machine, too, is noted."""


@contextmanager
def measured(into: list[Stall]) -> Iterator[None]:
    """Note the stalls of this process while the block lasts."""
    over = threading.Event()
    meter = threading.Thread(target=_look, args=(into, over), daemon=True)
    meter.start()
    try:
        yield
    finally:
        over.set()
        meter.join()


def _look(into: list[Stall], over: threading.Event) -> None:
    due = time.monotonic() + EVERY
    while not over.wait(max(0.0, due - time.monotonic())):
        now = time.monotonic()
        if now - due >= LEAST:
            into.append(Stall(now, now - due))
        due = now + EVERY
