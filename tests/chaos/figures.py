"""The figures of a scene, from the accounts of its workers, and the promises that were broken."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.site import BLOCKED, LATER, LOCAL, PAIR, POLICIES, Policy

SETTLED = 2.0
"""Seconds after which all is as before: whether Redis is back is asked once a second, and may be answered late."""

GONE, BACK = "The quota store is", "The quota store answers"
"""The beginnings of the two log lines that come with the signals."""


class Record(NamedTuple):
    """One request; times are the machine's monotonic clock, which all processes share."""

    policy: str
    started: float
    ended: float
    allowed: bool
    degraded: bool
    error: str
    """What was raised; empty if nothing was."""


@dataclass(slots=True)
class Account:
    """All that one worker has to say."""

    records: list[Record] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """The reason of each `store_lost` signal."""
    back: int = 0
    """`store_back` signals."""
    logged: list[str] = field(default_factory=list)
    """Lines in the log "django_quota", from WARNING upwards."""
    used: int | None = None
    """What `site.BESIDE` had counted when all workers had ended; None if Redis did not tell."""


class Times(NamedTuple):
    """When the fault began, and when it was over (the machine's monotonic clock)."""

    broken: float
    well: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a scene may cost."""

    losses: int = 0
    """How often the server loses what it has counted, or a part of it."""
    outages: tuple[int, float] = (1, 1)
    """How often a worker finds Redis gone, at least and at most."""
    spared: Sequence[Policy] = ()
    """The policies that the fault does not touch: none of their decisions is made without Redis."""
    local: Sequence[Policy] = (LOCAL,)
    """The policies that each worker counts by itself without Redis."""
    gives_back: bool = False
    """Whether a plan that is not admitted leaves nothing behind, in the place of any of its subjects."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of a scene; times in seconds."""

    tried: int
    failed: int
    """Requests that an exception met."""
    degraded: int
    over: int
    """Admitted beyond a limit while Redis answered, between two losses of its memory."""
    after_loss: int
    """Admitted beyond a limit because Redis had forgotten hits of its window: the most of any policy."""
    longest: float
    all_normal: float
    """From when Redis was well to the last decision without it."""
    broken: list[str] = field(default_factory=list)
    """Which promises were broken, in words."""
    strict: list[str] = field(default_factory=list)
    """Which promises were broken that a busy machine may break too: too late, or an outage of the machine's making."""


def figures(accounts: Sequence[Account], times: Times, allowance: Allowance) -> Figures:
    """Work the figures of a scene out."""
    records = [record for account in accounts for record in account.records]
    degraded = [record for record in records if record.degraded]
    admitted = [record for record in records if record.allowed and not record.degraded]
    # What was under way at a loss belongs to neither side for certain.
    before, after = [r for r in admitted if r.ended <= times.broken], [r for r in admitted if r.started > times.broken]
    eras = (before, after) if allowance.losses else (admitted,)
    found = Figures(
        tried=len(records),
        failed=sum(bool(record.error) for record in records),
        degraded=len(degraded),
        over=max(_beyond(era, policy) for era in eras for policy in POLICIES),
        after_loss=max(_beyond(admitted, policy) for policy in POLICIES) if allowance.losses else 0,
        longest=max(record.ended - record.started for record in records),
        all_normal=max(0.0, max((record.ended for record in degraded), default=0.0) - times.well),
    )
    late, last = times.well + SETTLED, max(record.started for record in records) - 1
    spared = {policy.name for policy in allowance.spared}
    found.strict.extend(_of_those({
        "decided without Redis long after it was well": sum(r.started >= late for r in degraded),
        "decided without Redis, which the fault does not touch": sum(r.policy in spared for r in degraded),
        **{f"{each.reasons} and {each.back} returns, logged as {each.logged}": not _is_told_once(each, allowance)
           for each in accounts},
    }))  # fmt: skip
    by_themselves = max(
        _beyond([r for r in each.records if r.degraded and r.allowed], policy, len(accounts))
        for each in accounts for policy in allowance.local
    )  # fmt: skip
    bound = max(policy.limit for policy in POLICIES) * allowance.losses
    found.broken.extend(_of_those({
        f"requests that met an exception: {sorted({r.error for r in records if r.error})}": found.failed,
        "admitted beyond a limit while Redis answered": found.over,
        f"admitted beyond a limit after a loss of memory, {bound} may be": max(0, found.after_loss - bound),
        "admitted where the rule denies without Redis":
            sum(r.allowed and r.policy in ("deny", PAIR.name) for r in degraded),
        "admitted though the subject is blocked": sum(r.allowed and r.policy == BLOCKED.name for r in records),
        "admitted long after the subject was blocked":
            sum(r.allowed and r.policy == LATER.name and r.started >= late for r in records),
        "admitted by a worker by itself in a window beyond its part": by_themselves,
        "decided without Redis at the end": sum(r.started >= last for r in degraded),
        f"plans left {_left_behind(accounts, admitted)} behind": not _gives_back(accounts, admitted, allowance),
        f"told of {[len(each.reasons) for each in accounts]} losses and {[each.back for each in accounts]} returns":
            any(len(each.reasons) != each.back for each in accounts),
    }))  # fmt: skip
    return found


def _of_those(judged: Mapping[str, int]) -> list[str]:
    return [f"{int(number)}: {words}" for words, number in judged.items() if number]


def _beyond(admitted: Iterable[Record], policy: Policy, workers: int = 1) -> int:
    """Return the most that a window has, wherever it begins, beyond a limit or a worker's part of it.

    When within a request its hit was counted is not known: only those count that are in the window from their beginning
    to their end.
    """
    worst, inside = 0, list[float]()
    of_policy = (record for record in admitted if record.policy == policy.name)
    for record in sorted(of_policy, key=lambda record: record.started, reverse=True):
        place = bisect_left(inside, record.ended)
        inside.insert(place, record.ended)
        del inside[bisect_left(inside, record.started + policy.window) :]  # too late for all that began earlier, too
        worst = max(worst, len(inside))
    return max(0, worst - policy.limit // workers)


def _left_behind(accounts: Iterable[Account], admitted: Iterable[Record]) -> float:
    """Return what the plans over two subjects have left in the place of one, beyond those that were admitted."""
    used = max(math.inf if account.used is None else account.used for account in accounts)
    return used - sum(record.policy == PAIR.name for record in admitted)


def _gives_back(accounts: Sequence[Account], admitted: Sequence[Record], allowance: Allowance) -> bool:
    """Say whether what is counted is what was admitted.

    A hit whose answer got lost may be counted, and is not admitted by Redis. A server that lost its memory has less.
    """
    left = _left_behind(accounts, admitted)
    lost = sum(r.policy == PAIR.name and r.degraded for account in accounts for r in account.records)
    most = lost if allowance.gives_back else math.inf
    return left < math.inf and (bool(allowance.losses) or 0 <= left <= most)


def _is_told_once(account: Account, allowance: Allowance) -> bool:
    least, most = allowance.outages
    lost, back = (sum(line.startswith(words) for line in account.logged) for words in (GONE, BACK))
    return lost == back == account.back == len(account.reasons) and least <= lost <= most
