"""The answer of the limiter: one `Outcome` for each limit, one `Decision` for all of them.

The times here are seconds as floats, as HTTP and people read them; the store counts integer microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.concurrency import AtOnce, Concurrency
from django_quota.core.clock import SECOND, in_words
from django_quota.core.errors import QuotaError
from django_quota.core.rates import Rate

Why = Literal["", "override", "exempt", "blocked", "banned"]

AnyLimit = Limit | Concurrency
"""A rate limit, or a concurrency limit."""


class Outcome(NamedTuple):
    """The answer of one limit."""

    of: AnyLimit
    """The limit itself."""
    subject: str
    """Who is limited: `"ip:203.0.113.9"`."""
    cost: int
    """Units that the hit takes of the limit."""
    allowed: bool
    """Whether this limit had room for it."""
    remaining: int
    """Units that are left, after this hit if it was counted."""
    retry_after: float | None
    """Seconds until the same hit would be allowed: 0.0 if it was, None if waiting does not help."""
    reset_after: float
    """Seconds until the whole limit is free again."""
    next_after: float | None = None
    """Seconds until more is left than now; None if nothing is used, or if waiting brings no more."""
    delay: float = 0.0
    """Seconds to hold an allowed hit back; 0.0 except for `leaky_bucket`."""
    shadow: bool = False
    """Whether the limit only reports and never refuses."""
    enforced: bool = True
    """Whether a refusal answers the request. With `block=False` or `shadow=True` the view runs."""
    why: Why = ""
    """What replaces the rate: `"override"` (another rate), `"exempt"`, `"blocked"` or `"banned"`; else empty."""

    @property
    def rule(self) -> str:
        """The name of the limit's rule."""
        return self.of.rule

    @property
    def rate(self) -> Rate | AtOnce:
        """The rate: `str(rate)` is `"10/m"`, or `"10 at once"` for a slot."""
        return self.of.rate

    @property
    def limit(self) -> int:
        """The count of the rate, or the burst of a bucket: the units that are left when nothing is used."""
        return self.of.capacity

    @property
    def window(self) -> int | None:
        """The window in whole seconds; None for months and years, which vary in length."""
        return self.of.window

    @property
    def is_shut_out(self) -> bool:
        """Whether a block or a ban refuses, whatever the limit has left."""
        return not self.allowed and self.why in ("blocked", "banned")


class Left(NamedTuple):
    """How much a limit has left, for the headers."""

    of: AnyLimit
    remaining: int
    next_after: float | None
    """As in `Outcome`."""


class Reply(Protocol):
    """What a decision is read from when somebody looks at it."""

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return one outcome for each limit. None is a shadow."""
        ...

    def left(self) -> list[Left]:
        """Return the same, with no more than the headers show."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a hit is allowed, and why.

    The attributes describe the binding limit; `outcomes` has all limits. If the hit is refused, the limit that refuses
    for longest binds, otherwise the limit with the fewest hits left. A decision is true if it allows the hit:
    `if not check("10/m", subject): ...`.
    """

    allowed: bool
    """Whether the hit is allowed."""
    rule: str
    """The name of the binding limit's rule."""
    subject: str
    """The subject of the binding limit."""
    cost: int = 1
    """Units that the hit takes of the binding limit."""
    outcomes: tuple[Outcome, ...] = ()
    """One for each limit, in order; empty if nothing limits, or if the store did not decide."""
    degraded: bool = False
    """Whether Redis did not decide this; see `on_unavailable`."""
    binding: Outcome | None = None
    """The outcome of the binding limit."""
    enforced: bool = False
    """Whether to answer the request with 429, or 503 if degraded. Never under `block=False` or `shadow=True`."""
    late: bool = False
    """Whether `settle()` came after the ttl of the reservation, and so charged the real cost now."""
    _reply: Reply | None = field(default=None, init=False, repr=False, compare=False)
    """Where a decision that `lazy` made finds its outcomes, until somebody looks at them."""

    @classmethod
    def lazy(cls, reply: Reply, *, allowed: bool) -> Decision:
        """Make the decision of a hit that all its limits allow, or that one refuses and enforces.

        It reads the outcomes when somebody looks at them. Most callers never look, and making the outcomes takes as
        long as deciding.
        """
        made, fill = object.__new__(cls), object.__setattr__
        fill(made, "_reply", reply)
        fill(made, "allowed", allowed)
        fill(made, "degraded", False)
        fill(made, "enforced", not allowed)
        fill(made, "late", False)
        return made

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Read the outcomes, or find the binding one: Python calls this for attributes that are not set yet."""
            fill = object.__setattr__
            reply = object.__getattribute__(self, "_reply")
            if reply is not None:
                outcomes = reply.outcomes()
                fill(self, "outcomes", outcomes)
                fill(self, "_reply", None)
                if name == "outcomes":
                    return outcomes
            if name in _OF_BINDING:
                binding = _binding(self.outcomes)
                fill(self, "binding", binding)
                for copied in _OF_BINDING[1:]:
                    fill(self, copied, getattr(binding, copied))
            return object.__getattribute__(self, name)

    @classmethod
    def of(cls, outcomes: tuple[Outcome, ...], *, degraded: bool = False, late: bool = False) -> Decision:
        """Make one decision of at least one outcome."""
        binding = _binding(outcomes)
        allowed = binding.allowed or binding.shadow
        enforced = not allowed and binding.enforced
        return cls(allowed, binding.rule, binding.subject, binding.cost, outcomes, degraded, binding, enforced, late)

    def left(self) -> list[Left]:
        """Return how much each limit has left, without shadows: 0 for a subject that is blocked or banned."""
        if self._reply is not None:
            return self._reply.left()
        return [
            Left(outcome.of, 0 if outcome.is_shut_out else outcome.remaining, outcome.next_after)
            for outcome in self.outcomes
            if not outcome.shadow
        ]

    @property
    def limit(self) -> int | None:
        """The count of the binding limit, or the burst of its bucket; None if nothing limits."""
        return self.binding.limit if self.binding else None

    @property
    def remaining(self) -> int | None:
        """Units that the binding limit has left; None if nothing limits."""
        return self.binding.remaining if self.binding else None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same hit would be allowed: 0.0 if it was, None if waiting does not help."""
        if self.allowed:
            return 0.0
        return self.binding.retry_after if self.binding else DEGRADED_RETRY_AFTER

    @property
    def reset_after(self) -> float:
        """Seconds until the whole binding limit is free again."""
        return self.binding.reset_after if self.binding else 0.0

    @property
    def delay(self) -> float:
        """Seconds to hold an allowed hit back: the longest of all `leaky_bucket` limits, or 0.0."""
        return max((outcome.delay for outcome in self.outcomes), default=0.0) if self.allowed else 0.0

    @property
    def would_refuse(self) -> bool:
        """Whether any limit refused, including those of shadow rules."""
        return not self.allowed or any(not outcome.allowed for outcome in self.outcomes)

    def __bool__(self) -> bool:
        return self.allowed

    def raise_if_refused(self) -> Decision:
        """Raise `QuotaExceeded` if the hit was refused; return the decision otherwise."""
        if not self.allowed:
            raise QuotaExceeded(self)
        return self

    def combined_with(self, other: Decision) -> Decision:
        """Return one decision of two of the same request: it allows the hit if both do."""
        outcomes = self.outcomes + other.outcomes
        if self.enforced != other.enforced:
            top = self if self.enforced else other
        elif self.allowed != other.allowed:
            top = other if self.allowed else self
        elif self.outcomes and other.outcomes:
            top = Decision.of(outcomes)
        else:
            top = self if self.outcomes or not other.outcomes else other
        return replace(top, outcomes=outcomes, degraded=self.degraded or other.degraded)

    def explain(self) -> str:
        """Say in one or two sentences who was refused, by which rule, and for how long."""
        if self.late:
            return f"{_LATE} {replace(self, late=False).explain()}"
        if self.allowed and self.binding is None:
            return (
                "Allowed without a check: the store did not answer."
                if self.degraded
                else "Allowed: nothing limits this."
            )
        if self.allowed:
            left = "" if self.remaining is None else f" {self.remaining} left."
            return f"Allowed by rule {self.rule!r} for {self.subject}.{left}"
        if self.binding is None and not self.rule:
            return "The store did not answer a call of the view; try again shortly."
        if self.binding is None:
            return f"Rule {self.rule!r} could not be checked, so it refuses; try again shortly."
        return _refusal(self.binding)


class QuotaExceeded(QuotaError):  # noqa: N818 — a public name of the design
    """A limit was reached. Raised in a view it becomes a 429, as the decorators send it.

    `decision` has the limit and how long to wait.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__(decision.explain())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,)


_LATE = "Settled after the ttl of the reservation: the real cost is charged now."


def _refusal(outcome: Outcome) -> str:
    rate = outcome.rate.in_words()
    wait = "" if outcome.retry_after is None else f"try again in {in_words(outcome.retry_after * SECOND)}"
    if outcome.is_shut_out:
        state = "blocked by an operator" if outcome.why == "blocked" else "which is banned"
        return f"Rule {outcome.rule!r} refuses {outcome.subject}, {state}{wait and '; '}{wait}."
    if outcome.limit == 0:
        return f"Rule {outcome.rule!r} admits nothing ({rate})."
    if not wait:
        return (
            f"A cost of {outcome.cost} is more than rule {outcome.rule!r} ({rate}) ever admits for {outcome.subject}; "
            "waiting does not help."
        )
    return f"Rule {outcome.rule!r} admits {rate} for {outcome.subject}; {wait}."


DEGRADED_RETRY_AFTER = 1.0
"""`retry_after` in seconds when a rule refuses because the store did not answer."""


_OF_BINDING = ("binding", "rule", "subject", "cost")
"""The attributes of a decision that come from its binding limit."""


def _binding(outcomes: tuple[Outcome, ...]) -> Outcome:
    return outcomes[0] if len(outcomes) == 1 else min(outcomes, key=_strictness)


def _strictness(outcome: Outcome) -> tuple[bool, bool, float, float]:
    """Sort key: enforced refusals (longest first), other refusals, then the limits with the fewest hits left."""
    if not outcome.allowed and not outcome.shadow:
        wait = float("inf") if outcome.retry_after is None else outcome.retry_after
        return (False, not outcome.enforced, -wait, 0.0)
    return (True, outcome.shadow, outcome.remaining / max(outcome.cost, 1), -outcome.reset_after)
