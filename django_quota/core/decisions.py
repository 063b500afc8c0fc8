"""The answer of the limiter: one `Outcome` for each limit, one `Decision` for all of them.

The times here are seconds as floats, as HTTP and people read them; the store counts integer microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple
from zoneinfo import ZoneInfo

from django_quota.core.algorithms import Limit
from django_quota.core.algorithms.stock import Held, UnitsLeft
from django_quota.core.caching import lazy_attribute
from django_quota.core.clock import DAY, SECOND, in_words, moment_of, now
from django_quota.core.errors import QuotaError, RuleError
from django_quota.core.rates import Rate


@dataclass(frozen=True, slots=True)
class AtOnce:
    """A number of holders at once; the limit of a slot has this in place of a `Rate`."""

    count: int
    window: ClassVar[str] = "at-once"

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self) -> str:
        """Return the limit as people say it: `"10 at once"`."""
        return f"{self.count:,} at once"


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many may hold a slot at once, as Decisions show it; it has the public attributes of a `Limit`.

    `features/slots` decides. It is not an `Algorithm`: a slot is free again when its holder releases it, not when a
    window ends.
    """

    rule: str
    """The name of the slot."""
    capacity: int
    """The largest number of holders."""
    algorithm_name: ClassVar[str] = "concurrency"
    unit: ClassVar[str] = "concurrent-requests"
    window: ClassVar[None] = None

    @property
    def rate(self) -> AtOnce:
        """The limit, where other limits have a rate."""
        return AtOnce(self.capacity)


Why = Literal["", "override", "exempt", "blocked", "banned"]

AnyLimit = Limit | Concurrency | Held
"""A rate limit, a concurrency limit, or what a counter holds."""


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
    remaining: int | None
    """Units that are left, after this hit if it was counted; None under a tier without a limit, which only counts."""
    retry_after: float | None
    """Seconds until the same hit would be allowed: 0.0 if it was, None if waiting does not help."""
    reset_after: float
    """Seconds until the whole limit is free again."""
    next_after: float | None = None
    """Seconds until more is left than now; None if nothing is used, or if waiting does not help."""
    delay: float = 0.0
    """Seconds to hold an allowed hit back; 0.0 except for `leaky_bucket`."""
    shadow: bool = False
    """Whether the limit only reports and never refuses."""
    enforced: bool = True
    """Whether a refusal answers the request. With `block=False` or `shadow=True` the view runs."""
    why: Why = ""
    """What replaces the rate: `"override"` (another rate), `"exempt"`, `"blocked"` or `"banned"`; else empty."""
    over: int = 0
    """Units that count above the limit: taken by `force=True`, settled past it, or counted under a higher rate.

    Under a tier without a limit: all that count.
    """

    @property
    def rule(self) -> str:
        """The name of the limit's rule."""
        return self.of.rule

    @property
    def rate(self) -> Rate | AtOnce | UnitsLeft:
        """The rate: `str(rate)` is `"10/m"`, `"10 at once"` for a slot, or `"120 left"` for a counter."""
        return self.of.rate

    @property
    def limit(self) -> int | None:
        """The count of the rate, or the burst of a bucket: the units that are left when nothing is used.

        Of a counter: what it holds. None under a tier without a limit.
        """
        return None if self.remaining is None else self.of.capacity

    @property
    def used(self) -> int:
        """Units that count now, even above the limit; 0 if an override blocks or exempts, since no store is asked."""
        if self.remaining is None:
            return self.over
        return 0 if self.why == "blocked" else self.of.capacity - self.remaining + self.over

    @property
    def window(self) -> int | None:
        """The window in whole seconds; None for months and years, which vary in length."""
        return self.of.window

    @property
    def is_shut_out(self) -> bool:
        """Whether a block or a ban refuses, whatever the limit has left."""
        return not self.allowed and self.why in ("blocked", "banned")


Outcomes = tuple[Outcome, ...]


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Decision:
    """Whether a hit is allowed, and why. It does not change.

    The attributes describe the binding limit; `outcomes` has all limits. If the hit is refused, the limit that refuses
    for longest binds, otherwise the limit with the fewest hits left. A decision is true if it allows the hit:
    `if not check("10/m", subject): ...`.
    """

    allowed: bool
    """Whether the hit is allowed."""
    enforced: bool = False
    """Whether to answer the request with 429, or 503 if degraded. Never under `block=False` or `shadow=True`."""
    degraded: bool = False
    """Whether the decision was made without the store; see `on_unavailable`."""
    _given: Outcomes | Callable[[], Outcomes] = ()
    """The outcomes, or a function that reads them from a reply: as slow as deciding, and most callers never look."""
    _bound: Outcome | tuple[str, str] | None = None
    """The outcome that binds, or the rule and the subject if none does; None: the strictest of the outcomes binds."""
    approximate: bool = False
    """Whether units that were taken ahead were spent: then what is left is what this process knows. See `prefetch`."""

    def __init__(
        self,
        allowed: bool,
        enforced: bool = False,
        degraded: bool = False,
        _given: Outcomes | Callable[[], Outcomes] = (),
        _bound: Outcome | tuple[str, str] | None = None,
        approximate: bool = False,
    ) -> None:
        values = self.__dict__  # the generated __init__ of a frozen dataclass takes twice as long, for each hit
        values["allowed"], values["enforced"], values["degraded"] = allowed, enforced, degraded
        values["_given"], values["_bound"], values["approximate"] = _given, _bound, approximate

    @classmethod
    def approximately_allowed(cls, given: Callable[[], Outcomes]) -> Decision:
        """Make the decision that allows a hit by units that were taken ahead. `given` reads the outcomes."""
        made = object.__new__(cls)
        values = made.__dict__  # only what differs from the defaults, which the class has
        values["allowed"], values["_given"], values["approximate"] = True, given, True
        return made

    @classmethod
    def of(cls, outcomes: Outcomes, *, degraded: bool = False) -> Decision:
        """Make the decision from its outcomes, at least one."""
        binding = _strictest(outcomes)
        if binding.remaining is None:
            return cls(True, False, degraded, outcomes)
        allowed = binding.allowed or binding.shadow
        return cls(allowed, not allowed and binding.enforced, degraded, outcomes)

    @classmethod
    def without_limit(
        cls,
        rule: str = "",
        subject: str = "",
        *,
        allowed: bool = True,
        enforced: bool = False,
        degraded: bool = False,
        outcomes: Outcomes = (),
    ) -> Decision:
        """Make a decision in which no limit binds: nothing limits the hit, or no store can be asked.

        `outcomes`: of other limits.
        """
        return cls(allowed, enforced, degraded, outcomes, (rule, subject))

    @lazy_attribute
    def outcomes(self) -> tuple[Outcome, ...]:
        """One outcome for each limit, in order; empty if nothing limits, or if the store did not decide."""
        return self._given() if callable(self._given) else self._given

    @lazy_attribute
    def binding(self) -> Outcome | None:
        """Return the outcome of the binding limit; None if no limit binds."""
        if self._bound is None:
            binding = _strictest(self.outcomes) if self.outcomes else None
            return None if binding is None or binding.remaining is None else binding
        return self._bound if isinstance(self._bound, Outcome) else None

    @property
    def rule(self) -> str:
        """The name of the binding limit's rule."""
        return self.binding.rule if self.binding else self._names[0]

    @property
    def subject(self) -> str:
        """The subject of the binding limit."""
        return self.binding.subject if self.binding else self._names[1]

    @property
    def cost(self) -> int:
        """Units that the hit takes of the binding limit; 1 if no limit binds."""
        return self.binding.cost if self.binding else 1

    @property
    def _names(self) -> tuple[str, str]:
        if isinstance(self._bound, tuple) and not isinstance(self._bound, Outcome):
            return self._bound
        return (self.outcomes[0].rule, self.outcomes[0].subject) if self.outcomes else ("", "")

    @property
    def _read(self) -> tuple[Any, ...]:
        """All values, in the order of the fields; reads the outcomes."""
        return self.allowed, self.enforced, self.degraded, self.outcomes, self._bound, self.approximate

    def __eq__(self, other: object) -> bool:
        return self._read == other._read if isinstance(other, Decision) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._read)

    def __repr__(self) -> str:
        shown = ("allowed", "rule", "subject", "cost", "outcomes", "degraded", "enforced")
        return f"Decision({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._read

    @property
    def limit(self) -> int | None:
        """The count of the binding limit, or the burst of its bucket; None if nothing limits."""
        return self.binding.limit if self.binding else None

    @property
    def remaining(self) -> int | None:
        """Units that the binding limit has left; None if nothing limits."""
        binding = self.binding
        return binding.remaining if binding else None

    @property
    def used(self) -> int | None:
        """Units that count under the binding limit now, even above it; None if nothing limits."""
        return self.binding.used if self.binding else None

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
        """Whether any limit refused, even a limit of a shadow rule."""
        return not self.allowed or any(not outcome.allowed for outcome in self.outcomes)

    def __bool__(self) -> bool:
        return self.allowed

    def of_rule(self, name: str) -> Outcome | None:
        """Return the outcome that decides for a rule, the tightest of its rates.

        None if the decision has no outcome at all: nothing limits, or the store did not answer. Raises `RuleError` if
        the decision has outcomes, but none of this rule.
        """
        outcomes = tuple(outcome for outcome in self.outcomes if outcome.rule == name)
        if outcomes or not self.outcomes:
            return _strictest(outcomes) if outcomes else None
        known = ", ".join(repr(rule) for rule in dict.fromkeys(outcome.rule for outcome in self.outcomes))
        raise RuleError(f"Rule {name!r} is not in this decision.", f"It has {known}.")

    def raise_if_refused(self) -> Decision:
        """Raise `QuotaExceeded` if the hit was refused; return the decision otherwise."""
        if not self.allowed:
            raise QuotaExceeded(self)
        return self

    def combined_with(self, other: Decision) -> Decision:
        """Combine two decisions on one request: the result allows the hit if both do, and has the outcomes of both."""
        outcomes = self.outcomes + other.outcomes
        if self.enforced != other.enforced:
            top = self if self.enforced else other
        elif self.allowed != other.allowed:
            top = other if self.allowed else self
        elif self.outcomes and other.outcomes:
            top = Decision.of(outcomes)
        else:
            top = self if self.outcomes or not other.outcomes else other
        approximate = self.approximate or other.approximate
        return replace(top, degraded=self.degraded or other.degraded, _given=outcomes, approximate=approximate)

    def explain(self) -> str:
        """Say in one or two sentences who was refused, by which rule, what the hit needs, what is left, until when."""
        if self.allowed and self.binding is None:
            return (
                "Allowed without a check: the store did not answer."
                if self.degraded
                else "Allowed: nothing limits this."
            )
        if self.allowed and self.binding is not None and isinstance(self.binding.of, Held):
            return f"Allowed by counter {self.rule!r} of {self.subject}; {self.remaining:,} are left."
        if self.allowed:
            left = f"{self.remaining:,} of {self.limit:,} are left"
            return f"Allowed by rule {self.rule!r} for {self.subject}; {left}."
        if self.binding is None and not self.rule:
            return "The store did not answer a call of the view; try again shortly."
        if self.binding is None:
            return f"Rule {self.rule!r} refuses, since the store did not answer; try again shortly."
        return _refusal(self.binding)


class QuotaExceeded(QuotaError):  # noqa: N818 — a public name of the design
    """A limit was reached. If a view raises it, the response is a 429, as from the decorators.

    `decision` has the limit and how long to wait.
    """

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        super().__init__(decision.explain())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decision,)


def updated(decision: Decision, later: Decision) -> Decision:
    """Return a decision whose allowed outcomes have what is left after a later decision on the same limits."""
    now = {(outcome.of, outcome.subject): outcome for outcome in later.outcomes}
    outcomes = tuple([_updated(outcome, now.get((outcome.of, outcome.subject))) for outcome in decision.outcomes])
    return Decision.of(outcomes, degraded=decision.degraded) if outcomes else decision


def _updated(outcome: Outcome, now: Outcome | None) -> Outcome:
    if now is None or not outcome.allowed:
        return outcome
    return outcome._replace(
        remaining=now.remaining, over=now.over, reset_after=now.reset_after, next_after=now.next_after
    )


def _refusal(outcome: Outcome) -> str:
    rule, subject = repr(outcome.rule), outcome.subject
    wait = "" if outcome.retry_after is None else f"; try again in {in_words(outcome.retry_after * SECOND)}"
    if outcome.is_shut_out:
        state = "blocked by an operator" if outcome.why == "blocked" else "which is banned"
        return f"Rule {rule} refuses {subject}, {state}{wait or '; waiting does not help'}."
    if isinstance(outcome.of, Concurrency):
        whose = "" if subject == "global" else f" of {subject}"
        held = (
            f"Lock {rule}{whose} is" if outcome.limit == 1 else f"All {outcome.of.capacity:,} slots {rule}{whose} are"
        )
        return f"{held} held{wait}."
    if isinstance(outcome.of, Held):
        left = f"{outcome.over:,} are owed" if outcome.over else f"{outcome.remaining or 0:,} are left"
        return f"This hit needs {outcome.cost:,} of counter {rule} of {subject}; {left}."
    return _refusal_of_rate(outcome, outcome.of, wait)


def _refusal_of_rate(outcome: Outcome, limit: Limit, wait: str) -> str:
    rate, rule, cost = limit.rate.in_words(), repr(outcome.rule), f"{outcome.cost:,}"
    if outcome.limit == 0:
        return f"Rule {rule} admits nothing ({rate})."
    if limit.algorithm_name == "distinct":
        rate = rate.replace(" per ", " different values per ")
    if limit.share < 1:
        rate += f", of which these requests may fill {outcome.of.capacity:,},"
    elif limit.options.burst is not None:
        rate += f", at most {outcome.of.capacity:,} at once,"
    if not wait:
        return (
            f"A cost of {cost} is more than rule {rule} ({rate.rstrip(',')}) ever admits for {outcome.subject}; "
            "waiting does not help."
        )
    if outcome.cost <= 1:
        return f"Rule {rule} admits {rate} for {outcome.subject}{wait}."
    left = f"{outcome.remaining or 0:,} of {outcome.of.capacity:,} are left"
    ends = _end_of_period(limit, outcome.reset_after) or wait
    return f"Rule {rule} admits {rate} for {outcome.subject}. This hit needs {cost}; {left}{ends}."


def _end_of_period(limit: Limit, seconds: float) -> str:
    """Return " until 1 December", the end of the period of a calendar limit; empty for other limits."""
    if limit.algorithm.timeless or limit.rate.period < DAY:
        return ""
    # Half an hour more: the clocks may differ by seconds, and this must not name the day before the end.
    moment = moment_of(now() + int((seconds + 1800) * SECOND)).astimezone(ZoneInfo(limit.options.tz or "UTC"))
    return f" until {moment.day} {moment:%B}"


DEGRADED_RETRY_AFTER = 1.0
"""`retry_after` in seconds when a rule refuses because the store did not answer."""


NOTHING_LIMITS = Decision.without_limit()
"""The decision on a request to which no rule applies."""


def _strictest(outcomes: Outcomes) -> Outcome:
    return outcomes[0] if len(outcomes) == 1 else min(outcomes, key=_strictness)


def _strictness(outcome: Outcome) -> tuple[bool, bool, float, float]:
    """Sort key: enforced refusals (longest first), other refusals, then the limits with the fewest hits left."""
    if not outcome.allowed and not outcome.shadow:
        wait = float("inf") if outcome.retry_after is None else outcome.retry_after
        return (False, not outcome.enforced, -wait, 0.0)
    if outcome.remaining is None:  # it only counts
        return (True, True, math.inf, 0.0)
    return (True, outcome.shadow, outcome.remaining / max(outcome.cost, 1), -outcome.reset_after)
