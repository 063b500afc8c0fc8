"""What a counter holds, as a limit: there is no window, and waiting restores nothing. See `stock.lua`.

A counter in an entry of `check_all` uses this algorithm; `algorithm=` does not. The state is the plain total of the
counter, so that its own methods and a decision work on the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from django_quota.core.algorithms.base import MAX_USED, NEVER, Algorithm, Options, Parameters, Verdict

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
"""The bounds of a total."""


class Total(NamedTuple):
    """What a counter holds, and when it expires (microseconds)."""

    units: int
    expiry: int


class Stock(Algorithm[Total]):
    """Parameters: a = how long the counter lives after a change, b = how long a lease lasts, in microseconds; or 0."""

    name = "stock"
    code = "c"
    bound = "what the counter holds"

    def peek(self, state: Total | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit if the counter holds the cost; otherwise no wait helps."""
        held = max(-MAX_USED, min(MAX_USED, state.units if state else 0))
        return Verdict(held >= cost, held, 0 if held >= cost else NEVER, 0, NEVER)

    def consume(
        self, state: Total | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[Total, Verdict]:
        """Take the cost; `over`: even below zero."""
        after = self.refund(state, p, -cost, now)
        return after, self.peek(after, p, 0, now)._replace(allowed=True, retry_after=0)

    def refund(self, state: Total | None, p: Parameters, cost: int, now: int) -> Total:
        """Add the cost, unless the total would overflow 64 bits."""
        before = state or Total(0, now)
        units = before.units + cost
        return Total(units, now + p.a) if MIN_INT64 <= units <= MAX_INT64 else before

    def give_back(self, state: Total | None, p: Parameters, units: int, cost: int, moment: int, now: int) -> Total:
        """Add the units, however long ago the hit took them."""
        return self.refund(state, p, units, now)

    def expiry(self, state: Total) -> int:
        """Return when the counter expires."""
        return state.expiry


STOCK = Stock()
"""Decides entries that are counters; not a value of `algorithm=`."""


@dataclass(frozen=True, slots=True)
class StockLimit:
    """What a counter admits, as stores decide it; it has what they need of a `Limit`."""

    rule: str
    """The name of the counter."""
    ttl: int
    """How long the counter lives after a change, in microseconds."""
    lease: int = 0
    """For how long the units are taken unless the lease is renewed, in microseconds; 0: for good."""
    algorithm: ClassVar[Stock] = STOCK
    options: ClassVar[Options] = Options()

    @property
    def timeless_parameters(self) -> Parameters:
        """Its parameters, which are the same at any time."""
        return Parameters(MAX_USED, self.ttl, self.lease)

    def parameters(self, now: int) -> Parameters:
        """Return its parameters; see `Limit.parameters`."""
        return self.timeless_parameters

    @property
    def encoded(self) -> tuple[str, ...]:
        """The algorithm's name and these parameters, encoded for the script."""
        return self.algorithm.encode(self.timeless_parameters)


@dataclass(frozen=True, slots=True)
class UnitsLeft:
    """A number of units; the outcome of a counter has this in place of a `Rate`."""

    count: int
    window: ClassVar[str] = "left"

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self) -> str:
        """Return the number as people say it: `"120 left"`."""
        return f"{self.count:,} left"


@dataclass(frozen=True, slots=True)
class Held:
    """What a counter holds, as Decisions show it; it has the public attributes of a `Limit`."""

    rule: str
    """The name of the counter."""
    capacity: int
    """How many units are left."""
    algorithm_name: ClassVar[str] = Stock.name
    unit: ClassVar[str] = "units"
    window: ClassVar[None] = None

    @property
    def rate(self) -> UnitsLeft:
        """What is left, where other limits have a rate."""
        return UnitsLeft(self.capacity)
