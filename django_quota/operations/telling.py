"""What happens around a decision: the day's counts, bans after too many refusals, what is told. Pure.

`lua/telling.lua` twin, but for the event stream and the index of bans: those are Redis' alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from django_quota.algorithms import ALGORITHMS, NEVER, Step, Verdict
from django_quota.clock import SECOND
from django_quota.operations.base import States
from django_quota.operations.standing import (
    BAN_BEGAN,
    BANNED,
    NEAR_TOLD,
    REFUSAL_TOLD,
    Case,
    fields_of,
    set_field,
    shut_out,
)

DAY = 86_400 * SECOND
DAY_KEPT = 8 * DAY
"""So long the counts of a day wait for the roll-up, in microseconds."""


def count(states: States, case: Case, passed: bool, now: int) -> None:
    """Count the check for the subject and day."""
    day = case.hit.day
    if day is None or not (passed or case.is_refused):
        return
    counts = dict(states.get(day.key) or {"#": now})
    field = f"{case.hit.field}:{'r' if case.is_refused else 'a'}"
    counts[field] = counts.get(field, 0) + 1
    states.put(day.key, counts, states.expiry(day.key) or now + DAY_KEPT)


def tell(states: States, case: Case, passed: bool, tells: bool, now: int) -> list[int]:
    """Ban where it is due, and say what is to be told; returns notes. `tells`: whether events are told at all."""
    rule = case.hit.rule
    field = case.hit.field
    if case.is_refused:
        if case.hit.tally and not case.standing:
            notes = _ban_after(states, case, tells, now)
            if notes:
                return notes
        if tells and not rule.shadow and _may_tell(states, case, f"e:{field}", SECOND, now):
            wait = max((math.inf if v.wait == NEVER else v.wait) for v in case.verdicts if not v.ok)
            return [case.index, REFUSAL_TOLD, 0 if wait == math.inf else now + int(wait)]
    elif tells and not rule.shadow and rule.warn_at and passed and not case.standing:
        reset = _nearing(zip(case.hit.steps, case.verdicts, strict=True), int(rule.warn_at * 1000))
        if reset is not None and _may_tell(states, case, f"w:{field}", min(max(reset, SECOND), DAY), now):
            return [case.index, NEAR_TOLD, 0]
    return []


def _ban_after(states: States, case: Case, tells: bool, now: int) -> list[int]:
    """Count a refusal; where it is one too many, the ban begins."""
    hit, ban = case.hit, case.hit.rule.ban
    sliding = ALGORITHMS["sliding_window"]
    tally = states.get(hit.tally)
    if sliding.inspect(tally, ban.tally, 1, now).remaining > 1:
        after, _ = sliding.spend(tally, ban.tally, 1, now)
        states.put(hit.tally, after, sliding.expiry(after))
        return []
    states.drop(hit.tally)
    case.level = level = case.level + 1 if case.remembered > now else 1
    stop = now + ban.spans[min(level, len(ban.spans)) - 1]
    remembered = stop + ban.spans[-1]
    set_field(states, hit.standing, f"b:{hit.field}", f"{stop} {level} {remembered}", remembered)
    case.verdicts = [shut_out(verdict, stop, now) for verdict in case.verdicts]
    return [case.index, BANNED, stop, *((case.index, BAN_BEGAN, stop) if tells else ())]


def _may_tell(states: States, case: Case, field: str, span: int, now: int) -> bool:
    """Say whether something may be told again, and if so, not before `span` from now."""
    if int(fields_of(states, case.hit.standing).get(field, 0)) > now:
        return False
    set_field(states, case.hit.standing, field, str(now + span), now + span)
    return True


def _nearing(limits: Iterable[tuple[Step, Verdict]], warn: int) -> int | None:
    """Return the reset of the first limit whose use has passed the share from which on it is near."""
    for step, verdict in limits:
        capacity = step.parameters.capacity
        threshold = -(-capacity * warn // 1000)
        used = capacity - verdict.remaining
        if threshold < capacity and used - step.cost < threshold <= used:
            return verdict.reset
    return None
