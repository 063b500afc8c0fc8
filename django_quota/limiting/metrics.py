"""Metrics: what this process has allowed and refused, by rule. The flusher sends them every second.

Counting is a few additions in memory. A message that was not answered is sent again unchanged, with its number, so that
it is added only once. All counts of a message go to the minute and the day of the last one. `operating.activity` reads
the sums of all processes.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeVar, cast

from django_quota.conf import current, is_async_callable
from django_quota.core import clock
from django_quota.core.algorithms.calendar import day_of
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Concurrency, Decision, Outcome
from django_quota.core.errors import ConfigurationError
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import escape, field, named, system_key
from django_quota.engine.answers import Answer
from django_quota.engine.compiled import compiled
from django_quota.engine.system_operations import (
    FIELD_ENDS,
    FIELDS,
    OTHER,
    OUTAGES,
    AddMetrics,
    MetricsKeys,
    OutcomeWord,
)
from django_quota.limiting.flusher import flusher
from django_quota.stores.base import Store

MINUTE = 60 * SECOND

MAX_SUBJECTS = MAX_SLOTS = 500
"""How many subjects and slots a message has at most. Further ones are left out; for rules, see `FIELDS`."""

SLOT_TTL = 600 * SECOND
"""Microseconds, at least, for which the overview shows a slot after a caller has asked for it."""

OTHER_LABEL = "other"
"""The label of all rules and slots that have no label of their own."""


class Counted(NamedTuple):
    """One count of the metrics: a decision under one rule for one subject."""

    rule: str
    """The name of the rule."""
    subject: str
    """The subject. Do not use it as a label: there are too many."""
    outcome: OutcomeWord
    """`"allowed"`, `"refused"`, or `"shadowed"`: a shadow rule would have refused."""


def counted(decision: Decision) -> list[Counted]:
    """Return what the metrics count of a decision that the store made; nothing for slots and for a cost of 0.

    Each item has a `rule`, a `subject` and an `outcome`: `"allowed"`, `"refused"`, or `"shadowed"` if a shadow rule
    would have refused. If a rule refuses the request, the rules that had room are not counted: nothing was taken from
    them.
    """
    outcomes = decision.outcomes
    if len(outcomes) == 1:  # as most have
        [only] = outcomes
        word: OutcomeWord = "allowed" if only.allowed else "shadowed" if only.shadow else "refused"
        return [Counted(only.rule, only.subject, word)] if only.cost and not isinstance(only.of, Concurrency) else []
    hits: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if not isinstance(outcome.of, Concurrency):
            hits.setdefault((outcome.rule, outcome.subject), []).append(outcome)
    refusing = {place for place, of_hit in hits.items() if not all(outcome.allowed for outcome in of_hit)}
    is_refused = any(hits[place][0].enforced for place in refusing)
    return [
        Counted(*place, "allowed" if place not in refusing else "shadowed" if of_hit[0].shadow else "refused")
        for place, of_hit in hits.items()
        if of_hit[0].cost and (place in refusing or not is_refused)
    ]


class RuleLabels:
    """The labels of rules for an exporter: about as many as the overview counts by name. Further rules share one."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def of(self, rule: str) -> str:
        """Return the label of a rule: its name, the digest of a long name, or `OTHER_LABEL`."""
        label = self._labels.get(rule)
        if label is None:
            if len(self._labels) >= FIELDS // len(FIELD_ENDS):
                return OTHER_LABEL
            part = field(rule)
            label = self._labels[rule] = named(part) or part
        return label


class DecisionMetrics:
    """What a limiter has decided in this process and not yet sent to its store. Any thread may use it."""

    purpose = "send the metrics of the overview, which stay in memory"
    at_exit = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self.collect: Callable[[], object] = lambda: None
        """Counts what waits elsewhere; see `prefetch`."""
        self.clear()
        register_fork_aware(self)
        flusher.add(self)

    def clear(self) -> None:
        """Forget what was counted and not yet sent."""
        # A signal handler may check a limit while its thread holds the lock: so the lock is reentrant.
        self._lock = threading.RLock()
        self._process = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._unanswered: AddMetrics | None = None
        """The message that was sent last, until it is answered."""
        self._begin()

    def _begin(self) -> None:
        self._now = 0
        """When the last of the following was counted, in microseconds; 0 if nothing was."""
        self._counts: dict[str, int] = {}
        """The counts by field: the name of a rule, escaped for fields of hashes, and one of `FIELD_ENDS`."""
        self._refused: dict[str, int] = {}
        """How often each subject was refused. Subjects are escaped for keys."""
        self._slots: dict[str, int] = {}
        """For how many microseconds the overview shows each slot."""

    def after_fork(self) -> None:
        """Start empty in a forked process: the parent sends what was counted before."""
        self.clear()

    def count(self, now: int, answer: Answer) -> None:
        """Count the decision that the store made at `now` (microseconds)."""
        with self._lock:
            self._now = now
            if answer.numbers is None:
                self._add_all(counted(answer.decision))
            else:
                for hit in answer.hits:
                    if hit.cost:
                        self._add(hit.compiled.allowed)
        if not flusher.is_woken:
            flusher.wake()

    def count_spent(self, now: int, counted_as: str, decisions: int) -> None:
        """Count decisions by units that were taken ahead, the first at `now` (microseconds).

        `counted_as`: the field of the rule.
        """
        with self._lock:
            self._now = max(self._now, now)
            self._add(counted_as, decisions)
        if not flusher.is_woken:
            flusher.wake()

    def count_overrides(self, answer: Answer) -> None:
        """Count the decision that overrides made without the store; see `counted`."""
        with self._lock:
            self._now = answer.resolved.now
            for (rule, subject, cost, _, _), _, is_blocked, _ in answer.resolved.decided_by_overrides():
                of_rule = compiled(rule)
                if not cost:
                    continue
                if is_blocked and not rule.shadow:
                    self._add_refusal(of_rule.refused, escape(subject))
                elif is_blocked or not answer.decision.enforced:
                    self._add(of_rule.shadowed if is_blocked else of_rule.allowed)
        if not flusher.is_woken:
            flusher.wake()

    def count_only_refusals(self, now: int, decision: Decision) -> None:
        """Count only the rules that refuse, also shadows: what the others took is given back."""
        with self._lock:
            self._now = now
            self._add_all(each for each in counted(decision) if each.outcome != "allowed")
        flusher.wake()

    def count_refusal(self, now: int, counted_as: str, subject: str) -> None:
        """Count a refusal at `now` (microseconds). `counted_as`: the rule's field. `subject`: escaped for keys."""
        with self._lock:
            self._now = now
            self._add_refusal(counted_as, subject)
        if not flusher.is_woken:
            flusher.wake()

    def count_outage(self) -> None:
        """Count an outage that this process has seen; it is sent with the next decision that the store makes."""
        with self._lock:
            self._add(OUTAGES)

    def count_slot(self, subject: str, name: str, limit: int, span: int) -> None:
        """Remember that a caller asked for a slot. `span`: how long its leases last, in microseconds."""
        place = f"{escape(subject)} {field(name)} {limit}"
        with self._lock:
            self._now = clock.now()
            self._add_slot(place, max(span, SLOT_TTL))
        flusher.wake()

    def _add_all(self, counts: Iterable[Counted]) -> None:
        for rule, subject, outcome in counts:
            counted_as = field(rule) + FIELD_ENDS[outcome]
            if outcome == "refused":
                self._add_refusal(counted_as, escape(subject))
            else:
                self._add(counted_as)

    def _add(self, counted_as: str, times: int = 1) -> None:
        counts = self._counts
        if counted_as not in counts and len(counts) >= FIELDS and counted_as != OUTAGES:
            counted_as = OTHER + counted_as[-2:]
        counts[counted_as] = counts.get(counted_as, 0) + times

    def _add_refusal(self, counted_as: str, subject: str) -> None:
        self._add(counted_as)
        refused = self._refused
        if subject in refused or len(refused) < MAX_SUBJECTS:
            refused[subject] = refused.get(subject, 0) + 1

    def _add_slot(self, place: str, span: int) -> None:
        if place in self._slots or len(self._slots) < MAX_SLOTS:
            self._slots[place] = span

    def flush(self) -> None:
        """Send what was counted up to now.

        Raises `StoreUnavailable` if the store does not answer: then the same message is sent again next time.
        """
        self.collect()
        is_again = self._unanswered is not None
        self._send()
        if is_again:
            self._send()

    def _send(self) -> None:
        with self._lock:
            if self._unanswered is None and self._now:
                keys = _keys(self._now, self._process)
                number = next(self._numbers)
                self._unanswered = AddMetrics(keys, number, self._counts, self._refused, self._slots)
                self._begin()
            message = self._unanswered
        if message is not None:
            self._store.run(message, frozen_now())
            with self._lock:
                if self._unanswered is message:  # another thread may have sent it, too, and the next one after it
                    self._unanswered = None


def _keys(now: int, process: str) -> MetricsKeys:
    prefix, day = current().prefix, day_of(now, current().time_zone).date.isoformat()
    names = MetricsKeys(
        f"metrics:{day}", f"metrics:{now // MINUTE}", f"refused:{day}", "slots", "totals", f"sent:{process}"
    )
    return MetricsKeys(*(system_key(prefix, name) for name in names))


# --- observers --------------------------------------------------------------------------------------------------------

logger = logging.getLogger("django_quota.metrics")

Receiver = TypeVar("Receiver", bound=Callable[..., Any])

receivers: list[tuple[Callable[..., Any], bool]] = []
"""The observers, each with whether it gets the duration of a decision. Without observers, callers neither read the
clock nor call `notify`, so there is no cost."""


def observe(receiver: Receiver, *, duration: bool = False) -> Receiver:
    """Call a function with every Decision of this process, right after it is made. It can be used as a decorator.

    The function is called for checks, limited requests, reservations and slots; also for refusals that are repeated
    from memory, and degraded decisions. A request is one decision. The function is not called for `peek`, `refund`,
    `settle`, and what nothing limits. It runs in the thread or event loop of the request, so it must be quick, sync and
    thread-safe. If it raises, the error is logged. A function that is registered twice is called once.

    `duration`: pass as a second argument the seconds that the decision took: mostly the call to the store, without the
    time to read the request. None for slots, because a caller may wait for one in a queue.

    Raises `ConfigurationError` if it is not a sync function.
    """
    if not callable(cast("object", receiver)) or is_async_callable(receiver):
        raise ConfigurationError(
            f"observe() got {receiver!r}, which is not a sync function.",
            "Use a function of the decision: def count(decision): ...",
        )
    unobserve(receiver)
    receivers.append((receiver, duration))
    return receiver


def unobserve(receiver: Callable[..., Any]) -> bool:
    """Stop calling a function; return whether it was an observer."""
    before = len(receivers)
    receivers[:] = [each for each in receivers if each[0] != receiver]  # some, such as dataclasses, have no hash
    return len(receivers) < before


def notify(decision: Decision, began: int = 0) -> None:
    """Call all observers. `began`: the `perf_counter_ns()` at which the decision began; 0 if it was not read."""
    seconds = (perf_counter_ns() - began) / 1e9 if began else None
    for receiver, takes_seconds in tuple(receivers):
        try:
            if takes_seconds:
                receiver(decision, seconds)
            else:
                receiver(decision)
        except Exception:
            logger.exception("An observer of decisions failed: %r", receiver)
