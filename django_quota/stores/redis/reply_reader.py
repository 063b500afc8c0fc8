"""Reads replies of Redis as their bytes arrive: by hiredis, or in Python."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from redis.exceptions import InvalidResponse

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

    Raises `InvalidResponse` for what is no reply.
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
            raise InvalidResponse("this is no reply") from None
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
    """Return a reader of replies: text is bytes, and an error reply is an error that is returned."""
    if hiredis is None:
        return PlainReader(parse_error)
    return hiredis.Reader(replyError=parse_error, protocolError=InvalidResponse, notEnoughData=NOT_ENOUGH)
