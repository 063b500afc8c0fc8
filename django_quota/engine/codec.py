"""The codec of decisions: names for the words and numbers that `lua/decide.lua` takes and replies.

The head of the script lists the same, and a test holds both together.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Literal, NamedTuple, Self

from django_quota.core.algorithms import NEVER, Limit, Verdict
from django_quota.core.clock import SECOND
from django_quota.core.decisions import Left, Outcome, Why
from django_quota.core.errors import StoreDataError
from django_quota.engine.hits import Hit
from django_quota.engine.operations import text

RETRY_WITH, REFUSED, ALLOWED = -1, 0, 1
"""The verdicts of a reply. RETRY_WITH: send the plan again in the form that the reply asks for."""

HEADER = 2
"""The time and the verdict open a reply."""

PER_LIMIT = len(Verdict._fields)
"""How many numbers of a reply belong to each limit."""


# --- modes ------------------------------------------------------------------------------------------------------------


class Reservation(NamedTuple):
    """How a hit is held: its token, and for how many microseconds."""

    token: str
    ttl: int


class HoldId(NamedTuple):
    """What names a hold."""

    due: int
    """When the store gives it back by itself, in microseconds."""
    token: str


class HoldChange(NamedTuple):
    """What becomes of the hold of a hit."""

    hold: HoldId
    amount: int
    """What was really used (units), or for how long it lasts from now on (microseconds)."""

    def encode(self) -> str:
        """Return it as `lua/holds.lua` takes it."""
        return f"{self.amount}:{self.hold.due}:{self.hold.token}"


class ConsumedHit(NamedTuple):
    """What a hit consumed: a receipt for each limit, whether it emitted a "near" event, and its hold."""

    receipts: Sequence[Sequence[int]]
    near: bool
    hold: HoldId | None = None

    def encode(self) -> str:
        """Return it as `lua/compensate.lua` takes it."""
        receipts = ",".join([":".join(map(str, receipt)) for receipt in self.receipts])
        held = f";{self.hold.due}:{self.hold.token}" if self.hold else ""
        return f"{'n' if self.near else '-'}{receipts}{held}"


@dataclass(frozen=True, slots=True)
class ModeOfHits:
    """A mode that says something else of each hit. Then it peeks."""

    name: ClassVar[str]
    of_hits: Sequence[HoldChange | ConsumedHit | None]
    """What it says of each hit; None: nothing."""

    def encode(self) -> str:
        """Return the mode as `lua/decide.lua` takes it."""
        return " ".join([self.name, *("-" if of_hit is None else of_hit.encode() for of_hit in self.of_hits)])

    def only(self, hits: Sequence[int]) -> Self:
        """Return the mode for some of the hits, by their places."""
        return type(self)([self.of_hits[hit] for hit in hits])


class HoldMode(ModeOfHits):
    """A mode that changes holds."""

    of_hits: Sequence[HoldChange | None]

    @classmethod
    def of(cls, holds: Sequence[HoldId | None], amounts: Sequence[int]) -> Self:
        """Return the mode for the hold of each hit (None: it has none), with an amount each."""
        pairs = zip(holds, amounts, strict=True)
        return cls([None if hold is None else HoldChange(hold, amount) for hold, amount in pairs])


class Settle(HoldMode):
    """Replace what holds consumed by what was really used, whatever the limit."""

    name = "settle"


class Renew(HoldMode):
    """Let holds that are not due yet last longer."""

    name = "renew"


class Compensate(ModeOfHits):
    """Take back what hits consumed, since a later part of their plan was refused."""

    name = "compensate"
    of_hits: Sequence[ConsumedHit | None]


PlainMode = Literal["check", "peek", "refund", "tentative", "record_refusal", "record_day"]
Mode = PlainMode | Settle | Renew | Compensate
"""What a store does with a plan.

"check" decides and consumes; "peek" changes nothing; "refund" restores the costs, then peeks. Plans that are decided in
parts also use "tentative" (a check that can be compensated), "record_refusal" (a check whose plan is already refused)
and "record_day" (counts hits that passed tentatively for the day).
"""


def encode_mode(mode: Mode) -> str:
    """Return a mode as `lua/decide.lua` takes it."""
    return mode if isinstance(mode, str) else mode.encode()


def consumes(mode: Mode) -> bool:
    """Say whether a hit that passes is consumed, and one that is refused emits an event."""
    return mode in ("check", "tentative", "record_refusal")


# --- replies ----------------------------------------------------------------------------------------------------------


class Flag(IntEnum):
    """What a reply says about a hit beside its limits."""

    EXEMPT = 1
    BLOCKED = 2
    BANNED = 3
    """The value of these three: when that ends, 0 for never."""
    BAN_BEGAN = 4
    """The hit began a ban that ends at the value."""
    REFUSAL_EMITTED = 5
    """A "refused" event was emitted."""
    NEAR_EMITTED = 6
    """A "near" event was emitted."""
    BAN_LEVEL = 7
    """The number of the ban in its row, if the caller writes the event."""
    KNOWN_BEFORE = 8
    """Of a tentative hit: what compensating it needs. One for a limit that counts values, two for a bucket."""
    SETTLED_LATE = 9
    """The hold was due at the value, before it was settled."""
    HELD = 10
    """What the hit consumed is noted as a hold, or the hold was renewed. It is due at the value."""
    OVERRIDDEN = 11
    """RETRY_WITH: another rate override is in force. The value: as it was published, empty for none."""
    HOLDS_DUE = 12
    """RETRY_WITH: holds are due. The value: the limits whose keys are missing."""


class Flagged(NamedTuple):
    """A flag of a reply."""

    hit: int
    """The place of the hit in the plan."""
    flag: int
    value: Any
    """A number; a text where the plan must be sent again."""


@dataclass(slots=True)
class Reply:
    """The reply to a decision, with names."""

    now: int
    """The store's time, in microseconds."""
    verdict: int
    hits: list[list[Verdict]] = field(default_factory=list)
    """For each hit a verdict for each limit."""
    flags: list[Flagged] = field(default_factory=list)

    @classmethod
    def decode(cls, reply: Sequence[Any], hits: Sequence[Hit]) -> Reply:
        """Read the reply to a decision about these hits.

        Raises `StoreDataError` if it is something else, as a proxy that is no Redis may send.
        """
        try:
            return cls._decode(reply, hits)
        except (TypeError, ValueError, IndexError) as error:
            raise StoreDataError(f"the reply to a decision cannot be read: {reprlib.repr(reply)}") from error

    @classmethod
    def _decode(cls, reply: Sequence[Any], hits: Sequence[Hit]) -> Reply:
        if not isinstance(reply, list):
            raise TypeError("it is no list")
        now, verdict = reply[0], reply[1]
        found, at = [], HEADER
        for hit in hits if verdict != RETRY_WITH else ():
            of_hit = []
            for _ in hit.limits:
                allowed, remaining, retry_after, reset, more = reply[at : at + PER_LIMIT]
                of_hit.append(Verdict(allowed == 1, remaining, retry_after, reset, more))
                at += PER_LIMIT
            found.append(of_hit)
        flags = [Flagged(reply[i], reply[i + 1], text(reply[i + 2])) for i in range(at, len(reply), 3)]
        for hit_at, _, value in flags:  # the reply to another plan may look like one to this
            if not 0 <= hit_at < len(hits) or isinstance(value, str) != (verdict == RETRY_WITH):
                raise ValueError("it has a flag of a hit that was not sent, or with a value of another kind")
        return cls(now, verdict, found, flags)

    def encode(self) -> list[Any]:
        """Return the reply as `Decide.read_reply` returns that of the script."""
        limits = [int(number) for verdicts in self.hits for verdict in verdicts for number in verdict]
        return [self.now, self.verdict, *limits, *(word for flagged in self.flags for word in flagged)]

    def flags_of(self, index: int) -> dict[int, int]:
        """Return the flags of a hit with their values."""
        return {flag: value for hit, flag, value in self.flags if hit == index}

    def passed(self, index: int) -> bool:
        """Say whether all limits of a hit admitted it."""
        return all(verdict.allowed for verdict in self.hits[index])

    @property
    def is_late(self) -> bool:
        """Whether a `settle()` came after the ttl of the reservation."""
        return any(flag == Flag.SETTLED_LATE for _, flag, _ in self.flags)


def allows_without_flags(reply: Sequence[Any], hits: Sequence[Hit]) -> bool:
    """Say whether a reply allows a plan and has no flags. Without groups, all its limits allow then."""
    numbers = HEADER
    for hit in hits:
        numbers += PER_LIMIT * len(hit.limits)
    return isinstance(reply, list) and len(reply) == numbers and reply[1] == ALLOWED


_WHY: dict[int, Why] = {Flag.EXEMPT: "exempt", Flag.BLOCKED: "blocked", Flag.BANNED: "banned"}


def outcomes_of(reply: Reply, hits: Sequence[Hit]) -> tuple[Outcome, ...]:
    """Return one outcome for each limit."""
    outcomes = []
    reasons = {hit: _WHY[flag] for hit, flag, _ in reply.flags if flag in _WHY} if reply.flags else {}
    for index, (hit, verdicts) in enumerate(zip(hits, reply.hits, strict=True)):
        why = reasons.get(index, "override" if hit.override else "")
        outcomes += [
            _outcome(hit, limit.limit, why, *verdict) for limit, verdict in zip(hit.limits, verdicts, strict=True)
        ]
    return tuple(outcomes)


class AllowedReply(NamedTuple):
    """A reply with which all limits allow, as `core.decisions` reads it; see `allows_without_flags`."""

    numbers: Sequence[int]
    hits: Sequence[Hit]

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return one outcome for each limit."""
        outcomes = []
        at = HEADER
        for hit in self.hits:
            for limit in hit.limits:
                verdict = self.numbers[at + 1 : at + PER_LIMIT]  # faster than to decode the reply
                outcomes.append(_outcome(hit, limit.limit, "override" if hit.override else "", True, *verdict))
                at += PER_LIMIT
        return tuple(outcomes)

    def left(self) -> list[Left]:
        """Return how much each limit has left."""
        found, numbers = [], self.numbers
        at = HEADER
        for hit in self.hits:
            for limit in hit.limits:
                _, remaining, _, _, more = numbers[at : at + PER_LIMIT]
                found.append(Left(limit.limit, remaining, None if more == NEVER else more / SECOND))
                at += PER_LIMIT
        return found


def _outcome(
    hit: Hit, limit: Limit, why: Why, allowed: bool, remaining: int, wait: int, reset: int, more: int
) -> Outcome:
    # A hit that costs nothing may be admitted before anything is left.
    next_after = more if allowed or wait == NEVER else min(more, wait)
    return Outcome(
        limit,
        hit.subject,
        hit.cost,
        allowed,
        remaining,
        0.0 if allowed else None if wait < 0 else wait / SECOND,
        reset / SECOND,
        None if next_after == NEVER else next_after / SECOND,
        wait / SECOND if allowed else 0.0,
        hit.rule.shadow,
        hit.group == 0,
        why,
    )


EventKind = Literal["refused", "banned", "near"]

_EVENTS: dict[int, EventKind] = {
    Flag.BAN_BEGAN: "banned",
    Flag.REFUSAL_EMITTED: "refused",
    Flag.NEAR_EMITTED: "near",
}


def emitted(reply: Reply, hits: Sequence[Hit]) -> Iterator[tuple[EventKind, Hit]]:
    """Yield the events that a reply reports, each with its hit."""
    for index, flag, _ in reply.flags:
        if flag in _EVENTS:
            yield _EVENTS[flag], hits[index]
