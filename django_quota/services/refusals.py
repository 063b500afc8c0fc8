"""Refusals from memory: a client that hammers a full limit costs next to nothing.

A process remembers a refusal of a rule with `cache_refusals`, for at most that many seconds and never beyond its
`retry_after`. Until then it repeats the refusal without asking the store. A reset, a refund, a changed override or a
lifted ban of this process takes effect at once, because it makes the process forget. Other processes learn of it when
their own time is over.

The flusher counts about once a second what was refused from memory: in the metrics, for the day, and as an event.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from django_quota.conf import current
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Decision, Left, Outcome
from django_quota.core.forks import register_fork_aware
from django_quota.core.rules import Rule
from django_quota.engine.events import AppendEvents, EventRecord
from django_quota.engine.hits import Hit
from django_quota.engine.plans import Plan, event_log_of
from django_quota.engine.refusal_operation import RecordRefusals
from django_quota.services.flusher import flusher
from django_quota.services.metrics import DecisionMetrics
from django_quota.services.overrides import try_all
from django_quota.stores.base import Store

MAX_REFUSALS = 10_000
"""How many refusals a process remembers. Above that it forgets all of them, and the next requests ask the store."""

BATCH_SIZE = 500
"""How many refusals one round trip counts."""

_Place = tuple[str, str, str]
"""Where refusals are counted: the key of the subject's status, the key of the day (empty for none), and the rule."""


def _clock() -> int:
    """Return microseconds that never go back; the time of `freeze()` in tests."""
    frozen = frozen_now()
    return time.monotonic_ns() // 1_000 if frozen is None else frozen


class Refusal:
    """One remembered refusal: a rule, a subject, and what was refused."""

    __slots__ = ("_counted", "begins", "cost", "decided_at", "ends", "hit", "outcomes", "repeat", "rule")

    def __init__(self, hit: Hit, outcomes: tuple[Outcome, ...], decided_at: int, begins: int, span: int) -> None:
        self.rule = hit.rule
        self.cost = hit.cost
        self.hit = hit
        self.outcomes = outcomes
        self.decided_at = decided_at
        """When the store refused it, by its clock."""
        self.begins = begins
        self.ends = begins + span
        """From when and until when it is repeated, by `_clock`."""
        self.repeat = itertools.count().__next__
        """Counts a repetition, without a lock."""
        self._counted = 0

    def outcomes_at(self, now: int) -> list[Outcome]:
        """Return the outcomes, with times that have counted down."""
        elapsed = (now - self.begins) / SECOND
        return [
            Outcome(
                of,
                subject,
                cost,
                allowed,
                remaining,
                None if wait is None else max(0.0, wait - elapsed),
                max(0.0, reset - elapsed),
                None if more is None else max(0.0, more - elapsed),
                delay,
                shadow,
                enforced,
                why,
            )
            for of, subject, cost, allowed, remaining, wait, reset, more, delay, shadow, enforced, why in self.outcomes
        ]

    def take_count(self) -> int:
        """Return how often it was repeated since the last call."""
        number = self.repeat()  # reading the number counts as one more
        repeated, self._counted = number - self._counted, number + 1
        return repeated

    def store_time(self, now: int) -> int:
        """Return the store's time at `now`, or when it was repeated last if that was earlier."""
        return self.decided_at + max(0, min(now, self.ends) - self.begins)

    @property
    def event(self) -> EventRecord:
        """The event that reports it."""
        waits = {outcome: outcome.retry_after for outcome in self.outcomes if not outcome.allowed}
        longest = max(waits, key=lambda outcome: float("inf") if waits[outcome] is None else waits[outcome] or 0)
        wait = longest.retry_after
        until = 0 if wait is None else self.decided_at + int(wait * SECOND)
        key = self.hit.status_key
        subject = key[key.index("{") + 1 : key.index("}")]
        return EventRecord("refused", self.hit.field, subject, until, 0, longest.limit, longest.remaining)


class RepeatedRefusals(NamedTuple):
    """What a decision from memory is read from; see `core.decisions`."""

    refusals: Sequence[Refusal]
    now: int
    """By `_clock`."""

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the outcomes, with times that have counted down."""
        return tuple([outcome for refusal in self.refusals for outcome in refusal.outcomes_at(self.now)])

    def left(self) -> list[Left]:
        """Return how much each limit has left."""
        return Decision.of(self.outcomes()).left()


class Refusals:
    """The refusals that a limiter remembers in this process. Any thread may use it."""

    purpose = "count what was refused from memory"
    at_exit = True

    def __init__(self, store: Store, metrics: DecisionMetrics | None = None) -> None:
        self._store = store
        self._metrics = metrics
        self.table: dict[str, dict[str, Refusal]] = {}
        """By subject and name of the rule. A look into it takes no lock."""
        self.changes = 0
        """How often refusals were forgotten. A refusal from before a change is not remembered after it."""
        self.after_fork()
        register_fork_aware(self)
        flusher.add(self)

    def after_fork(self) -> None:
        """Start empty in a forked process: what was refused before is its parent's to count."""
        # A signal handler may check a limit while its thread remembers: so it can be entered again.
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self.table.clear()
        self._size = 0
        self._uncounted: list[Refusal] = []
        """The refusals whose repetitions are to be counted."""
        self._unsent: dict[_Place, tuple[Refusal, int]] = {}
        """The repetitions that the store has not counted yet."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def answer(self, plan: Plan) -> Decision | None:
        """Return the refusal of a plan if one of its rules is remembered to refuse; None if the store must decide.

        The Decision has the outcomes of the rules that are remembered to refuse, and of no others. If any rule of the
        plan must count each refusal, the store decides.
        """
        table, now = self.table, _clock()
        found: list[Refusal] = []
        for rule, subject, cost, _ in plan.asked:
            if must_ask(rule):
                return None
            of_subject = table.get(subject)
            refusal = None if of_subject is None else of_subject.get(rule.name)
            if refusal is None or refusal.rule is not rule or not refusal.begins <= now < refusal.ends:
                continue
            # A smaller cost may be allowed, and a larger one may have to wait longer.
            if refusal.cost == cost and refusal not in found:
                found.append(refusal)
        if not found:
            return None
        for refusal in found:
            refusal.repeat()
        flusher.wake()
        return Decision.lazy(RepeatedRefusals(found, now), allowed=False)

    def remember(self, plan: Plan, decision: Decision, decided_at: int, changes: int) -> None:
        """Remember who refused a plan; `changes`: what `self.changes` was before the store was asked.

        `decided_at`: the store's time in microseconds.
        """
        now, position = _clock(), 0
        asked = [(rule.name, subject) for rule, subject, _, _ in plan.asked]
        for hit in plan.hits:
            outcomes = decision.outcomes[position : position + len(hit.limits)]
            position += len(hit.limits)
            span = _span(hit, outcomes, decided_at)
            # Several rules of one name are one hit, which does not show whose limit refused it.
            if span > 0 and asked.count((hit.rule.name, hit.subject)) == 1:
                self._put(Refusal(hit, outcomes, decided_at, now, span), changes)

    def _put(self, refusal: Refusal, changes: int) -> None:
        with self._lock:
            if changes != self.changes:
                return
            if self._size >= MAX_REFUSALS:
                self._drop(list(self.table))
            of_subject = self.table.setdefault(refusal.hit.subject, {})
            self._size += refusal.rule.name not in of_subject
            of_subject[refusal.rule.name] = refusal
            if len(self._uncounted) >= 10 * MAX_REFUSALS:  # no round comes: the process cannot start a thread
                del self._uncounted[:MAX_REFUSALS]
            self._uncounted.append(refusal)

    # --- changes ------------------------------------------------------------------------------------------------------

    def forget(self, subjects: Collection[str] | None = None) -> None:
        """Forget the refusals of these subjects, or of all: from now on the store decides again."""
        with self._lock:
            self.changes += 1
            # Of a subject with a long name, an operator may know only the digest, which begins with a tilde.
            if subjects is None or any(subject.startswith("~") for subject in subjects):
                subjects = list(self.table)
            self._drop(subjects)

    def _drop(self, subjects: Collection[str]) -> None:
        for subject in subjects:
            dropped = self.table.pop(subject, {})
            self._size -= len(dropped)
            for refusal in dropped.values():
                refusal.ends = 0

    # --- counts -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Count what was refused from memory up to now. Raises `StoreUnavailable` if the store does not answer."""
        with self._sending:
            self._count()
            places, failures = list(self._unsent), list[Exception]()
            for first in range(0, len(places), BATCH_SIZE):
                failures += self._send(places[first : first + BATCH_SIZE])
            if failures:
                raise failures[0]

    def _count(self) -> None:
        """Take the repetitions into the metrics, and note what the store is to count."""
        now = _clock()
        with self._lock:
            refusals = self._uncounted
            # A thread that has just read a refusal may still repeat it.
            self._uncounted = [refusal for refusal in refusals if now < refusal.ends + SECOND]
            for refusal in refusals:
                if now >= refusal.ends:
                    self._remove(refusal)
        for refusal in refusals:
            number = refusal.take_count()
            if not number:
                continue
            hit = refusal.hit
            if self._metrics is not None:
                self._metrics.count_refusals(refusal.store_time(now), hit.field, hit.subject, number)
            # Within a second of an event there is no other. So a refusal that is repeated no longer needs none.
            if hit.day is not None or refusal.ends - refusal.begins > SECOND:
                place = (hit.status_key, hit.day.key if hit.day else "", hit.field)
                _, before = self._unsent.get(place, (refusal, 0))
                self._unsent[place] = (refusal, before + number)

    def _remove(self, refusal: Refusal) -> None:
        of_subject = self.table.get(refusal.hit.subject, {})
        if of_subject.get(refusal.rule.name) is refusal:
            del of_subject[refusal.rule.name]
            self._size -= 1
            if not of_subject:
                del self.table[refusal.hit.subject]

    def _send(self, places: Sequence[_Place]) -> list[Exception]:
        """Let the store count; return why it could not. What one server has counted must not be sent again."""
        settings, now = current(), frozen_now()
        span = SECOND if settings.events else 0
        operations = [RecordRefusals(*place, self._unsent[place][1], span) for place in places]
        replies = dict(zip(places, try_all(self._store, operations, now), strict=True))
        counted = [place for place, reply in replies.items() if not isinstance(reply, Exception)]
        sent = {place: self._unsent.pop(place)[0] for place in counted}
        events = [refusal.event for place, refusal in sent.items() if replies[place]]
        if events:
            self._store.run(AppendEvents(event_log_of(settings.prefix, settings.events), events), now)
        return [reply for reply in replies.values() if isinstance(reply, Exception)]


def must_ask(rule: Rule) -> bool:
    """Say whether each refusal of a rule changes something in the store, so that the store must decide."""
    return rule.ban is not None or rule.count_refused


def _span(hit: Hit, outcomes: Sequence[Outcome], decided_at: int) -> int:
    """Return for how many microseconds the refusal of a hit is repeated; 0 if it is not."""
    rule = hit.rule
    seconds = current().cache_refusals if rule.cache_refusals is None else rule.cache_refusals
    if not seconds or hit.group or not hit.cost or must_ask(rule) or rule.distinct is not None:
        return 0
    refusing = [outcome for outcome in outcomes if not outcome.allowed]
    if not refusing:
        return 0
    # When the first of its limits has room again, the outcomes are no longer true.
    waits = [outcome.retry_after for outcome in refusing if outcome.retry_after is not None]
    span = int(min([seconds, *waits]) * SECOND)
    return span if hit.day is None else min(span, hit.day.ends - decided_at)
