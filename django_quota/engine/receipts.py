"""Receipts: what a hit took, when and where, so that it can be settled, undone or refunded later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import NamedTuple

from django_quota.core.clock import DAY
from django_quota.core.overrides import OverrideTable
from django_quota.engine.asks import Ask, Asked, Place
from django_quota.engine.codec import Adjust, Adjustment, Portion, SettledMark
from django_quota.engine.compiled import CompiledLimit
from django_quota.engine.hits import Hit
from django_quota.engine.resolving import Resolved, Scope, resolve

SETTLED_WITHIN = 7 * DAY
"""For how long a reservation that other processes know can be settled, in microseconds."""


class Taken(NamedTuple):
    """What a hit took."""

    moment: int
    """When the store decided it, in microseconds."""
    limits: Mapping[str, tuple[str, ...]]
    """The limits that counted the hit, by the keys of their states: each as it was then, `Limit.encoded`.

    Empty if only the day counted it: an override exempted the subject, or the rule had no limit.
    """
    share: str = ""
    """The share of which it was spent, if this process had taken units ahead."""
    drawn: str = ""
    """What it took of grants of a counter; see `stock.drawn_text`."""


class Receipt(NamedTuple):
    """What was asked, and what was taken for it."""

    asks: Sequence[Ask]
    """What was asked. `is_estimate` is False in all of them."""
    taken: Mapping[Place, Taken]
    """By place; hits that took nothing are left out."""
    decided_at: int | None
    """When the store decided, in microseconds; None without its answer."""
    id: str
    """A random token, which no other receipt has. A reservation that is saved as a string keeps it."""
    extensions: Sequence[Receipt] = ()
    """What was taken later for the same work. These have no extensions."""

    @classmethod
    def new(cls, asks: Sequence[Ask], taken: Mapping[Place, Taken], decided_at: int | None) -> Receipt:
        """Return a receipt with a new id."""
        return cls(asks, taken, decided_at, token_hex(8))

    @property
    def parts(self) -> Sequence[Receipt]:
        """This receipt and its extensions."""
        return (self, *self.extensions)

    @property
    def took_anything(self) -> bool:
        """Whether there is anything to settle."""
        return any(part.taken for part in self.parts)

    @property
    def costs(self) -> tuple[int, ...]:
        """What was asked for each ask, with the extensions, in units."""
        more = [{ask.place: ask.cost for ask in part.asks} for part in self.extensions]
        return tuple(ask.cost + sum(part.get(ask.place, 0) for part in more) for ask in self.asks)

    @property
    def until(self) -> int:
        """Until when it can be settled if other processes know it, in microseconds; 0 if it took nothing."""
        moments = [hit.moment for part in self.parts for hit in part.taken.values()]
        return min(moments) + SETTLED_WITHIN if moments else 0

    def emptied(self) -> Receipt:
        """Return the receipt as if it had taken nothing."""
        return self._replace(taken={}, extensions=())

    def for_others(self) -> Receipt:
        """Return the receipt for other processes too: without the shares of this process, so the store settles all."""
        taken = {place: hit._replace(share="") for place, hit in self.taken.items()}
        return self._replace(taken=taken, extensions=[each.for_others() for each in self.extensions])

    def extended(self, receipt: Receipt) -> Receipt:
        """Return the receipt with what was taken later."""
        return self._replace(extensions=[*self.extensions, receipt]).for_others()


class Settlement(NamedTuple):
    """What was really used, to replace what a receipt took."""

    receipt: Receipt
    actual: Mapping[Place, int]
    """The units that were really used, by place."""
    is_undone: bool = False
    """Whether the request was refused after all. Then a limit that counts refused hits keeps the hit."""
    until: int = 0
    """Until when the store remembers that it was settled (microseconds); 0: no other process can settle it."""

    @classmethod
    def of(cls, receipt: Receipt, actual: Sequence[int], *, until: int = 0) -> Settlement:
        """Return the settlement. `actual`: the units that were really used, in the order of the asks."""
        of_places = {ask.place: units for ask, units in zip(receipt.asks, actual, strict=True)}
        return cls(receipt, of_places, until=until)

    @classmethod
    def undone(cls, receipt: Receipt, *, is_refused: bool) -> Settlement:
        """Return the settlement that gives everything back. `is_refused`: because the request was refused after all."""
        return cls(receipt, {ask.place: 0 for ask in receipt.asks}, is_refused)

    def resolve(self, table: OverrideTable, now: int, *, counters_only: bool) -> Resolved:
        """Return what is settled, under the limits that hold now; see `resolving.resolve`."""
        taken = frozenset(place for part in self.receipt.parts for place, hit in part.taken.items() if hit.limits)
        return resolve(self.receipt.asks, table, now, taken=taken, counters_only=counters_only)

    def at(self, hits: Sequence[Hit], moment: int, scope: Scope) -> tuple[Hit, ...]:
        """Return the hits with the periods of a moment, and each with the day on which it was counted."""
        moved = []
        for hit in hits:
            taken, today = self.receipt.taken.get(hit.place), hit.at(moment, scope.zone())
            moved.append(today if taken is None else today._replace(day=hit.at(taken.moment, scope.zone()).day))
        return tuple(moved)

    def mode(self, hits: Sequence[Hit], scope: Scope) -> Adjust:
        """Return the mode in which a store settles the hits."""
        used = self._used()
        return Adjust([self._adjustment(hit, used.get(hit.place, ()), scope) for hit in hits])

    def _used(self) -> dict[Place, list[tuple[Ask, Taken, int]]]:
        """Return for each place what was asked, what was taken for it, and what was really used of that.

        The oldest is used first; the last has all that was used above the estimates.
        """
        found: dict[Place, list[tuple[Ask, Taken, int]]] = {}
        for part in self.receipt.parts:
            for place, ask in {ask.place: ask for ask in part.asks}.items():  # rules of one name count once
                if (taken := part.taken.get(place)) is not None:
                    found.setdefault(place, []).append((ask, taken, ask.cost))
        for place, of_place in found.items():
            left = self.actual[place]
            for number, (ask, taken, cost) in enumerate(of_place, 1):
                actual = left if number == len(of_place) else min(left, cost)
                of_place[number - 1] = ask, taken, actual
                left -= actual
        return found

    def _adjustment(self, hit: Hit, used: Sequence[tuple[Ask, Taken, int]], scope: Scope) -> Adjustment | None:
        """Return how to settle a hit; None if no limit took anything."""
        keeps = self.is_undone and hit.group == 0
        portions = []
        for ask, taken, actual in used:
            if not taken.limits:
                continue
            places = [
                _counts_in(limit, taken.limits.get(limit.key)) and not (keeps and limit.limit.options.count_refused)
                for limit in hit.limits
            ]
            day = hit.at(taken.moment, scope.zone()).day
            day_key = day.key if day is not None and day != hit.day else ""
            portions.append(Portion(taken.moment, ask.cost, actual, places, ask.value, taken.drawn, day_key))
        if not portions:
            return None
        return Adjustment(portions, self.mark(hit.place, hit.base, hit.field) if self.until else None)

    def mark(self, place: Place, base: str, field: str) -> SettledMark:
        """Return where the store remembers that a hit was settled. `base`: the beginning of its keys."""
        number = [ask.place for ask in self.receipt.asks].index(place)
        return SettledMark(f"{base}settled:{field}:{self.receipt.id}:{number}", self.until)

    def uncounted(self) -> list[tuple[Asked, Place, int, int, bool]]:
        """Return the hits that only the day counted.

        For each: the rule, the place, when it was counted (microseconds), how many more units it really used (negative
        if fewer), and whether it used none.
        """
        return [
            (ask.rule, place, taken.moment, actual - ask.cost, actual == 0)
            for place, of_place in self._used().items()
            for ask, taken, actual in of_place
            if not taken.limits
        ]


def _counts_in(limit: CompiledLimit, then: tuple[str, ...] | None) -> bool:
    """Return whether a limit still counts the hit that it counted as `then`: an override may have changed its rate."""
    return then is not None and (limit.algorithm.counts_units or limit.limit.encoded == then)
