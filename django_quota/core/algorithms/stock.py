"""What a counter holds, as a limit: there is no window, and waiting restores nothing. See `stock.lua`.

A counter in an entry of `check_all` uses this algorithm; `algorithm=` does not. The state is the plain total of the
counter, so that its own methods and a decision work on the same number.

Some units of a total may expire: those that a grant has added. Spending uses first what expires first, and last what
never expires. `engine/lua/grants.lua` has the same functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from django_quota.core.algorithms.base import MAX_USED, NEVER, Algorithm, Options, Parameters, Verdict

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
"""The bounds of a total."""


KEPT_GRANTS, MAX_GRANTS = 100, 1_000
"""How many grants of a total are kept with those that are used up, and how many in all."""


class Credit(NamedTuple):
    """What is left of a grant. No two grants of one total expire in the same microsecond."""

    expires: int
    """When it expires (microseconds)."""
    left: int
    granted: int
    id: str
    """The id that the caller gave it, escaped; empty if it is unknown."""

    @classmethod
    def read(cls, member: str) -> Credit:
        """Return the credit that a member of the sorted set stands for."""
        left, granted, expires, name = member.split(":")
        return cls(int(expires), int(left), int(granted), name)

    @property
    def member(self) -> str:
        """The member of the sorted set that stands for it."""
        return f"{self.left}:{self.granted}:{self.expires}:{self.id}"


class Drawn(NamedTuple):
    """Units that were taken of a grant."""

    expires: int
    """When the grant expires (microseconds), which identifies it."""
    units: int
    id: str = ""
    """The id of the grant, escaped; empty if it is unknown."""


def drawn_text(drawn: Iterable[Drawn]) -> str:
    """Return what was taken of grants, encoded for receipts, leases and `engine/lua/grants.lua`."""
    return ";".join([f"{each.expires}-{each.units}" for each in drawn])


def read_drawn(text: str) -> list[Drawn]:
    """Return what `drawn_text` encoded."""
    pairs = (each.split("-") for each in text.split(";") if each)
    return [Drawn(int(expires), int(units)) for expires, units in pairs]


def unused(drawn: Sequence[Drawn], units: int, cost: int) -> list[Drawn]:
    """Return of which grants some units of a hit go back. `cost`: what the hit took, of which it drew this.

    What was used counts against what expires first.
    """
    back = list[Drawn]()
    units -= min(units, cost - sum(each.units for each in drawn))  # of what never expires
    for each in reversed(drawn):
        part = min(units, each.units)
        units -= part
        if part:
            back.append(each._replace(units=part))
    return back


class Total(NamedTuple):
    """What a counter holds, and when it expires (microseconds)."""

    units: int
    expiry: int
    credits: tuple[Credit, ...] = ()
    """The units that expire, the first to expire first: never more than it holds. Some may be used up."""

    @classmethod
    def read(cls, units: int, expiry: int, kept: Mapping[str, int], now: int) -> Total:
        """Return what is left at `now`, without what has expired. `kept`: the members of the sorted set."""
        if not kept:
            return cls(units, expiry)
        every = tuple(sorted(map(Credit.read, kept)))
        # The total may have been lost, or changed by somebody else.
        every = _used_up(every, sum(each.left for each in every) - max(0, units))
        expired = sum(each.left for each in every if each.expires <= now)
        return cls(units - expired, expiry, tuple(each for each in every if each.expires > now))

    def spent(self, units: int) -> Total:
        """Return the total after units were spent."""
        return self._replace(units=self.units - units, credits=_used_up(self.credits, units))

    def credited(self, units: int, drawn: Iterable[Drawn], now: int) -> Total:
        """Return the total after units were added. `drawn`: of which grants they are; those that have expired are lost.

        What is owed is paid of them first.
        """
        owed, found = max(0, -self.units), {each.expires: each for each in self.credits}
        for expires, more, name in drawn:
            if expires <= now:
                units -= more
                continue
            known = found.get(expires, Credit(expires, 0, 0, name))
            left = known.left + more
            found[expires] = known._replace(left=left, granted=max(known.granted, left))
        return self._replace(units=self.units + units, credits=_used_up(tuple(sorted(found.values())), owed))

    def drawn_since(self, before: Total) -> list[Drawn]:
        """Return what was spent of grants since it was `before`."""
        pairs = zip(before.credits, self.credits, strict=True)
        return [Drawn(old.expires, old.left - new.left, old.id) for old, new in pairs if old.left > new.left]

    def with_room(self, more: int) -> Total | None:
        """Return the total, ready for so many grants more; None if it would have too many.

        It keeps grants that are used up, so that what comes back has its id; not if it has very many.
        """
        kept = self.credits
        if len(kept) + more > KEPT_GRANTS:
            kept = tuple(each for each in kept if each.left)
        return self._replace(credits=kept) if len(kept) + more <= MAX_GRANTS else None

    @property
    def fits(self) -> bool:
        """Whether it fits into 64 bits."""
        return MIN_INT64 <= self.units <= MAX_INT64


def _used_up(every: tuple[Credit, ...], units: int) -> tuple[Credit, ...]:
    """Return credits after units of them were used, those that expire first before the others."""
    if units <= 0 or not every:
        return every
    rest = list[Credit]()
    for each in every:
        part = min(each.left, max(0, units))
        units -= part
        rest.append(each._replace(left=each.left - part))
    return tuple(rest)


class Stock(Algorithm[Total]):
    """At most what the counter holds.

    Parameters: a = how long the counter lives after a change, b = how long a lease lasts, in microseconds; or 0.
    """

    name = "stock"
    code = "c"

    def peek(self, state: Total | None, p: Parameters, cost: int, now: int) -> Verdict:
        """Admit if the counter holds the cost; otherwise no wait helps."""
        held = max(-MAX_USED, min(MAX_USED, state.units if state else 0))
        return Verdict(held >= cost, held, 0 if held >= cost else NEVER, 0, NEVER)

    def consume(
        self, state: Total | None, p: Parameters, cost: int, now: int, *, over: bool = False
    ) -> tuple[Total, Verdict]:
        """Take the cost; `over`: even below zero."""
        before = state or Total(0, now)
        after = _kept(before, before.spent(cost), p, now)
        return after, self.peek(after, p, 0, now)._replace(allowed=True, retry_after=0)

    def refund(self, state: Total | None, p: Parameters, cost: int, now: int) -> Total:
        """Add the cost, unless the total would overflow 64 bits."""
        return self.give_back(state, p, cost, cost, now, now)

    def give_back(
        self, state: Total | None, p: Parameters, units: int, cost: int, moment: int, now: int, drawn: str = ""
    ) -> Total:
        """Add the units, however long ago the hit took them, without those of grants that have expired.

        `drawn`: what the hit took of grants; see `drawn_text`.
        """
        before = state or Total(0, now)
        return _kept(before, before.credited(units, unused(read_drawn(drawn), units, cost), now), p, now)

    def expiry(self, state: Total) -> int:
        """Return when the counter expires."""
        return state.expiry


def _kept(before: Total, after: Total, p: Parameters, now: int) -> Total:
    """Return a total that lives from now on, unless it would overflow 64 bits: then it stays as it was."""
    return after._replace(expiry=now + p.a) if after.fits else before


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
