"""Shapes of replies: whether what came over a wire can be what a script replies. Pure.

A server may say anything. What does not fit is no answer, so nobody who reads a reply has to mind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

LEAST, MOST = -(2**63), 2**63 - 1
"""The bounds of a whole number of Redis."""

LATEST = 2**53
"""Microseconds that no time of Redis has reached: up to here Lua counts them one by one."""

Shape = Callable[[Any], bool]
"""Says whether a part of a reply fits."""


def whole(part: object) -> bool:
    """Say whether it is a whole number."""
    return type(part) is int and LEAST <= part <= MOST


def moment(part: object) -> bool:
    """Say whether it is a time in microseconds."""
    return type(part) is int and 0 <= part < LATEST


def words(part: object) -> bool:
    """Say whether it is a text."""
    if isinstance(part, bytes):
        try:
            part.decode()
        except UnicodeDecodeError:
            return False
        return True
    return isinstance(part, str)


def digits(part: object) -> bool:
    """Say whether it is a whole number, or a text that is one."""
    try:
        return whole(int(part) if isinstance(part, (str, bytes)) else part)
    except ValueError:
        return False


def score(part: object) -> bool:
    """Say whether it is the score of a sorted set, as a text or a number."""
    try:
        return isinstance(part, (str, bytes, int, float)) and math.isfinite(float(part))
    except (ValueError, OverflowError):
        return False


def are_whole(parts: list[Any]) -> bool:
    """Say whether all of these, one at least, are whole numbers: as `whole` does, in a fraction of the time."""
    return {*map(type, parts)} == _WHOLE and min(parts) >= LEAST and max(parts) <= MOST


_WHOLE = {int}


def is_row(reply: object, *shapes: Shape) -> bool:
    """Say whether a reply is a list of these parts, one each."""
    return isinstance(reply, list) and len(reply) == len(shapes) and _fit(reply, shapes)


def is_rows(parts: object, *shapes: Shape) -> bool:
    """Say whether parts are any number of rows, one behind the other; without a shape, none."""
    if not isinstance(parts, list) or not shapes:
        return parts == []
    return len(parts) % len(shapes) == 0 and _fit(parts, shapes * (len(parts) // len(shapes)))


def _fit(parts: Iterable[Any], shapes: Iterable[Shape]) -> bool:
    return all(shape(part) for part, shape in zip(parts, shapes, strict=True))
