"""Forgetting: all that some hits have counted is dropped, and their bans are lifted. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from django_quota.operations.base import Operation, Script, States, script
from django_quota.operations.decide import Log
from django_quota.operations.hits import Hit
from django_quota.operations.standing import drop_field

FIELDS = "bdew"
"""The fields of how a subject stands that are dropped, the ban first; an override stays."""


class Forget(Operation):
    """Drop what the limits of these hits hold; the reply is how many states and bans there were."""

    script: ClassVar[Script] = script("forget")

    def __init__(self, hits: Sequence[Hit], log: Log | None = None) -> None:
        self.hits = hits
        self.log = log
        self.keys = [key for hit in hits for key in _keys(hit)] + ([] if log is None else [log.keys[1]])

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/forget.lua` lists them."""
        arguments: list[str | int] = []
        for hit in self.hits:
            arguments += (hit.field, len(_keys(hit)) - 1)
        return arguments

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — what has expired is dropped like the rest
        """Drop them."""
        dropped = 0
        for hit in self.hits:
            dropped += sum(states.drop(key) for key in _keys(hit)[1:])
            was_there = [drop_field(states, hit, f"{kind}:{hit.field}") for kind in FIELDS]
            dropped += was_there[0]
        return dropped


def _keys(hit: Hit) -> list[str]:
    return [key for key in hit.keys if hit.day is None or key != hit.day.key]
