"""Compensation: take back what hits have just consumed, since a later part of their plan was refused.

The specification of `lua/compensate.lua`, and the operations that a plan needs for it. What others did meanwhile stays.
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

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django_quota.core.algorithms import Parameters
from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.leaky_bucket import LeakyBucket
from django_quota.core.algorithms.sliding_window import Entry
from django_quota.core.algorithms.token_bucket import Bucket, Queued, TokenBucket, known_of
from django_quota.core.errors import StoreUnavailable
from django_quota.engine.codec import REFUSED, Compensate, ConsumedHit, Flag, Flagged, HoldId, Receipt, Reply
from django_quota.engine.hits import CompiledLimit, Hit, HitContext
from django_quota.engine.holds import drop
from django_quota.engine.operations import States
from django_quota.engine.subject_status import drop_field

# --- what a plan asks for ---------------------------------------------------------------------------------------------


def compensation(hits: Sequence[Hit], reply: Reply, *, keep_near: bool = False) -> tuple[Compensate | None, list[int]]:
    """Return the mode that takes back what hits consumed, and the places of those hits; None if none consumed.

    `reply`: the one to the tentative decision. `keep_near`: the "near" events stay emitted, so that they are not
    emitted again for each hit that is taken back.
    """
    chosen, consumed = [], []
    for index, (hit, verdicts) in enumerate(zip(hits, reply.hits, strict=True)):
        if not hit.cost or not reply.passed(index):
            continue
        flags = reply.flags_of(index)
        if Flag.EXEMPT in flags:
            receipts = [Receipt(0)] * len(hit.limits)
        else:
            before = iter([value for hit_, flag, value in reply.flags if (hit_, flag) == (index, Flag.KNOWN_BEFORE)])
            receipts = [
                _receipt(hit, limit, reply.now, verdict.reset, before)
                for limit, verdict in zip(hit.limits, verdicts, strict=True)
            ]
        due = flags.get(Flag.HELD)
        held = None if due is None else HoldId(due, hit.reservation.token)
        chosen.append(index)
        consumed.append(ConsumedHit(receipts, Flag.NEAR_EMITTED in flags and not keep_near, held))
    return (Compensate(consumed) if chosen else None), chosen


def _receipt(hit: Hit, limit: CompiledLimit, now: int, reset: int, before: Iterator[int]) -> Receipt:
    if not is_noted(limit):
        return Receipt(now + reset)
    known = _next(before)
    if counts_values(limit):
        return Receipt(max(now + limit.parameters.a, known + 1), known)
    return Receipt(now + reset, known, _next(before), now + hit.cost * limit.parameters.a)


def _next(before: Iterator[int]) -> int:
    found = next(before, None)
    if found is None:
        raise StoreUnavailable("it did not say what it knew before")
    return found


def compensated(before: Reply, chosen: Sequence[int], after: Reply) -> Reply:
    """Return the reply to hits after some were taken back: how their limits are now.

    `chosen`: the places of those; `after`: the reply to the compensation.
    """
    verdicts = list(before.hits)
    for index, found in zip(chosen, after.hits, strict=True):
        if Flag.EXEMPT not in before.flags_of(index):  # an exempt hit has nothing to do with the limits
            verdicts[index] = found
    flags = [flagged for flagged in before.flags if flagged.flag not in (Flag.NEAR_EMITTED, Flag.HELD)]
    return Reply(before.now, REFUSED, verdicts, flags)


def counts_values(limit: CompiledLimit) -> bool:
    """Say whether a limit counts different values."""
    return limit.algorithm.name == "distinct"


def is_noted(limit: CompiledLimit) -> bool:
    """Say whether a tentative hit must note how the limit was before it."""
    return counts_values(limit) or isinstance(limit.algorithm, TokenBucket)


# --- the specification ------------------------------------------------------------------------------------------------


def compensate(states: States, hits: Sequence[Hit], mode: Compensate, now: int) -> None:
    """Take back what these hits consumed."""
    for hit, (receipts, near, hold_id) in zip(hits, mode.consumed, strict=True):
        if hold_id is not None and not drop(states, hit, hold_id)[0]:
            continue  # what it held has come back already
        for limit, receipt in zip(hit.limits, receipts, strict=True):
            _compensate(states, hit, limit, receipt, now)
        if near:
            drop_field(states, hit.status_key, f"w:{hit.field}")


def flags_before(states: States, context: HitContext, now: int) -> list[Flagged]:
    """Return what compensating a hit will need to know of its limits, before it is consumed."""
    flags = []
    for limit in context.hit.limits:
        if is_noted(limit):
            state = states.get(limit.key)
            if counts_values(limit):
                expiry = (state or {}).get(limit.parameters.value, 0)
                known = [expiry if expiry > now else 0]
            else:
                bucket = known_of(state, now)
                known = [bucket.restored, bucket.refunded]
            flags += [Flagged(context.index, Flag.KNOWN_BEFORE, number) for number in known]
    return flags


def _compensate(states: States, hit: Hit, limit: CompiledLimit, receipt: Receipt, now: int) -> None:
    # A limit that counts refused hits keeps the hit, since its plan was refused.
    if (limit.limit.options.count_refused and hit.group == 0) or receipt.stop <= now:
        return
    state = states.get(limit.key)
    after = _COMPENSATORS[limit.algorithm.name](state, limit.parameters, hit.cost, receipt, now)
    if after is None:
        states.drop(limit.key)
    elif after != state:
        states.put(limit.key, after, limit.algorithm.expiry(after))


def _sliding(state: tuple[Entry, ...] | None, p: Parameters, cost: int, receipt: Receipt, now: int) -> Any:  # noqa: ARG001
    at = next((at for at, entry in enumerate(state or ()) if entry.expiry == receipt.stop), None)
    if not state or at is None:
        return state
    own, less = state[at], min(cost, state[at].cost)
    lowered = [Entry(entry.total - less, entry.cost, entry.expiry) for entry in state[at:]]
    lowered[0] = lowered[0]._replace(cost=own.cost - less)
    return (*state[:at], *(entry for entry in lowered if entry.cost or entry.expiry != own.expiry)) or None


def _distinct(state: dict[str, int] | None, p: Parameters, cost: int, receipt: Receipt, now: int) -> Any:  # noqa: ARG001
    if not state or state.get(p.value) != receipt.stop:
        return state
    others = {value: expiry for value, expiry in state.items() if value != p.value}
    before = receipt.before or 0
    return ({**others, p.value: before} if before > now else others) or None


def _token_bucket(state: Bucket | None, p: Parameters, cost: int, receipt: Receipt, now: int) -> Any:
    queued = Queued(receipt.stop, receipt.before or 0, receipt.refunded or 0, receipt.alone or 0, p.a)
    return _TOKEN_BUCKET.restore(state, p, cost, queued, now)


def _leaky_bucket(state: Bucket | None, p: Parameters, cost: int, receipt: Receipt, now: int) -> Any:
    return _LEAKY_BUCKET.restore(state, p, cost, Queued(receipt.stop, 0, 0, 0, p.a), now)


def _window(state: WindowCount | None, p: Parameters, cost: int, receipt: Receipt, now: int) -> Any:  # noqa: ARG001
    if state is None or state.end != receipt.stop:  # a window that was reset and opened again ends at another moment
        return state
    return WindowCount(state.used - cost, state.end) if state.used > cost else None


_TOKEN_BUCKET, _LEAKY_BUCKET = TokenBucket(), LeakyBucket()

_COMPENSATORS: dict[str, Callable[[Any, Parameters, int, Receipt, int], Any]] = {
    "sliding_window": _sliding,
    "distinct": _distinct,
    "token_bucket": _token_bucket,
    "leaky_bucket": _leaky_bucket,
    "fixed_window": _window,
    "calendar": _window,
}
