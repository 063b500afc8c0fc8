"""The generation of the overrides, which a marker in Redis shows: a later one with each publication. Pure.

A marker is raised behind what was published. So a Redis that shows a generation holds all that was published up to it,
and one that has lost a part of its memory shows an older one. `lua/raise_generation.lua` and `lua/finish_marking.lua`
are the twins.
"""

from __future__ import annotations

from typing import ClassVar

from django_quota.operations.base import Operation, Script, States, script


class Raise(Operation):
    """Raise a marker; the reply is the generation that it shows then, 0 where it shows none, or one below `least`."""

    script: ClassVar[Script] = script("clock", "raise_generation")
    replies: type = int

    def __init__(self, marker: str, least: int, wanted: int = 0) -> None:
        self.keys = [marker]
        self.least = least
        self.wanted = wanted
        """The generation to raise it to; 0: the next one."""

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/raise_generation.lua` lists them."""
        return [self.least, self.wanted]

    def run(self, states: States, now: int) -> int:
        """Raise it."""
        (marker,) = self.keys
        shown = states.get(marker, now) or 0
        if shown < max(1, self.least):
            return 0
        raised = max(shown, self.wanted or shown + 1)
        states.put(marker, raised, states.expiry(marker))
        return int(raised)


class FinishMarking(Operation):
    """Let a marker show that all overrides were published; the reply is its generation, 0 where some were lost."""

    script: ClassVar[Script] = script("clock", "finish_marking")
    replies: type = int

    def __init__(self, marker: str, count: str, told: int, generation: int, lasts: int) -> None:
        self.keys = [marker, count]
        self.told = told
        """What the count must be."""
        self.generation = generation
        self.lasts = lasts

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/finish_marking.lua` lists them."""
        return [self.told, self.generation, self.lasts]

    def run(self, states: States, now: int) -> int:
        """Finish it."""
        marker, count = self.keys
        if states.get(count, now) != self.told:
            return 0
        shown = max(states.get(marker, now) or 0, self.generation)
        states.put(marker, shown, now + self.lasts)
        states.drop(count)
        return int(shown)
