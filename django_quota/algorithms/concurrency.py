"""The limit of how many hold a slot at once, as Decisions show it. Pure; deciding it is `operations.leases`' own.

It is no `Algorithm`: what is held is given back by its holder, and no window says when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple


@dataclass(frozen=True, slots=True)
class AtOnce:
    """So many at once: what stands where other limits have their `Rate`."""

    count: int
    window: ClassVar[str] = "at-once"

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self) -> str:
        """Return it as people say it: `"10 at once"`."""
        return f"{self.count} at once"


class _Kind(NamedTuple):
    name: str


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many may hold a slot at once; it has what `Limit` shows to others."""

    rule: str
    """The name of the slot."""
    capacity: int
    """How many."""
    algorithm: ClassVar[_Kind] = _Kind("concurrency")
    unit: ClassVar[str] = "concurrent-requests"
    window: ClassVar[None] = None

    @property
    def rate(self) -> AtOnce:
        """What stands for a rate."""
        return AtOnce(self.capacity)
