"""Forgetting: the states under some keys are dropped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from django_quota.operations.base import Operation, Script, States, script


class Forget(Operation):
    """Drop what lies under these keys; the reply is how many there were."""

    script: ClassVar[Script] = script("forget")

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys

    def arguments(self) -> list[str | int]:
        """Return none: the keys say it all."""
        return []

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — what has expired is dropped like the rest
        """Drop them."""
        return sum(states.drop(key) for key in self.keys)
