"""A circuit breaker: who does not answer is not asked again for a while. It knows no Redis; the clock is passed in.

Source: the pattern of that name in Michael Nygard's "Release It!". Closed: everybody asks. Open, after some failures in
a row: nobody does. Once the pause is over one caller asks again, and the answer decides for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAILURES = 3
"""Failures in a row after which it opens: a single one may be a connection that was closed while idle."""

PAUSE = 1.0
"""Seconds that it stays open before one caller asks again."""


class Breaker:
    """One for a store, shared by all threads and event loops of a process.

    `failures`: in a row, at least 1; `pause`: seconds; `clock`: returns seconds that never go back.
    """

    __slots__ = ("_clock", "_failed", "_guard", "_next_try", "_pause", "_threshold")

    def __init__(
        self, failures: int = FAILURES, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = failures
        self._pause = pause
        self._clock = clock
        self._failed = 0
        self._next_try = 0.0
        self._guard = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether nobody asks at the moment, but for the one whose turn it is."""
        return self._failed >= self._threshold

    def lets_through(self) -> bool:
        """Say whether this caller may ask; where it is open, that is one caller a pause."""
        if self._failed < self._threshold:
            return True
        with self._guard:
            now = self._clock()
            if now < self._next_try:
                return False
            self._next_try = now + self._pause  # should the answer never come, somebody else's turn is then
            return True

    def is_shut(self) -> bool:
        """Say whether a caller that came now would be turned away; takes nobody's turn."""
        return self._failed >= self._threshold and self._clock() < self._next_try

    def succeeded(self) -> None:
        """Note an answer."""
        if self._failed:
            with self._guard:
                self._failed = 0

    def failed(self) -> None:
        """Note that there was none."""
        with self._guard:
            self._failed += 1
            if self._failed >= self._threshold:
                self._next_try = self._clock() + self._pause
