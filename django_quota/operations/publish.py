"""Publishing: the overrides of a subject, as its decisions read them, become these and no others. Pure.

It says all of them at once, so that doing it twice, or after a part of it was lost, comes to the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django_quota.clock import SECOND
from django_quota.operations.base import Operation, Script, States, script

DAY = 86_400 * SECOND

OVERRIDE_TTL = 30 * DAY
"""How long an override without an end is kept, in microseconds, unless it is published again before."""

AFTER_END = 60 * SECOND
"""How long an override is kept behind its end, in microseconds."""

FIELD = "o:"
"""What the fields of overrides begin with."""


class Publish(Operation):
    """Make the overrides under a key these, by field; the reply is how many there are that have not ended."""

    script: ClassVar[Script] = script("clock", "publish")
    replies: type = int

    def __init__(self, key: str, overrides: Mapping[str, str]) -> None:
        self.keys = [key]
        self.overrides = overrides

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/publish.lua` lists them."""
        arguments: list[str | int] = [OVERRIDE_TTL]
        for field, value in self.overrides.items():
            arguments += (field, value)
        return arguments

    def run(self, states: States, now: int) -> int:
        """Publish them."""
        key = self.keys[0]
        others = {field: value for field, value in (states.get(key) or {}).items() if not field.startswith(FIELD)}
        ends = {field: int(value.split(" ")[2]) for field, value in self.overrides.items()}
        live = {field: stop for field, stop in ends.items() if stop == 0 or stop > now}
        fields = others | {field: self.overrides[field] for field in live}
        if fields:
            kept_until = [now + OVERRIDE_TTL if stop == 0 else stop + AFTER_END for stop in live.values()]
            states.put(key, fields, max(states.expiry(key), *kept_until) if kept_until else states.expiry(key))
        else:
            states.drop(key)
        return len(live)
