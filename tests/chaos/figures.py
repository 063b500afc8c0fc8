"""What the accounts of the workers come to: the figures of a scene, and which promises were broken. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.records import Account, Record
from tests.chaos.site import ALLOW, DENY, LOCAL, POLICIES, Policy


class Times(NamedTuple):
    """When the harm began, and when it was over (the machine's monotonic clock)."""

    harmed: float
    well: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a scene may cost: so many losses of memory, so many outages a worker (None: that is not known)."""

    losses: int
    outages: int | None


@dataclass(slots=True)
class Figures:
    """The figures of one scene; times in seconds."""

    tried: int
    failed: int
    """Requests that an exception met."""
    degraded: int
    over: int
    """Admitted beyond a limit while Redis answered, between two losses of its memory."""
    after_loss: int
    """Admitted beyond a limit because Redis had forgotten hits of its window: the most, of any policy, of its limit."""
    allowed_without: int
    """Admitted without Redis where the rule says "allow"."""
    denied_without: int
    """Admitted without Redis where the rule says "deny"."""
    local_worst: int
    """The most that one worker admitted without Redis in any window, where the rule says "local"."""
    local_bound: int
    longest: float
    p99: float
    first_normal: float
    """From when Redis was well to the first decision by it."""
    all_normal: float
    """From when Redis was well to the last decision without it."""
    is_normal: bool
    """Whether both workers ended by asking Redis."""
    lost: list[int]
    """How often each worker was told that Redis is gone."""
    slow: list[int]
    """How often that was because an answer took too long, as it may on a busy machine."""
    back: list[int]
    logged: list[int]
    """Lines in the log of each worker."""
    errors: list[str] = field(default_factory=list)


def worst_window(records: Iterable[Record], window: float) -> int:
    """Return the most requests that certainly lie in one window, wherever it begins.

    When within a request its hit was counted is not known: so only those count that lie in the window from their
    beginning to their end. What this finds beyond a limit, the limit has let through.
    """
    ordered = sorted(records)
    worst, inside = 0, list[float]()
    for record in sorted(ordered, key=lambda record: record.started, reverse=True):
        place = bisect_left(inside, record.ended)
        inside.insert(place, record.ended)
        del inside[bisect_left(inside, record.started + window) :]  # those are too late for all that began earlier, too
        worst = max(worst, len(inside))
    return worst


def figures(accounts: Sequence[Account], times: Times, allowance: Allowance) -> Figures:
    """Work the figures of a scene out."""
    records = [record for account in accounts for record in account.records]
    seconds = sorted(record.seconds for record in records)
    normal = [record for record in records if not record.degraded and not record.error]
    degraded = [record for record in records if record.degraded]
    admitted = [record for record in normal if record.allowed]
    without = [record for record in degraded if record.allowed]
    eras = _eras(admitted, times, allowance)
    since = [record.ended for record in normal if record.started >= times.well]
    return Figures(
        tried=len(records),
        failed=sum(bool(record.error) for record in records),
        degraded=len(degraded),
        over=sum(_beyond(era, policy) for era in eras for policy in POLICIES),
        after_loss=max(_beyond(admitted, policy) for policy in POLICIES) if allowance.losses else 0,
        allowed_without=len(_of(without, ALLOW)),
        denied_without=len(_of(without, DENY)),
        local_worst=max(worst_window(_of(_without(account), LOCAL), LOCAL.window) for account in accounts),
        local_bound=LOCAL.limit // len(accounts),
        longest=seconds[-1],
        p99=seconds[math.ceil(0.99 * len(seconds)) - 1],
        first_normal=max(0.0, min(since, default=math.inf) - times.well),
        all_normal=max(0.0, max((record.ended for record in degraded), default=0.0) - times.well),
        is_normal=all(map(_ends_normal, accounts)),
        lost=[account.lost for account in accounts],
        slow=[account.slow for account in accounts],
        back=[account.back for account in accounts],
        logged=[len(account.logged) for account in accounts],
        errors=sorted({record.error for record in records if record.error}),
    )


def _eras(admitted: list[Record], times: Times, allowance: Allowance) -> list[list[Record]]:
    """Part records where the server lost its memory: what was under way then belongs to neither side for certain."""
    if not allowance.losses:
        return [admitted]
    return [
        [record for record in admitted if record.ended <= times.harmed],
        [record for record in admitted if record.started > times.harmed],
    ]


def _of(records: Iterable[Record], policy: Policy) -> list[Record]:
    return [record for record in records if record.policy == policy.name]


def _without(account: Account) -> list[Record]:
    return [record for record in account.records if record.degraded and record.allowed]


def _beyond(admitted: Iterable[Record], policy: Policy) -> int:
    return max(0, worst_window(_of(admitted, policy), policy.window) - policy.limit)


LAST = 100
"""The requests at the end of a worker's account most of which must be normal: a busy machine may let one wait long."""


def _ends_normal(account: Account) -> bool:
    last = sorted(account.records, key=lambda record: record.ended)[-LAST:]
    return 2 * sum(not record.degraded and not record.error for record in last) > len(last)


def broken(found: Figures, allowance: Allowance) -> list[str]:
    """Return which promises a scene has broken, in words; none is what it should be."""
    bound = max(policy.limit for policy in POLICIES) * allowance.losses
    judged = {
        f"{found.failed} requests met an exception: {'; '.join(found.errors)}": found.failed,
        f"{found.over} were admitted beyond a limit while Redis answered": found.over,
        f"{found.after_loss} were admitted beyond a limit after a loss of memory, more than {bound}": (
            found.after_loss > bound
        ),
        f"{found.denied_without} were admitted where the rule denies without Redis": found.denied_without,
        f"A worker admitted {found.local_worst} by itself in a window, more than {found.local_bound}": (
            found.local_worst > found.local_bound
        ),
        "Not all was normal at the end": not found.is_normal,
        f"Told of {found.lost} losses and {found.back} returns": found.is_normal and found.lost != found.back,
    }
    return [words for words, is_broken in judged.items() if is_broken]


def told_too_often(found: Figures, allowance: Allowance) -> list[str]:
    """Return where it was not told once each way; a time-out more, on a busy machine, is one more to tell of."""
    least = allowance.outages
    if least is None:
        return []
    is_right = found.lost == found.back and all(
        least <= lost <= least + slow and 2 * lost <= lines <= 3 * lost  # the overview's counts have their own line
        for lost, slow, lines in zip(found.lost, found.slow, found.logged, strict=True)
    )
    if is_right:
        return []
    words = f"Told of {found.lost} losses and {found.back} returns by {found.logged} lines"
    return [f"{words}, where each worker finds Redis gone {least} times"]
