"""Time as the package counts it: integer microseconds since 1970. Pure.

The clock that decides is the store's own (Redis `TIME`). This module only lets a test put another one in its place, and
turns microseconds into what people read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
"""Microseconds in a second."""

_frozen: ContextVar[int | None] = ContextVar("django_quota_frozen_time", default=None)


def frozen_now() -> int | None:
    """Return the moment that a test has put in the place of the store's clock, in microseconds, or None."""
    return _frozen.get()


@contextmanager
def freeze(now: int | datetime) -> Iterator[None]:
    """Set the clock to `now` within the block; other threads and tasks keep theirs.

    `now`: a datetime with a time zone, or whole microseconds since 1970. Raises `ValueError` for a datetime without a
    time zone, and `TypeError` for anything else.
    """
    token = _frozen.set(_microseconds(now))
    try:
        yield
    finally:
        _frozen.reset(token)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(now: object) -> int:
    if isinstance(now, datetime):
        if now.utcoffset() is None:
            raise ValueError(f"freeze({now!r}) has no time zone. Use, for example, datetime(2026, 1, 31, tzinfo=UTC).")
        return (now - _EPOCH) // timedelta(microseconds=1)
    if isinstance(now, int) and not isinstance(now, bool):
        return now
    raise TypeError(f"freeze({now!r}) takes a datetime with a time zone, or whole microseconds since 1970.")


_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def in_words(microseconds: float) -> str:
    """Return a span as people say it, never shorter than it is: `"1 minute"`, `"2 hours 5 minutes"`, `"1 second"`.

    It is rounded up to the second, or, above an hour, to the second unit that is named.
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
