"""Hits that this process decides without the store.

These are hits of exempt and blocked subjects, hits of tiers without a limit, and refusals from memory.

The flusher counts them by day, about once a second. A refusal is an event, at most once a second for a rule and a
subject. A message that was not answered is sent again unchanged, with its number, so that it is counted only once.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as field_of
from functools import lru_cache, partial
from typing import Any, NamedTuple

from django.http import HttpRequest

from django_quota.conf import current, time_zone
from django_quota.core import clock
from django_quota.core.algorithms.calendar import day_of
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import escape, key_of, subject_base
from django_quota.engine.answers import Answer
from django_quota.engine.asks import Ask, Asked
from django_quota.engine.compiled import CompiledRule, compiled
from django_quota.engine.events import AppendEvents, EventRecord, EventSource, RecordHits
from django_quota.engine.hits import Hit, counts_day
from django_quota.engine.receipts import Settlement
from django_quota.engine.resolving import Resolved, event_log_of
from django_quota.limiting.flusher import flusher
from django_quota.signals import Announcement, refused
from django_quota.stores.base import Store
from django_quota.subjects.sources import NO_SOURCE, source_of

logger = logging.getLogger("django_quota.metrics")

MAX_PLACES = 10_000
"""How many places can wait to be counted, in 20 MB at most; hits of further ones are left out."""

REFUSED_ONCE = {"r": 1}
"""How a refusal changes the fields of a day."""

HITS_A_CALL = 500
"""How many places are counted in one round trip."""


class TallyPlace(NamedTuple):
    """A rule, a subject and a day for which hits are counted together."""

    status_key: str
    """The key of the subject's status, which has the time of the next event."""
    day_key: str
    """The key of the day's counts; empty if the rule counts no days."""
    rule: str
    """The rule's name, escaped for fields of hashes."""
    tier: str
    """The tier of the subject under the rule; empty if the rule has no `tier` function."""
    in_database: bool = False
    """Whether the rule has `store="database"`."""

    def sent_key(self, process: str) -> str:
        """Return the key of the number of a process' last message about this place."""
        base, _, _ = self.status_key.rpartition("}")
        return key_of(base, "sent", self.rule, self.day_key.rpartition(":")[2], self.tier, process)


@dataclass(slots=True)
class _Tally:
    """The hits of a place that wait to be counted."""

    counts: Counter[str] = field_of(default_factory=Counter)
    """How the fields of the day change; see `engine/lua/count_day.lua`."""
    event: Callable[[], EventRecord] | None = None
    """Makes the event of a refusal."""
    source: EventSource = NO_SOURCE
    """What the event says of the request."""


class UnaskedHits:
    """The hits that this process has decided and that the store has not counted yet. Any thread may use it."""

    purpose = "count what was decided without the store"
    at_exit = True

    def __init__(self, store: Store, store_of: Callable[[bool], Store]) -> None:
        self._store = store
        self._store_of = store_of
        """Returns where rules count with `store="database"` (True), or without."""
        self.collect: Callable[[], object] = lambda: None
        """Counts what waits elsewhere; see `prefetch`."""
        self.after_fork()
        register_fork_aware(self)
        flusher.add(self)

    def after_fork(self) -> None:
        """Start empty in a forked process: the parent counts what was decided before."""
        self._lock = threading.RLock()  # reentrant: a signal handler may check a limit while its thread is counting
        self._tallies: dict[TallyPlace, _Tally] = {}
        self._unanswered: dict[TallyPlace, tuple[_Tally, int]] = {}
        """What was sent and not answered yet, with the number of its message. Later hits of the place wait."""
        self._process = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._is_full = False
        """Whether hits are left out, which is logged once."""
        self._announced: dict[TallyPlace, int] = {}
        """When the signal `refused` was last sent for each place, in microseconds."""

    def __len__(self) -> int:
        return len(self._tallies) + len(self._unanswered)

    def add(
        self,
        place: TallyPlace,
        counts: Mapping[str, int],
        event: Callable[[], EventRecord] | None = None,
        request: HttpRequest | None = None,
    ) -> None:
        """Add hits: how the fields of the day change. `event` makes the event of a refusal; None: no event."""
        is_first = False
        with self._lock:
            tally = self._tallies.get(place)
            if tally is None and len(self) >= MAX_PLACES and place not in self._unanswered:
                is_first, self._is_full = not self._is_full, True
            elif tally is None:
                tally = self._tallies[place] = _Tally()
            if tally is not None:
                for name, change in counts.items():
                    tally.counts[name] += change
                if tally.event is None and event is not None:
                    tally.event, tally.source = event, source_of(request)
        if is_first:
            logger.warning(
                "The hits of %s rules and subjects wait to be counted. Until the store answers, the usage and events "
                "will lack further hits that this process decides without it.",
                f"{MAX_PLACES:,}",
            )
        if not flusher.is_woken:
            flusher.wake()

    def count(self, answer: Answer, request: HttpRequest | None = None) -> list[Announcement]:
        """Count what overrides decided, and the hits that no limit counts; return the signals to send.

        If the request is refused, the rules that had room are not counted.
        """
        announcements: list[Announcement] = []
        resolved, now = answer.resolved, answer.resolved.now
        for ask in answer.counted_by_day():
            self.add(_place_of(ask.rule, ask.subject, now), {"a": 1, "u": ask.cost - 1})
        for ask, _, is_blocked, _ in resolved.decided_by_overrides():
            rule, subject, cost, _, _ = ask
            if not is_blocked or not cost:
                continue
            place = _place_of(rule, subject, now)
            self.add(place, REFUSED_ONCE, None if rule.shadow else partial(_event, place, ask, resolved), request)
            if not rule.shadow and self._is_due(place, now):
                announcements.append((refused, {"rule": rule, "subject": subject, "decision": answer.decision}))
        return announcements

    def settle(self, settlement: Settlement) -> None:
        """Correct the hits that only the day counts by what they really used; a hit that used nothing is removed."""
        for rule, (_, subject), moment, more, is_undone in settlement.uncounted():
            place = _place_of(rule, subject, moment)
            if place.day_key:
                self.add(place, {"a": -is_undone, "u": more + is_undone})

    def settlements(self, settlement: Settlement) -> list[tuple[RecordHits, bool]]:
        """Return the operations that do the same at once, and only once, for what other processes may settle too.

        With each: whether it is for the store of rules with `store="database"`.
        """
        found = []
        for rule, place, moment, more, is_undone in settlement.uncounted():
            status_key, day_key, field, tier, in_database = _place_of(rule, place.subject, moment)
            if day_key:
                mark = settlement.mark(place, status_key.removesuffix("s"), field)
                counts = {"a": -is_undone, "u": more + is_undone}
                recording = RecordHits(status_key, f"{mark.key}:day", day_key, 1, field, counts, 0, tier, mark.stop)
                found.append((recording, in_database))
        return found

    def _is_due(self, place: TallyPlace, now: int) -> bool:
        """Return whether to send `refused` now: once a second for a place. If so, remember the time."""
        with self._lock:
            if 0 <= now - self._announced.get(place, now - SECOND) < SECOND or len(self._announced) >= MAX_PLACES:
                return False
            self._announced[place] = now
            return True

    def flush(self) -> None:
        """Count the hits. Raises `StoreUnavailable` if the store does not answer; then they wait for the next round."""
        self.collect()
        is_again = bool(self._unanswered)
        failures = self._send()
        if is_again and not failures:
            failures = self._send()
        if failures:
            raise failures[0]

    def _send(self) -> list[Exception]:
        """Send what was not answered, and the hits of other places; return the errors."""
        with self._lock:
            for place in self._tallies.keys() - self._unanswered.keys():
                self._unanswered[place] = self._tallies.pop(place), next(self._numbers)
            sent = list(self._unanswered.items())
            self._announced = {place: at for place, at in self._announced.items() if clock.now() - at < SECOND}
        failures: list[Exception] = []
        for first in range(0, len(sent), HITS_A_CALL):
            try:
                failures += self._record(sent[first : first + HITS_A_CALL])
            except Exception as error:  # noqa: BLE001 — the flusher reports it
                failures.append(error)
        if not failures:
            self._is_full = False
        return failures

    def _record(self, messages: list[tuple[TallyPlace, tuple[_Tally, int]]]) -> list[Exception]:
        """Count hits in the store, and report them; return the errors. What failed is sent again in the next round."""
        settings = current()
        asking = [
            (place, tally, number)
            for place, (tally, number) in messages
            if place.day_key or (tally.event and settings.events)
        ]
        operations = [
            RecordHits(
                place.status_key,
                place.sent_key(self._process),
                place.day_key,
                number,
                place.rule,
                tally.counts,
                SECOND if settings.events and tally.event else 0,
                place.tier,
            )
            for place, tally, number in asking
        ]
        replies: list[Any] = [None] * len(operations)
        for in_database in sorted({place.in_database for place, _, _ in asking}):
            numbers = [number for number, (place, _, _) in enumerate(asking) if place.in_database == in_database]
            of_store = [operations[number] for number in numbers]
            for number, reply in zip(numbers, self._store_of(in_database).try_all(of_store, frozen_now()), strict=True):
                replies[number] = reply
        failed = {place for (place, _, _), reply in zip(asking, replies, strict=True) if not isinstance(reply, int)}
        with self._lock:
            for place, message in messages:
                if place not in failed and self._unanswered.get(place) is message:
                    del self._unanswered[place]
        events = [
            tally.event().of_request(tally.source)
            for (_, tally, _), due in zip(asking, replies, strict=True)
            if due == 1 and tally.event
        ]
        if events:
            log = event_log_of(settings.prefix, settings.events, settings.event_days)
            self._store.run(AppendEvents(log, events), frozen_now())
        return [reply for reply in replies if isinstance(reply, Exception)]


def place_of_hit(hit: Hit) -> TallyPlace:
    """Return where a hit is counted, on the day that it has."""
    day_key, of_rule = "" if hit.day is None else hit.day.key, hit.compiled
    return TallyPlace(hit.status_key, day_key, hit.field, hit.rule.of_tier, of_rule.is_in_database)


def _place_of(rule: Asked, subject: str, moment: int) -> TallyPlace:
    day = day_of(moment, time_zone()).name if counts_day(rule, subject) else ""
    return _place(compiled(rule), subject, day, current().prefix_in(rule.store))


@lru_cache(maxsize=1024)
def _place(of_rule: CompiledRule, subject: str, day: str, prefix: str) -> TallyPlace:
    base = subject_base(prefix, subject)
    day_key = key_of(base, "day", day) if day else ""
    return TallyPlace(key_of(base, "s"), day_key, of_rule.field, of_rule.rule.of_tier, of_rule.is_in_database)


def _event(place: TallyPlace, ask: Ask, resolved: Resolved) -> EventRecord:
    outcome = resolved.outcomes_by_override()[ask.place][0]
    until = 0 if outcome.retry_after is None else resolved.now + int(outcome.retry_after * SECOND)
    subject, capacity = escape(ask.subject), outcome.of.capacity
    return EventRecord("refused", place.rule, subject, until, 0, capacity, cost=ask.cost, reason="blocked")
