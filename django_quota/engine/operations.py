"""What a store runs: an operation is one Lua script, with an executable specification.

The Redis store sends the script; every other store runs the specification. A state machine in the tests compares their
replies.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

from django_quota.core.clock import SECOND


class Script:
    """A Lua script, and the digest by which Redis calls it. Both are made when the script first runs."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    @classmethod
    def of(cls, text: str) -> Script:
        """Return the script with this source."""
        return cls(lambda: text)

    @cached_property
    def text(self) -> str:
        """The source. It first refuses a server that is too old."""
        return lua_source("server_version") + self._read()

    @cached_property
    def sha(self) -> str:
        """The SHA-1 of the source, by which Redis identifies scripts."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def by_digest(self) -> bytes:
        """The words of the command that call the script by its digest, encoded."""
        return packed(("EVALSHA", self.sha))


_PACKAGE = Path(__file__).parents[1]


@cache
def _sources() -> dict[str, str]:
    """Return the source of each Lua file by its path. All are read at once, so that all are of one version."""
    found = {path.relative_to(_PACKAGE).with_suffix(""): path for path in _PACKAGE.rglob("*.lua")}
    return {name.as_posix(): path.read_text(encoding="utf-8") for name, path in found.items()}


def lua_source(name: str) -> str:
    """Return the source of `engine/lua/<name>.lua`; a name with a slash is a path below the package.

    A line `-- %% include <name> %%` in it stands for another source.
    """
    source = _sources()[name if "/" in name else f"engine/lua/{name}"]
    return re.sub(r" *-- %% include (\w+) %%\n", lambda found: lua_source(found[1]), source)


def script(*names: str) -> Script:
    """Return the script made of Lua files, in order: each may use what an earlier one defines; see `lua_source`."""
    return Script(lambda: "".join(map(lua_source, names)))


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
        """Drop a key; return whether it existed."""
        ...


class DictStates:
    """States in a dict, for replays and tests."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Any, int]] = {}
        """The value and the expiry of each key."""

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


def keep(states: States, key: str, value: Any, stop: int) -> None:
    """Keep a collection at least until a moment (microseconds); drop an empty one."""
    if value:
        states.put(key, value, max(states.expiry(key), stop))
    else:
        states.drop(key)


SENT_TTL = 3_600 * SECOND
"""How long the store remembers the number of a process' last message, in microseconds."""


def is_repeated(states: States, key: str, number: int) -> bool:
    """Return whether a message with this number has been counted; see `engine/lua/repeated.lua`."""
    return bool((states.get(key) or 0) >= number)


def note_counted(states: States, key: str, number: int, until: int) -> None:
    """Remember until then (microseconds) that the message with this number has been counted."""
    states.put(key, number, until)


def fields_of(states: States, key: str) -> Mapping[str, str]:
    """Return the fields of a hash; empty if there is no such key."""
    return states.get(key) or {}


def set_field(states: States, key: str, name: str, value: str, stop: int) -> None:
    """Set a field of a hash, and keep the hash at least until a moment (microseconds)."""
    keep(states, key, {**fields_of(states, key), name: value}, stop)


def drop_field(states: States, key: str, name: str) -> bool:
    """Drop a field of a hash; return whether it existed."""
    fields = dict(fields_of(states, key))
    if fields.pop(name, None) is None:
        return False
    keep(states, key, fields, 0)
    return True


class Operation(ABC):
    """One atomic call to a store.

    The first argument of its script is always the time in microseconds, or '' for Redis' own clock; `arguments` follow
    it. Tests pass the time in. Keys then live an hour longer than their content, because Redis expires them by its own
    clock.
    """

    script: ClassVar[Script]
    keys: Sequence[str]
    """All keys that the operation uses."""
    is_reading: ClassVar[bool] = False
    """Whether the operation never writes. Then the database store reads without a lock."""
    gives_back: ClassVar[bool] = False
    """Whether others wait for what it gives back. If so, it waits longer for its turn in a busy process."""

    is_slow: ClassVar[bool] = False
    """Whether it may read or return so much that it would delay the hits of other tasks."""

    def __init__(self, keys: Sequence[str], *arguments: Any) -> None:
        self.keys = keys
        self._arguments = arguments

    def arguments(self) -> Sequence[Any]:
        """Return the arguments that the head of its script lists, after the time."""
        return self._arguments

    def words(self, now: int | None) -> list[str | int]:
        """Return the words of the command after the script. `now`: microseconds; None: Redis' own clock."""
        keys, moment = self.keys, "" if now is None else now
        return [len(keys), *keys, moment, *self.arguments()]

    def command(self, now: int | None) -> bytes:
        """Return the command that calls the script by its digest, as bytes for the connection."""
        return self._packed(self.script.by_digest, now)

    def in_full(self, now: int | None) -> bytes:
        """Return the command with the whole script, for a server that does not know the digest."""
        return self._packed(packed(("EVAL", self.script.text)), now)

    def _packed(self, script: bytes, now: int | None) -> bytes:
        """Return a command. `script`: its first two words, EVALSHA or EVAL and what to run, encoded."""
        words = self.words(now)
        return b"*%d\r\n%s%s" % (2 + len(words), script, packed(words))

    def read_reply(self, reply: Any) -> Any:
        """Convert the script's reply into the reply of the specification."""
        return reply

    def has_written(self, reply: Any) -> bool:  # noqa: ARG002 — other operations read it
        """Return whether a reply shows that the store accepts writes; False if it is unknown."""
        return False

    @abstractmethod
    def run(self, states: States, now: int) -> Any:
        """Run the specification over these states at `now` (microseconds), and return the reply of the script."""

    def log_keys(self) -> Sequence[str]:
        """Return the keys of the event log, some of which may be in `keys`. `States` have no values for them."""
        return ()

    def run_with_events(self, states: States, now: int) -> tuple[Any, Sequence[Any]]:
        """Run the specification; return the reply and the events (`EventRecord`) that the caller writes to the log."""
        return self.run(states, now), ()


class RedisOperation(Operation):
    """An operation that runs in Redis only: no other store needs it."""

    def run(self, states: States, now: int) -> Any:
        """Raise `NotImplementedError`: the specification is in the tests."""
        raise NotImplementedError(f"{type(self).__name__} runs in Redis only")


def text(value: str | bytes) -> str:
    """Return a string in a reply, which may be bytes. Bytes of another program that are not UTF-8 are escaped."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


# --- a command, as it goes over the wire ------------------------------------------------------------------------------
#
# That is an array of words, each with its length before it. Source: the Redis serialization protocol, version 2. A
# decision's command is joined from bytes that a compiled rule already holds, so most words are encoded once for a rule,
# not once for a hit.


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
