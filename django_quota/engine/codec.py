"""The codec of decisions: names for the words and numbers of `engine/lua/decide.lua`.

The head of the script lists the same words and numbers, and a test compares the two.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple

from django_quota.core.algorithms import NEVER, Limit, Verdict
from django_quota.core.algorithms.stock import Drawn, Held, StockLimit, drawn_text
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Outcome, Why
from django_quota.core.errors import StoreDataError
from django_quota.engine.hits import Hit

RETRY_WITH, REFUSED, ALLOWED = -1, 0, 1
"""The verdicts of a reply. RETRY_WITH: send the hits again, with edges of days and periods that fit the time."""

HEADER = 2
"""A reply begins with the time and the verdict."""

PER_LIMIT = len(Verdict._fields)
"""How many numbers of a reply belong to each limit."""


# --- modes ------------------------------------------------------------------------------------------------------------


class Portion(NamedTuple):
    """What a hit took at one moment. A reservation that was extended has several."""

    moment: int
    """When it was decided, in microseconds."""
    cost: int
    """What it took, in units."""
    actual: int
    """What was really used of it, in units."""
    places: Sequence[bool]
    """For each limit, whether it counted the hit. If not, it has nothing to give back."""
    lease: str = ""
    """The id of the lease for which its units were taken; empty if they were taken for good."""
    drawn: str = ""
    """What it took of grants; see `stock.drawn_text`."""
    day_key: str = ""
    """Where its day is counted; empty for the day of the hit."""

    def encode(self) -> str:
        """Return the portion, encoded for `engine/lua/adjust.lua`."""
        places = "".join(["01"[place] for place in self.places])
        return f"{self.moment}:{self.cost}:{self.actual}:{places}:{self.lease}:{self.drawn}:{bool(self.day_key):d}"


class SettledMark(NamedTuple):
    """Where the store remembers that a hit was settled."""

    key: str
    stop: int
    """Until when it remembers, in microseconds. After that the hit cannot be settled."""


class Adjustment(NamedTuple):
    """How to settle a hit."""

    portions: Sequence[Portion]
    mark: SettledMark | None = None
    """None if nobody else can settle the hit."""

    @property
    def actual(self) -> int:
        """What was really used, in units."""
        return sum([portion.actual for portion in self.portions])

    @property
    def keys(self) -> list[str]:
        """The keys that it needs beside those of the hit."""
        keys = [portion.day_key for portion in self.portions if portion.day_key]
        return keys if self.mark is None else [*keys, self.mark.key]

    def encode(self) -> str:
        """Return the adjustment, encoded for `engine/lua/adjust.lua`."""
        stop = 0 if self.mark is None else self.mark.stop
        return ",".join([str(stop), *[portion.encode() for portion in self.portions]])


@dataclass(frozen=True, slots=True)
class Adjust:
    """The mode that replaces what hits took by what was really used, even past the limit; then peeks at a cost of 0."""

    of_hits: Sequence[Adjustment | None]
    """None: the hit took nothing."""

    @property
    def keys(self) -> list[str]:
        """The keys that it needs beside those of the hits, in the order that `engine/lua/decide.lua` lists."""
        return [key for of_hit in self.of_hits if of_hit is not None for key in of_hit.keys]

    def encode(self) -> str:
        """Return the mode, encoded for `engine/lua/decide.lua`."""
        return " ".join(["adjust", *("-" if of_hit is None else of_hit.encode() for of_hit in self.of_hits)])

    def only(self, hits: Sequence[int]) -> Adjust:
        """Return the mode for some of the hits, by their indexes."""
        return Adjust([self.of_hits[hit] for hit in hits])


Mode = Literal["check", "force", "peek", "refund"] | Adjust
"""What a store does with hits.

"check" decides and consumes; "force" consumes past the limit and under a ban, too; "peek" changes nothing; "refund"
restores the costs, then peeks.
"""


def encode_mode(mode: Mode) -> str:
    """Return a mode, encoded for `engine/lua/decide.lua`."""
    return mode if isinstance(mode, str) else mode.encode()


# --- replies ----------------------------------------------------------------------------------------------------------


class Flag(IntEnum):
    """The kinds of flags in a reply: they are about a hit as a whole, not about one limit."""

    BANNED = 1
    """The hit is banned until the value."""
    BAN_BEGAN = 2
    """The hit began a ban that ends at the value."""
    REFUSAL_EMITTED = 3
    """A "refused" event was emitted."""
    NEAR_EMITTED = 4
    """A "near" event was emitted; the value is the share that it reports, in thousandths."""
    BAN_LEVEL = 5
    """The number of the ban in its series, if the caller writes the event."""
    DECIDED_AT = 6
    """For hits in several slots: the hit's server decided at the value, not at the time of the reply."""
    GRANTED = 7
    """The caller has taken so many units ahead."""
    LEASED = 8
    """It may spend them for so many microseconds."""
    DRAWN_OF = 9
    """Units of a counter are of the grant that expires at the value."""
    DRAWN = 10
    """How many units these are. It follows `DRAWN_OF`."""


class Flagged(NamedTuple):
    """A flag of a reply."""

    hit: int
    """The index of the hit in the operation."""
    flag: int
    value: int


@dataclass(slots=True)
class Reply:
    """The decoded reply to a decision."""

    now: int
    """The store's time, in microseconds."""
    verdict: int
    hits: list[list[Verdict]] = field(default_factory=list)
    """For each hit, one verdict for each of its limits."""
    flags: list[Flagged] = field(default_factory=list)

    @classmethod
    def decode(cls, reply: Sequence[Any], hits: Sequence[Hit]) -> Reply:
        """Read the reply to a decision about these hits.

        Raises `StoreDataError` for any other reply: a proxy may have answered in place of Redis.
        """
        try:
            return cls._decode(reply, hits)
        except (TypeError, ValueError, IndexError) as error:
            raise StoreDataError(f"the reply to a decision cannot be read: {reprlib.repr(reply)}") from error

    @classmethod
    def _decode(cls, reply: Sequence[Any], hits: Sequence[Hit]) -> Reply:
        if not isinstance(reply, list):
            raise TypeError("it is not a list")
        now, verdict = reply[0], reply[1]
        found, at = [], HEADER
        for hit in hits if verdict != RETRY_WITH else ():
            of_hit = []
            for _ in hit.limits:
                allowed, remaining, retry_after, reset, more = reply[at : at + PER_LIMIT]
                of_hit.append(Verdict(allowed == 1, remaining, retry_after, reset, more))
                at += PER_LIMIT
            found.append(of_hit)
        flags = [Flagged(reply[i], reply[i + 1], reply[i + 2]) for i in range(at, len(reply), 3)]
        if not all(0 <= flagged.hit < len(hits) for flagged in flags):  # the reply to other hits may look like this
            raise ValueError("it has a flag of a hit that was not sent")
        return cls(now, verdict, found, flags)

    def encode(self) -> list[Any]:
        """Return the reply in the form that `Decide.read_reply` returns."""
        limits = [int(number) for verdicts in self.hits for verdict in verdicts for number in verdict]
        return [self.now, self.verdict, *limits, *(word for flagged in self.flags for word in flagged)]

    def passed(self, index: int) -> bool:
        """Return whether all limits of a hit admitted it."""
        return all(verdict.allowed for verdict in self.hits[index])

    def drawn(self, index: int) -> str:
        """Return what a hit took of grants; see `stock.drawn_text`."""
        return drawn_text(drawn_by(self.flags, index))

    def consumed(self, hits: Sequence[Hit]) -> Iterator[tuple[int, int]]:
        """Yield the index of each hit that a check consumed, and when it was decided (microseconds)."""
        if self.verdict != ALLOWED:
            return
        moments = {index: value for index, flag, value in self.flags if flag == Flag.DECIDED_AT}
        for index, hit in enumerate(hits):
            if hit.cost and self.passed(index):  # the limits of a banned hit refuse it
                yield index, moments.get(index, self.now)


def drawn_by(flags: Iterable[Flagged], index: int) -> Iterator[Drawn]:
    """Yield what flags say that a hit took of grants."""
    expires = 0
    for hit, flag, value in flags:
        if hit == index and flag == Flag.DRAWN_OF:
            expires = value
        elif hit == index and flag == Flag.DRAWN:
            yield Drawn(expires, value)


def allows_all(numbers: Sequence[Any], hits: Sequence[Hit]) -> bool:
    """Return whether a reply has no flags and all limits allow the hits. False if some rule decides only for itself."""
    length = HEADER
    for hit in hits:
        if hit.group:
            return False
        length += PER_LIMIT * len(hit.compiled.limits)
    return isinstance(numbers, list) and len(numbers) == length and numbers[1] == ALLOWED


def outcomes_of(reply: Reply, hits: Sequence[Hit]) -> tuple[Outcome, ...]:
    """Return one outcome for each limit, in the order of the hits."""
    banned = {hit for hit, flag, _ in reply.flags if flag == Flag.BANNED}
    return tuple(
        [
            _outcome(
                hit, limit.limit, "banned" if index in banned else "override" if hit.is_overridden else "", *verdict
            )
            for index, (hit, verdicts) in enumerate(zip(hits, reply.hits, strict=True))
            for limit, verdict in zip(hit.compiled.limits, verdicts, strict=True)
        ]
    )


def outcomes_without_flags(numbers: Sequence[int], hits: Sequence[Hit]) -> tuple[Outcome, ...]:
    """Return one outcome for each limit from the numbers of a reply; see `allows_all`."""
    outcomes, at = [], HEADER
    for hit in hits:
        why: Why = "override" if hit.is_overridden else ""
        for limit in hit.compiled.limits:
            allowed, remaining, wait, reset, more = numbers[at : at + PER_LIMIT]
            outcomes.append(_outcome(hit, limit.limit, why, allowed == 1, remaining, wait, reset, more))
            at += PER_LIMIT
    return tuple(outcomes)


def _outcome(
    hit: Hit, limit: Limit | StockLimit, why: Why, allowed: bool, remaining: int, wait: int, reset: int, more: int
) -> Outcome:
    rule = hit.compiled.rule
    # A hit that costs nothing may be admitted before anything is left.
    next_after = more if allowed or wait == NEVER else min(more, wait)
    left: int | None
    left, over = (remaining, 0) if remaining >= 0 else (0, -remaining)
    if hit.compiled.is_unlimited and isinstance(limit, Limit):
        left, over = None, limit.capacity - remaining
    return Outcome(
        limit if isinstance(limit, Limit) else Held(limit.rule, left or 0),  # a counter is shown by what it holds
        hit.subject,
        hit.cost,
        allowed,
        left,
        0.0 if allowed else None if wait < 0 else wait / SECOND,
        reset / SECOND,
        None if next_after == NEVER else next_after / SECOND,
        wait / SECOND if allowed else 0.0,
        rule.shadow,
        hit.group == 0,
        why,
        over,
    )


EventKind = Literal["refused", "banned", "near"]

EVENTS: dict[int, EventKind] = {
    Flag.BAN_BEGAN: "banned",
    Flag.REFUSAL_EMITTED: "refused",
    Flag.NEAR_EMITTED: "near",
}


def emitted(reply: Reply, hits: Sequence[Hit]) -> Iterator[tuple[EventKind, Hit, int]]:
    """Yield the events that a reply reports, each with its hit and the value of its flag."""
    for index, flag, value in reply.flags:
        if flag in EVENTS:
            yield EVENTS[flag], hits[index], value
