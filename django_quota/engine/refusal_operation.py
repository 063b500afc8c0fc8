"""Count refusals that a process has made from its memory; see `lua/record_refusals.lua`."""

from __future__ import annotations

from typing import ClassVar

from django_quota.engine.events import DAY_TTL
from django_quota.engine.operations import Operation, Script, States, script
from django_quota.engine.subject_status import fields_of, set_field


class RecordRefusals(Operation):
    """Count refusals of a rule for the day of a subject. The reply is 1 if a "refused" event is due, else 0.

    `field`: the rule's name as fields of hashes have it. `day_key`: where the day is counted; empty if it is not.
    `span`: microseconds from one event to the next; 0: no event.
    """

    script: ClassVar[Script] = script("clock", "record_refusals")

    def __init__(self, status_key: str, day_key: str, field: str, number: int, span: int) -> None:
        super().__init__([status_key, day_key] if day_key else [status_key], field, number, span, DAY_TTL)
        self.field = field
        self.number = number
        self.span = span

    def run(self, states: States, now: int) -> int:
        """Count them."""
        status_key, *days = self.keys
        for key in days:
            counts = dict(states.get(key) or {"#": now})
            counts[f"{self.field}:r"] = counts.get(f"{self.field}:r", 0) + self.number
            states.put(key, counts, states.expiry(key) or now + DAY_TTL)
        quiet_until = int(fields_of(states, status_key).get(f"e:{self.field}", 0))
        if not self.span or quiet_until > now:
            return 0
        set_field(states, status_key, f"e:{self.field}", str(now + self.span), now + self.span)
        return 1
