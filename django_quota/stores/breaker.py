"""A circuit breaker: who does not answer is not asked again for a while. It knows no Redis; the clock is passed in.

Source: the pattern of that name in Michael Nygard's "Release It!". Closed: everybody asks. Open, after some failures in
a row: nobody does. Once the pause is over one caller asks again, and nobody else until that one knows; the answer
decides for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

from django_quota.forks import begins_anew_in_children

FAILURES = 3
"""Failures in a row after which it opens: a single one may be a connection that was closed while idle."""

PAUSE = 1.0
"""Seconds that it stays open before one caller asks again."""

LONGEST_TRY = 5.0
"""Seconds after which the one who asks counts as lost, and it is another one's turn."""

FREELY = 0
"""The turn of everybody while it is closed."""


_held: ContextVar[frozenset[int]] = ContextVar("django_quota_turns", default=frozenset())
"""The turns of the blocks that the running thread or task is in."""


@contextmanager
def holding(turn: int) -> Iterator[None]:
    """Let calls within a block belong to its turn: they would wait for an answer that the block is there to get."""
    before = _held.get()
    _held.set(before if turn == FREELY else before | {turn})
    try:
        yield
    finally:
        _held.set(before)  # and no token: a block may be left in another context


class Breaker:
    """One for a store, shared by all threads and event loops of a process.

    A caller takes a turn by `ask`, and ends it by `succeeded`, `failed` or, where it has not found out, `left`. Calls
    within a block that is `holding` a turn have it, too, until the first of them ends it.
    `failures`: in a row, at least 1; `pause`: seconds; `clock`: returns seconds that never go back.
    """

    __slots__ = (
        "__weakref__", "_clock", "_failed", "_guard", "_lost_at", "_next_try", "_pause", "_threshold", "_trying"
    )  # fmt: skip

    def __init__(
        self, failures: int = FAILURES, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = failures
        self._pause = pause
        self._clock = clock
        self._failed = 0
        self._next_try = 0.0
        self._lost_at = 0.0
        self._begin()
        begins_anew_in_children(self)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._trying = FREELY
        """The turn of the one who asks while it is open; `FREELY` where nobody does."""

    @property
    def is_open(self) -> bool:
        """Whether nobody asks at the moment, but for the one whose turn it is."""
        return self._failed >= self._threshold

    def ask(self) -> int | None:
        """Return a turn, which the caller must end; None where it must not ask: while open, all but one a pause."""
        if self._failed < self._threshold:
            return FREELY
        with self._guard:
            if self._failed < self._threshold:  # it has closed meanwhile: a turn would be ended by nobody
                return FREELY
            now = self._clock()
            if self._trying in _held.get():
                return self._trying
            if now < self._next_try or (self._trying and now < self._lost_at):
                return None
            self._trying = next(_turns)
            self._lost_at = now + LONGEST_TRY
            return self._trying

    def is_shut(self) -> bool:
        """Say whether a caller that came now would be turned away; takes nobody's turn."""
        if self._failed < self._threshold:
            return False
        if self._trying in _held.get():
            return False
        now = self._clock()
        return now < self._next_try or (bool(self._trying) and now < self._lost_at)

    def succeeded(self) -> None:
        """End a turn by an answer, whoever's: it closes."""
        if self._failed:
            with self._guard:
                self._failed = 0
                self._trying = FREELY

    def failed(self, turn: int = FREELY) -> None:
        """End a turn in which there was no answer."""
        with self._guard:
            self._end(turn)
            self._failed += 1
            if self._failed >= self._threshold:
                self._next_try = self._clock() + self._pause

    def left(self, turn: int) -> None:
        """End a turn that has shown nothing: its caller was cancelled, say. Somebody else may take the next at once."""
        if turn != FREELY:
            with self._guard:
                self._end(turn)

    def _end(self, turn: int) -> None:
        if turn == self._trying:  # and not of one that counts as lost
            self._trying = FREELY

    def forget_parent(self) -> None:
        """Go on in a forked process: who asked, or held the lock, is not in it."""
        self._begin()


_turns = count(1)
