"""Scatter-gather: how an operation with keys in several slots of a Redis Cluster runs.

A scatter yields operations of one slot each, receives their replies, and returns the reply of the whole operation. A
sync and an async driver run the same scatter. The tests run it over the memory store.

An operation over several slots runs its parts in turn. When a later part refuses, the earlier ones give back what they
took, and the rest is only peeked at. No part peeks first and consumes later. Meanwhile, other requests may find less
room than there is, never more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

from django_quota.core.algorithms import NEVER, Verdict
from django_quota.core.errors import QuotaError, StoreUnavailable
from django_quota.engine.codec import (
    ALLOWED,
    REFUSED,
    RETRY_WITH,
    Adjust,
    Adjustment,
    Flag,
    Flagged,
    Mode,
    Portion,
    Reply,
)
from django_quota.engine.decide import Decide
from django_quota.engine.events import (
    AppendEvents,
    EventLog,
    EventRecord,
)
from django_quota.engine.hits import Hit
from django_quota.engine.operations import Operation
from django_quota.engine.state_copies import ReadStates, WriteStates
from django_quota.engine.system_operations import Sweep

logger = logging.getLogger("django_quota.store")

SlotOf = Callable[[str], object]
"""Returns the slot of a key."""

Scatter = Generator[Sequence[Operation], list[Any], Any]


@singledispatch
def scatter(operation: Operation, slot_of: SlotOf) -> Scatter:  # noqa: ARG001 — others use it
    """Return the scatter of an operation. This default is for operations with all keys in one slot."""
    (reply,) = yield [operation]
    return reply


# --- decisions --------------------------------------------------------------------------------------------------------


def by_slot(keys: Iterable[str], slot_of: SlotOf) -> list[list[int]]:
    """Return, for each slot, the indexes of its keys."""
    places: dict[object, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(slot_of(key), []).append(place)
    return list(places.values())


class PartOfHits(NamedTuple):
    """The hits of an operation that one slot of a Cluster, or one store, decides."""

    hits: Sequence[Hit]
    places: Sequence[int]
    """Their indexes in the operation."""

    def decide(self, mode: Mode, *, emits: bool) -> Scatter:
        """Decide the hits. The scatter's result is the `Reply`."""
        if isinstance(mode, Adjust):
            mode = mode.only(self.places)
        (raw,) = yield [Decide(self.hits, mode, emits=emits)]
        return Reply.decode(raw, self.hits)


@scatter.register
def _decide(operation: Decide, slot_of: SlotOf) -> Scatter:
    hits = operation.hits
    slots = by_slot((hit.status_key for hit in hits), slot_of)
    if len(slots) > 1:  # nothing is taken ahead of several slots: a later one may refuse
        hits = [hit if hit.ahead is None else hit._replace(ahead=hit.ahead._replace(wish=0)) for hit in hits]
    parts = [PartOfHits([hits[place] for place in places], places) for places in slots]
    replies = yield from _decide_in_turn(parts, operation.mode, emits=operation.emits)
    return gathered(parts, replies).encode()


def _decide_in_turn(parts: Sequence[PartOfHits], mode: Mode, *, emits: bool) -> Scatter:
    """Decide the parts one after the other. The result is their replies, as if one script had decided them."""
    replies: list[Reply] = []
    try:
        for part in parts:
            reply = yield from part.decide(mode, emits=emits)
            replies.append(reply)
            if mode == "check" and reply.verdict != ALLOWED:
                break
    except QuotaError:
        for part, reply in zip(parts, replies if mode == "check" else (), strict=False):
            yield from _undo(part, reply)
        raise
    last = replies[-1]
    if mode != "check" or last.verdict == ALLOWED:
        return replies
    for number, reply in enumerate(replies[:-1]):
        replies[number] = yield from _undo(parts[number], reply)
    if last.verdict != RETRY_WITH:
        for part in parts[len(replies) :]:
            reply = yield from _look_at(part, last.now)
            replies.append(reply)
    return replies


def _undo(part: PartOfHits, reply: Reply) -> Scatter:
    """Give back what a part took, because the request is refused after all. The result is its reply after that.

    A limit that counts refused hits keeps the hit. A failure is logged, so that the other parts are undone, too.
    """
    undone: list[Adjustment | None] = [None] * len(part.hits)
    for index, moment in reply.consumed(part.hits):
        hit = part.hits[index]
        places = [hit.group > 0 or not limit.limit.options.count_refused for limit in hit.limits]
        undone[index] = Adjustment([Portion(moment, hit.cost, 0, places, hit.value, reply.drawn(index))])
    if not any(undone):
        return reply
    try:
        (raw,) = yield [Decide(part.hits, Adjust(undone))]
    except StoreUnavailable as error:
        logger.warning("Could not refund part of a refused request; those limits stay charged: %s", error)
        return reply
    after = Reply.decode(raw, part.hits)
    if after.verdict == RETRY_WITH:  # the day has just ended: what it took stays counted
        return reply
    of_hits = zip(reply.hits, after.hits, undone, strict=True)
    verdicts = [later if adjusted else earlier for earlier, later, adjusted in of_hits]
    undoing = (Flag.NEAR_EMITTED, Flag.DRAWN_OF, Flag.DRAWN)
    flags = [flagged for flagged in reply.flags if flagged.flag not in undoing]
    return Reply(reply.now, REFUSED, verdicts, flags)


def _look_at(part: PartOfHits, now: int) -> Scatter:
    """Peek at a part of a refused operation. If the store does not answer, the reply says that nothing is left."""
    try:
        reply = yield from part.decide("peek", emits=False)
        if reply.verdict != RETRY_WITH:
            return reply
    except StoreUnavailable as error:
        logger.warning("Could not read part of the limits of a refused request: %s", error)
    unknown = Verdict(allowed=True, remaining=0, retry_after=0, reset=0, more=NEVER)
    return Reply(now, REFUSED, [[unknown] * len(hit.limits) for hit in part.hits])


def gathered(parts: Sequence[PartOfHits], replies: Sequence[Reply]) -> Reply:
    """Return the reply of the operation that these parts make up."""
    now = replies[0].now
    for reply in replies:
        if reply.verdict == RETRY_WITH:
            return reply
    whole = Reply(now, ALLOWED if all(reply.verdict == ALLOWED for reply in replies) else REFUSED)
    verdicts: dict[int, list[Verdict]] = {}
    for part, reply in zip(parts, replies, strict=True):
        verdicts.update(zip(part.places, reply.hits, strict=True))
        whole.flags += [flagged._replace(hit=part.places[flagged.hit]) for flagged in reply.flags]
        if reply.now != now:
            whole.flags += [Flagged(place, Flag.DECIDED_AT, reply.now) for place in part.places]
    whole.hits = [verdicts[place] for place in sorted(verdicts)]
    return whole


# --- events -----------------------------------------------------------------------------------------------------------


def write_events(log: EventLog, events: Sequence[EventRecord]) -> Scatter:
    """Write events to the log, without a second try. If it fails, the decision still holds, and the events are lost."""
    if not events:
        return
    try:
        yield [AppendEvents(log, events)]
    except StoreUnavailable as error:
        logger.warning("%d events could not be written: %s", len(events), error)


# --- other operations -------------------------------------------------------------------------------------------------


@scatter.register
def _sweep(operation: Sweep, slot_of: SlotOf) -> Scatter:
    """Sweep each slot by itself. `most` holds for each slot, so no call is slower than one without a Cluster."""
    slots = by_slot(operation.keys, slot_of)
    replies = yield [operation.only(places) for places in slots]
    of_keys = [[reply[first : first + 4] for first in range(0, len(reply), 4)] for reply in replies]
    return [word for words in _in_order(slots, of_keys) for word in words]


@scatter.register(ReadStates)
@scatter.register(WriteStates)
def _copy_states(operation: ReadStates | WriteStates, slot_of: SlotOf) -> Scatter:
    """Read or write the keys of each slot by themselves."""
    slots = by_slot(operation.keys, slot_of)
    replies = yield [operation.only(places) for places in slots]
    return _in_order(slots, replies)


def _in_order(slots: Sequence[Sequence[int]], replies: Sequence[Sequence[Any]]) -> list[Any]:
    """Return what the replies of the slots say of each key, in the order of the keys. `slots`: see `by_slot`."""
    found = {
        place: each
        for places, reply in zip(slots, replies, strict=True)
        for place, each in zip(places, reply, strict=True)
    }
    return [found[place] for place in sorted(found)]
