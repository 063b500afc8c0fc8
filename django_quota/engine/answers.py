"""From a reply to a Decision: what was resolved here and what the store said, put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from django_quota.core.decisions import Decision, Outcome
from django_quota.engine.asks import Ask, Place, counts_day
from django_quota.engine.codec import (
    RETRY_WITH,
    EventKind,
    Reply,
    allows_all,
    emitted,
    outcomes_of,
    outcomes_without_flags,
)
from django_quota.engine.hits import Hit
from django_quota.engine.receipts import Receipt, Taken
from django_quota.engine.resolving import Resolved

_group_of = attrgetter("group")


class Standing(NamedTuple):
    """How a limit stands."""

    key: str
    """The key of its state."""
    outcome: Outcome
    """What the store says of it, whatever overrides say."""
    instead: Outcome | None
    """What decides in its place because an override exempts or blocks the subject."""


class Answer(NamedTuple):
    """What was resolved, what the store replied, and what follows."""

    resolved: Resolved
    decision: Decision
    hits: Sequence[Hit] = ()
    """The hits that a store was asked about. A refusal from memory has those of the time when it was remembered."""
    numbers: Sequence[Any] | None = None
    """The reply of the store, if all hits are allowed and it has no flag. Nobody has read more of it yet."""
    reply: Reply | None = None
    """Any other reply."""
    spent_at: int | None = None
    """When all hits were spent of units that this process had taken ahead, by the clock of the store (microseconds)."""
    shares: Sequence[str] = ()
    """For each hit the share of which it was spent."""

    @property
    def decided_at(self) -> int | None:
        """When the store decided, in microseconds; None without its answer."""
        if self.spent_at is not None:
            return self.spent_at
        if self.numbers is not None:
            return int(self.numbers[0])
        return None if self.reply is None else self.reply.now

    def events(self) -> Iterator[tuple[EventKind, Hit, int]]:
        """Yield the events that the reply reports; see `codec.emitted`."""
        return iter(()) if self.reply is None else emitted(self.reply, self.hits)

    def took_anything(self) -> bool:
        """Say whether the store has counted any hit."""
        return any(True for _ in self._consumed())

    def _consumed(self) -> Iterator[tuple[int, int]]:
        decided_at = self.decided_at
        if self.reply is not None:
            return self.reply.consumed(self.hits)
        if decided_at is None:
            return iter(())
        return ((index, decided_at) for index, hit in enumerate(self.hits) if hit.cost)

    def standings(self) -> list[Standing]:
        """Return how each limit stands by a reply of the store."""
        hits, by_override = self.hits, self.resolved.outcomes_by_override()
        if self.numbers is not None:
            outcomes = outcomes_without_flags(self.numbers, hits)
        else:
            outcomes = () if self.reply is None else outcomes_of(self.reply, hits)
        keys = [limit.key for hit in hits for limit in hit.limits]
        instead = [by_override.get(Place(outcome.rule, outcome.subject), (None,))[0] for outcome in outcomes]
        return [Standing(*each) for each in zip(keys, outcomes, instead, strict=True)]

    @property
    def has_groups(self) -> bool:
        """Whether a rule decides for itself: a shadow, or one that does not block."""
        return any(map(_group_of, self.hits))

    @property
    def has_uncounted(self) -> bool:
        """Whether there may be something that no limit counts. Rules of one name, which are one hit, say so too."""
        return bool(self.resolved.by_override) or len(self.hits) != len(self.resolved.for_store)

    def counted_by_day(self) -> list[Ask]:
        """Return what no limit has counted but the day does: hits of exempt subjects, and of rules without a limit.

        Nothing if the request is refused.
        """
        if self.decision.enforced:
            return []
        resolved, limited = self.resolved, {hit.place for hit in self.hits}
        found: dict[Place, Ask] = {}
        for ask in resolved.for_store:
            if ask.cost and not ask.rule.limits and ask.place not in limited and counts_day(ask.rule, ask.subject):
                found.setdefault(ask.place, ask)
        exempt = [
            each.ask
            for each in resolved.decided_by_overrides()
            if not each.is_blocked and each.ask.cost and counts_day(each.ask.rule, each.ask.subject)
        ]
        return [*found.values(), *exempt]

    def receipt(self, *, is_counted: bool = True) -> Receipt:
        """Return what a check took. `is_counted`: whether the days of what no limit counts have been counted, too."""
        taken: dict[Place, Taken] = {}
        if is_counted and self.has_uncounted:
            taken = {ask.place: Taken(self.resolved.now, {}) for ask in self.counted_by_day()}
        for index, moment in self._consumed():
            hit = self.hits[index]
            share = self.shares[index] if self.shares else ""
            taken[hit.place] = Taken(moment, {limit.key: limit.limit.encoded for limit in hit.limits}, share)
        asks = [ask._replace(is_estimate=False) for ask in self.resolved.asked]
        return Receipt.new(asks, taken, self.decided_at)


def answered(
    resolved: Resolved, hits: Sequence[Hit], numbers: Sequence[Any], *, degraded: bool = False
) -> Answer | None:
    """Return the answer in a store's reply about these hits; None if another day or period has begun.

    Raises `StoreDataError` for what is no such reply.
    """
    if not resolved.by_override and not degraded and allows_all(numbers, hits):
        return Answer(resolved, Decision(True, _given=partial(outcomes_without_flags, numbers, hits)), hits, numbers)
    reply = Reply.decode(numbers, hits)
    if reply.verdict == RETRY_WITH:
        return None
    outcomes = outcomes_of(reply, hits)
    if resolved.by_override:
        of_store = groupby(outcomes, key=lambda outcome: Place(outcome.rule, outcome.subject))
        by_place = {place: tuple(of_place) for place, of_place in of_store} | resolved.outcomes_by_override()
        places = dict.fromkeys(ask.place for ask in resolved.asked)
        outcomes = tuple(outcome for place in places for outcome in by_place.get(place, ()))
    return Answer(resolved, Decision.of(outcomes, degraded=degraded), hits, reply=reply)
