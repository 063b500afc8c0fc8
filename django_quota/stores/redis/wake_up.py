"""The wake-up channel of a process, over a connection of its own. It raises redis-py's errors."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from django_quota.engine.operations import pack_command, text
from django_quota.stores.redis.connections import SyncConnections
from django_quota.stores.redis.errors import GarbledError

OVERDUE = 2.0
"""Seconds after which a subscription is no longer answered."""

CHANNEL = "django_quota:wake:"
"""The channel of a process is this and the name of the process; `lua/lease_common.lua` publishes there."""

PROBE_INTERVAL = 1.0
"""Seconds between two checks that the channel still works."""


class WakeUpChannel:
    """The wake-up channel of one process, over its own connection.

    It subscribes again now and then. If no reply comes, the server is gone.
    """

    def __init__(self, connections: SyncConnections, process: str) -> None:
        self._connections = connections
        self._command = pack_command(("SUBSCRIBE", f"{CHANNEL}{process}"))
        self._connection: Any = connections.take()
        self._asked_at: float | None = None
        try:
            self._subscribe()
            self.wait(OVERDUE)
            if self._asked_at is not None:
                raise _not_answered()  # noqa: TRY301 — the connection must be closed
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> list[str]:
        """Wait for wake-ups; return the tokens to wake."""
        if time.monotonic() >= self._probe_at:
            self._subscribe()
        tokens: list[str] = []
        while self._connection.can_read(timeout=seconds):
            reply = self._connection.read_response(push_request=True)
            match reply:
                case ["subscribe" | b"subscribe", _, _]:
                    self._asked_at = None
                case ["message" | b"message", _, token]:
                    tokens.append(text(token))
                case _:
                    raise GarbledError("a reply to SUBSCRIBE is neither a subscription nor a message")
            seconds = 0
        return tokens

    def _subscribe(self) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._connection.send_packed_command((self._command,))
        elif now - self._asked_at >= OVERDUE:
            raise _not_answered()
        self._probe_at = now + PROBE_INTERVAL

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.drop(connection)


def _not_answered() -> RedisConnectionError:
    return RedisConnectionError(f"a subscription was not answered within {OVERDUE:g} s")
