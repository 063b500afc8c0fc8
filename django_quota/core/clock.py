"""Times are integer microseconds since 1970, and the clock of the store decides (Redis `TIME`).

This module lets a test replace that clock, and turns microseconds into words.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
"""Microseconds in a second."""

DAY = 86_400 * SECOND

MAX_GUESSES = 5
"""How often a caller that must know the day guesses the store's clock; each reply tells it."""

_frozen: ContextVar[int | None] = ContextVar("django_quota_frozen_time", default=None)
_frozen_for_all: int | None = None


def frozen_now() -> int | None:
    """Return the time that a test has set, in microseconds; None if the store's clock decides."""
    now = _frozen.get()
    return _frozen_for_all if now is None else now


def machine_now() -> int:
    """Return the time of this machine in microseconds."""
    return time.time_ns() // 1_000


def now() -> int:
    """Return the time in microseconds since 1970; in tests the time that they have set."""
    frozen = frozen_now()
    return machine_now() if frozen is None else frozen


def freeze_for_all(now: int | datetime | None) -> None:
    """Set the clock of all threads and tasks of this process; None gives it back to the store. `freeze` goes first."""
    global _frozen_for_all  # noqa: PLW0603 — a live server in another thread sees it too
    _frozen_for_all = None if now is None else _microseconds(now)


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

    It is rounded up to whole seconds, and above an hour to the second of two units, so it is never too short.
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
