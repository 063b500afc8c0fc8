"""Forgetting: all that rules have counted for subjects is dropped, and bans are lifted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from django_quota.operations.base import Operation, Script, States, script
from django_quota.operations.decide import Log
from django_quota.operations.hits import Hit
from django_quota.operations.standing import drop_field

FIELDS = "bdew"
"""The fields of how a subject stands that are dropped, the ban first; an override stays."""


class Place(NamedTuple):
    """What a rule has counted for a subject, and where."""

    field: str
    """The rule's name as fields of hashes have it."""
    standing: str
    """The key of how the subject stands."""
    states: Sequence[str]
    """The keys of all states."""

    @classmethod
    def of(cls, hit: Hit) -> Place:
        """Return where a hit counts, but for the day."""
        states = [step.key for step in hit.steps]
        return cls(hit.field, hit.standing, [*states, *(key for key in (hit.tally, hit.holds) if key)])


class Forget(Operation):
    """Drop what lies in these places; the reply is how many states and bans there were."""

    script: ClassVar[Script] = script("forget")
    replies: type = int

    def __init__(self, places: Sequence[Place], log: Log | None = None) -> None:
        self.places = places
        self.log = log
        self.keys = [key for place in places for key in (place.standing, *place.states)]
        if log is not None:
            self.keys.append(log.keys[1])

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/forget.lua` lists them."""
        arguments: list[str | int] = []
        for place in self.places:
            arguments += (place.field, len(place.states))
        return arguments

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — what has expired is dropped like the rest
        """Drop them."""
        dropped = 0
        for field, standing, keys in self.places:
            dropped += sum(states.drop(key) for key in keys)
            was_there = [drop_field(states, standing, f"{kind}:{field}") for kind in FIELDS]
            dropped += was_there[0]
        return dropped
