"""Errands: what is asked or told of Redis in a trip that is made anyway. They must not know the decision beside them.

A call to Redis costs mostly the way there and back. So what is due once a second goes along with whatever call comes
next, in front of it: no trip of its own, and no thread. An errand that fails never fails the call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError

from django_quota.stores.loops import reply_on
from django_quota.stores.wire import packed

logger = logging.getLogger("django_quota")

EVERY = 1.0
"""Seconds between two trips that errands go along with."""


class Errand(Protocol):
    """Something to ask or tell: `question` comes first, then `answered` or `lost`, then `tell`, outside the trip."""

    def question(self) -> Sequence[str | int] | None:
        """Return the command to send; None where there is nothing to do now."""
        ...

    def answered(self, reply: Any) -> None:
        """Take the answer, which may be a `ResponseError`; what follows from it waits for `tell`."""
        ...

    def lost(self) -> None:
        """Note that no answer came: whether Redis has done it is not known."""
        ...

    def tell(self) -> None:
        """Do what follows from the answer. It raises nothing."""
        ...


class Taken:
    """An errand under way."""

    __slots__ = ("_errand", "_is_answered", "wire")

    def __init__(self, errand: Errand, command: Sequence[str | int]) -> None:
        self._errand = errand
        self._is_answered = False
        self.wire = packed(command)

    def answered(self, reply: Any) -> None:
        """Pass the answer on."""
        self._is_answered = True
        self._errand.answered(reply)

    def over(self) -> None:
        """End it, whether or not the answer came."""
        if not self._is_answered:
            self._errand.lost()
        self._errand.tell()


def along(taken: Sequence[Taken], wire: bytes) -> bytes:
    """Return commands, as they go over the wire, with errands in front of them."""
    return b"".join([*(errand.wire for errand in taken), wire]) if taken else wire


def hear(taken: Sequence[Taken], connection: Any) -> None:
    """Read the answers to errands, which come before those to the commands."""
    for errand in taken:
        errand.answered(answer_on(connection))


async def ahear(taken: Sequence[Taken], connection: Any) -> None:
    """Read the answers to errands from an async connection; see `hear`."""
    for errand in taken:
        errand.answered(await aanswer_on(connection))


def answer_on(connection: Any) -> Any:
    """Read a reply; an error reply is an answer too, and is returned."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


async def aanswer_on(connection: Any) -> Any:
    """Read a reply from an async connection; see `answer_on`."""
    try:
        return await reply_on(connection)
    except ResponseError as error:
        return error


class Errands:
    """The errands of a store, and when they are due again."""

    def __init__(self, errands: Sequence[Errand], clock: Callable[[], float] = time.monotonic) -> None:
        self._errands = errands
        self._clock = clock
        self._again = 0.0

    def hurry(self) -> None:
        """Let them all go with the next trip."""
        self._again = 0.0

    def due(self) -> Sequence[Taken]:
        """Return those to take along now: mostly none."""
        now = self._clock()
        if now < self._again:
            return ()
        self._again = now + EVERY
        asked = [(errand, errand.question()) for errand in self._errands]
        return [Taken(errand, command) for errand, command in asked if command is not None]


_SERVES_NOTHING = frozenset({"ClusterDownError", "MovedError", "AskError", "TryAgainError"})
"""Answers of a server that says nothing about a key: it, or the key's slot, is out of order or on the move."""


class Watch:
    """A key that is there while something is not due: an errand that looks for it. A Redis without memory has none.

    `key` returns its name, empty where there is nothing to watch; `due` is called where the key is not there.
    """

    def __init__(self, key: Callable[[], str], due: Callable[[], None]) -> None:
        self._key = key
        self._due = due
        self._is_due = False
        self._is_refused = False

    def question(self) -> tuple[str, str] | None:
        """Return the command that looks for the key."""
        key = self._key()
        return ("EXISTS", key) if key else None

    def answered(self, reply: Any) -> None:
        """Take the answer; what follows from it waits for `tell`."""
        if type(reply).__name__ in _SERVES_NOTHING:
            return  # which is told of as an outage; it is asked again
        if isinstance(reply, ResponseError):
            if not self._is_refused:
                logger.error("Redis does not say whether it has kept the overrides: %s", reply)
            self._is_refused = True
        else:
            self._is_refused = False
            self._is_due = not reply

    def lost(self) -> None:
        """Nothing is known; it is asked again."""

    def tell(self) -> None:
        """Call `due` where the answer was that the key is not there. What goes wrong there is nobody's request's."""
        if self._is_due:
            self._is_due = False
            try:
                self._due()
            except Exception:
                logger.exception("Nobody can look whether Redis holds the overrides.")
