"""What a process has counted is added to what all have, once, however often it is sent. Pure; `lua/tally.lua` twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from django_quota.clock import SECOND
from django_quota.operations.base import Operation, Script, States, script

FIELDS = 1_000
"""Fields of a hash; further rules are counted together, under `OTHER`."""

OTHER = "*"
"""Stands for the rules that have no fields of their own; no rule's field is called so."""

SUBJECTS = SLOTS = 2_000
"""Members of a sorted set, and half as many for a while."""

DAY_KEPT = 2 * 86_400 * SECOND
MINUTE_KEPT = 7_200 * SECOND
NUMBER_KEPT = 3_600 * SECOND
"""How long each is kept, in microseconds."""


class TallyKeys(NamedTuple):
    """Where a tally is added, as `lua/tally.lua` lists it."""

    day: str
    minute: str
    refused: str
    slots: str
    number: str


class AddTally(Operation):
    """Add a tally; the reply is 1, or 0 where it has been added before.

    `counts`: by field, as `lua/tally.lua` has them; `refused`: by subject; `slots`: microseconds that each is
    remembered. `number`: above that of what the process sent before.
    """

    script: ClassVar[Script] = script("clock", "tally")
    replies: type = int

    def __init__(
        self,
        keys: TallyKeys,
        number: int,
        counts: Mapping[str, int],
        refused: Mapping[str, int],
        slots: Mapping[str, int],
    ) -> None:
        self.keys = keys
        self.number = number
        self.counts = counts
        self.refused = refused
        self.slots = slots

    def arguments(self) -> list[str | int]:
        """Return the arguments as `lua/tally.lua` lists them."""
        parts = (self.counts, self.refused, self.slots)
        return [self.number, *map(len, parts), *(word for part in parts for pair in part.items() for word in pair)]

    def run(self, states: States, now: int) -> int:
        """Add it."""
        keys = TallyKeys(*self.keys)
        if self.number <= (states.get(keys.number, now) or 0):
            return 0
        states.put(keys.number, self.number, now + NUMBER_KEPT)
        for key, kept in ((keys.day, DAY_KEPT), (keys.minute, MINUTE_KEPT)):
            fields = dict(states.get(key, now) or {})
            for field, count in self.counts.items():
                name = field if field in fields or len(fields) < FIELDS else f"{OTHER}{field[-2:]}"
                fields[name] = fields.get(name, 0) + count
            _put(states, key, fields, now + kept)
        refused = dict(states.get(keys.refused, now) or {})
        for subject, count in self.refused.items():
            refused[subject] = refused.get(subject, 0) + count
        _put(states, keys.refused, _trimmed(refused, SUBJECTS), now + DAY_KEPT)
        slots = {name: stop for name, stop in (states.get(keys.slots, now) or {}).items() if stop > now}
        slots.update({name: now + span for name, span in self.slots.items()})
        _put(states, keys.slots, _trimmed(slots, SLOTS), max(slots.values(), default=0))
        return 1


def _put(states: States, key: str, value: Mapping[str, int], expiry: int) -> None:
    if value:
        states.put(key, value, max(states.expiry(key), expiry))
    else:
        states.drop(key)


def _trimmed(scores: dict[str, int], most: int) -> dict[str, int]:
    """Drop the lowest where there are half as many more than there may be."""
    if len(scores) <= most + most // 2:
        return scores
    order: Any = sorted(scores.items(), key=lambda pair: (pair[1], pair[0]))
    return dict(order[-most:])
