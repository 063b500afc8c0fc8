"""Listening to Redis, for wake-ups and for what comes some time: over connections that decisions do not need.

It raises redis-py's errors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from django_quota.operations.base import text
from django_quota.stores.connections import AsyncClients, SyncConnections
from django_quota.stores.wire import Cancellation, out_of_step, packed

OVERDUE = 2.0
"""Seconds behind the end of its wait after which a command has not been answered at all."""

CHANNEL = "django_quota:wake:"
"""The channel of a process, whose name stands behind it; `lua/lease_common.lua` publishes there."""

PROBE_EVERY = 1.0
"""Seconds after which a subscription asks whether it is still heard."""


class Subscription:
    """Hears the wake-ups of one process, over a connection of its own.

    It subscribes again now and then: where the reply does not come, the server is gone without a word.
    """

    def __init__(self, connections: SyncConnections, process: str) -> None:
        self._connections = connections
        self._command = packed(("SUBSCRIBE", f"{CHANNEL}{process}"))
        self._connection: Any = connections.take()
        self._asked_at: float | None = None
        try:
            self._ask()
            self.hear(OVERDUE)
            if self._asked_at is not None:
                raise _not_answered()  # noqa: TRY301 — the connection is of no use any more
        except BaseException:
            self.close()
            raise

    def hear(self, seconds: float) -> list[str]:
        """Wait up to so many seconds for wake-ups; return the tokens that are woken."""
        if time.monotonic() >= self._probe_at:
            self._ask()
        tokens: list[str] = []
        while self._connection.can_read(timeout=seconds):
            reply = self._connection.read_response(push_request=True)
            match reply:
                case ["subscribe" | b"subscribe", _, _]:
                    self._asked_at = None
                case ["message" | b"message", _, token]:
                    tokens.append(text(token))
                case _:
                    raise out_of_step(reply)
            seconds = 0
        return tokens

    def _ask(self) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            self._connection.send_packed_command((self._command,))
        elif now - self._asked_at >= OVERDUE:
            raise _not_answered()
        self._probe_at = now + PROBE_EVERY

    def close(self) -> None:
        """Hear no more."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.drop(connection)


def _not_answered() -> RedisConnectionError:
    return RedisConnectionError(f"a subscription was not answered within {OVERDUE:g} s")


class Listener:
    """Connections to listen by."""

    def __init__(self, connections: SyncConnections, clients: AsyncClients) -> None:
        self._connections = connections
        self._clients = clients

    def subscribe(self, process: str) -> Subscription:
        """Return what hears the wake-ups of a process."""
        return Subscription(self._connections, process)

    async def acall(self, command: Sequence[str | int], seconds: float) -> Any:
        """Send a command that may wait so many seconds, and return its reply as it comes over the wire."""
        client = await self._clients.get()
        pool: Any = client.client.connection_pool
        with Cancellation() as cancellation:
            async with asyncio.timeout(seconds + OVERDUE), client.slots:
                connection = await client.take()
                try:
                    await connection.send_packed_command((packed(command),))
                    cancellation.pass_on()
                    return await connection.read_response(timeout=seconds + OVERDUE)
                except BaseException:
                    await connection.disconnect(nowait=True)  # its reply may still be under way
                    raise
                finally:
                    await pool.release(connection)

    def close(self) -> None:
        """Close idle connections; an event loop closes its own."""
        self._connections.close()
