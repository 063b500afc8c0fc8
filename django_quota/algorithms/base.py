"""What every algorithm is: parameters, and three pure steps over one state. Pure; it must not know Redis.

An algorithm is written twice: here in Python, as the executable specification that the memory store runs, and in
`lua/<name>.lua` for Redis. Both take the same four integers as parameters and answer with the same five, and a test
holds them to the same answers. A step never mutates a state: it returns the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from django_quota.clock import SECOND
from django_quota.exceptions import RateError
from django_quota.rates import CALENDAR_ONLY, Rate

State = TypeVar("State")

NEVER = -1
"""A wait that no time ends: the cost is above what the limit could ever admit."""

MOST = 10**15
"""What anything counts up to, also where it may pass its limit: far from where a double loses integers."""


class Parameters(NamedTuple):
    """One limit as both implementations take it: integers; what `a`, `b` and `c` mean is the algorithm's."""

    capacity: int
    a: int
    b: int = 0
    c: int = 0
    value: str = ""
    """The digest of the value that a hit brings, where different values are counted."""


class Verdict(NamedTuple):
    """What one limit answers; times are spans in microseconds.

    `wait`: where refused, how long until the same hit is admitted (`NEVER`: no time helps); where admitted, how long
    the hit should be held back (the leaky bucket; else 0). `reset`: until nothing is used any more. `more`: until more
    is left than now (`NEVER`: no time brings more, since nothing is used, or the limit is 0).
    """

    ok: bool
    remaining: int
    wait: int
    reset: int
    more: int


NUMBERS = len(Verdict._fields)
"""How many numbers of a reply are about each limit."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the algorithms; None means the algorithm's default.

    `burst`: the capacity of a bucket, in hits. `precision`: slices of a sliding window. `tz`: an IANA time zone.
    `count_refused`: refused hits are spent too, so that who goes on trying stays out.
    """

    burst: int | None = None
    precision: int | None = None
    tz: str | None = None
    count_refused: bool = False


class Algorithm(ABC, Generic[State]):
    """One algorithm: stateless, shared by all limits that use it."""

    name: ClassVar[str]
    code: ClassVar[str]
    """Two letters for it in a key."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """The names of the `Options` that it takes, besides `count_refused`."""
    bound: ClassVar[str]
    """The most it admits in any window, in words."""
    timeless: ClassVar[bool] = True
    """Whether the parameters are the same at any time."""

    def validate(self, rate: Rate, options: Options) -> None:
        """Raise `RuleError` where the algorithm cannot serve this rate with these options."""
        if rate.unit in CALENDAR_ONLY:
            raise RateError(
                str(rate),
                str(rate).index("/") + 1,
                f"{self.name!r} does not count in {rate.unit}s",
                f"algorithm='calendar' does; here seconds to weeks would do, such as '{rate.count}/30d'.",
            )

    def state_id(self, rate: Rate, options: Options) -> str:
        """Return what tells this limit's state from the other limits of the rule; the count may change, this stays."""
        return f"{self.code}.{rate.period // 1_000_000}s"

    def __reduce__(self) -> tuple[Any, ...]:
        return _algorithm, (self.name,)

    def refill(self, rate: Rate, capacity: int) -> int:
        """Return how long it takes for the whole capacity to come back, in microseconds."""
        return rate.period

    @abstractmethod
    def parameters(self, rate: Rate, options: Options, now: int) -> Parameters:
        """Return the limit as integers; `now` matters to the calendar alone."""

    @abstractmethod
    def inspect(self, state: State | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Say what a hit of this cost would get, changing nothing; `remaining` and `reset` are those before it."""

    @abstractmethod
    def spend(
        self, state: State | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[State, Verdict]:
        """Take the cost and return the next state, with the verdict after it; `over`: past the limit, if it must be."""

    @abstractmethod
    def refund(self, state: State | None, p: Parameters, cost: int, now: int) -> State | None:
        """Give the cost back, never more than is used; None where nothing is left to keep."""

    def mark(self, state: State | None, p: Parameters, cost: int, stop: int, now: int) -> Sequence[int]:
        """Return what a hold notes that has just been spent: first `stop`, from when on nothing of it is used."""
        return (stop,)

    def give_back(self, state: State | None, p: Parameters, units: int, mark: Sequence[int], now: int) -> State | None:
        """Give back of a hold's units those that still count, by what it noted; None where nothing is left to keep."""
        return self.refund(state, p, units, now) if mark[0] > now else state

    def follow_clock(self, state: State | None, now: int) -> State | None:
        """Return the state in the time of a clock that has stepped back; the same one where it has not."""
        return state

    @abstractmethod
    def expiry(self, state: State) -> int:
        """Return the moment, in microseconds, from which the state means nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """One rate of one rule: what a store decides for a subject. `Limit.of` makes and checks it."""

    rule: str
    """The name of the rule."""
    rate: Rate
    algorithm: Algorithm[Any]
    options: Options
    state_id: str
    """What tells its state from those of the rule's other limits, such as `"sw.60s"`."""
    fixed: Parameters | None
    """Its parameters where they hold at any time; None for the calendar."""
    wire: str
    """The fixed parameters as the script takes them; empty for the calendar."""
    unit: ClassVar[str] = "requests"
    """What is counted, as the RateLimit-Policy header has it."""

    @property
    def capacity(self) -> int:
        """The most that can be left: the burst of a bucket, else the count of the rate."""
        return self.rate.count if self.fixed is None else self.fixed.capacity

    @property
    def window(self) -> int | None:
        """The whole seconds in which the capacity comes back; None for months and years, whose length varies."""
        if self.rate.unit in CALENDAR_ONLY:
            return None
        return -(-self.algorithm.refill(self.rate, self.capacity) // SECOND)

    def __repr__(self) -> str:
        return f"<Limit {self.rate} by {self.algorithm.name} of {self.rule!r}>"

    @classmethod
    def of(cls, rule: str, rate: Rate, algorithm: Algorithm[Any], options: Options) -> Limit:
        """Return the limit of these, the same object each time. Raises `RuleError` where they do not go together."""
        return _limit(rule, rate, algorithm, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _limit, (self.rule, self.rate, self.algorithm, self.options)


@lru_cache(maxsize=4096)
def _limit(rule: str, rate: Rate, algorithm: Algorithm[Any], options: Options) -> Limit:
    # One object for equal limits: then they compare and hash by identity, which the hot path does many times.
    algorithm.validate(rate, options)
    fixed = algorithm.parameters(rate, options, 0) if algorithm.timeless else None
    wire = "" if fixed is None else wire_text(algorithm, fixed, options)
    return Limit(rule, rate, algorithm, options, algorithm.state_id(rate, options), fixed, wire)


def _algorithm(name: str) -> Algorithm[Any]:
    """Return the one instance of an algorithm, for what was pickled."""
    from django_quota.algorithms import EVERY  # noqa: PLC0415 — it imports this module

    return EVERY[name]


def wire_text(algorithm: Algorithm[Any], parameters: Parameters, options: Options) -> str:
    """Return a limit as `lua/decide.lua` takes it."""
    capacity, a, b, c, value = parameters
    return f"{algorithm.name} {capacity} {a} {b} {c} {options.count_refused:d} {value or '-'}"


class Step(NamedTuple):
    """One limit of a plan, as a store decides it for a subject."""

    key: str
    """Where its state lies."""
    limit: Limit
    parameters: Parameters
    wire: str
    """The parameters as the script takes them."""
    subject: str
    cost: int

    @classmethod
    def of(cls, key: str, limit: Limit, subject: str, cost: int, now: int, value: str = "") -> Step:
        """Make the step of a limit; `now` (microseconds) matters to calendar limits alone, `value` to distinct ones."""
        if limit.fixed is not None and not value:
            return cls(key, limit, limit.fixed, limit.wire, subject, cost)
        parameters = limit.fixed or limit.algorithm.parameters(limit.rate, limit.options, now)
        parameters = parameters._replace(value=value)
        return cls(key, limit, parameters, wire_text(limit.algorithm, parameters, limit.options), subject, cost)

    def aimed(self, now: int) -> Step:
        """Return the step for another moment; only a calendar limit's differs."""
        if self.limit.fixed is not None:
            return self
        return Step.of(self.key, self.limit, self.subject, self.cost, now)
