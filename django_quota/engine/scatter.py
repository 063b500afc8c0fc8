"""Scatter-gather: how an operation with keys in several slots of a Redis Cluster runs.

A scatter yields operations of one slot each, takes their replies, and returns the reply of the whole. A sync and an
async driver run the same scatter, and the tests run it over the memory store.

A plan over several slots takes its parts in turn. When a later part refuses, the earlier ones give back what they took,
and the rest is only peeked at. Nothing peeks first and consumes later. Meanwhile, other requests may find less room
than there is, never more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

from django_quota.core.algorithms import NEVER, Verdict
from django_quota.core.errors import QuotaError, StoreUnavailable
from django_quota.core.keys import subject_part
from django_quota.engine.codec import ALLOWED, REFUSED, RETRY_WITH, Adjust, Adjustment, Flag, Flagged, Mode, Reply
from django_quota.engine.counter_operations import TWO_SLOTS, Transfer
from django_quota.engine.decide import Decide
from django_quota.engine.events import (
    NO_LOG,
    REMOTE_LOG,
    AppendEvents,
    EventLog,
    EventRecord,
    limit_refusing_longest,
    shares_reached,
)
from django_quota.engine.hits import Hit
from django_quota.engine.operations import Operation
from django_quota.engine.subject_operations import LiftBans, Reset
from django_quota.engine.system_operations import Sweep

logger = logging.getLogger("django_quota")

SlotOf = Callable[[str], object]
"""Returns the slot of a key."""

Scatter = Generator[Sequence[Operation], list[Any], Any]


@singledispatch
def scatter(operation: Operation, slot_of: SlotOf) -> Scatter:  # noqa: ARG001 — others use it
    """Return the scatter of an operation; an operation that is not registered here has its keys in one slot."""
    (reply,) = yield [operation]
    return reply


# --- decisions --------------------------------------------------------------------------------------------------------


def _by_slot(keys: Iterable[str], slot_of: SlotOf) -> list[list[int]]:
    """Return the places of the keys of each slot."""
    places: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(slot_of(key), []).append(place)
    return list(places.values())


class _Part(NamedTuple):
    """The hits of a plan whose keys are in one slot."""

    hits: Sequence[Hit]
    places: Sequence[int]
    """Their places in the plan."""

    def operation(self, mode: Mode, log: EventLog) -> Decide:
        """Return the operation that decides them."""
        if isinstance(mode, Adjust):
            mode = mode.only(self.places)
        return Decide(self.hits, mode, log if log is NO_LOG else REMOTE_LOG)

    def renumbered(self, flags: Iterable[Flagged]) -> list[Flagged]:
        """Return flags of these hits with their places in the plan."""
        return [flagged._replace(hit=self.places[flagged.hit]) for flagged in flags]

    def decide(self, mode: Mode, log: EventLog) -> Scatter:
        """Decide them; return (as the scatter's result) the `Reply`."""
        (raw,) = yield [self.operation(mode, log)]
        return Reply.decode(raw, self.hits)


@scatter.register
def _decide(operation: Decide, slot_of: SlotOf) -> Scatter:
    hits, mode, log = operation.hits, operation.mode, operation.log
    parts = _parts(hits, slot_of)
    if len(parts) == 1:
        reply = yield from parts[0].decide(mode, log)
        replies = [reply]
    elif mode == "check":
        replies = yield from _decide_in_turn(parts, log)
    else:
        raws = yield [part.operation(mode, log) for part in parts]
        replies = [Reply.decode(raw, part.hits) for part, raw in zip(parts, raws, strict=True)]
    gathered = _gathered(parts, replies)
    if log is not NO_LOG and gathered.verdict != RETRY_WITH:
        events = [event for part, reply in zip(parts, replies, strict=True) for event in _events(part, reply, mode)]
        yield from _append(log, events)
    return gathered.encode()


def _parts(hits: Sequence[Hit], slot_of: SlotOf) -> list[_Part]:
    by_slot = _by_slot((hit.status_key for hit in hits), slot_of)
    return [_Part([hits[place] for place in places], places) for places in by_slot]


def _decide_in_turn(parts: Sequence[_Part], log: EventLog) -> Scatter:
    """Return (as the scatter's result) the replies of the parts, as if one script had decided them."""
    replies: list[Reply] = []
    try:
        for part in parts:
            reply = yield from part.decide("check", log)
            replies.append(reply)
            if reply.verdict != ALLOWED:
                break
    except QuotaError:
        for part, reply in zip(parts, replies, strict=False):
            yield from _undo(part, reply)
        raise
    last = replies[-1]
    if last.verdict == ALLOWED:
        return replies
    for number, reply in enumerate(replies[:-1]):
        replies[number] = yield from _undo(parts[number], reply)
    if last.verdict != RETRY_WITH:
        for part in parts[len(replies) :]:
            reply = yield from _look_at(part, last.now)
            replies.append(reply)
    return replies


def _undoing(hits: Sequence[Hit], reply: Reply) -> Adjust | None:
    """Return the mode that gives back what this reply took, because the request is refused after all.

    None if they took nothing. A limit that counts refused hits keeps the hit.
    """
    undone: list[Adjustment | None] = [None] * len(hits)
    for index, moment in reply.consumed(hits):
        hit = hits[index]
        places = [hit.group > 0 or not limit.limit.options.count_refused for limit in hit.limits]
        undone[index] = Adjustment(moment, 0, places, undone=True)
    return Adjust(undone) if any(undone) else None


def _undo(part: _Part, reply: Reply) -> Scatter:
    """Give back what a part took, and return its reply after that. A failure stops no other part."""
    mode = _undoing(part.hits, reply)
    if mode is None:
        return reply
    try:
        (raw,) = yield [Decide(part.hits, mode)]
    except StoreUnavailable as error:
        logger.warning("A refused plan keeps what it took of a part of its limits: %s", error)
        return reply
    after = Reply.decode(raw, part.hits)
    if after.verdict == RETRY_WITH:  # the day has just ended: what it took stays counted
        return reply
    of_hits = zip(reply.hits, after.hits, mode.of_hits, strict=True)
    verdicts = [later if undone else earlier for earlier, later, undone in of_hits]
    return Reply(reply.now, REFUSED, verdicts, reply.flags)


def _look_at(part: _Part, now: int) -> Scatter:
    """Return what a part of a refused plan has left; without an answer, a reply that promises nothing."""
    try:
        reply = yield from part.decide("peek", NO_LOG)
        if reply.verdict != RETRY_WITH:
            return reply
    except StoreUnavailable as error:
        logger.warning("A part of a refused plan does not say how its limits are: %s", error)
    unknown = Verdict(allowed=True, remaining=0, retry_after=0, reset=0, more=NEVER)
    return Reply(now, REFUSED, [[unknown] * len(hit.limits) for hit in part.hits])


def _gathered(parts: Sequence[_Part], replies: Sequence[Reply]) -> Reply:
    """Return the reply of the plan that these parts make up."""
    now = replies[0].now
    for reply in replies:
        if reply.verdict == RETRY_WITH:
            return reply
    gathered = Reply(now, ALLOWED if all(reply.verdict == ALLOWED for reply in replies) else REFUSED)
    verdicts: dict[int, list[Verdict]] = {}
    for part, reply in zip(parts, replies, strict=True):
        verdicts.update(zip(part.places, reply.hits, strict=True))
        gathered.flags += part.renumbered(flagged for flagged in reply.flags if flagged.flag != Flag.BAN_LEVEL)
        if reply.now != now:
            gathered.flags += [Flagged(place, Flag.DECIDED_AT, reply.now) for place in part.places]
    gathered.hits = [verdicts[place] for place in sorted(verdicts)]
    return gathered


# --- events -----------------------------------------------------------------------------------------------------------


def _events(part: _Part, reply: Reply, mode: Mode) -> Iterator[EventRecord]:
    """Yield the events that the flags of a reply report."""
    levels = {index: value for index, flag, value in reply.flags if flag == Flag.BAN_LEVEL}
    for index, flag, value in reply.flags:
        hit, verdicts = part.hits[index], reply.hits[index]
        if flag == Flag.BAN_BEGAN:
            yield _event("banned", hit, 0, verdicts, value, levels[index])
        elif flag == Flag.REFUSAL_EMITTED:
            yield _event("refused", hit, limit_refusing_longest(verdicts), verdicts, value)
        elif flag == Flag.NEAR_EMITTED:
            adjusted = mode.of_hits[part.places[index]] if isinstance(mode, Adjust) else None
            units = hit.cost if adjusted is None else adjusted.actual
            yield _event("near", hit, shares_reached(hit, verdicts, units)[2], verdicts)._replace(share=value)


def _event(
    kind: Any, hit: Hit, number: int, verdicts: Sequence[Verdict], until: int = 0, level: int = 0
) -> EventRecord:
    capacity, remaining = hit.limits[number].parameters.capacity, max(0, verdicts[number].remaining)
    return EventRecord(kind, hit.field, subject_part(hit.status_key), until, level, capacity, remaining)


def _append(log: EventLog, events: Sequence[EventRecord]) -> Scatter:
    """Write events to the log, once. If that fails, the decision still holds, and the events are lost."""
    if not events:
        return
    try:
        yield [AppendEvents(log, events)]
    except StoreUnavailable as error:
        logger.warning("%d events could not be written: %s", len(events), error)


def _append_lifted(log: EventLog, bans: Iterable[tuple[str, str]]) -> Scatter:
    """Remove bans from the index: each with the key of its subject's status, and its rule."""
    if log is not NO_LOG:
        yield from _append(log, [EventRecord("lifted", rule, subject_part(status_key)) for status_key, rule in bans])


# --- other operations -------------------------------------------------------------------------------------------------


@scatter.register
def _reset(operation: Reset, slot_of: SlotOf) -> Scatter:
    states = operation.rule_states
    by_slot = _by_slot((state.status_key for state in states), slot_of)
    replies = yield [Reset([states[place] for place in places]) for places in by_slot]
    yield from _append_lifted(operation.log, ((state.status_key, state.field) for state in states))
    return sum(replies)


@scatter.register
def _lift_bans(operation: LiftBans, slot_of: SlotOf) -> Scatter:  # noqa: ARG001 — all keys are of one subject
    (reply,) = yield [LiftBans(operation.status_key, operation.rules)]
    yield from _append_lifted(operation.log, ((operation.status_key, rule) for rule in operation.rules))
    return reply


@scatter.register
def _transfer(operation: Transfer, slot_of: SlotOf) -> Scatter:
    if slot_of(operation.keys[0]) != slot_of(operation.keys[1]):
        return [TWO_SLOTS]
    (reply,) = yield [operation]
    return reply


@scatter.register
def _sweep(operation: Sweep, slot_of: SlotOf) -> Scatter:
    """Sweep each slot by itself: no call drops more entries than one call drops without a Cluster."""
    by_slot = _by_slot(operation.keys, slot_of)
    replies = yield [operation.only(places) for places in by_slot]
    found = {
        place: reply[4 * at : 4 * at + 4]
        for places, reply in zip(by_slot, replies, strict=True)
        for at, place in enumerate(places)
    }
    return [word for place in sorted(found) for word in found[place]]
