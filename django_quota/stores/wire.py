"""How a command goes over a connection of redis-py, and what may come back instead of a reply. It knows no scripts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Self, overload

import redis.asyncio as aioredis
from redis.exceptions import ConnectionError as RedisConnectionError

from django_quota.exceptions import QuotaError
from django_quota.operations.base import Repeated

# redis-py up to 5.2 wants the name of the command that the connection is for; later ones warn when they get it.
_WANTS_COMMAND = inspect.signature(aioredis.ConnectionPool.get_connection).parameters["command_name"].default is (
    inspect.Parameter.empty
)
FOR_COMMAND: tuple[str, ...] = ("EVALSHA",) if _WANTS_COMMAND else ()
"""What an async pool's `get_connection` takes."""


def _without_notices() -> Mapping[str, Any]:
    option = "maint_notifications_config"
    if option not in inspect.signature(aioredis.ConnectionPool.__init__).parameters:
        return {}  # an older redis-py: there are none
    return {option: import_module("redis.maint_notifications").MaintNotificationsConfig(enabled=False)}


WITHOUT_NOTICES = _without_notices()
"""Options of an async pool that looks whether a connection is still there before it hands it out.

Where redis-py listens to notices of maintenance, as it does over TCP unless told not to, its pool does not look: then a
server that was restarted costs each idle connection a decision, for as long as some are left.
"""


class GarbledError(RedisConnectionError):
    """What came over a connection makes no sense to redis-py."""


class MisfitError(GarbledError):
    """A reply is of the kind that was asked for, and does not fit: what lies in Redis is spoilt, as a rule."""


def out_of_step(reply: object, kind: type | None = None) -> GarbledError:
    """Return the error to raise where a reply cannot be the one to what was asked, which is of this kind."""
    what = f"a list of {len(reply)}" if isinstance(reply, list) else f"of the type {type(reply).__name__}"
    made = MisfitError if kind is not None and isinstance(reply, kind) else GarbledError
    return made(f"a reply that is {what} is none to what was asked")


def paired(reply: Any) -> Any:
    """Return a mapping that came over the wire as names and values in turn; as it is where redis-py has made it one."""
    if isinstance(reply, dict):
        return reply
    if not isinstance(reply, list) or len(reply) % 2:
        raise out_of_step(reply)
    return dict(zip(reply[::2], reply[1::2], strict=True))


def is_of_caller(error: BaseException) -> bool:
    """Say whether an error goes on as it is: one of our own, or of who ends the call or the process.

    All else is a failure of the server. redis-py's parsers raise whatever they stumble over, such as a `ValueError`.
    """
    return isinstance(error, QuotaError) or not isinstance(error, Exception)


class CutAtOnceError(RedisConnectionError):
    """A connection was cut before it brought anything: whoever takes connections there has nothing behind it."""


_HAS_ANSWERED = "_django_quota_has_answered"


def note_answer(connection: Any) -> None:
    """Note that a connection has brought a reply."""
    setattr(connection, _HAS_ANSWERED, True)


def has_answered(connection: Any) -> bool:
    """Say whether a connection has brought a reply, as it is connected now."""
    return bool(getattr(connection, _HAS_ANSWERED, False))


def note_end(connection: Any) -> None:
    """Note that a connection is closed: it is a new one when it is connected again."""
    setattr(connection, _HAS_ANSWERED, False)


class Cancellation:
    """Notices that the running task was cancelled while redis-py waited, and nobody was told.

    Up to Python 3.11 `asyncio.wait_for`, by which redis-py sends, hides a cancellation that comes as it ends. A context
    manager: its block ends by `CancelledError` then, whatever it has come to.
    """

    __slots__ = ("_before", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def pass_on(self) -> None:
        """Raise `CancelledError` where the task was cancelled since."""
        if self._task is not None and self._task.cancelling() > self._before:
            raise asyncio.CancelledError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None or issubclass(kind, Exception):
            self.pass_on()


class InParts(Sequence[str | int]):
    """A command whose arguments come again in other commands, but for the keys and the moment."""

    __slots__ = ("own", "parts", "script")

    def __init__(self, script: Repeated, own: Sequence[str | int], parts: Sequence[Repeated]) -> None:
        self.script = script
        self.own = own
        self.parts = parts

    @overload
    def __getitem__(self, index: int) -> str | int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str | int]: ...

    def __getitem__(self, index: int | slice) -> str | int | Sequence[str | int]:
        return list(self)[index]

    def __iter__(self) -> Iterator[str | int]:
        yield from self.script.arguments
        yield from self.own
        for part in self.parts:
            yield from part.arguments

    def __len__(self) -> int:
        return self.script.number + len(self.own) + sum(part.number for part in self.parts)


def packed(command: Sequence[str | int]) -> bytes:
    """Return a command as the Redis protocol sends it: an array of bulk strings.

    redis-py packs any type in any encoding; our texts and whole numbers take a third of its time.
    """
    if not isinstance(command, InParts):
        return b"*%d\r\n%s" % (len(command), _bulks(command))
    script = command.script
    number, bulks = script.number + len(command.own), [script.packed or _pack(script), _bulks(command.own)]
    for part in command.parts:
        number += part.number
        bulks.append(part.packed or _pack(part))
    return b"*%d\r\n%s" % (number, b"".join(bulks))


def _pack(part: Repeated) -> bytes:
    part.packed = _bulks(part.arguments)
    return part.packed


def _bulks(arguments: Iterable[str | int]) -> bytes:
    """Return arguments as bulk strings, which begin with how many bytes they have."""
    text = "".join([f"${len(argument)}\r\n{argument}\r\n" for argument in map(str, arguments)])
    if text.isascii():  # and so nearly always: there, each character is a byte
        return text.encode()
    encoded = [str(argument).encode() for argument in arguments]
    return b"".join([b"$%d\r\n%s\r\n" % (len(data), data) for data in encoded])
