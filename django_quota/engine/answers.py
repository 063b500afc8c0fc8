"""From a reply to a Decision: combines what overrides decided here with the reply of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from django_quota.core.decisions import Decision, Outcome
from django_quota.engine.asks import Ask, Place
from django_quota.engine.codec import (
    REFUSED,
    RETRY_WITH,
    EventKind,
    Flag,
    Reply,
    allows_all,
    emitted,
    outcomes_of,
    outcomes_without_flags,
)
from django_quota.engine.hits import Hit, counts_day
from django_quota.engine.receipts import Receipt, Taken
from django_quota.engine.resolving import Resolved
from django_quota.engine.scatter import PartOfHits, gathered

_group_of = attrgetter("group")


class Standing(NamedTuple):
    """What one limit has left, and the override that replaces its answer."""

    key: str
    """The key of its state."""
    outcome: Outcome
    """The store's answer, whatever the overrides say."""
    instead: Outcome | None
    """The outcome that replaces it because an override exempts or blocks the subject; None if none does."""


class Answer(NamedTuple):
    """What was resolved, the store's reply, and the decision."""

    resolved: Resolved
    decision: Decision
    hits: Sequence[Hit] = ()
    """The hits that a store decided. A refusal from memory has those of the request that was remembered."""
    numbers: Sequence[Any] | None = None
    """The reply as it came, if all hits are allowed and it has no flag. `decision` reads the rest of it when needed."""
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
        """Return whether the store has counted any hit."""
        return any(True for _ in self._consumed())

    def _consumed(self) -> Iterator[tuple[int, int]]:
        decided_at = self.decided_at
        if self.reply is not None:
            return self.reply.consumed(self.hits)
        if decided_at is None:
            return iter(())
        return ((index, decided_at) for index, hit in enumerate(self.hits) if hit.cost)

    def standings(self) -> list[Standing]:
        """Return the standing of each limit in the reply, in the order of the hits; empty without a reply."""
        hits, by_override = self.hits, self.resolved.outcomes_by_override()
        if self.numbers is not None:
            outcomes = outcomes_without_flags(self.numbers, hits)
        else:
            outcomes = () if self.reply is None else outcomes_of(self.reply, hits)
        keys = [limit.key for hit in hits for limit in hit.limits]
        instead = [by_override.get(Place(outcome.rule, outcome.subject), (None,))[0] for outcome in outcomes]
        return [Standing(*each) for each in zip(keys, outcomes, instead, strict=True)]

    def undone(self, decision: Decision) -> Answer:
        """Return the answer of a check whose hits were given back. `decision`: with what is left after that."""
        if self.decided_at is None:
            return self._replace(decision=decision)
        reply = self.decoded()
        flags = [flagged for flagged in reply.flags if flagged.flag != Flag.NEAR_EMITTED]
        return self._replace(decision=decision, numbers=None, reply=Reply(reply.now, REFUSED, reply.hits, flags))

    def decoded(self) -> Reply:
        """Return the reply of the store."""
        return Reply.decode(self.numbers or (), self.hits) if self.reply is None else self.reply

    @property
    def has_groups(self) -> bool:
        """Whether some rule decides only for itself: a shadow, or one that does not block."""
        return any(map(_group_of, self.hits))

    @property
    def has_uncounted(self) -> bool:
        """Whether some ask may have no limit that counts it. Also true for rules of one name, which are one hit."""
        return bool(self.resolved.by_override) or len(self.hits) != len(self.resolved.for_store)

    def counted_by_day(self) -> list[Ask]:
        """Return the asks that only the day counts: of exempt subjects, and of rules without a limit.

        Empty if the request is refused.
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
        """Return what a check took. `is_counted`: whether `counted_by_day` has been counted, too."""
        taken: dict[Place, Taken] = {}
        if is_counted and self.has_uncounted:
            taken = {ask.place: Taken(self.resolved.now, {}) for ask in self.counted_by_day()}
        for index, moment in self._consumed():
            hit = self.hits[index]
            share = self.shares[index] if self.shares else ""
            drawn = "" if self.reply is None else self.reply.drawn(index)
            taken[hit.place] = Taken(moment, {limit.key: limit.limit.encoded for limit in hit.limits}, share, drawn)
        asks = [ask._replace(is_estimate=False) for ask in self.resolved.asked]
        return Receipt.new(asks, taken, self.decided_at)


def answered(
    resolved: Resolved, hits: Sequence[Hit], numbers: Sequence[Any], *, degraded: bool = False
) -> Answer | None:
    """Return the answer that a store replied to these hits; None if another day or period has begun.

    Raises `StoreDataError` if it is not such a reply.
    """
    if not resolved.by_override and not degraded and allows_all(numbers, hits):
        return Answer(resolved, Decision(True, _given=partial(outcomes_without_flags, numbers, hits)), hits, numbers)
    reply = Reply.decode(numbers, hits)
    if reply.verdict == RETRY_WITH:
        return None
    outcomes = outcomes_of(reply, hits)
    if resolved.by_override:
        outcomes = _ordered(resolved, outcomes)
    return Answer(resolved, Decision.of(outcomes, degraded=degraded), hits, reply=reply)


def _ordered(resolved: Resolved, outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Return outcomes of the store, and those by overrides in place of theirs, in the order of what was asked."""
    of_store = groupby(outcomes, key=lambda outcome: Place(outcome.rule, outcome.subject))
    by_place = {place: tuple(of_place) for place, of_place in of_store} | resolved.outcomes_by_override()
    places = dict.fromkeys(ask.place for ask in resolved.asked)
    return tuple(outcome for place in places for outcome in by_place.get(place, ()))


def joined(resolved: Resolved, hits: Sequence[Hit], answers: Sequence[Answer]) -> Answer:
    """Return the answer to a request from those of two stores. `hits`: in the order of the request.

    If a store did not answer, the reply and its hits are those of the other.
    """
    decision = answers[0].decision.combined_with(answers[1].decision)
    outcomes = _ordered(resolved, decision.outcomes)
    if outcomes and not decision.degraded:
        decision = Decision.of(outcomes)
    elif resolved.by_override:
        decision = resolved.decision_by_overrides().combined_with(decision)
    replied = [answer for answer in answers if answer.decided_at is not None]
    if not replied:
        return Answer(resolved, decision, hits)
    order = {hit.place: number for number, hit in enumerate(hits)}
    kept = sorted((hit for answer in replied for hit in answer.hits), key=lambda hit: order[hit.place])
    places = {hit.place: number for number, hit in enumerate(kept)}
    parts = [PartOfHits(answer.hits, [places[hit.place] for hit in answer.hits]) for answer in replied]
    return Answer(resolved, decision, kept, reply=gathered(parts, [answer.decoded() for answer in replied]))
