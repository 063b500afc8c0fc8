"""Metrics: what this process has allowed and refused, by rule and minute. The flusher sends them every second.

Counting is a few additions in memory. Each message to the store has a number, and the store adds each number once. So
a message whose answer was lost is simply sent again. `activity` reads the sums of all processes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Literal, NamedTuple

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.algorithms.concurrency import Concurrency
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.days import day_of
from django_quota.core.decisions import Decision, Outcome
from django_quota.core.errors import ConfigurationError
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import escape, field, named, system_key
from django_quota.engine.metrics_operation import FIELDS, OTHER, OUTAGES, AddMetrics, MetricsKeys
from django_quota.engine.plans import Plan
from django_quota.services.flusher import flusher
from django_quota.stores.base import Store

MINUTE = 60 * SECOND

MAX_RULES, MAX_SUBJECTS, MAX_SLOTS = 1_000, 500, 500
"""What a bucket holds at most. Further rules are counted together, further subjects and slots are left out."""

MAX_BUCKETS = 5
"""Minutes that are kept while the store takes none; above that, the oldest two become one."""

SLOT_TTL = 600 * SECOND
"""Microseconds, at least, for which the overview shows a slot after somebody has asked for it."""

OutcomeWord = Literal["allowed", "refused", "shadowed"]
"""What a rule said of a check. `shadowed`: it is a shadow, and would have refused."""

OUTCOMES: tuple[OutcomeWord, ...] = ("allowed", "refused", "shadowed")
ALLOWED, REFUSED, SHADOWED = range(3)
_SUFFIXES = (":a", ":r", ":s")

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


class MinuteBucket(NamedTuple):
    """What was counted in one minute."""

    minute: int
    """Minutes since 1970."""
    day: date
    """The day of the minute, in the zone of the `TIME_ZONE` setting."""
    counts: dict[str, list[int]]
    """Allowed, refused, and refused by a shadow rule; by the rule's name as fields of hashes have it."""
    refused: dict[str, int]
    """How often each subject was refused; by its name as keys have it."""
    slots: dict[str, int]
    """For how many microseconds the overview shows each slot."""

    @classmethod
    def at(cls, now: int) -> MinuteBucket:
        """Return an empty bucket for the minute of a moment (microseconds)."""
        try:
            day = day_of(now, current().time_zone).date
        except ConfigurationError:  # a wrong TIME_ZONE is the system checks' to report: no limit fails for it
            day = datetime.fromtimestamp(now // SECOND, UTC).date()
        return cls(now // MINUTE, day, {}, {}, {})

    def merge(self, other: MinuteBucket) -> None:
        """Add another bucket's counts. Its slots, asked for minutes ago, are of no interest any more."""
        for name, row in other.counts.items():
            mine = self.row(name)
            for kind, count in enumerate(row):
                mine[kind] += count
        for subject, count in other.refused.items():
            self.add_refused(subject, count)

    def row(self, name: str) -> list[int]:
        """Return the counts of a rule, or of `OTHER` if there are too many rules."""
        if name not in self.counts and len(self.counts) >= MAX_RULES:
            name = OTHER
        return self.counts.setdefault(name, [0, 0, 0])

    def add_refused(self, subject: str, count: int) -> None:
        """Count refusals of a subject, unless there are too many subjects."""
        if subject in self.refused or len(self.refused) < MAX_SUBJECTS:
            self.refused[subject] = self.refused.get(subject, 0) + count

    def add_slot(self, name: str, span: int) -> None:
        """Note a slot, unless there are too many slots."""
        if name in self.slots or len(self.slots) < MAX_SLOTS:
            self.slots[name] = max(span, SLOT_TTL)


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
        self._buckets: list[MinuteBucket] = []
        """The minutes that are counted; the last one is that of now."""
        self._begins = self._ends = 0
        """The minute of the last bucket, in microseconds."""
        self._outages = 0
        self._unsent: AddMetrics | None = None
        """What was sent, perhaps without effect: it is sent again under its number."""

    def after_fork(self) -> None:
        """Start empty in a forked process: what was counted before is its parent's to send."""
        self.clear()

    def count(self, now: int, plan: Plan, decision: Decision) -> None:
        """Count the decision that the store made about a plan at `now` (microseconds)."""
        with self._lock:
            if not self._begins <= now < self._ends:
                self._open(now)
            if not decision.allowed or (plan.has_groups and decision.would_refuse):
                self._add(counted(decision))
            else:
                bucket = self._buckets[-1]
                for hit in plan.hits:
                    if hit.cost:
                        row = bucket.counts.get(hit.field)
                        if row is None:
                            row = bucket.row(hit.field)
                        row[ALLOWED] += 1
        flusher.wake()

    def count_only_refusals(self, now: int, decision: Decision) -> None:
        """Count the rules that refuse, also as shadows; what the others took is given back."""
        with self._lock:
            if not self._begins <= now < self._ends:
                self._open(now)
            self._add(each for each in counted(decision) if each.outcome != "allowed")
        flusher.wake()

    def _add(self, counts: Iterable[Counted]) -> None:
        bucket = self._buckets[-1]
        for rule, subject, outcome in counts:
            bucket.row(field(rule))[OUTCOMES.index(outcome)] += 1
            if outcome == "refused":
                bucket.add_refused(escape(subject), 1)

    def count_refusals(self, now: int, name: str, subject: str, number: int) -> None:
        """Count refusals of a subject by one rule (its name as fields of hashes have it) at `now` (microseconds)."""
        with self._lock:
            if not self._begins <= now < self._ends:
                self._open(now)
            self._buckets[-1].row(name)[REFUSED] += number
            self._buckets[-1].add_refused(escape(subject), number)
        flusher.wake()

    def count_outage(self) -> None:
        """Count an outage that this process has seen; it is sent with the next decision that the store makes."""
        with self._lock:
            self._outages += 1

    def count_slot(self, subject: str, name: str, limit: int, span: int) -> None:
        """Note that somebody asked for a slot; `span`: how long its leases last, in microseconds."""
        now = clock.now()
        with self._lock:
            if not self._begins <= now < self._ends:
                self._open(now)
            self._buckets[-1].add_slot(f"{escape(subject)} {field(name)} {limit}", span)
        flusher.wake()

    def _open(self, now: int) -> None:
        """Start the bucket of a moment."""
        minute = now // MINUTE
        self._begins, self._ends = minute * MINUTE, (minute + 1) * MINUTE
        self._buckets.append(MinuteBucket.at(now))
        while len(self._buckets) > MAX_BUCKETS:
            oldest = self._buckets.pop(0)
            self._buckets[0].merge(oldest)

    def flush(self) -> None:
        """Send everything that was counted up to now.

        Raises `StoreUnavailable` if the store does not answer: then nothing is lost.
        """
        with self._sending:
            while (operation := self._next()) is not None:
                self._store.run(operation, frozen_now())
                self._unsent = None

    def _next(self) -> AddMetrics | None:
        with self._lock:
            if self._unsent is None and self._buckets:
                self._unsent = self._operation(self._buckets.pop(0))
                if not self._buckets:
                    self._begins = self._ends = 0  # the next hit opens a bucket
            return self._unsent

    def _operation(self, bucket: MinuteBucket) -> AddMetrics:
        self._number += 1
        prefix, day = current().prefix, bucket.day.isoformat()
        counts = {
            f"{name}{suffix}": count
            for name, row in bucket.counts.items()
            for suffix, count in zip(_SUFFIXES, row, strict=True)
            if count
        }
        if self._outages:
            counts[OUTAGES], self._outages = self._outages, 0
        keys = MetricsKeys(
            system_key(prefix, f"metrics:{day}"),
            system_key(prefix, f"metrics:{bucket.minute}"),
            system_key(prefix, f"refused:{day}"),
            system_key(prefix, "slots"),
            system_key(prefix, f"sent:{self._token}"),
            system_key(prefix, "totals"),
        )
        return AddMetrics(keys, self._number, counts, bucket.refused, bucket.slots)
