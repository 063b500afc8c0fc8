"""Waiting in Redis, mostly at a bell: blocking commands, over connections that decisions do not need.

It raises redis-py's errors.

There are as many of these connections as the alias may have of the others; where all are in use, the span passes
without a ring, and whoever waits looks for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from django_quota.stores.connections import AllInUseError, AsyncClients, SyncConnections
from django_quota.stores.wire import Cancellation, packed

COARSE = 0.1
"""Seconds by which Redis may end a blocking command too late: an idle server looks ten times a second."""

_LONG = 1.0
"""Seconds from which on a span may end early rather than cost a connection."""

OVERDUE = 2.0
"""Seconds behind the end of its wait after which a command has not been answered at all."""


class Listener:
    """Waits at bells, each a list of one entry while it sounds."""

    def __init__(self, connections: SyncConnections, clients: AsyncClients) -> None:
        self._connections = connections
        self._clients = clients

    def listen(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        deadline = time.monotonic() + seconds
        try:
            connection = self._connections.take(seconds)
        except AllInUseError:
            return False
        try:
            left = deadline - time.monotonic()
            connection.send_packed_command((_blocking_pop(bell, left),))
            if not connection.can_read(timeout=max(0.0, left)):
                self._connections.drop(connection)  # its reply is still under way
                return False
            reply = connection.read_response()
        except BaseException:
            self._connections.drop(connection)
            raise
        self._connections.give_back(connection)
        return reply is not None

    async def alisten(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        client = await self._clients.get()
        pool: Any = client.client.connection_pool
        deadline = time.monotonic() + seconds
        with Cancellation() as cancellation:
            try:
                async with asyncio.timeout(seconds), client.slots:
                    connection = await client.take()
                    try:
                        await connection.send_packed_command((_blocking_pop(bell, deadline - time.monotonic()),))
                        cancellation.pass_on()
                        # Longer than the block around it lasts: without a number the socket's own time-out would hold.
                        return await connection.read_response(timeout=seconds + 1) is not None
                    except BaseException:
                        await connection.disconnect(nowait=True)  # its reply may still be under way
                        raise
                    finally:
                        await pool.release(connection)
            except TimeoutError:
                return False

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


def _blocking_pop(bell: str, seconds: float) -> bytes:
    # A long span ends by the server's reply, so that the connection lasts; a short one on time, by hanging up.
    served = seconds - COARSE if seconds > _LONG - COARSE else seconds + COARSE
    return packed(("BLPOP", bell, f"{max(served, 0.001):.3f}"))
