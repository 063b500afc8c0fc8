"""How a command goes over a connection of redis-py. It knows neither scripts nor errors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import redis.asyncio as aioredis

# redis-py up to 5.2 wants the name of the command that the connection is for; later ones warn when they get it.
_WANTS_COMMAND = inspect.signature(aioredis.ConnectionPool.get_connection).parameters["command_name"].default is (
    inspect.Parameter.empty
)
FOR_COMMAND: tuple[str, ...] = ("EVALSHA",) if _WANTS_COMMAND else ()
"""What an async pool's `get_connection` takes."""


def packed(command: Sequence[str | int]) -> bytes:
    """Return a command as the Redis protocol sends it: an array of bulk strings.

    redis-py packs any type in any encoding; our texts and whole numbers take a third of its time.
    """
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        data = argument.encode() if isinstance(argument, str) else b"%d" % argument
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)
