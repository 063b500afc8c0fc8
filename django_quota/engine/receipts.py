"""Receipts: what a hit took, when and where, so that it can be settled, undone or refunded later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import NamedTuple

from django_quota.core.overrides import OverrideTable
from django_quota.core.takes import Asked
from django_quota.engine.asks import Ask, Place
from django_quota.engine.codec import Adjust, Adjustment
from django_quota.engine.compiled import CompiledLimit
from django_quota.engine.hits import Hit
from django_quota.engine.resolving import Resolved, Scope, resolve


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

    @classmethod
    def new(cls, asks: Sequence[Ask], taken: Mapping[Place, Taken], decided_at: int | None) -> Receipt:
        """Return a receipt with a new id."""
        return cls(asks, taken, decided_at, token_hex(8))


class Settlement(NamedTuple):
    """What was really used, to replace what a receipt took."""

    receipt: Receipt
    actual: Mapping[Place, int]
    """The units that were really used, by place."""
    is_undone: bool = False
    """Whether the request was refused after all. Then a limit that counts refused hits keeps the hit."""

    @classmethod
    def of(cls, receipt: Receipt, actual: Sequence[int]) -> Settlement:
        """Return the settlement. `actual`: the units that were really used, in the order of the asks."""
        return cls(receipt, {ask.place: units for ask, units in zip(receipt.asks, actual, strict=True)})

    @classmethod
    def undone(cls, receipt: Receipt, *, is_refused: bool) -> Settlement:
        """Return the settlement that gives everything back. `is_refused`: because the request was refused after all."""
        return cls(receipt, {ask.place: 0 for ask in receipt.asks}, is_refused)

    def resolve(self, table: OverrideTable, now: int, *, counters_only: bool = False) -> Resolved:
        """Return what is settled, under the limits that hold now; see `resolving.resolve`."""
        taken = frozenset(place for place, hit in self.receipt.taken.items() if hit.limits)
        return resolve(self.receipt.asks, table, now, taken=taken, counters_only=counters_only)

    def at(self, hits: Sequence[Hit], moment: int, scope: Scope) -> tuple[Hit, ...]:
        """Return the hits with the periods of a moment, and each with the day on which it was counted."""
        moved = []
        for hit in hits:
            taken, today = self.receipt.taken.get(hit.place), hit.at(moment, scope.zone())
            moved.append(today if taken is None else today._replace(day=hit.at(taken.moment, scope.zone()).day))
        return tuple(moved)

    def mode(self, hits: Sequence[Hit]) -> Adjust:
        """Return the mode in which a store settles the hits."""
        return Adjust([self._adjustment(hit) for hit in hits])

    def _adjustment(self, hit: Hit) -> Adjustment | None:
        """Return how to settle a hit; None if no limit took anything."""
        taken = self.receipt.taken.get(hit.place)
        if taken is None or not taken.limits:
            return None
        keeps = self.is_undone and hit.group == 0
        places = [
            _counts_in(limit, taken.limits.get(limit.key)) and not (keeps and limit.limit.options.count_refused)
            for limit in hit.limits
        ]
        return Adjustment(taken.moment, self.actual[hit.place], places)

    def uncounted(self) -> list[tuple[Asked, str, int, int, bool]]:
        """Return the hits that only the day counted.

        For each: the rule, the subject, when it was counted (microseconds), how many more units it really used
        (negative if fewer), and whether it used none.
        """
        found = []
        for place, ask in {ask.place: ask for ask in self.receipt.asks}.items():  # rules of one name count once
            taken, actual = self.receipt.taken.get(place), self.actual[place]
            if taken is not None and not taken.limits:
                found.append((ask.rule, ask.subject, taken.moment, actual - ask.cost, actual == 0))
        return found


def _counts_in(limit: CompiledLimit, then: tuple[str, ...] | None) -> bool:
    """Return whether a limit still counts the hit that it counted as `then`: an override may have changed its rate."""
    return then is not None and (limit.algorithm.counts_units or limit.limit.encoded == then)
