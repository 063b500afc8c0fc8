"""Scatter-gather: how an operation runs whose keys are in several slots of a Redis Cluster.

A scatter yields operations of one slot each, takes their replies, and returns the reply of the whole. A sync and an
async driver run the same scatter, and the tests run it over the memory store.

A plan over several slots takes its parts in turn, tentatively. When a later part refuses, what the earlier ones
consumed is compensated. It never peeks first and consumes later. In between, others may find less room than there is,
never more. A transfer between two slots notes what is pending, so that others can resume it: see `transfer_operations`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

from django_quota.core.algorithms import DISTINCT, NEVER, Verdict
from django_quota.core.errors import QuotaError, StoreUnavailable
from django_quota.core.keys import subject_part
from django_quota.engine.codec import ALLOWED, REFUSED, RETRY_WITH, Flag, Flagged, Mode, ModeOfHits, Reply
from django_quota.engine.compensate import compensated, compensation
from django_quota.engine.counter_operations import Transfer
from django_quota.engine.decide import Decide
from django_quota.engine.events import (
    NO_LOG,
    REMOTE_LOG,
    AppendEvents,
    EventLog,
    EventRecord,
    limit_near,
    limit_refusing_longest,
)
from django_quota.engine.hits import Hit, all_limits
from django_quota.engine.operations import Operation
from django_quota.engine.subject_operations import LiftBans, Reset
from django_quota.engine.system_operations import Sweep
from django_quota.engine.transfer_operations import transfer_between_slots

logger = logging.getLogger("django_quota")

SlotOf = Callable[[str], object]
"""Returns the slot of a key."""

Scatter = Generator[Sequence[Operation], list[Any], Any]


@singledispatch
def scatter(operation: Operation, slot_of: SlotOf) -> Scatter:  # noqa: ARG001 — others use it
    """Return the scatter of an operation; one that is not registered here has its keys in one slot."""
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
        if isinstance(mode, ModeOfHits):
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
    if mode == "record_day":
        replies = yield [part.operation(mode, log) for part in parts]
        return replies[0]
    if len(parts) == 1:
        reply = yield from parts[0].decide(mode, log)
        replies = [reply]
    elif mode in ("check", "tentative"):
        replies = yield from _decide_in_turn(parts, mode, log)
    else:
        raws = yield [part.operation(mode, log) for part in parts]
        replies = [Reply.decode(raw, part.hits) for part, raw in zip(parts, raws, strict=True)]
    gathered = _gathered(parts, replies, mode)
    if log is not NO_LOG and gathered.verdict != RETRY_WITH:
        events = [event for part, reply in zip(parts, replies, strict=True) for event in _events(part, reply)]
        yield from _append(log, events)
    return gathered.encode()


def _parts(hits: Sequence[Hit], slot_of: SlotOf) -> list[_Part]:
    by_slot = _by_slot((hit.status_key for hit in hits), slot_of)
    parts = [_Part([hits[place] for place in places], places) for places in by_slot]
    return sorted(parts, key=_compensation_order) if len(parts) > 1 else parts


def _compensation_order(part: _Part) -> tuple[bool, bool, bool]:
    """Order parts by what compensating them may leave behind: the worst come last, so that it happens seldom."""
    limits = all_limits(part.hits)
    return (
        any(limit.algorithm.name == "leaky_bucket" for limit in limits),
        any(hit.day is not None for hit in part.hits),
        any(limit.algorithm == DISTINCT for limit in limits),
    )


def _decide_in_turn(parts: Sequence[_Part], mode: Mode, log: EventLog) -> Scatter:
    """Return (as the scatter's result) the replies of the parts, as if one script had decided them."""
    replies: list[Reply] = []
    try:
        for part in parts:
            # What the last part of a check consumes is never compensated.
            reply = yield from part.decide(mode if part is parts[-1] else "tentative", log)
            replies.append(reply)
            if reply.verdict != ALLOWED:
                break
    except QuotaError:
        for part, reply in zip(parts, replies, strict=False):
            yield from _compensate(part, reply)
        raise
    last = replies[-1]
    if last.verdict == ALLOWED:
        certain = len(parts) - 1 if mode == "check" else 0  # a plan that is tentative as a whole counts nothing yet
        yield from _record_day(parts[:certain], replies[:certain])
        return replies
    for number, reply in enumerate(replies[:-1]):
        replies[number] = yield from _compensate(parts[number], reply)
    if last.verdict != RETRY_WITH:
        for part in parts[len(replies) :]:
            reply = yield from _record_refusal(part, log, last.now)
            replies.append(reply)
    return replies


def _record_day(parts: Sequence[_Part], replies: Sequence[Reply]) -> Scatter:
    """Count the hits of these parts for the day."""
    found = [day_record(part.hits, reply) for part, reply in zip(parts, replies, strict=True)]
    operations = [operation for operation in found if operation is not None]
    if not operations:
        return
    try:
        yield operations
    except StoreUnavailable as error:
        logger.warning("A plan that has passed is not counted for the day, all or in part: %s", error)


def day_record(hits: Sequence[Hit], reply: Reply) -> Decide | None:
    """Return the operation that counts tentative hits for the day, now that their plan has passed; None if none counts.

    A tentative decision does not count them: the roll-up could carry a count that is taken back later. `reply`: the one
    to that decision.
    """
    counted = [hit for index, hit in enumerate(hits) if hit.day and hit.cost and reply.passed(index)]
    return Decide(counted, "record_day") if counted else None


def _compensate(part: _Part, reply: Reply) -> Scatter:
    """Take back what a part consumed, and return its reply after that. A failure stops no other part."""
    try:
        mode = compensation(part.hits, reply)
        if mode is None:
            return reply
        (raw,) = yield [Decide(part.hits, mode)]
    except StoreUnavailable as error:
        logger.warning("A refused plan keeps what it consumed of a part of its limits: %s", error)
        return reply
    return compensated(reply, mode, Reply.decode(raw, part.hits))


def _record_refusal(part: _Part, log: EventLog, now: int) -> Scatter:
    """Tell a part that its plan is refused, and return its reply; without an answer, one that promises nothing.

    A part that asks for another form gives no answer either: to send the plan again would count its refusal twice.
    """
    try:
        reply = yield from part.decide("record_refusal", log)
        if reply.verdict != RETRY_WITH:
            return reply
    except StoreUnavailable as error:
        logger.warning("A part of a refused plan does not say how its limits are: %s", error)
    unknown = Verdict(allowed=True, remaining=0, retry_after=0, reset=0, more=NEVER)
    return Reply(now, REFUSED, [[unknown] * len(hit.limits) for hit in part.hits])


def _gathered(parts: Sequence[_Part], replies: Sequence[Reply], mode: Mode) -> Reply:
    """Return the reply of the plan that these parts make up."""
    for part, reply in zip(parts, replies, strict=False):
        if reply.verdict == RETRY_WITH:
            return Reply(reply.now, RETRY_WITH, flags=part.renumbered(reply.flags))
    # These flags serve the parts only; the caller of a tentative plan compensates it as a whole.
    dropped = {Flag.BAN_LEVEL} if mode == "tentative" else {Flag.BAN_LEVEL, Flag.KNOWN_BEFORE}
    gathered = Reply(replies[0].now, ALLOWED if all(reply.verdict == ALLOWED for reply in replies) else REFUSED)
    verdicts: dict[int, list[Verdict]] = {}
    for part, reply in zip(parts, replies, strict=True):
        verdicts.update(zip(part.places, reply.hits, strict=True))
        gathered.flags += part.renumbered(flagged for flagged in reply.flags if flagged.flag not in dropped)
    gathered.hits = [verdicts[place] for place in sorted(verdicts)]
    return gathered


# --- events -----------------------------------------------------------------------------------------------------------


def _events(part: _Part, reply: Reply) -> Iterator[EventRecord]:
    """Yield the events that the flags of a reply report."""
    levels = {index: value for index, flag, value in reply.flags if flag == Flag.BAN_LEVEL}
    for index, flag, value in reply.flags:
        hit, verdicts = part.hits[index], reply.hits[index]
        if flag == Flag.BAN_BEGAN:
            yield _event("banned", hit, 0, verdicts, value, levels[index])
        elif flag == Flag.REFUSAL_EMITTED:
            yield _event("refused", hit, limit_refusing_longest(verdicts), verdicts, value)
        elif flag == Flag.NEAR_EMITTED:
            yield _event("near", hit, limit_near(hit, verdicts) or 0, verdicts)


def _event(
    kind: Any, hit: Hit, number: int, verdicts: Sequence[Verdict], until: int = 0, level: int = 0
) -> EventRecord:
    capacity, remaining = hit.limits[number].parameters.capacity, verdicts[number].remaining
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
    """Take bans off the index: each with the key of its subject's status, and its rule."""
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
def _lift_bans(operation: LiftBans, slot_of: SlotOf) -> Scatter:  # noqa: ARG001 — it is about one subject
    (reply,) = yield [LiftBans(operation.status_key, operation.rules)]
    yield from _append_lifted(operation.log, ((operation.status_key, rule) for rule in operation.rules))
    return reply


@scatter.register
def _transfer(operation: Transfer, slot_of: SlotOf) -> Scatter:
    if slot_of(operation.keys[0]) != slot_of(operation.keys[1]):
        return (yield from transfer_between_slots(operation))
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
