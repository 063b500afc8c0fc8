"""Operations of overrides: publish those of a subject, and raise the marker that shows what was published.

A marker holds the number of the latest publication, its generation. It is raised after each publication. So a Redis
that shows a generation has everything that was published up to it, and one that lost memory shows an older number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django_quota.core.clock import DAY, SECOND
from django_quota.engine.operations import Operation, RedisOperation, Script, States, keep, script

OVERRIDE_TTL = 30 * DAY
"""How long an override without an end is kept, in microseconds, unless it is published again before."""

AFTER_END = 60 * SECOND
"""How long an override is kept after its end, in microseconds."""

FIELD = "o:"
"""What the fields of overrides begin with."""


class PublishOverrides(Operation):
    """Replace all overrides of a subject. The reply is how many of them have not ended.

    `overrides`: values by field. All are sent at once, so a second publication changes nothing.
    """

    script: ClassVar[Script] = script("clock", "publish_overrides")

    def __init__(self, key: str, overrides: Mapping[str, str]) -> None:
        super().__init__([key], OVERRIDE_TTL, *(word for pair in overrides.items() for word in pair))
        self.overrides = overrides

    def run(self, states: States, now: int) -> int:
        """Replace them."""
        key = self.keys[0]
        others = {field: value for field, value in (states.get(key) or {}).items() if not field.startswith(FIELD)}
        ends = {field: int(value.split(" ")[2]) for field, value in self.overrides.items()}
        live = {field: stop for field, stop in ends.items() if stop == 0 or stop > now}
        fields = others | {field: self.overrides[field] for field in live}
        expiries = [now + OVERRIDE_TTL if stop == 0 else stop + AFTER_END for stop in live.values()]
        keep(states, key, fields, max(expiries, default=0))
        return len(live)


class RaiseGeneration(RedisOperation):
    """Raise a marker. The reply is its new generation, or 0 if it shows none or one below `least`.

    `wanted`: the generation to raise it to; 0: the next one.
    """

    script: ClassVar[Script] = script("clock", "raise_generation")

    def __init__(self, marker: str, least: int, wanted: int = 0) -> None:
        super().__init__([marker], least, wanted)


class CompletePublication(RedisOperation):
    """Let a marker show that all overrides are published. The reply is its generation, or 0 if some were lost.

    `count`: the key that counts what this server received; `expected`: what that count must be; `ttl`: how long the
    marker is kept (microseconds).
    """

    script: ClassVar[Script] = script("clock", "complete_publication")

    def __init__(self, marker: str, count: str, expected: int, generation: int, ttl: int) -> None:
        super().__init__([marker, count], expected, generation, ttl)
