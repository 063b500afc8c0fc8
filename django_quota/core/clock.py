"""Times are integer microseconds since 1970, and the clock of the store decides (Redis `TIME`).

This module lets a test replace that clock, and turns microseconds into words.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from types import BuiltinFunctionType

SECOND = 1_000_000
"""Microseconds in a second."""

DAY = 86_400 * SECOND

MAX_GUESSES = 5
"""How many times a caller guesses the store's day before it gives up; each reply contains the store's time."""

elapsed: Callable[[], float] = partial(time.monotonic)
"""Returns seconds that never go back, to measure waits. In tests, freezegun stops `time.monotonic`, but not this."""

_frozen: ContextVar[int | None] = ContextVar("django_quota_frozen_time", default=None)
_clock_for_all: Callable[[], int | None] | None = None


def frozen_now() -> int | None:
    """Return the time that a test has set, in microseconds; None if the store's clock decides."""
    now = _frozen.get()
    if now is None and _clock_for_all is not None:
        return _clock_for_all()
    return now


def machine_now() -> int:
    """Return the time of this machine in microseconds."""
    return time.time_ns() // 1_000


def now() -> int:
    """Return the time in microseconds since 1970; in a test, the time that the test has set."""
    frozen = frozen_now()
    return machine_now() if frozen is None else frozen


_steady_clock: Callable[[], int] = time.monotonic_ns
"""In nanoseconds. Linux has a clock that goes on while the machine sleeps."""
if hasattr(time, "CLOCK_BOOTTIME"):
    _steady_clock = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)


def steady_now() -> int:
    """Return microseconds that never go back, and that pass while the machine sleeps; in tests the time of `freeze`."""
    frozen = frozen_now()
    return _steady_clock() // 1_000 if frozen is None else frozen


def use_clock(clock: Callable[[], int | None] | None) -> Callable[[], int | None] | None:
    """Set the clock of all threads and tasks of this process; return the previous one. `freeze` takes precedence.

    `clock`: returns microseconds since 1970. If it is None, or returns None, the store's clock decides.
    """
    global _clock_for_all
    before, _clock_for_all = _clock_for_all, clock
    return before


def moved_now() -> int | None:
    """Return the time that freezegun or time-machine has set, in microseconds; None if neither has.

    freezegun replaces Python's function by its own, which is not a built-in. time-machine changes the built-in itself.
    """
    time_machine = sys.modules.get("time_machine")
    is_travelling = time_machine is not None and time_machine.escape_hatch.is_travelling()
    return machine_now() if is_travelling or not isinstance(time.time_ns, BuiltinFunctionType) else None


class MovableClock:
    """The clock of a test: it stands still, or follows the store's, until freezegun or time-machine move it.

    While one of them sets the time, this clock follows. If the test sets this clock meanwhile, the clock goes on from
    there. When neither sets the time any more, this clock has its earlier time again.
    """

    def __init__(self, now: int | None = None) -> None:
        self._still = now
        """The time while nothing else moves it; None: the store's time."""
        self._ahead = 0
        """How far this clock is ahead of the time that freezegun or time-machine has set."""

    def __call__(self) -> int | None:
        """Return the time in microseconds; None if the store's clock decides."""
        moved = moved_now()
        if moved is None:
            self._ahead = 0
            return self._still
        return moved + self._ahead

    def set(self, now: int | datetime) -> None:
        """Set the time; see `freeze`."""
        given, moved = _microseconds(now), moved_now()
        if moved is None:
            self._still = given
        else:
            self._ahead = given - moved


@contextmanager
def freeze(now: int | datetime) -> Iterator[None]:
    """Set the clock to `now` in the block; other threads and tasks keep theirs.

    `now`: a datetime with a time zone, or whole microseconds since 1970. Raises `ValueError` for a datetime without a
    time zone and for a number that looks like seconds or milliseconds, and `TypeError` for any other type.
    """
    token = _frozen.set(_microseconds(now))
    try:
        yield
    finally:
        _frozen.reset(token)


def time_alone() -> Context:
    """Return a context with the time that `freeze` has set, and with no other variable of the current context."""
    context = Context()
    context.run(_frozen.set, _frozen.get())
    return context


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds_of(moment: datetime) -> int:
    """Return a datetime with a time zone as microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(microseconds: int) -> datetime:
    """Return microseconds since 1970 as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


_PLAUSIBLE = range(946_684_800 * SECOND, 4_102_444_800 * SECOND)
"""The years 2000 to 2099: a number of seconds or milliseconds in them is a mistake, not a time in January 1970."""


def _microseconds(now: object) -> int:
    if isinstance(now, datetime):
        if now.utcoffset() is None:
            raise ValueError(f"freeze({now!r}) has no time zone. Use, for example, datetime(2026, 1, 31, tzinfo=UTC).")
        return microseconds_of(now)
    if isinstance(now, int) and not isinstance(now, bool):
        for unit, factor in (("seconds", SECOND), ("milliseconds", 1000)):
            if _PLAUSIBLE.start <= now * factor < _PLAUSIBLE.stop:
                raise ValueError(f"freeze({now}) takes microseconds, and this looks like {unit}. Use {now * factor}.")
        return now
    raise TypeError(f"freeze({now!r}) takes a datetime with a time zone, or whole microseconds since 1970.")


_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def in_words(microseconds: float) -> str:
    """Return a duration in words: `"1 minute"`, `"2 hours 5 minutes"`, `"1 second"`.

    The duration is rounded up to whole seconds, and above an hour to the smaller of the two units, so it is never too
    short.
    """
    seconds = -int(-microseconds // SECOND)
    first = next((index for index, (_, size) in enumerate(_UNITS) if seconds >= size), None)
    if first is None:
        return "now"
    finest = _UNITS[min(first + 1, len(_UNITS) - 1)][1]
    seconds = -(-seconds // finest) * finest
    parts = []
    for name, size in _UNITS:
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number} {name}{'s' if number > 1 else ''}")
    return " ".join(parts)
