"""The wire of a thread to Redis: redis-py opens the connection, and commands and replies go over its socket directly.

redis-py takes three times as long for a command and its reply. A plain socket never blocks: a poll object that is kept
waits for the reply. With a time-out of Python, each send and each read would ask the system once more; one of the
kernel begins anew with every signal, so that a timer of the process could make a call wait for ever.
"""

from __future__ import annotations

import math
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from redis import RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.stores.redis.errors import imitated

hiredis: Any = None
with suppress(ImportError):
    hiredis = import_module("hiredis")

NOT_ENOUGH = object()
"""In place of a reply that has not arrived whole."""

ParseError = Callable[[str], Exception]
"""Returns the error of redis-py for an error reply."""


class Pushed(list[Any]):
    """What a server sends without being asked."""


class PlainReader:
    """Reads replies in Python, with the methods of hiredis' reader: all kinds that our commands get.

    Raises `InvalidResponse` for bytes that are not a reply.
    """

    def __init__(self, parse_error: ParseError) -> None:
        self._parse_error = parse_error
        self._data = b""
        self._at = 0
        """Where the next reply begins."""

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def gets(self) -> Any:
        """Return the next reply; `NOT_ENOUGH` if it has not arrived whole."""
        try:
            reply, self._at = self._read(self._at)
        except EOFError:
            return NOT_ENOUGH
        except ValueError:
            raise InvalidResponse("these bytes are not a reply") from None
        return reply

    def has_data(self) -> bool:
        """Say whether bytes are left that no reply has used."""
        return self._at < len(self._data)

    def _read(self, at: int) -> tuple[Any, int]:
        """Return the reply at a place, and where it ends. Raises `EOFError` if it has not arrived whole."""
        end = self._data.find(b"\r\n", at)
        if end < 0:
            if at < len(self._data) and self._data[at] not in b"+-:$*_#,%~>":
                raise ValueError
            raise EOFError
        kind, head, at = self._data[at : at + 1], self._data[at + 1 : end], end + 2
        if kind == b"$":
            return self._bulk(int(head), at)
        if kind in (b"*", b"~", b">", b"%"):
            return self._several(kind, int(head), at)
        return self._line(kind, head), at

    def _line(self, kind: bytes, head: bytes) -> Any:
        if kind == b"+":
            return head
        if kind == b"-":
            return self._parse_error(head.decode(errors="replace"))
        if kind == b":":
            return int(head)
        if kind == b"_":
            return None
        if kind == b"#":
            return head == b"t"
        if kind == b",":
            return float(head)
        raise ValueError

    def _bulk(self, length: int, at: int) -> tuple[Any, int]:
        if length < 0:
            return None, at
        end = at + length
        if len(self._data) < end + 2:
            raise EOFError
        if self._data[end : end + 2] != b"\r\n":
            raise ValueError
        return self._data[at:end], end + 2

    def _several(self, kind: bytes, length: int, at: int) -> tuple[Any, int]:
        if length < 0:
            return None, at
        found: list[Any] = []
        for _ in range(2 * length if kind == b"%" else length):
            each, at = self._read(at)
            found.append(each)
        if kind == b">":
            return Pushed(found), at
        return (dict(zip(found[::2], found[1::2], strict=True)) if kind == b"%" else found), at


PUSHED: tuple[type[Any], ...] = (Pushed, getattr(hiredis, "PushNotification", Pushed))
"""The types of what nobody asked for."""


def reply_reader(parse_error: ParseError) -> Any:
    """Return a reader of replies. Strings are bytes; an error reply is returned as an error."""
    if hiredis is None:
        return PlainReader(parse_error)
    return hiredis.Reader(replyError=parse_error, protocolError=InvalidResponse, notEnoughData=NOT_ENOUGH)


# --- the wire ---------------------------------------------------------------------------------------------------------


SIZE = 16_384
"""Bytes that one read takes at most: nearly all replies are smaller."""

MAX_POLL = 2**31 - 1
"""Milliseconds that the system can wait at most."""


class Wire:
    """An open connection. One thread uses it at a time.

    `used`: when it was used last, in seconds of the monotonic clock.
    """

    __slots__ = ("_arrived", "_has_more", "_reader", "_socket", "_timeout", "connection", "used")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.used = 0.0
        # redis-py has no public way to lend the socket that it has opened.
        self._socket: Any = connection._sock  # noqa: SLF001
        if not hasattr(self._socket, "recv"):
            raise imitated("The connections of this alias have no sockets.")
        self._reader = reply_reader(connection._parser.parse_error)  # noqa: SLF001
        self._has_more = False
        """Whether the reader has bytes that nobody has asked for yet."""
        self._arrived, self._timeout = _waiting_of(self._socket)

    def is_ready(self) -> bool:
        """Say whether it is open, and has sent nothing that nobody asked for."""
        return not (self._has_more or self._arrived(0))

    def send(self, commands: bytes) -> None:
        """Send commands. Raises redis-py's errors."""
        try:
            if self._timeout is None:
                self._socket.sendall(commands)
            elif (sent := self._socket.send(commands)) < len(commands):
                self._send_rest(commands[sent:], self._timeout / 1_000)
        except TimeoutError:
            raise RedisTimeoutError("Timeout writing to socket") from None
        except OSError as error:
            raise RedisConnectionError(f"Error while writing to socket: {error}") from error

    def _send_rest(self, rest: bytes, seconds: float) -> None:
        """Send what did not fit into the buffers of the system."""
        self._socket.settimeout(seconds)
        self._socket.sendall(rest)
        self._socket.setblocking(False)

    def read(self) -> Any:
        """Return the next reply. Raises redis-py's errors, also for an error reply."""
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
            if self._timeout is not None and not self._arrived(self._timeout):
                raise TimeoutError  # noqa: TRY301
            try:
                data: bytes = self._socket.recv(SIZE)
            except TimeoutError:
                if not self._arrived(0):
                    raise
                data = self._socket.recv(SIZE)  # gevent may end the wait before it looks at the socket
        except TimeoutError:
            raise RedisTimeoutError("Timeout reading from socket") from None
        except OSError as error:
            raise RedisConnectionError(f"Error while reading from socket: {error}") from error
        if not data:
            raise RedisConnectionError("Connection closed by server.")
        return data

    def close(self) -> None:
        """Close it."""
        self.connection.disconnect()


def _waiting_of(sock: Any) -> tuple[Callable[[int], Any], int | None]:
    """Return a function that waits until a socket has bytes or has ended, and how long to wait for a reply.

    The function takes the longest wait in milliseconds, and says whether the socket has bytes or has ended. A plain
    socket no longer blocks: the second value is its time-out in milliseconds. None: the socket is encrypted, or of
    another library such as gevent, and keeps its own time-out. Then the function does not wait.
    """
    is_plain = type(sock) is socket.socket and socket.socket.__module__ == "socket" and hasattr(select, "poll")
    if not is_plain:
        return partial(_arrived_at, sock), None
    timeout = min(math.ceil(sock.gettimeout() * 1_000), MAX_POLL)
    sock.setblocking(False)
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return poll.poll, timeout


def _arrived_at(sock: Any, _: int) -> bool:
    """Say whether bytes have arrived at any socket by now. What TLS has decrypted has left the system."""
    if hasattr(sock, "pending") and sock.pending():
        return True
    if not hasattr(select, "poll"):  # on Windows, and where eventlet has taken it away
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()  # a new one: gevent's belongs to one thread
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
