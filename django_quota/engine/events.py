"""What happens around a decision: the counts of the day, bans after too many refusals, and events.

The specification of `lua/count_day.lua` and `lua/events.lua`. Redis alone keeps the event stream and the index of bans;
the specification only returns the flags that report events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from django_quota.core.algorithms import ALGORITHMS, NEVER, Verdict
from django_quota.core.clock import DAY, SECOND
from django_quota.engine.codec import EventKind, Flag, Flagged
from django_quota.engine.hits import Hit, HitContext
from django_quota.engine.operations import Operation, RedisOperation, Script, States, bulk, script
from django_quota.engine.subject_status import fields_of, set_field, shut_out

DAY_TTL = 8 * DAY
"""How long the counts of a day wait for the roll-up, in microseconds."""


def count_day(states: States, context: HitContext, now: int, *, passed: bool) -> None:
    """Count the hit for its subject and day."""
    day = context.hit.day
    if day is None or not (passed or context.is_refused):
        return
    counts = dict(states.get(day.key) or {"#": now})
    field = f"{context.hit.field}:{'r' if context.is_refused else 'a'}"
    counts[field] = counts.get(field, 0) + 1
    states.put(day.key, counts, states.expiry(day.key) or now + DAY_TTL)


def emit(states: States, context: HitContext, now: int, *, passed: bool, emits: bool) -> list[Flagged]:
    """Begin a ban if it is due, and emit events; return the flags. `emits`: whether events are on at all."""
    hit = context.hit
    emits_own = emits and not hit.rule.shadow
    if context.is_refused:
        if hit.refusals_key and not context.status:
            flags = _count_refusal(states, context, now, emits=emits)
            if flags:
                return flags
        if emits_own and _should_emit(states, context, f"e:{hit.field}", SECOND, now):
            waits = [v.retry_after for v in context.verdicts if not v.allowed]
            stop = 0 if NEVER in waits else now + max(waits)
            return [Flagged(context.index, Flag.REFUSAL_EMITTED, stop)]
    elif emits_own and hit.rule.warn_at and passed and not context.status:
        near = limit_near(hit, context.verdicts)
        if near is not None:
            span = min(max(context.verdicts[near].reset, SECOND), DAY)
            if _should_emit(states, context, f"w:{hit.field}", span, now):
                return [Flagged(context.index, Flag.NEAR_EMITTED, 0)]
    return []


def _count_refusal(states: States, context: HitContext, now: int, *, emits: bool) -> list[Flagged]:
    """Count a refusal; if it is one too many, begin a ban."""
    hit, ban = context.hit, context.hit.rule.ban
    sliding = ALGORITHMS["sliding_window"]
    refusals = states.get(hit.refusals_key)
    if sliding.peek(refusals, ban.window, 1, now).remaining > 1:
        after, _ = sliding.consume(refusals, ban.window, 1, now)
        states.put(hit.refusals_key, after, sliding.expiry(after))
        return []
    states.drop(hit.refusals_key)
    context.level = level = context.level + 1 if context.remembered > now else 1
    stop = now + ban.durations[min(level, len(ban.durations)) - 1]
    remembered = stop + ban.durations[-1]
    set_field(states, hit.status_key, f"b:{hit.field}", f"{stop} {level} {remembered}", remembered)
    context.verdicts = [shut_out(verdict, stop, now) for verdict in context.verdicts]
    flags = [Flagged(context.index, Flag.BANNED, stop)]
    return [*flags, Flagged(context.index, Flag.BAN_BEGAN, stop)] if emits else flags


def _should_emit(states: States, context: HitContext, field: str, span: int, now: int) -> bool:
    """Say whether an event may be emitted again; if so, the next one may `span` from now (microseconds)."""
    if int(fields_of(states, context.hit.status_key).get(field, 0)) > now:
        return False
    set_field(states, context.hit.status_key, field, str(now + span), now + span)
    return True


def limit_near(hit: Hit, verdicts: Sequence[Verdict]) -> int | None:
    """Return the place of the first limit whose use has just passed `warn_at`; None if there is none."""
    warn = int((hit.rule.warn_at or 0) * 1000)
    for number, (limit, verdict) in enumerate(zip(hit.limits, verdicts, strict=True)):
        capacity = limit.parameters.capacity
        threshold, used = -(-capacity * warn // 1000), capacity - verdict.remaining
        if threshold < capacity and used - hit.cost < threshold <= used:
            return number
    return None


def limit_refusing_longest(verdicts: Sequence[Verdict]) -> int:
    """Return the place of the limit that refuses longest."""
    refusing = [(number, verdict.retry_after) for number, verdict in enumerate(verdicts) if not verdict.allowed]
    return max(refusing, key=lambda one: math.inf if one[1] == NEVER else one[1], default=(0, 0))[0]


# --- the event log ----------------------------------------------------------------------------------------------------


class EventLog:
    """The keys of the event stream, of the index of bans, and of the stream of bans alone.

    `length`: how many events each stream keeps.
    """

    __slots__ = ("bans", "keys", "length", "packed_keys", "packed_length")

    def __init__(self, keys: Sequence[str], length: int) -> None:
        self.keys: Sequence[str] = keys
        self.bans: str = keys[1] if keys else ""
        self.length: int = length
        self.packed_keys: str = bulk(keys)
        self.packed_length: str = bulk((length,))
        """These two as Redis takes them."""


REMOTE_LOG = EventLog((), -1)
"""A log that the decision's script can't reach: the caller writes the events that the flags report."""

NO_LOG = EventLog((), 0)
"""Events are off."""


class EventRecord(NamedTuple):
    """One event, as `lua/append_events.lua` lists it."""

    kind: EventKind | Literal["lifted"]
    rule: str
    """The rule's name as fields of hashes have it."""
    subject: str
    """The subject as keys have it."""
    until: int = 0
    level: int = 0
    capacity: int = 0
    remaining: int = 0


class AppendEvents(Operation):
    """Write events that decisions in other slots of a Cluster reported. The reply is how many there were."""

    script: ClassVar[Script] = script("clock", "event_log", "append_events")

    def __init__(self, log: EventLog, events: Sequence[EventRecord]) -> None:
        super().__init__(log.keys, len(events), log.length, *(word for event in events for word in event))
        self.events = events

    def run(self, states: States, now: int) -> int:  # noqa: ARG002 — Redis alone keeps the log
        """Return how many events there are."""
        return len(self.events)


class NextEvent(RedisOperation):
    """Hand a consumer the next event of its group, or the next ban that the stream lost before it.

    `saved`: the id of the last lost ban that the consumer was handed. The reply is that of `lua/next_event.lua`.
    """

    script: ClassVar[Script] = script("next_event")

    def __init__(self, stream: str, bans: str, group: str, consumer: str, saved: str) -> None:
        super().__init__([stream, bans], group, consumer, saved)
