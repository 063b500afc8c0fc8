"""What a store runs: an operation is one script and, beside it, its executable specification. Pure.

The Redis store sends the script; the memory store runs the specification. A state machine in the tests holds both to
the same replies. An operation must not know rules, requests or connections.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
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


def lua_source(name: str) -> str:
    """Return the text of `lua/<name>.lua`."""
    return files("django_quota").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def script(*names: str) -> Script:
    """Return the script that the files `lua/<name>.lua` are, one behind the other: each may use what is before it."""
    return Script.of("".join(map(lua_source, names)))


class States(Protocol):
    """Where a specification finds what lies under the keys of its operation. Values are never changed in place."""

    def get(self, key: str, now: int | None = None, /) -> Any:
        """Return the value of a key; None where there is none, or where it has expired by `now` (microseconds)."""
        ...

    def put(self, key: str, value: Any, expiry: int, /) -> None:
        """Keep a value until it expires (microseconds)."""
        ...

    def expiry(self, key: str, /) -> int:
        """Return when a key expires (microseconds); 0 where there is none."""
        ...

    def drop(self, key: str, /) -> bool:
        """Forget a key; say whether there was anything."""
        ...

    def wake(self, token: str, /) -> None:
        """Wake the one who waits under a token, once the operation is done."""
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
        """Forget a key; see `States.drop`."""
        return self.kept.pop(key, None) is not None

    def wake(self, token: str) -> None:
        """Note whom to wake; see `States.wake`."""
        self.woken += (token,)


class Repeated:
    """Arguments that come again in other operations, side by side: so a store packs them but once."""

    __slots__ = ("arguments", "number", "packed")

    def __init__(self, *arguments: str | int) -> None:
        self.arguments = arguments
        self.number = len(arguments)
        self.packed = b""
        """As the store sends them; empty until it has first."""


class Operation(ABC):
    """One thing that a store is asked to do, at once and undivided.

    Its script's first argument is always the time in microseconds, or '' for Redis' own clock; `arguments` are those
    behind it. Where the caller passes the time in (a test), keys live an hour longer than their content: Redis' own
    clock, by which they expire, is another one then.
    """

    script: ClassVar[Script]
    replies: type = list
    """What the script's reply is: a list, or a whole number."""
    keys: Sequence[str]
    """Every key that it touches."""

    @abstractmethod
    def arguments(self) -> Sequence[str | int]:
        """Return the arguments of the script, behind the time."""

    def parts(self) -> Sequence[Repeated]:
        """Return the same arguments in parts, where those come again; else nothing."""
        return ()

    def fits(self, reply: Any) -> bool:
        """Say whether a reply can be the one to this: who reads it need not mind then what a server may say."""
        return isinstance(reply, self.replies)

    def has_written(self, reply: Any) -> bool:  # noqa: ARG002 — of others
        """Say whether a reply shows that the store takes writes; False where it does not tell."""
        return False

    @abstractmethod
    def run(self, states: States, now: int) -> Any:
        """Do it over these states at `now` (microseconds), and return what the script would reply."""


def text(value: str | bytes) -> str:
    """Return a text of a reply, which the client may have left as bytes."""
    return value.decode() if isinstance(value, bytes) else value
