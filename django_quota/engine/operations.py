"""What a store runs: an operation is one Lua script and, beside it, its executable specification.

The Redis store sends the script; the memory store runs the specification. A state machine in the tests compares their
replies.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest by which Redis calls it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        """Return the script of this text."""
        # Redis itself names scripts by their SHA-1.
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_LUA = Path(__file__).with_name("lua")


def lua_source(name: str) -> str:
    """Return the text of `lua/<name>.lua`."""
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


def script(*names: str) -> Script:
    """Return the script made of the files `lua/<name>.lua`, in order: each may use what an earlier one defines."""
    return Script.of("".join(map(lua_source, names)))


class States(Protocol):
    """The values under the keys of an operation, for its specification. A value is never changed in place."""

    def get(self, key: str, now: int | None = None, /) -> Any:
        """Return the value of a key; None if there is none, or if it has expired by `now` (microseconds)."""
        ...

    def put(self, key: str, value: Any, expiry: int, /) -> None:
        """Keep a value until it expires (microseconds)."""
        ...

    def expiry(self, key: str, /) -> int:
        """Return when a key expires (microseconds); 0 if there is no such key."""
        ...

    def drop(self, key: str, /) -> bool:
        """Drop a key; say whether it existed."""
        ...

    def wake(self, token: str, /) -> None:
        """Wake the waiter of a token when the operation is done."""
        ...


class DictStates:
    """States in a dict: what the memory store's shards and the tests use."""

    __slots__ = ("kept", "woken")

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Any, int]] = {}
        """The value and the expiry of each key."""
        self.woken: tuple[str, ...] = ()
        """The tokens that were woken."""

    def get(self, key: str, now: int | None = None) -> Any:
        """Return the value of a key; see `States.get`."""
        value, expiry = self.kept.get(key, (None, 0))
        return None if now is not None and expiry <= now else value

    def put(self, key: str, value: Any, expiry: int) -> None:
        """Keep a value; see `States.put`."""
        self.kept[key] = (value, expiry)

    def expiry(self, key: str) -> int:
        """Return when a key expires; see `States.expiry`."""
        return self.kept.get(key, (None, 0))[1]

    def drop(self, key: str) -> bool:
        """Drop a key; see `States.drop`."""
        return self.kept.pop(key, None) is not None

    def wake(self, token: str) -> None:
        """Note which token to wake; see `States.wake`."""
        self.woken += (token,)


def keep(states: States, key: str, value: Any, stop: int) -> None:
    """Keep a collection until a moment at least (microseconds); an empty one does not exist."""
    if value:
        states.put(key, value, max(states.expiry(key), stop))
    else:
        states.drop(key)


class Operation(ABC):
    """One atomic call to a store.

    The first argument of its script is always the time in microseconds, or '' for Redis' own clock; `arguments` follow
    it. Tests pass the time in. Then keys live an hour longer than their content, since they expire by Redis' own clock.
    """

    script: ClassVar[Script]
    keys: Sequence[str]
    """All keys that it uses."""

    def __init__(self, keys: Sequence[str], *arguments: str | int) -> None:
        self.keys = keys
        self._arguments = arguments

    def arguments(self) -> Sequence[str | int]:
        """Return the arguments that the head of its script lists, after the time."""
        return self._arguments

    def command(self, now: int | None) -> list[str | int]:
        """Return the command that runs its script. `now`: microseconds; None: Redis' own clock."""
        keys, moment = self.keys, "" if now is None else now
        return ["EVALSHA", self.script.sha, len(keys), *keys, moment, *self.arguments()]

    def in_full(self, now: int | None) -> list[str | int]:
        """Return a command that brings the script along: a loaded script may be forgotten at once."""
        return ["EVAL", self.script.text, *self.command(now)[2:]]

    def evalsha(self, now: int | None) -> bytes:
        """Return the command as Redis takes it."""
        return pack_command(self.command(now))

    def read_reply(self, reply: Any) -> Any:
        """Return the reply of the specification from that of the script."""
        return reply

    def has_written(self, reply: Any) -> bool:  # noqa: ARG002 — of others
        """Say whether a reply shows that the store takes writes; False if it does not say so."""
        return False

    @abstractmethod
    def run(self, states: States, now: int) -> Any:
        """Run the specification over these states at `now` (microseconds), and return the reply of the script."""


class RedisOperation(Operation):
    """An operation that runs in Redis only: no other store needs it."""

    def run(self, states: States, now: int) -> Any:
        """Raise: there is no specification outside the tests."""
        raise NotImplementedError(f"{type(self).__name__} runs in Redis only")


def text(value: str | bytes) -> str:
    """Return a text of a reply, which may still be bytes. Another program may have written bytes that are not UTF-8."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


# --- how Redis takes a command: an array of bulk strings (RESP, the Redis serialization protocol) ---------------------


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
