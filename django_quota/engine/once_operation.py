"""Deduplication: whether a value comes for the first time within a span. See `lua/once.lua`."""

from __future__ import annotations

from typing import Any, ClassVar

from django_quota.engine.operations import Operation, Script, States, script


class Once(Operation):
    """Remember a value under its key for `span` microseconds; the reply is 1 the first time, else 0."""

    script: ClassVar[Script] = script("clock", "once")

    def __init__(self, key: str, span: int) -> None:
        super().__init__([key], span)
        self.span = span

    def has_written(self, reply: Any) -> bool:
        """Say whether it was remembered."""
        return bool(reply)

    def run(self, states: States, now: int) -> int:
        """Look for it, and remember it."""
        if states.get(self.keys[0], now) is not None:
            return 0
        states.put(self.keys[0], now + self.span, now + self.span)
        return 1
