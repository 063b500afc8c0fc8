"""Compensation: take back what hits have just consumed, since a later part of their plan was refused.

The specification of `lua/compensate.lua`, and what a plan asks for. What others did meanwhile stays.
If it cannot be told apart, less is restored, never more: a compensated hit never makes room that it did not take, or
that somebody was promised.

| algorithm | what is restored | what is not |
|---|---|---|
| sliding window | the hit's own entry, or its part of a slice | what a refund has restored already |
| fixed window, calendar | its part of the count, while that window lasts | |
| token bucket | what has not flowed back by itself | the time that others may have gained by a restore |
| leaky bucket | its place, while it is the last in the queue | all of it otherwise: later hits know when they leave |
| distinct | the earlier expiry of the value | nothing, if somebody has used the value since |

After a reset, a calendar, a slice or a bucket has no trace of what the hit consumed. Then as much may be taken off what
came after the reset, once for each hit that was under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from django_quota.engine.codec import REFUSED, Compensate, ConsumedHit, Flag, HoldId, Reply
from django_quota.engine.hits import Hit
from django_quota.engine.holds import drop, receipts_of, replace
from django_quota.engine.operations import States
from django_quota.engine.subject_status import drop_field


def compensation(hits: Sequence[Hit], reply: Reply, *, keep_near: bool = False) -> Compensate | None:
    """Return the mode that takes back what hits consumed; None if none did.

    `reply`: the one to the tentative decision. `keep_near`: the "near" events stay emitted, so that they are not
    emitted again for each hit that is taken back.
    """
    consumed = [_consumed(hit, index, reply, keep_near) for index, hit in enumerate(hits)]
    return Compensate(consumed) if any(consumed) else None


def _consumed(hit: Hit, index: int, reply: Reply, keep_near: bool) -> ConsumedHit | None:
    flags = reply.flags_of(index)
    if not hit.cost or Flag.EXEMPT in flags or not reply.passed(index):
        return None
    known = [value for at, flag, value in reply.flags if (at, flag) == (index, Flag.KNOWN_BEFORE)]
    receipts = receipts_of(hit, reply.hits[index], known, reply.now)
    held = HoldId(flags[Flag.HELD], hit.reservation.token) if Flag.HELD in flags else None
    return ConsumedHit(receipts, Flag.NEAR_EMITTED in flags and not keep_near, held)


def compensated(before: Reply, mode: Compensate, after: Reply) -> Reply:
    """Return the reply to hits after they were taken back: how their limits are now. `after`: the reply to `mode`."""
    of_hits = zip(before.hits, after.hits, mode.of_hits, strict=True)
    verdicts = [later if consumed else earlier for earlier, later, consumed in of_hits]
    flags = [flagged for flagged in before.flags if flagged.flag not in (Flag.NEAR_EMITTED, Flag.HELD)]
    return Reply(before.now, REFUSED, verdicts, flags)


def compensate(states: States, hit: Hit, consumed: ConsumedHit, now: int) -> None:
    """Take back what a hit consumed."""
    if consumed.hold is not None and not drop(states, hit, consumed.hold)[0]:
        return  # what it held has come back already
    for limit, receipt in zip(hit.limits, consumed.receipts, strict=True):
        # A limit that counts refused hits keeps the hit, since its plan was refused.
        if receipt[0] > now and not (limit.limit.options.count_refused and hit.group == 0):
            state = states.get(limit.key)
            after = limit.algorithm.compensate(state, limit.parameters, hit.cost, receipt, now)
            replace(states, limit.key, limit.algorithm, state, after)
    if consumed.near:
        drop_field(states, hit.status_key, f"w:{hit.field}")
