"""Metrics: what this process has allowed and refused, by rule. The flusher sends them every second.

Counting is a few additions in memory. Each message to the store has a number, and the store adds each number once. So
a message whose answer was lost is simply sent again. All counts of a message belong to the minute and the day of the
last one. `activity` reads the sums of all processes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from typing import Literal, NamedTuple

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.algorithms.concurrency import Concurrency
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.days import day_of
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import escape, field, named, system_key
from django_quota.engine.plans import Plan
from django_quota.engine.system_operations import FIELDS, OTHER, OUTAGES, AddMetrics, MetricsKeys
from django_quota.services.flusher import flusher
from django_quota.stores.base import Store

MINUTE = 60 * SECOND

MAX_SUBJECTS = MAX_SLOTS = 500
"""What is kept between two messages at most. Further subjects and slots are left out; of rules, see `FIELDS`."""

SLOT_TTL = 600 * SECOND
"""Microseconds, at least, for which the overview shows a slot after somebody has asked for it."""

OutcomeWord = Literal["allowed", "refused", "shadowed"]
"""What a rule said of a check. `shadowed`: it is a shadow, and would have refused."""

OUTCOMES: tuple[OutcomeWord, ...] = ("allowed", "refused", "shadowed")
ALLOWED, REFUSED, SHADOWED = ":a", ":r", ":s"
"""How the fields of the counts end, behind the name of a rule."""

_SUFFIXES = dict(zip(OUTCOMES, (ALLOWED, REFUSED, SHADOWED), strict=True))

OTHER_LABEL = "other"
"""How exporters name the rules and slots past those that have a label of their own."""


class Counted(NamedTuple):
    """What the metrics count of a decision for one rule and subject."""

    rule: str
    """The name of the rule."""
    subject: str
    """The subject; it belongs in no label."""
    outcome: OutcomeWord
    """`"allowed"`, `"refused"`, or `"shadowed"`: a shadow rule would have refused."""


def counted(decision: Decision) -> list[Counted]:
    """Return what the metrics count of a decision that the store made; nothing for slots, and for a cost of 0.

    If a rule refuses the request, the rules that had room are not counted: nothing was taken from them.
    """
    outcomes = decision.outcomes
    if len(outcomes) == 1 and outcomes[0].allowed:  # as most are
        [only] = outcomes
        counts = only.cost and not isinstance(only.of, Concurrency)
        return [Counted(only.rule, only.subject, "allowed")] if counts else []
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
    """The labels of rules for an exporter. There are about as many as Prometheus gets; further rules share one."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def of(self, rule: str) -> str:
        """Return the label of a rule: its name, the digest of a long name, or `OTHER_LABEL`."""
        label = self._labels.get(rule)
        if label is None:
            if len(self._labels) >= FIELDS // len(OUTCOMES):
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
        self.clear()
        register_fork_aware(self)
        flusher.add(self)

    def clear(self) -> None:
        """Forget what was counted and not yet sent."""
        # A signal handler may check a limit while its thread is counting: so it can be entered again.
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._token = secrets.token_hex(8)
        self._number = 0
        self._unsent: AddMetrics | None = None
        """What was sent, perhaps without effect: it is sent again under its number."""
        self._begin()

    def _begin(self) -> None:
        self._now = 0
        """When the last of these was counted, in microseconds."""
        self._counts: dict[str, int] = {}
        """The counts by field: the name of a rule as fields of hashes have it, and `ALLOWED` or another end."""
        self._refused: dict[str, int] = {}
        """How often each subject was refused; by its name as keys have it."""
        self._slots: dict[str, int] = {}
        """For how many microseconds the overview shows each slot."""

    def after_fork(self) -> None:
        """Start empty in a forked process: what was counted before is its parent's to send."""
        self.clear()

    def count(self, now: int, plan: Plan, decision: Decision) -> None:
        """Count the decision that the store made about a plan at `now` (microseconds)."""
        with self._lock:
            self._now = now
            if not decision.allowed or (plan.has_groups and decision.would_refuse):
                self._add_all(counted(decision))
            else:
                for hit in plan.hits:
                    if hit.cost:
                        self._add(hit.field, ALLOWED)
        flusher.wake()

    def count_only_refusals(self, now: int, decision: Decision) -> None:
        """Count the rules that refuse, also as shadows; what the others took is given back."""
        with self._lock:
            self._now = now
            self._add_all(each for each in counted(decision) if each.outcome != "allowed")
        flusher.wake()

    def count_refusals(self, now: int, name: str, subject: str, number: int) -> None:
        """Count refusals of a subject by one rule (its name as fields of hashes have it) at `now` (microseconds)."""
        with self._lock:
            self._now = now
            self._add(name, REFUSED, number)
            self._add_refused(subject, number)
        flusher.wake()

    def count_outage(self) -> None:
        """Count an outage that this process has seen; it is sent with the next decision that the store makes."""
        with self._lock:
            self._counts[OUTAGES] = self._counts.get(OUTAGES, 0) + 1

    def count_slot(self, subject: str, name: str, limit: int, span: int) -> None:
        """Note that somebody asked for a slot; `span`: how long its leases last, in microseconds."""
        place = f"{escape(subject)} {field(name)} {limit}"
        with self._lock:
            self._now = clock.now()
            if place in self._slots or len(self._slots) < MAX_SLOTS:
                self._slots[place] = max(span, SLOT_TTL)
        flusher.wake()

    def _add_all(self, counts: Iterable[Counted]) -> None:
        for rule, subject, outcome in counts:
            self._add(field(rule), _SUFFIXES[outcome])
            if outcome == "refused":
                self._add_refused(subject, 1)

    def _add(self, name: str, suffix: str, number: int = 1) -> None:
        counts, counted_as = self._counts, name + suffix
        if counted_as not in counts and len(counts) >= FIELDS:
            counted_as = OTHER + suffix
        counts[counted_as] = counts.get(counted_as, 0) + number

    def _add_refused(self, subject: str, number: int) -> None:
        name = escape(subject)
        if name in self._refused or len(self._refused) < MAX_SUBJECTS:
            self._refused[name] = self._refused.get(name, 0) + number

    def flush(self) -> None:
        """Send everything that was counted up to now.

        Raises `StoreUnavailable` if the store does not answer: then nothing is lost.
        """
        with self._sending:
            for _ in range(2):  # what was sent without an answer, and what was counted since
                with self._lock:
                    if self._unsent is None and self._now:
                        self._unsent = self._message()
                        self._begin()
                if self._unsent is not None:
                    self._store.run(self._unsent, frozen_now())
                    self._unsent = None

    def _message(self) -> AddMetrics:
        self._number += 1
        prefix, day = current().prefix, day_of(self._now, current().time_zone).date.isoformat()
        keys = MetricsKeys(
            system_key(prefix, f"metrics:{day}"),
            system_key(prefix, f"metrics:{self._now // MINUTE}"),
            system_key(prefix, f"refused:{day}"),
            system_key(prefix, "slots"),
            system_key(prefix, f"sent:{self._token}"),
            system_key(prefix, "totals"),
        )
        return AddMetrics(keys, self._number, self._counts, self._refused, self._slots)
