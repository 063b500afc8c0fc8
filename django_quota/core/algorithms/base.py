"""What every algorithm has: parameters, and pure functions over one state.

An algorithm is written twice: for Redis in `<name>.lua` beside its module, and in Python, as the executable
specification that all other stores run. Both take the same integers and return the same verdict, and a test compares
them. No function changes a state: it returns the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import date
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from django_quota.core.clock import SECOND
from django_quota.core.errors import RateError, Translatable
from django_quota.core.rates import CALENDAR_ONLY, UNITS_IN_WORDS, Rate

State = TypeVar("State")

NEVER = -1
"""A wait without an end: no wait makes room, as when the cost is above the whole limit."""

MAX_USED = 10**15
"""The highest count, even past a limit: doubles lose integers far above it."""


class Parameters(NamedTuple):
    """One limit, encoded for both implementations; each algorithm says what `a` to `d` mean."""

    capacity: int
    a: int
    b: int = 0
    c: int = 0
    value: str = ""
    """The digest of the hit's value, if the limit counts different values."""
    d: int = 0

    def ever_admits(self, cost: int) -> bool:
        """Return whether a hit has room when nothing is used. A limit of 0 admits nothing, even at a cost of 0."""
        return 0 < self.capacity >= cost


class Verdict(NamedTuple):
    """What one limit answers; its times are spans in microseconds.

    `remaining`: below zero if more is used than the limit. `retry_after`: if refused, how long until the same hit is
    admitted (`NEVER`: no time helps); if admitted, how long to hold the hit back (the leaky bucket; else 0). `reset`:
    until nothing is used any more. `more`: until more is left than now (`NEVER`: nothing is used, or the limit is 0).
    """

    allowed: bool
    remaining: int
    retry_after: int
    reset: int
    more: int


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the algorithms; None means the algorithm's default.

    `burst`: the capacity of a bucket, in hits. `precision`: slices of a sliding window. `tz`: an IANA time zone.
    `count_refused`: refused hits count too, so a client that keeps trying stays out. `starts`: a day on which a period
    of the subject begins.
    """

    burst: int | None = None
    precision: int | None = None
    tz: str | None = None
    count_refused: bool = False
    starts: date | None = None


@dataclass(frozen=True)
class Algorithm(ABC, Generic[State]):
    """One algorithm: stateless, shared by all limits that use it. Two objects of one class are equal."""

    name: ClassVar[str]
    code: ClassVar[str]
    """Its short name in keys."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """The names of the `Options` that it takes, besides `count_refused`."""
    timeless: ClassVar[bool] = True
    """Whether the parameters are the same at any time."""
    counts_units: ClassVar[bool] = True
    """Whether its state counts units; otherwise the state is the time that the units take at the rate."""

    def validate(self, rate: Rate, options: Options) -> None:
        """Raise `RuleError` if the algorithm cannot serve this rate with these options."""
        if rate.unit in CALENDAR_ONLY:
            raise RateError(
                str(rate),
                str(rate).index("/") + 1,
                Translatable("'%(name)s' does not count in %(units)s", name=self.name, units=UNITS_IN_WORDS[rate.unit]),
                Translatable(
                    "Use algorithm='calendar', or seconds to weeks: for example, '%(count)d/30d'.", count=rate.count
                ),
            )

    def state_id(self, rate: Rate, options: Options) -> str:
        """Return the name of this limit's state within the rule. The name stays when only the count changes."""
        return f"{self.code}.{rate.period // SECOND}s"

    def refill(self, rate: Rate, capacity: int) -> int:
        """Return how long a used-up limit takes until its whole capacity is free again, in microseconds."""
        return rate.period

    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the limit as integers; `now` matters to the calendar alone."""
        return Parameters(rate.count, rate.period)

    def encode(self, p: Parameters) -> tuple[str, ...]:
        """Return a limit with these parameters as arguments of `engine/lua/decide.lua`."""
        return self.name, str(p.capacity), str(p.a), str(p.b)

    def is_outside(self, p: Parameters, now: int) -> bool:
        """Return whether these parameters do not hold at `now`; only those of a calendar change with the time."""
        return False

    @abstractmethod
    def peek(self, state: State | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Return the verdict that a hit of this cost would get; `remaining` and `reset` are from before the hit."""

    @abstractmethod
    def consume(
        self, state: State | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[State, Verdict]:
        """Consume the cost; return the next state and the verdict after the hit. `over`: even past the limit."""

    @abstractmethod
    def refund(self, state: State | None, p: Parameters, cost: int, now: int) -> State | None:
        """Give the cost back, never more than is used; None if there is nothing left to keep."""

    @abstractmethod
    def give_back(
        self, state: State | None, p: Parameters, units: int, cost: int, moment: int, now: int
    ) -> State | None:
        """Give some units of a hit back where they were counted, if they still count; None if nothing is left to keep.

        `cost`: what the hit took. `moment`: when it was decided (microseconds).
        """

    def follow_clock(self, state: State | None, now: int) -> State | None:
        """Return the state after a clock has stepped back; the same state if it has not."""
        return state

    @abstractmethod
    def expiry(self, state: State) -> int:
        """Return when the state no longer matters (microseconds)."""


@dataclass(frozen=True, slots=True, repr=False)
class Limit:
    """One rate of one rule: what a store decides for a subject. `Limit.of` makes and checks it."""

    rule: str
    """The name of the rule."""
    rate: Rate
    algorithm: Algorithm[Any]
    options: Options
    share: float
    """How much of the rate its hits may fill; 1.0: all of it."""
    state_id: str = field(compare=False)
    """The name of its state among the limits of the rule, such as `"sw.60s"`."""
    timeless_parameters: Parameters | None = field(compare=False)
    """Its parameters if they are the same at any time; None for the calendar."""
    encoded: tuple[str, ...] = field(compare=False)
    """The algorithm's name and these parameters, encoded for the script; empty for the calendar."""
    unit: ClassVar[str] = "requests"
    """What is counted, as the RateLimit-Policy header names it."""

    @property
    def algorithm_name(self) -> str:
        """The value of `algorithm=`, or the name of an algorithm that an option chooses."""
        return self.algorithm.name

    @property
    def capacity(self) -> int:
        """The most that can be left: the burst of a bucket, else the count of the rate."""
        timeless = self.timeless_parameters
        return filled(self.rate.count, self.share) if timeless is None else timeless.capacity

    @property
    def window(self) -> int | None:
        """The whole seconds until the whole capacity is free again; None for months and years, whose length varies."""
        if self.rate.unit in CALENDAR_ONLY:
            return None
        return -(-self.algorithm.refill(self.rate, self.capacity) // SECOND)

    def __hash__(self) -> int:
        # Cheap, since the headers of each response look limits up. These three are enough to distinguish limits.
        return hash((self.rule, self.state_id, self.rate.count))

    def __repr__(self) -> str:
        return f"<Limit {self.rate} by {self.algorithm.name} of {self.rule!r}>"  # a Decision shows all its limits

    @classmethod
    def of(cls, rule: str, rate: Rate, algorithm: Algorithm[Any], options: Options, share: float = 1.0) -> Limit:
        """Return the limit. Raises `RuleError` if the arguments do not fit together."""
        algorithm.validate(rate, options)
        timeless = _parameters(rate, algorithm, options, share, 0) if algorithm.timeless else None
        encoded = () if timeless is None else algorithm.encode(timeless)
        return cls(rule, rate, algorithm, options, share, algorithm.state_id(rate, options), timeless, encoded)

    def parameters(self, now: int) -> Parameters:
        """Return its parameters; `now` (microseconds) is used by the calendar only."""
        return self.timeless_parameters or _parameters(self.rate, self.algorithm, self.options, self.share, now)


def _parameters(rate: Rate, algorithm: Algorithm[Any], options: Options, share: float, now: int) -> Parameters:
    """Return the parameters of a limit. Its share lowers the capacity alone, so hits of all shares have one state."""
    whole = algorithm.parameters(rate, options, now)
    return whole._replace(capacity=filled(whole.capacity, share))


def filled(capacity: int, share: float) -> int:
    """Return how much of a capacity a share may fill: rounded down, at least 1 unless the capacity is 0."""
    return min(capacity, max(1, int(capacity * share + 1e-6)))
