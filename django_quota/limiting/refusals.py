"""Refusals from memory: a client that keeps trying at a full limit costs almost nothing.

A process remembers what a rule with `cache_refusals` refused, for at most that many seconds and never longer than
its `retry_after`, also while the machine sleeps. Until then it repeats the refusal to requests with the same rules,
subjects and costs without asking the store. Only the store decides requests with other rules. A reset, a refund or a
lifted ban in this process takes effect at once, because the process then forgets its refusals. Other processes repeat
theirs until their time is over.

Refusals from memory count in the metrics. They count by day and as events like other hits that no store decides; see
`unasked`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from django.http import HttpRequest

from django_quota.conf import current
from django_quota.core.clock import SECOND, steady_now
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import escape
from django_quota.engine.answers import Answer
from django_quota.engine.asks import Ask, Asked, Take
from django_quota.engine.events import EventRecord
from django_quota.engine.hits import Hit
from django_quota.engine.resolving import Resolved
from django_quota.limiting.flusher import flusher
from django_quota.limiting.metrics import DecisionMetrics
from django_quota.limiting.unasked import REFUSED_ONCE, TallyPlace, UnaskedHits, place_of_hit

MAX_REQUESTS = 10_000
"""For how many requests a process remembers refusals. Above that it forgets all, and asks the store again."""

AsksKey = tuple[tuple[int, str, int, str], ...]
"""What distinguishes requests: for each ask, the `id` of its rule, the subject, the cost and the value."""


class Refusal(NamedTuple):
    """One remembered refusal: a rule, a subject, and what was refused."""

    asks: Sequence[Ask]
    """All that the request asked of the store. This keeps its rules alive, so that no other rule gets the same `id`."""
    hits: Sequence[Hit]
    """All hits of the request."""
    hit: Hit
    outcomes: tuple[Outcome, ...]
    place: TallyPlace
    """Where repetitions are counted."""
    subject: str
    """The subject, escaped for keys."""
    decided_at: int
    """When the store refused it, by its clock."""
    begins: int
    ends: int
    """From when and until when to repeat the refusal, by `steady_now`."""

    def outcomes_at(self, now: int) -> list[Outcome]:
        """Return the outcomes, with their waits shortened by the time since the refusal."""
        elapsed = (now - self.begins) / SECOND
        return [
            outcome._replace(
                retry_after=None if outcome.retry_after is None else max(0.0, outcome.retry_after - elapsed),
                reset_after=max(0.0, outcome.reset_after - elapsed),
                next_after=None if outcome.next_after is None else max(0.0, outcome.next_after - elapsed),
            )
            for outcome in self.outcomes
        ]

    @property
    def counts_in_store(self) -> bool:
        """Whether the store counts repetitions: for the day, or because another event may be due after a second."""
        return self.hit.day is not None or self.ends - self.begins > SECOND

    def event(self) -> EventRecord:
        """Return the event that reports the refusal."""
        refusing = [outcome for outcome in self.outcomes if not outcome.allowed]
        longest = max(refusing, key=lambda each: float("inf") if each.retry_after is None else each.retry_after)
        until = 0 if longest.retry_after is None else self.decided_at + int(longest.retry_after * SECOND)
        left, cost = longest.remaining or 0, self.hit.cost
        return EventRecord("refused", self.hit.field, self.subject, until, 0, longest.of.capacity, left, cost=cost)


def _outcomes_at(refusals: Sequence[Refusal], now: int) -> tuple[Outcome, ...]:
    """Return the outcomes of refusals; see `Refusal.outcomes_at`."""
    return tuple([outcome for refusal in refusals for outcome in refusal.outcomes_at(now)])


class Refusals:
    """The refusals that a limiter remembers in this process. Any thread may use it."""

    purpose = "forget refusals that are over"
    at_exit = False

    def __init__(self, unasked: UnaskedHits, metrics: DecisionMetrics) -> None:
        self._unasked = unasked
        self._metrics = metrics
        self.table: dict[AsksKey, list[Refusal]] = {}
        """All refusals of each request. Reading takes no lock."""
        self._keys: dict[str, set[AsksKey]] = {}
        """The keys of the table by subject."""
        self.changes = 0
        """How many times `forget` was called. If it changes while the store decides, the refusal is not remembered."""
        self.after_fork()
        register_fork_aware(self)
        flusher.add(self)

    def after_fork(self) -> None:
        """Start empty in a forked process."""
        # A signal handler may check a limit while its thread holds the lock: so the lock is reentrant.
        self._lock = threading.RLock()
        self._clear()

    def answer(self, resolved: Resolved, request: HttpRequest | None = None) -> Answer | None:
        """Return the refusal of a request if it is remembered; None if the store must decide.

        The Decision has the outcomes of the rules that refused, and of no others.
        """
        refusals = self.table.get(_key(resolved.for_store))
        if refusals is None or not refusals[0].begins <= (now := steady_now()) < refusals[0].ends:
            return None
        for refusal in refusals:
            if refusal.counts_in_store:
                self._unasked.add(refusal.place, REFUSED_ONCE, refusal.event, request)
            at = refusal.decided_at + now - refusal.begins  # by the store's clock
            self._metrics.count_refusal(at, refusal.hit.compiled.refused, refusal.subject)
        decision = Decision(False, enforced=True, _given=partial(_outcomes_at, refusals, now))
        return Answer(resolved, decision, refusals[0].hits)

    def remember(self, answer: Answer, decided_at: int, changes: int) -> None:
        """Remember the refusals of a request. `changes`: the value of `self.changes` before the store was asked.

        `decided_at`: the store's time in microseconds. Nothing is remembered if a rule must count each refusal, or if
        the request asks for units of a counter, which may be topped up at any moment.
        """
        resolved = answer.resolved
        if any(rule.ban is not None or rule.count_refused or isinstance(rule, Take) for rule in resolved.rules):
            return
        now = steady_now()
        refusing: list[tuple[Hit, tuple[Outcome, ...]]] = []
        by_place: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in answer.decision.outcomes:
            by_place.setdefault((outcome.rule, outcome.subject), []).append(outcome)
        for hit in answer.hits:
            outcomes = tuple(by_place[hit.place])
            if not hit.group and not all(outcome.allowed for outcome in outcomes):
                refusing.append((hit, outcomes))
        span = _span(refusing, decided_at)
        if span > 0:
            refusals = []
            for hit, outcomes in refusing:
                place, who, asks = place_of_hit(hit), escape(hit.subject), resolved.for_store
                refusals.append(Refusal(asks, answer.hits, hit, outcomes, place, who, decided_at, now, now + span))
            self._put(_key(resolved.for_store), refusals, changes)

    def _put(self, key: AsksKey, refusals: list[Refusal], changes: int) -> None:
        with self._lock:
            if changes != self.changes:
                return
            if len(self.table) >= MAX_REQUESTS:
                self._clear()
            self.table[key] = refusals
            for _, subject, _, _ in key:
                self._keys.setdefault(subject, set()).add(key)

    def see_taken(self, asks: Sequence[Ask]) -> None:
        """Forget the refusals under limits of which these asks have just taken units: they refuse for longer now."""
        for ask in asks:
            if ask.subject in self._keys:
                place = (id(ask.rule), ask.subject)
                with self._lock:
                    known = self._keys.get(ask.subject, ())
                    self._drop([key for key in known if any(part[:2] == place for part in key)])

    def forget(self, subjects: Collection[str] | None = None) -> None:
        """Forget the refusals of these subjects, or of all: from now on the store decides again."""
        with self._lock:
            self.changes += 1
            if subjects is None:
                self._clear()
            else:
                for subject in subjects:
                    self._drop(list(self._keys.get(subject, ())))

    def _clear(self) -> None:
        self.table.clear()
        self._keys.clear()

    def _drop(self, keys: Sequence[AsksKey]) -> None:
        for key in keys:
            self.table.pop(key)
            for subject in {subject for _, subject, _, _ in key}:
                self._keys[subject].discard(key)
                if not self._keys[subject]:
                    del self._keys[subject]

    def flush(self) -> None:
        """Forget the refusals that are over."""
        with self._lock:
            now = steady_now()
            self._drop([key for key, refusals in self.table.items() if now >= refusals[0].ends])


def _key(asks: Sequence[Ask]) -> AsksKey:
    return tuple([(id(rule), subject, cost, value) for rule, subject, cost, value, _ in asks])


def _span(refusing: Sequence[tuple[Hit, Sequence[Outcome]]], decided_at: int) -> int:
    """Return for how many microseconds the refusal by these hits is repeated; 0 if it is not."""
    spans = [seconds * SECOND for hit, _ in refusing if (seconds := _seconds(hit.rule))]
    if not spans or not all(hit.cost for hit, _ in refusing):
        return 0
    for hit, outcomes in refusing:
        # When the first limit has room again, the outcomes are no longer true.
        spans += [each.retry_after * SECOND for each in outcomes if not each.allowed and each.retry_after is not None]
        if hit.day is not None:
            spans.append(hit.day.ends - decided_at)
    return int(min(spans))


def _seconds(rule: Asked) -> float:
    """Return for how many seconds a process may repeat the refusals of a rule."""
    if rule.distinct is not None:
        return 0
    if rule.cache_refusals is not None:
        return rule.cache_refusals
    return max(current().cache_refusals, rule.lease / SECOND)  # who takes units ahead asks once a lease
