"""The figures of a scene, from the accounts of its workers, and the promises that were broken."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.records import Account, Loss, Record, Stall
from tests.chaos.site import LOCAL, PAIR, POLICIES, Policy

TIMEOUT = 0.25
"""Seconds that a worker waits for an answer: what an alias has that does not say."""
HELD_UP = TIMEOUT / 2
"""What the machine must have taken of them, for a time-out to be its own and not the store's."""
SETTLED = 2.0
"""Seconds after which all is as before: whether Redis is back is asked once a second, and may be answered late."""


class Times(NamedTuple):
    """When the fault began, and when it was over (the machine's monotonic clock)."""

    broken: float
    well: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a scene may cost."""

    losses: int = 0
    """How often the server loses what it has counted, or a part of it."""
    outages: tuple[int, int | None] = (1, 1)
    """How often a worker finds Redis gone, at least and at most; None: that depends on what is under way."""
    spared: Sequence[str] = ()
    """The policies that the fault does not touch: none of their decisions is made without Redis."""
    local: Sequence[str] = (LOCAL.name,)
    """The policies that each worker counts by itself without Redis."""
    gives_back: bool = False
    """Whether a plan that is not admitted leaves nothing behind, in the place of any of its subjects."""
    repeated: Sequence[str] = ()
    """The lines of the log that come more than once in an outage, by their first words."""


ONE_OUTAGE = Allowance()
UNTOUCHED = Allowance(outages=(0, 0), spared=tuple(policy.name for policy in POLICIES), gives_back=True)


@dataclass(slots=True)
class Figures:
    """The figures of one scene; times in seconds."""

    tried: int
    failed: int
    """Requests that an exception met."""
    degraded: int
    spoiled: int
    """Decided without Redis under a policy that the fault does not touch, and the machine was not too busy for it."""
    over: int
    """Admitted beyond a limit while Redis answered, between two losses of its memory."""
    after_loss: int
    """Admitted beyond a limit because Redis had forgotten hits of its window: the most, of any policy, of its limit."""
    without: Mapping[str, int]
    """Admitted without Redis, by what the rule does then."""
    local_worst: int
    """The most that one worker admitted without Redis in any window, where the rule says "local"."""
    local_bound: int
    beyond_local: int
    """The most that one worker admitted without Redis beyond its part, in any window of a policy that counts so."""
    kept: int | None
    """What the plans over two subjects have left behind in the place of one, beyond those that were admitted.

    It is negative where hits that were admitted are not counted any more; None where Redis does not tell.
    """
    unanswered: int
    """Plans over two subjects that may have left something behind, since the machine was too busy for an answer."""
    longest: float
    p99: float
    first_normal: float
    """From when Redis was well to the first decision by it."""
    all_normal: float
    """From when Redis was well to the last decision without it."""
    is_normal: bool
    """Whether all was decided by Redis from some time after it was well until the end."""
    lost: list[int]
    """How often each worker was told that Redis is gone."""
    excused: list[int]
    """How often that was because the machine was too busy for an answer in time."""
    back: list[int]
    logged: list[dict[str, int]]
    """Lines in the log of each worker, by their first words."""
    errors: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """What they were told was the matter with Redis."""


def worst_window(records: Iterable[Record], window: float) -> int:
    """Return the most requests that are certainly in one window, wherever it begins.

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


def figures(
    accounts: Sequence[Account], times: Times, allowance: Allowance, servers: Collection[Sequence[Stall]] = ()
) -> Figures:
    """Work the figures of a scene out; `servers`: the stalls of each server."""
    records = [record for account in accounts for record in account.records]
    seconds = sorted(record.seconds for record in records)
    normal = [record for record in records if not record.degraded and not record.error]
    degraded = [record for record in records if record.degraded]
    admitted = [record for record in normal if record.allowed]
    without = Counter(_BY_NAME[record.policy].without for record in degraded if record.allowed)
    eras = _eras(admitted, times, allowance)
    since = [record.ended for record in normal if record.started >= times.well]
    excuses = [_Excuses(account, servers) for account in accounts]
    odd = [record for excuse in excuses for record in excuse.own_degraded]
    used = {account.used for account in accounts}
    return Figures(
        tried=len(records),
        failed=sum(bool(record.error) for record in records),
        degraded=len(degraded),
        spoiled=sum(record.policy in allowance.spared for record in odd),
        over=sum(_beyond(era, policy) for era in eras for policy in POLICIES),
        after_loss=max(_beyond(admitted, policy) for policy in POLICIES) if allowance.losses else 0,
        without=dict(without),
        local_worst=max(worst_window(_of(_without(account), LOCAL), LOCAL.window) for account in accounts),
        local_bound=LOCAL.limit // len(accounts),
        beyond_local=max(
            _beyond_part(account, len(accounts), _BY_NAME[n]) for account in accounts for n in allowance.local
        ),
        kept=None if None in used else max(map(int, filter(None, used)), default=0) - len(_of(admitted, PAIR)),
        unanswered=len(_of(degraded, PAIR)) - len(_of(odd, PAIR)) + sum(len(excuse.kept_back) for excuse in excuses),
        longest=seconds[-1],
        p99=seconds[math.ceil(0.99 * len(seconds)) - 1],
        first_normal=max(0.0, min(since, default=math.inf) - times.well),
        all_normal=max(0.0, max((record.ended for record in degraded), default=0.0) - times.well),
        is_normal=all(_ends_normal(excuse, times.well + SETTLED) for excuse in excuses),
        lost=[len(account.losses) for account in accounts],
        excused=[len(excuse.losses) for excuse in excuses],
        back=[account.back for account in accounts],
        logged=[dict(Counter(" ".join(line.split()[:WORDS]) for line in account.logged)) for account in accounts],
        errors=sorted({record.error for record in records if record.error}),
        reasons=sorted({loss.reason for account in accounts for loss in account.losses}),
    )


_BY_NAME = {policy.name: policy for policy in POLICIES}
WORDS = 4
"""Words at the beginning of a log line that say what it is about."""
GONE, BACK = "The quota store is", "The quota store answers"
"""The beginnings of the two log lines that come with the signals."""


class _Excuses:
    """What of an account is the machine's doing: it held the processes up for as long as an answer may take."""

    def __init__(self, account: Account, servers: Collection[Sequence[Stall]]) -> None:
        self.account = account
        self._servers = servers
        self.losses: list[Loss] = []
        for loss in account.losses:
            follows = loss.is_of_breaker and any(loss.at - before.at < SETTLED for before in self.losses)
            if follows or (loss.is_slow and self._held_up(self._asked(loss), loss.at)):
                self.losses.append(loss)

    def _asked(self, loss: Loss) -> float:
        """Return since when the answer had been waited for that did not come."""
        waited = [r.started for r in self.account.records if r.degraded and r.started <= loss.at <= r.ended]
        return min([loss.at - TIMEOUT, *waited])

    @property
    def own_degraded(self) -> list[Record]:
        """The decisions without Redis that are not excused."""
        return [record for record in self.account.records if record.degraded and not self.excuses(record)]

    @property
    def kept_back(self) -> list[Record]:
        """The refused plans that waited for a timeout of the machine: what they gave back may have got no answer."""
        refused = [record for record in self.account.records if not (record.allowed or record.degraded)]
        return [
            record
            for record in _of(refused, PAIR)
            if record.seconds >= TIMEOUT and self._held_up(record.started, record.ended)
        ]

    def excuses(self, record: Record) -> bool:
        """Say whether a decision without Redis is the machine's doing, or belongs to an outage that is."""
        known = [loss for loss in self.account.losses if loss.at <= record.ended]
        return bool(known and _latest(known) in self.losses) or self._held_up(record.started, record.ended)

    def _held_up(self, since: float, until: float) -> bool:
        """Say whether the machine took enough of a span: from the worker, and from the server that it took most from.

        An answer waits for both: until the server has its turn, and then until the worker has.
        """
        servers = max((_late(stalls, since, until) for stalls in self._servers), default=0.0)
        return _late(self.account.stalls, since, until) + servers >= HELD_UP


def _late(stalls: Iterable[Stall], since: float, until: float) -> float:
    """Return how much of a span stalls take."""
    return sum(max(0.0, min(stall.ended, until) - max(stall.ended - stall.seconds, since)) for stall in stalls)


def _latest(losses: Iterable[Loss]) -> Loss:
    return max(losses, key=lambda loss: loss.at)


def _eras(admitted: list[Record], times: Times, allowance: Allowance) -> list[list[Record]]:
    """Part records where the server lost its memory: what was under way then belongs to neither side for certain."""
    if not allowance.losses:
        return [admitted]
    return [
        [record for record in admitted if record.ended <= times.broken],
        [record for record in admitted if record.started > times.broken],
    ]


def _of(records: Iterable[Record], policy: Policy) -> list[Record]:
    return [record for record in records if record.policy == policy.name]


def _without(account: Account) -> list[Record]:
    return [record for record in account.records if record.degraded and record.allowed]


def _beyond(admitted: Iterable[Record], policy: Policy) -> int:
    return max(0, worst_window(_of(admitted, policy), policy.window) - policy.limit)


def _beyond_part(account: Account, workers: int, policy: Policy) -> int:
    return max(0, worst_window(_of(_without(account), policy), policy.window) - policy.limit // workers)


def _ends_normal(excuses: _Excuses, settled: float) -> bool:
    """Say whether a worker went on to the end, and asked Redis all that time."""
    last = [record for record in excuses.account.records if record.started >= settled]
    return bool(last) and not any(record.degraded and not excuses.excuses(record) for record in last)


def broken(found: Figures, allowance: Allowance) -> list[str]:
    """Return which promises a scene has broken, in words; none is what it should be."""
    bound = max(policy.limit for policy in POLICIES) * allowance.losses
    denied = found.without.get("deny", 0)
    judged = {
        f"{found.failed} requests met an exception: {'; '.join(found.errors)}": found.failed,
        f"{found.over} were admitted beyond a limit while Redis answered": found.over,
        f"{found.after_loss} were admitted beyond a limit after a loss of memory, more than {bound}": (
            found.after_loss > bound
        ),
        f"{denied} were admitted where the rule denies without Redis": denied,
        f"{found.spoiled} that the fault does not touch were decided without Redis: {'; '.join(found.reasons)}": (
            found.spoiled
        ),
        f"A worker admitted {found.beyond_local} by itself in a window beyond its part": found.beyond_local,
        f"Plans left {found.kept} behind": not _gives_back(found, allowance),
        "Not all was normal at the end": not found.is_normal,
        f"Told of {found.lost} losses and {found.back} returns": found.is_normal and found.lost != found.back,
    }
    return [words for words, is_broken in judged.items() if is_broken]


def _gives_back(found: Figures, allowance: Allowance) -> bool:
    """Say whether what is counted is what was admitted.

    A hit whose answer got lost may be counted, and is not admitted by Redis: so there may be more, where the fault cuts
    answers off. A server that lost its memory has less.
    """
    if found.kept is None:
        return False
    most = found.unanswered if allowance.gives_back else math.inf
    return bool(allowance.losses) or 0 <= found.kept <= most


def told_too_often(found: Figures, allowance: Allowance) -> list[str]:
    """Return where it was not told once each way, in the signals and in the log."""
    least, most = allowance.outages
    counts = zip(found.lost, found.excused, strict=True)
    is_right = all(least <= lost and (most is None or lost - excused <= most) for lost, excused in counts)
    is_right = is_right and found.lost == found.back
    for lost, back, lines in zip(found.lost, found.back, found.logged, strict=True):
        is_right = is_right and (lines.get(GONE, 0), lines.get(BACK, 0)) == (lost, back)
        is_right = is_right and all(
            number <= lost for words, number in lines.items() if words not in allowance.repeated
        )  # such as that of the overview
    if is_right:
        return []
    words = f"Told of {found.lost} losses ({found.excused} of them the machine's) and {found.back} returns"
    span = f"{least} times" if least == most else f"{least} to {'any number of' if most is None else most} times"
    return [f"{words} by these lines: {found.logged}. Each worker finds Redis gone {span}"]
