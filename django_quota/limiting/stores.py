"""The stores that decide: which of them counts a rule, how it is asked, and how one decision is split over two.

A rule with `store="database"` counts in the database, whatever the settings say; all others count in the first store,
that of the settings. A decision on both kinds of rules asks the first store, then the database. While a store does not
answer, its rules decide by their `on_unavailable` (`fallback`), and its outage is reported once (`outages`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from operator import attrgetter

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import DAY, MAX_GUESSES, machine_now
from django_quota.core.decisions import Decision, updated
from django_quota.core.errors import QuotaError, StoreFull, StoreUnavailable
from django_quota.core.flow import Flow, IOCall
from django_quota.core.rule_options import RuleStore
from django_quota.core.rules import Rule
from django_quota.engine.answers import Answer, answered, joined
from django_quota.engine.codec import EventKind
from django_quota.engine.decide import Decide
from django_quota.engine.events import NO_LOG
from django_quota.engine.hits import Hit
from django_quota.engine.receipts import Receipt, Settlement
from django_quota.engine.resolving import AskMode, Resolved, Scope
from django_quota.limiting.fallback import Fallback
from django_quota.limiting.flusher import flusher
from django_quota.limiting.outages import OutageReportingStore, Outages
from django_quota.runtime import runtime
from django_quota.signals import Announcement, announce, banned, near_limit, refused
from django_quota.stores.base import Store, Tables
from django_quota.stores.database.log import KeptEvents, delete_expired

_SIGNALS = {"refused": refused, "banned": banned, "near": near_limit}
"""The signal of each event in a reply."""


class CountingStore:
    """A store that decides, with its outages. `of_rules`: which rules count there, by their option `store`."""

    def __init__(self, store: Store, count_outage: Callable[[], object], of_rules: RuleStore | None = None) -> None:
        self.store = store
        self.of_rules = of_rules
        self.outages = Outages(all_nodes_healthy=lambda: store.all_nodes_healthy, count=count_outage)
        self.reporting_store = OutageReportingStore(store, self.outages)
        """The store for features that raise `StoreUnavailable`."""
        self.cleaning = None if store.database is None else Cleaning(store.database)
        """Deletes expired rows; None if the store forgets by itself."""

    @property
    def prefix(self) -> str:
        """The beginning of the keys of its rules."""
        return current().prefix_in(self.of_rules)


class Stores:
    """The stores of a limiter. `open_database`: see `Limiter`. `undo`: gives back what a receipt says was taken."""

    def __init__(
        self,
        store: Store,
        open_database: Callable[[], Store] | None,
        count_outage: Callable[[], object],
        fallback: Fallback,
        undo: Callable[[Receipt], Flow[Decision]],
    ) -> None:
        self.first = CountingStore(store, count_outage)
        """Decides the rules without a store of their own."""
        self.skew = 0
        """Microseconds by which the store's clock is ahead of ours."""
        self._open_database = open_database
        self._second: CountingStore | None = None
        self._count_outage = count_outage
        self._fallback = fallback
        self._undo = undo

    def close(self) -> None:
        """Close the stores, and stop cleaning them."""
        for each in (self.first, self._second):
            if each is not None:
                flusher.remove(each.cleaning)
                each.store.close()

    # --- which store counts -------------------------------------------------------------------------------------------

    def counting_in(self, *, database: bool) -> CountingStore:
        """Return the store of the rules with or without `store="database"`. The second is made when first needed."""
        if not database or self._open_database is None:
            return self.first
        if self._second is None:
            with runtime.changing:
                if self._second is None:
                    self._second = CountingStore(self._open_database(), self._count_outage, "database")
        return self._second

    @property
    def is_shared(self) -> bool:
        """Whether other processes share any of its counts."""
        return self.first.store.is_shared or self._second is not None

    def in_use(self) -> Sequence[CountingStore]:
        """Return the stores for which the process has made rules or counters: one, or two."""
        if self._open_database is None or not Rule.any_in_database:
            return (self.first,)
        return (self.first, self.counting_in(database=True))

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask_flow(
        self, hits: Sequence[Hit], resolved: Resolved, mode: AskMode | Settlement, scope: Scope, frozen: int | None
    ) -> Flow[Answer]:
        """Return the flow that asks the store of these hits, or both stores, and sends the signals of the answer.

        `frozen`: the time that a test has set (microseconds).
        """
        if Rule.any_in_database and self._open_database is not None and any(map(_in_database, hits)):
            return self._ask_both_flow(hits, resolved, mode, scope, frozen)
        return self._ask_one_flow(hits, resolved, mode, scope, frozen, self.first)

    def _ask_one_flow(
        self,
        hits: Sequence[Hit],
        resolved: Resolved,
        mode: AskMode | Settlement,
        scope: Scope,
        frozen: int | None,
        asked: CountingStore,
        *,
        is_part: bool = False,
    ) -> Flow[Answer]:
        """Return the answer of a store, or of each rule's `on_unavailable`; send the signals of either.

        `is_part`: the caller sends the signals of the answer.
        """
        outages, store, counts = asked.outages, asked.store, mode in ("check", "force")
        if outages.is_on and counts and store.is_refusing() and self._fallback.allows(resolved):
            return Answer(resolved, resolved.unlimited(degraded=True), hits)
        try:
            for _ in range(MAX_GUESSES):
                reply = yield IOCall(store.run, store.arun, _operation(hits, mode, scope), frozen)
                answer = answered(resolved, hits, reply)
                if answer is not None:
                    break
                moment = reply[0]
                self.skew = moment - machine_now()
                hits = _at(hits, mode, moment, scope)
            else:
                raise StoreUnavailable("the store's clock kept crossing the end of a day or period")  # noqa: TRY301
        except StoreFull:
            return Answer(resolved, resolved.without_store([ask.rule for ask in resolved.for_store]), hits)
        except StoreUnavailable as error:
            announcements = outages.failed(error, resolved.subjects)
            answer = Answer(resolved, self._fallback.decide(resolved, mode, scope, error), hits)
        else:
            announcements = [] if answer.reply is None or is_part else _announcements(answer)
            if outages.is_on:
                announcements += outages.answered(wrote=counts and answer.took_anything())
        if announcements:
            yield announce(announcements)
        return answer

    def _ask_both_flow(
        self, hits: Sequence[Hit], resolved: Resolved, mode: AskMode | Settlement, scope: Scope, frozen: int | None
    ) -> Flow[Answer]:
        """Ask the first store, then the database, each about its own hits; a check is all or nothing.

        If the database refuses, the first store gives back what it took. If a process is killed in between, that stays
        counted. Each store may be down by itself: then the rules that count there decide by their `on_unavailable`.
        """
        second = self.counting_in(database=True)
        if all(map(_in_database, hits)):
            return (yield from self._ask_one_flow(hits, resolved, mode, scope, frozen, second))
        ours = [hit for hit in hits if not hit.compiled.is_in_database]
        theirs = [hit for hit in hits if hit.compiled.is_in_database]
        part = resolved.part(in_database=False)
        first_answer = yield from self._ask_one_flow(ours, part, mode, scope, frozen, self.first, is_part=True)
        later: AskMode | Settlement = "peek" if mode == "check" and first_answer.decision.enforced else mode
        part = resolved.part(in_database=True)
        try:
            last_answer = yield from self._ask_one_flow(theirs, part, later, scope, frozen, second, is_part=True)
        except QuotaError:
            if mode == "check":
                yield from self._undo(first_answer.receipt(is_counted=False))
            raise
        if later != mode:
            last_answer = last_answer.undone(last_answer.decision)
        elif mode == "check" and last_answer.decision.enforced:
            receipt = first_answer.receipt(is_counted=False)
            first_answer = first_answer.undone(updated(first_answer.decision, (yield from self._undo(receipt))))
        answer = joined(resolved, hits, (first_answer, last_answer))
        announcements = _announcements(answer)
        if announcements:
            yield announce(announcements)
        return answer


def _operation(hits: Sequence[Hit], mode: AskMode | Settlement, scope: Scope) -> Decide:
    if isinstance(mode, Settlement):
        return Decide(hits, mode.mode(hits, scope), emits=scope.log is not NO_LOG)
    return Decide(hits, mode, emits=mode in ("check", "force") and scope.log is not NO_LOG)


def _at(hits: Sequence[Hit], mode: AskMode | Settlement, moment: int, scope: Scope) -> Sequence[Hit]:
    """Return hits with the edges of days and calendars at a moment (microseconds)."""
    if isinstance(mode, Settlement):
        return mode.at(hits, moment, scope)
    return tuple([hit.at(moment, scope.zone()) for hit in hits])


_in_database = attrgetter("compiled.is_in_database")


def _announcements(answer: Answer) -> list[Announcement]:
    """Return the signals of the events that an answer reports."""
    return [_announcement(answer.decision, *event) for event in answer.events()]


def _announcement(decision: Decision, what: EventKind, hit: Hit, value: int) -> Announcement:
    """Return the signal of an event in a reply."""
    values = {"rule": hit.rule, "subject": hit.subject, "decision": decision}
    return _SIGNALS[what], {**values, "share": value / 1000} if what == "near" else values


# --- cleaning ---------------------------------------------------------------------------------------------------------
#
# Each process regularly deletes expired rows of the database store, so a site needs no cron job.


CLEANING_INTERVAL = 30.0
"""Seconds, on average, between two batches of a process. After a full batch, the next follows in the next round."""

BATCH = 1_000
"""The most rows that a batch deletes."""


class Cleaning:
    """Deletes a batch of expired rows when one is due: one a second while there are more."""

    purpose = "delete expired rows"
    at_exit = False

    def __init__(self, store: Tables, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._next = clock() + self._pause()
        flusher.add(self)

    def flush(self) -> None:
        """Delete a batch if one is due. Raises `StoreUnavailable`; the next round tries again."""
        if self._clock() < self._next:
            return
        settings = current()
        done = delete_expired(self._store, clock.now(), KeptEvents(settings.events, settings.event_days * DAY), BATCH)
        is_full = max(done) >= BATCH
        self._next = self._clock() + (0.0 if is_full else self._pause())

    @staticmethod
    def _pause() -> float:
        return CLEANING_INTERVAL * random.uniform(0.5, 1.5)  # noqa: S311 — so that not all processes clean at once
