"""What the limiter answers. Pure: it must not know where the numbers come from, nor how they are shown.

Times that people and HTTP read are seconds as floats; the store's are integer microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from django_quota.algorithms import NEVER, NUMBERS, Limit
from django_quota.algorithms.concurrency import AtOnce, Concurrency
from django_quota.clock import SECOND, in_words
from django_quota.exceptions import QuotaExceeded
from django_quota.operations.hits import Hit
from django_quota.operations.standing import BAN_BEGAN, BANNED, BLOCKED, EXEMPT, NEAR_TOLD, REFUSAL_TOLD
from django_quota.rates import Rate

Why = Literal["", "override", "exempt", "blocked", "banned"]

Told = Literal["refused", "banned", "near"]

AnyLimit = Limit | Concurrency
"""What an outcome is of: a rate limit, or how many at once."""


class Outcome(NamedTuple):
    """What one limit of a plan says."""

    of: AnyLimit
    """The limit itself."""
    subject: str
    """Who is limited: `"ip:203.0.113.9"`."""
    cost: int
    """How much the hit asked for."""
    allowed: bool
    """Whether this limit had room for it."""
    remaining: int
    """What is left: after the hit where it was spent, else as it stands."""
    retry_after: float | None
    """Seconds until the same hit would be admitted: 0.0 where it was, None where no time helps."""
    reset_after: float
    """Seconds until nothing of this limit is used any more."""
    next_after: float | None = None
    """Seconds until more is left than now; None where nothing is used, or no time brings more."""
    delay: float = 0.0
    """Seconds to hold an admitted hit back (`leaky_bucket`; else 0.0)."""
    shadow: bool = False
    """Whether the limit only reports and never refuses."""
    blocks: bool = True
    """Whether its refusal answers the request; else (`block=False`, `shadow=True`) the view goes on."""
    why: Why = ""
    """What stands above the limit: `"override"` (an operator's other rate), `"exempt"`, `"blocked"` or `"banned"`."""

    @property
    def rule(self) -> str:
        """The name of the rule that the limit belongs to."""
        return self.of.rule

    @property
    def rate(self) -> Rate | AtOnce:
        """The rate: `str(rate)` is `"10/m"`; of a slot, `"10 at once"`."""
        return self.of.rate

    @property
    def limit(self) -> int:
        """The most that can be left: the count of the rate, or the burst of a bucket."""
        return self.of.capacity

    @property
    def window(self) -> int | None:
        """The whole seconds in which the limit comes back; None for months and years, whose length varies."""
        return self.of.window


@dataclass(frozen=True, slots=True)
class Decision:
    """Allowed or not, and why: the limit that binds is on top, all of them are in `outcomes`.

    The binding limit is, where refused, the one that refuses longest, else the one with the fewest hits left. A
    decision is true where it allows: `if not check("10/m", subject): ...`.
    """

    allowed: bool
    """Whether the hit may go on."""
    rule: str
    """The name of the binding limit's rule."""
    subject: str
    """Who is limited, as the binding limit sees it."""
    cost: int = 1
    """How much the hit asked of the binding limit."""
    outcomes: tuple[Outcome, ...] = ()
    """One a limit, in the plan's order; empty where the rule is unlimited, or the store did not decide."""
    degraded: bool = False
    """Whether this was decided without Redis."""
    binding: Outcome | None = None
    """The outcome that the top level shows."""
    blocked: bool = False
    """Whether a rule that blocks refused: then the request is answered with 429 (or 503 where degraded)."""

    @classmethod
    def of(cls, outcomes: tuple[Outcome, ...], *, degraded: bool = False) -> Decision:
        """Make the decision that these outcomes (at least one) amount to."""
        binding = outcomes[0] if len(outcomes) == 1 else min(outcomes, key=_strictness)
        allowed = binding.allowed or binding.shadow
        blocked = not allowed and binding.blocks
        return cls(allowed, binding.rule, binding.subject, binding.cost, outcomes, degraded, binding, blocked)

    @property
    def limit(self) -> int | None:
        """The most that the binding limit can have left; None where nothing limits."""
        return self.binding.limit if self.binding else None

    @property
    def remaining(self) -> int | None:
        """What the binding limit has left; None where nothing limits."""
        return self.binding.remaining if self.binding else None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same hit would be admitted: 0.0 where it was, None where no time helps."""
        if self.allowed:
            return 0.0
        return self.binding.retry_after if self.binding else DEGRADED_RETRY_AFTER

    @property
    def reset_after(self) -> float:
        """Seconds until nothing of the binding limit is used any more."""
        return self.binding.reset_after if self.binding else 0.0

    @property
    def delay(self) -> float:
        """Seconds to hold an admitted hit back: the longest of all `leaky_bucket` limits, else 0.0."""
        return max((outcome.delay for outcome in self.outcomes), default=0.0) if self.allowed else 0.0

    @property
    def would_refuse(self) -> bool:
        """Whether any limit said no, shadow rules included."""
        return not self.allowed or any(not outcome.allowed for outcome in self.outcomes)

    def __bool__(self) -> bool:
        return self.allowed

    def raise_if_refused(self) -> Decision:
        """Raise `QuotaExceeded` where refused; else return the decision itself."""
        if not self.allowed:
            raise QuotaExceeded(self)
        return self

    def joined(self, other: Decision) -> Decision:
        """Return one decision of this and another of the same request: allowed where both are."""
        outcomes = self.outcomes + other.outcomes
        if self.blocked != other.blocked:
            top = self if self.blocked else other
        elif self.allowed != other.allowed:
            top = other if self.allowed else self
        elif self.outcomes and other.outcomes:
            top = Decision.of(outcomes)
        else:
            top = self if self.outcomes or not other.outcomes else other
        return replace(
            top,
            allowed=self.allowed and other.allowed,
            blocked=self.blocked or other.blocked,
            outcomes=outcomes,
            degraded=self.degraded or other.degraded,
        )

    def explain(self) -> str:
        """Say in a sentence or two who was refused, by what, and until when."""
        if self.allowed and self.binding is None:
            return "Allowed unseen: the store did not answer." if self.degraded else "Allowed: nothing limits this."
        if self.allowed:
            left = "" if self.remaining is None else f" {self.remaining} left."
            return f"Allowed by rule {self.rule!r} for {self.subject}.{left}"
        if self.binding is None and not self.rule:
            return "The store did not answer what the view asked of it; try again shortly."
        if self.binding is None:
            return f"Rule {self.rule!r} could not be checked and refuses while that is so; try again shortly."
        return _refusal(self.binding)


def _refusal(outcome: Outcome) -> str:
    rate = outcome.rate.in_words()
    wait = "" if outcome.retry_after is None else f"try again in {in_words(outcome.retry_after * SECOND)}"
    if outcome.why in ("blocked", "banned"):
        by = "an operator" if outcome.why == "blocked" else "too many refusals"
        return f"Rule {outcome.rule!r} shuts {outcome.subject} out, {outcome.why} by {by}{wait and '; '}{wait}."
    if outcome.limit == 0:
        return f"Rule {outcome.rule!r} admits nothing ({rate})."
    if not wait:
        return (
            f"A cost of {outcome.cost} is above what rule {outcome.rule!r} ({rate}) ever admits for {outcome.subject}; "
            "waiting does not help."
        )
    return f"Rule {outcome.rule!r} admits {rate} for {outcome.subject}; {wait}."


DEGRADED_RETRY_AFTER = 1.0
"""Seconds after which to try again where a rule refuses because the store did not answer."""


def _strictness(outcome: Outcome) -> tuple[bool, bool, float, float]:
    """Sort what binds most to the front: refusals that block, other refusals, the rest; longest or fewest first."""
    if not outcome.allowed and not outcome.shadow:
        wait = float("inf") if outcome.retry_after is None else outcome.retry_after
        return (False, not outcome.blocks, -wait, 0.0)
    return (True, outcome.shadow, outcome.remaining / max(outcome.cost, 1), -outcome.reset_after)


def outcomes_of(reply: Sequence[int], hits: Sequence[Hit]) -> tuple[Outcome, ...]:
    """Read the reply of a store into one outcome a limit."""
    outcomes = []
    position = 2  # behind now and the verdict
    for hit in hits:
        above: Why = "override" if hit.override else ""
        shadow, blocks = hit.rule.shadow, hit.group == 0
        for limit in hit.limits:
            ok, remaining, wait, reset, more = reply[position : position + NUMBERS]
            position += NUMBERS
            if not ok and wait != NEVER:  # a hit that costs nothing may be admitted before anything is left
                more = min(more, wait)
            outcomes.append(
                Outcome(
                    limit,
                    hit.subject,
                    hit.cost,
                    ok == 1,
                    remaining,
                    0.0 if ok else None if wait < 0 else wait / SECOND,
                    reset / SECOND,
                    None if more == NEVER else more / SECOND,
                    wait / SECOND if ok else 0.0,
                    shadow,
                    blocks,
                    above,
                )
            )
    for index, what, _ in notes(reply, len(outcomes)):
        if what in _NOTED:
            first = sum(len(hit.limits) for hit in hits[:index])
            for number in range(first, first + len(hits[index].limits)):
                outcomes[number] = outcomes[number]._replace(why=_NOTED[what])
    return tuple(outcomes)


_NOTED: dict[int, Why] = {EXEMPT: "exempt", BLOCKED: "blocked", BANNED: "banned"}
_TOLD: dict[int, Told] = {BAN_BEGAN: "banned", REFUSAL_TOLD: "refused", NEAR_TOLD: "near"}


def told(reply: Sequence[int], hits: Sequence[Hit], limits: int) -> Sequence[tuple[Told, Hit]]:
    """Return what the store has told of these hits, which have so many limits."""
    found = notes(reply, limits)
    return [(_TOLD[what], hits[index]) for index, what, _ in found if what in _TOLD] if found else ()


def notes(reply: Sequence[int], limits: int) -> Sequence[tuple[int, int, int]]:
    """Return the notes of a reply on so many limits: hit, what, until."""
    first = 2 + NUMBERS * limits
    if len(reply) == first:
        return ()
    return [(reply[i], reply[i + 1], reply[i + 2]) for i in range(first, len(reply), 3)]
