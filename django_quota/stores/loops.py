"""An event loop that was held up: a time-out that ends meanwhile says nothing of the server.

A view that computes, or asks the database, for longer than Redis has to answer keeps its loop from looking at the
sockets. Then all time-outs of the loop end at once, beside replies that came long ago. It knows no scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import TimeoutError as RedisTimeoutError

Result = TypeVar("Result")

LOOK_AGAIN = 0.01
"""Seconds for a last look at a socket whose time is over: a loop may end its time-outs before it looks."""

EVERY = 0.05
"""Seconds between two beats of a loop, while it is watched."""

LATE = 0.05
"""Seconds by which a beat must come late for its loop to have been held up."""


_LATE_ERRORS = (TimeoutError, RedisTimeoutError, MasterNotFoundError)
"""What a late loop may end in: no sentinel names a primary where none has answered in time."""


async def reply_on(connection: Any) -> Any:
    """Read a reply from an async connection: also one that has come by the time the loop gets to it.

    Who calls it disconnects where it raises anything but a `ResponseError`.
    """
    try:
        return await connection.read_response(disconnect_on_error=False)
    except RedisTimeoutError as error:
        try:
            async with asyncio.timeout(LOOK_AGAIN):
                return await connection.read_response(disconnect_on_error=False)
        except TimeoutError:
            raise error from None


async def unless_held_up(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Do what may fail by a time-out; once more where the loop was held up meanwhile. It must do no harm twice."""
    with Beat() as beat:
        try:
            return await attempt()
        except _LATE_ERRORS:
            if not beat.was_late():
                raise
    return await attempt()


class Beat:
    """Watches the running loop while its block lasts: something small is due again and again."""

    __slots__ = ("_due", "_handle", "_is_late", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_late = False

    def was_late(self) -> bool:
        """Say whether a beat came late, or is late now."""
        return self._is_late or self._loop.time() - self._due >= LATE

    def _beat(self) -> None:
        self._is_late = self.was_late()
        self._due = self._loop.time() + EVERY
        self._handle = self._loop.call_at(self._due, self._beat)

    def __enter__(self) -> Self:
        self._due = self._loop.time() + EVERY
        self._handle = self._loop.call_at(self._due, self._beat)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()
