"""Refusals from memory: a client that hammers a full limit costs next to nothing.

A process remembers a refusal of a rule with `cache_refusals`, for at most that many seconds and never beyond its
`retry_after`. Until then it repeats the refusal without asking the store. A reset, a refund, a changed override or a
lifted ban of this process takes effect at once, because it makes the process forget. Other processes learn of it when
their own time is over.

The flusher counts about once a second what was refused from memory: in the metrics, for the day, and as an event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from django_quota.conf import current
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Decision, Left, Outcome
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import escape
from django_quota.core.rules import Rule
from django_quota.engine.events import AppendEvents, EventRecord
from django_quota.engine.hits import Hit
from django_quota.engine.plans import Plan, event_log_of
from django_quota.engine.subject_operations import RecordRefusals
from django_quota.services.flusher import flusher
from django_quota.services.metrics import DecisionMetrics
from django_quota.services.overrides import try_all
from django_quota.stores.base import Store

MAX_SUBJECTS = 10_000
"""Of how many subjects a process remembers refusals. Above that it forgets all, and the next requests ask the store."""

MAX_UNCOUNTED = 10 * MAX_SUBJECTS
"""How many refusals wait to be counted; without a bound, they would fill a process that cannot start a thread."""

BATCH_SIZE = 500
"""How many refusals one round trip counts."""


def _clock() -> int:
    """Return microseconds that never go back; the time of `freeze()` in tests."""
    frozen = frozen_now()
    return time.monotonic_ns() // 1_000 if frozen is None else frozen


class Refusal:
    """One remembered refusal: a rule, a subject, and what was refused."""

    __slots__ = ("begins", "decided_at", "ends", "hit", "outcomes", "repeated")

    def __init__(self, hit: Hit, outcomes: tuple[Outcome, ...], decided_at: int, begins: int, span: int) -> None:
        self.hit = hit
        self.outcomes = outcomes
        self.decided_at = decided_at
        """When the store refused it, by its clock."""
        self.begins = begins
        self.ends = begins + span
        """From when and until when it is repeated, by `_clock`."""
        self.repeated = 0
        """How often it was repeated and not yet counted."""

    def outcomes_at(self, now: int) -> list[Outcome]:
        """Return the outcomes, with times that have counted down."""
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
    def asks_store(self) -> bool:
        """Whether the store counts its repetitions: for the day, or since another event may be due after a second."""
        return self.hit.day is not None or self.ends - self.begins > SECOND

    def record(self, number: int, span: int) -> RecordRefusals:
        """Return the operation that counts repetitions. `span`: microseconds between two events; 0 for none."""
        hit = self.hit
        return RecordRefusals(hit.status_key, hit.day.key if hit.day else "", hit.field, number, span)

    @property
    def event(self) -> EventRecord:
        """The event that reports it."""
        refusing = [outcome for outcome in self.outcomes if not outcome.allowed]
        longest = max(refusing, key=lambda each: float("inf") if each.retry_after is None else each.retry_after)
        until = 0 if longest.retry_after is None else self.decided_at + int(longest.retry_after * SECOND)
        subject = escape(self.hit.subject)
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
        self._uncounted: set[Refusal] = set()
        """The refusals that were repeated and not yet counted."""

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
            if refusal is None or refusal.hit.rule is not rule or not refusal.begins <= now < refusal.ends:
                continue
            # A smaller cost may be allowed, and a larger one may have to wait longer.
            if refusal.hit.cost == cost and refusal not in found:
                found.append(refusal)
        if not found:
            return None
        with self._lock:
            if len(self._uncounted) < MAX_UNCOUNTED:
                self._uncounted.update(found)
            for refusal in found:
                refusal.repeated += 1
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
            if len(self.table) >= MAX_SUBJECTS:
                self.table.clear()
            self.table.setdefault(refusal.hit.subject, {})[refusal.hit.rule.name] = refusal

    def forget(self, subjects: Collection[str] | None = None) -> None:
        """Forget the refusals of these subjects, or of all: from now on the store decides again."""
        with self._lock:
            self.changes += 1
            # Of a subject with a long name, an operator may know only the digest, which begins with a tilde.
            if subjects is None or any(subject.startswith("~") for subject in subjects):
                self.table.clear()
            else:
                for subject in subjects:
                    self.table.pop(subject, None)

    # --- counts -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Count what was refused from memory up to now. Raises `StoreUnavailable` if the store does not answer."""
        with self._sending:
            with self._lock:
                self._forget_expired()
                uncounted = list(self._uncounted)
            failures: list[Exception] = []
            for first in range(0, len(uncounted), BATCH_SIZE):
                failures += self._count(uncounted[first : first + BATCH_SIZE])
            if failures:
                raise failures[0]

    def _forget_expired(self) -> None:
        now = _clock()
        for subject, refusals in list(self.table.items()):
            live = {name: refusal for name, refusal in refusals.items() if now < refusal.ends}
            if not live:
                del self.table[subject]
            elif len(live) < len(refusals):
                self.table[subject] = live

    def _count(self, refusals: Sequence[Refusal]) -> list[Exception]:
        """Count repetitions, and report them; return why the store could not. These wait for the next round."""
        settings, now = current(), frozen_now()
        span = SECOND if settings.events else 0
        numbers = {refusal: refusal.repeated for refusal in refusals}
        asking = [refusal for refusal in refusals if refusal.asks_store]
        operations = [refusal.record(numbers[refusal], span) for refusal in asking]
        replies = dict(zip(asking, try_all(self._store, operations, now), strict=True))
        counted = [refusal for refusal in refusals if not isinstance(replies.get(refusal), Exception)]
        for refusal in counted:
            with self._lock:
                refusal.repeated -= numbers[refusal]
                if not refusal.repeated:
                    self._uncounted.discard(refusal)
            if self._metrics is not None:
                hit, at = refusal.hit, refusal.decided_at + _clock() - refusal.begins  # by the store's clock
                self._metrics.count_refusals(at, hit.field, hit.subject, numbers[refusal])
        events = [refusal.event for refusal in counted if replies.get(refusal)]
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
