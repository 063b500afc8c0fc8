"""How Redis takes a command: an array of bulk strings (RESP, the Redis serialization protocol)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def bulk(words: Iterable[str | int]) -> str:
    """Return words as bulk strings. They must be ASCII: the lengths count characters."""
    return "".join([f"${len(word)}\r\n{word}\r\n" for word in map(str, words)])


def pack_command(command: Sequence[str | int]) -> bytes:
    """Return a command as Redis takes it.

    redis-py packs any type in any encoding. For our texts and whole numbers this takes a third of its time.
    """
    text = bulk(command)
    if text.isascii():  # nearly always; then each character is a byte
        return b"*%d\r\n%s" % (len(command), text.encode())
    encoded = [str(word).encode() for word in command]
    return b"*%d\r\n%s" % (len(encoded), b"".join([b"$%d\r\n%s\r\n" % (len(data), data) for data in encoded]))
