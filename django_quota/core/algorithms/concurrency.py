"""How many may hold a slot at once, as Decisions show it. `features/slots/operations.py` decides.

This is not an `Algorithm`: a slot is free again when its holder releases it, not when a window ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class AtOnce:
    """A number of holders at once; the limit of a slot has this in place of a `Rate`."""

    count: int
    window: ClassVar[str] = "at-once"

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self) -> str:
        """Return the limit as people say it: `"10 at once"`."""
        return f"{self.count:,} at once"


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many may hold a slot at once; it has the public attributes of a `Limit`."""

    rule: str
    """The name of the slot."""
    capacity: int
    """The largest number of holders."""
    algorithm_name: ClassVar[str] = "concurrency"
    unit: ClassVar[str] = "concurrent-requests"
    window: ClassVar[None] = None

    @property
    def rate(self) -> AtOnce:
        """The limit, where other limits have a rate."""
        return AtOnce(self.capacity)
