"""Commands in the form in which they go over the wire to Redis: an array of words, each with its length before it.

Source: the Redis serialization protocol, version 2. A decision's command is joined from bytes that a compiled rule
already holds, so most words are encoded once for a rule, not once for a hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Word = str | int


def packed(words: Iterable[Word]) -> bytes:
    """Return words, encoded as a part of a command."""
    return b"".join([_packed(str(word).encode()) for word in words])


def _packed(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


def command(words: Sequence[Word]) -> bytes:
    """Return a whole command, encoded."""
    return b"*%d\r\n%s" % (len(words), packed(words))


def key_parts(length: int, ends: Iterable[str]) -> list[bytes]:
    """Return the parts around a beginning that keys share: `beginning.join(parts)` is the keys, encoded as words.

    `length`: of the beginning, in bytes. `ends`: what follows it in each key.
    """
    parts, last = [], b""
    for end in ends:
        encoded = end.encode()
        parts.append(b"%s$%d\r\n" % (last, length + len(encoded)))
        last = encoded + b"\r\n"
    return [*parts, last]
