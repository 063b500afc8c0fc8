"""The wire of a thread to Redis: redis-py opens the connection, and commands and replies go over its socket directly.

redis-py takes three times as long for a command and its reply. On a plain socket the kernel keeps the time-outs: with
those of Python, each send and each read asks the system first.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from typing import Any

from redis import RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.stores.redis.errors import imitated
from django_quota.stores.redis.reply_reader import NOT_ENOUGH, PUSHED, reply_reader

SIZE = 16_384
"""Bytes that one read takes at most: nearly all replies are smaller."""


class Wire:
    """An open connection. One thread uses it at a time.

    `used`: when it was used last, in seconds of the monotonic clock.
    `closings`: how often its pool was closed before it was opened.
    """

    __slots__ = ("_has_more", "_poll", "_reader", "_socket", "closings", "connection", "used")

    def __init__(self, connection: Any, closings: int = 0) -> None:
        self.connection = connection
        self.closings = closings
        self.used = 0.0
        # Only here are private names of redis-py used: it has no other way to lend the socket that it has opened.
        self._socket: Any = connection._sock  # noqa: SLF001
        if not hasattr(self._socket, "recv"):
            raise imitated("The connections of this alias have no sockets.")
        self._reader = reply_reader(connection._parser.parse_error)  # noqa: SLF001
        self._has_more = False
        """Whether the reader has bytes that nobody has asked for yet."""
        self._poll = _poll_of(self._socket)

    def is_ready(self) -> bool:
        """Say whether it is open, and has sent nothing that nobody asked for."""
        if self._has_more:
            return False
        if self._poll is not None:
            return not self._poll.poll(0)
        try:
            return not self.connection.can_read()
        except (RedisError, OSError):
            return False

    def send(self, commands: bytes) -> None:
        """Send commands. Raises redis-py's errors, and those of the socket."""
        try:
            self._socket.sendall(commands)
        except (BlockingIOError, TimeoutError):
            raise RedisTimeoutError("Timeout writing to socket") from None

    def read(self) -> Any:
        """Return the next reply. Raises redis-py's errors, also for an error reply, and those of the socket."""
        reader = self._reader
        if not self._has_more:
            data = self._received()
            if data[:1] == b"$":  # as most replies: one string, which has arrived whole
                head, _, rest = data.partition(b"\r\n")
                length = head[1:]
                if length.isdigit() and rest.endswith(b"\r\n") and len(rest) == int(length) + len(b"\r\n"):
                    return rest[:-2]
            reader.feed(data)
        reply = reader.gets()
        while reply is NOT_ENOUGH or isinstance(reply, PUSHED):
            if reply is NOT_ENOUGH:
                reader.feed(self._received())
            reply = reader.gets()
        self._has_more = reader.has_data()
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def _received(self) -> bytes:
        """Return bytes that have arrived. Those that arrive as the time-out ends are not late."""
        try:
            data: bytes = self._socket.recv(SIZE)
        except (BlockingIOError, TimeoutError):
            if self.is_ready():
                raise RedisTimeoutError("Timeout reading from socket") from None
            data = self._socket.recv(SIZE)
        if not data:
            raise RedisConnectionError("Connection closed by server.")
        return data

    def close(self) -> None:
        """Close it."""
        self.connection.disconnect()


def _poll_of(sock: Any) -> Any:
    """Let the kernel keep the time-outs of a socket, and return what asks whether bytes have arrived.

    None for a socket that is encrypted or of another library, such as gevent: Python keeps its time-outs.
    """
    if type(sock) is not socket.socket or socket.socket.__module__ != "socket" or os.name != "posix":
        return None
    seconds = sock.gettimeout()
    sock.settimeout(None)
    if seconds is not None:
        whole = int(seconds)
        span = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll
