"""The operation that counts hits which no store has decided, such as refusals that a process repeats from memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django_quota.engine.events import DAY_TTL, change_counts, note_tier
from django_quota.engine.operations import (
    SENT_TTL,
    Operation,
    Script,
    States,
    fields_of,
    is_repeated,
    note_counted,
    script,
    set_field,
)


class RecordHits(Operation):
    """Count hits of a rule for the day of a subject. The reply is 1 if a "refused" event is due, else 0.

    `field`: the rule's name, escaped for fields of hashes. `number`: of the message, so that it is counted only once;
    `sent_key`: where the number is remembered. `day_key`: where the day is counted; empty if it is not.
    `counts`: how its fields change. `span`: microseconds from one event to the next; 0: no event. `tier`: the tier of
    the subject under the rule; empty if no function of the request says it. `until`: until when the number is
    remembered, in microseconds; 0: for an hour.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", "repeated", "record_hits")

    def __init__(
        self,
        status_key: str,
        sent_key: str,
        day_key: str,
        number: int,
        field: str,
        counts: Mapping[str, int],
        span: int,
        tier: str = "",
        until: int = 0,
    ) -> None:
        keys = [status_key, sent_key, day_key] if day_key else [status_key, sent_key]
        changes = [word for kind, change in counts.items() if change for word in (f"{field}:{kind}", change)]
        super().__init__(keys, field, span, DAY_TTL, tier, number, until, *changes)
        self.number = number
        self.field = field
        self.tier = tier
        self.counts = counts
        self.span = span
        self.until = until

    def run(self, states: States, now: int) -> int:
        """Count the hits, unless the message has been counted before."""
        status_key, sent_key, *days = self.keys
        if is_repeated(states, sent_key, self.number) or 0 < self.until <= now:
            return 0
        for key in days:
            change_counts(states, key, {f"{self.field}:{kind}": change for kind, change in self.counts.items()}, now)
            note_tier(states, key, self.field, self.tier, now)
        note_counted(states, sent_key, self.number, self.until or now + SENT_TTL)
        quiet_until = int(fields_of(states, status_key).get(f"e:{self.field}", 0))
        if not self.span or quiet_until > now:
            return 0
        set_field(states, status_key, f"e:{self.field}", str(now + self.span), now + self.span)
        return 1
