"""The limiter: it decides what is asked, counts the Decision, and notifies the observers.

Overrides come first: they need no store. Then the store is asked once; `stores` does so, and splits a decision over two
if it must. Two layers save that call: a refusal that the process remembers (`refusals`), and what decides while the
store does not answer (`fallback`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from time import perf_counter_ns

from django.http import HttpRequest

from django_quota.conf import QuotaSettings, current, time_zone
from django_quota.core import clock
from django_quota.core.clock import frozen_now, machine_now
from django_quota.core.decisions import Decision, updated
from django_quota.core.errors import StoreCommandDenied, StoreDataError, StoreFull, StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_sync
from django_quota.core.overrides import OverrideTable
from django_quota.core.rules import Rule
from django_quota.engine.answers import Answer, Standing
from django_quota.engine.asks import Ask
from django_quota.engine.codec import Reply
from django_quota.engine.compiled import CompiledRule, forget_compiled
from django_quota.engine.events import AppendEvents, events_of
from django_quota.engine.hits import Hit
from django_quota.engine.receipts import Receipt, Settlement
from django_quota.engine.resolving import AskMode, Resolved, Scope, event_log_of, resolve
from django_quota.limiting.fallback import Fallback, Workers
from django_quota.limiting.flusher import flusher
from django_quota.limiting.metrics import DecisionMetrics, notify, receivers
from django_quota.limiting.overrides import overrides
from django_quota.limiting.prefetch import Prefetch, takes_ahead
from django_quota.limiting.refusals import Refusals
from django_quota.limiting.stores import Stores
from django_quota.limiting.unasked import UnaskedHits
from django_quota.signals import Announcement, announce, send
from django_quota.stores.base import Store
from django_quota.subjects.sources import source_of

logger = logging.getLogger("django_quota.rules")


class Limiter:
    """Decides what is asked, on one store.

    `open_database`: opens the second store, for rules with `store="database"`; None if the store is that database, or
    a test's.
    """

    def __init__(self, store: Store, open_database: Callable[[], Store] | None = None) -> None:
        self.store = store
        self.metrics = DecisionMetrics(store)
        """Counts the decisions."""
        self.unasked = UnaskedHits(store, lambda database: self.stores.counting_in(database=database).store)
        """Counts what is decided without the store."""
        self.fallback = Fallback(Workers(store) if store.is_shared else None)
        self.stores = Stores(store, open_database, self.metrics.count_outage, self.fallback, self.undo_flow)
        self.outages = self.stores.first.outages
        self.reporting_store = self.stores.first.reporting_store
        """The store for features that raise `StoreUnavailable`."""
        self.refusals = Refusals(self.unasked, self.metrics)
        self.prefetch = Prefetch(self.unasked, self.metrics, lambda: self.fallback.number_of_workers)

    def close(self) -> None:
        """End what it does in the background, and close its stores."""
        flusher.remove(self.metrics, self.refusals, self.unasked, self.fallback.workers)
        self.stores.close()
        self.fallback.local.close()
        forget_compiled()

    # --- what callers ask for -----------------------------------------------------------------------------------------

    def decide(self, asks: Sequence[Ask], mode: AskMode) -> Decision:
        """Decide what is asked; see `answer_flow`."""
        return run_sync(self.answer_flow(asks, mode)).decision

    def spend(self, rule: Rule, subject: str, cost: int) -> Decision | None:
        """Decide a check by what this process has taken ahead, count it and notify the observers.

        None, and nothing is spent, if `answer_flow` must decide it.
        """
        began = perf_counter_ns() if receivers else 0
        if overrides.refreshing() is not None:
            return None
        parts = self.prefetch.spend(((rule, subject, cost, "", False),), overrides.table, decides=True)
        if parts is None:
            return None
        decision = Decision.approximately_allowed(parts)
        if receivers:
            notify(decision, began)
        return decision

    def answer_flow(
        self,
        asks: Sequence[Ask],
        mode: AskMode,
        request: HttpRequest | None = None,
        *,
        counters_only: bool = False,
        reports_allowed: bool = True,
    ) -> Flow[Answer]:
        """Decide what is asked in one call to the store, count the decision and notify the observers.

        `request`: events say who sent it; None: nothing is known. `counters_only`: because limits are off.
        `reports_allowed`: whether metrics and observers get a decision that allows it.
        """
        began = perf_counter_ns() if receivers else 0
        answer = yield from self._answer_flow(asks, mode, request, counters_only=counters_only)
        if mode in ("check", "force"):
            is_reported = reports_allowed or not answer.decision.allowed
            announcements = self._note(answer, request, is_reported=is_reported)
            if receivers and is_reported and _is_limited(answer):
                notify(answer.decision, began)
            if announcements:
                yield announce(announcements)
        return answer

    def look(self, asks: Sequence[Ask], table: OverrideTable) -> list[Standing]:
        """Return how limits stand under these overrides, even where they need no store.

        Raises `StoreUnavailable` if the store does not answer.
        """
        places = frozenset(ask.place for ask in asks)
        scope, frozen, now = scope_of(current()), frozen_now(), clock.now()
        resolved = resolve(asks, table, now, mode="peek", taken=places)
        hits = resolved.hits(scope, now if frozen is not None else now + self.stores.skew)
        if not hits:
            return []
        answer = run_sync(self._store_flow(resolved, hits, "peek", scope, frozen))
        if answer.decision.degraded:
            raise StoreUnavailable("it did not say what is left of the limits")
        return answer.standings()

    def two_step_flow(
        self, first: Sequence[Ask], make_second: Callable[[], Flow[Sequence[Ask]]], request: HttpRequest | None = None
    ) -> Flow[tuple[Decision, Sequence[Answer]]]:
        """Decide a request in two steps, as if they were one. The second is made only if the first allows.

        Return the decision, and the answers whose hits were taken. If the second step refuses, what the first spent is
        given back. Meanwhile, other requests may find less room than there is, never more. If the second cannot be
        made, since the body is broken or too large, the request fails and what the first spent stays counted.
        """
        began = perf_counter_ns() if receivers else 0
        answer = yield from self._answer_flow(first, "check", request)
        counted, decision = [answer], answer.decision
        if not decision.enforced:
            reads = perf_counter_ns()
            asks = yield from make_second()
            began += (perf_counter_ns() - reads) if began else 0  # a slow client is not a slow check
            second = yield from self._answer_flow(asks, "check", request)
            counted.append(second)
            if second.decision.enforced:
                counted = [second]
                if answer.decided_at is not None and decision.would_refuse:
                    self.metrics.count_only_refusals(answer.decided_at, decision)
                decision = updated(decision, (yield from self.undo_flow(answer.receipt(is_counted=False))))
            decision = decision.combined_with(second.decision)
        announcements = [each for step in counted for each in self._note(step, request)]
        if receivers and any(map(_is_limited, counted)):
            notify(decision, began)
        if announcements:
            yield announce(announcements)
        return decision, counted

    def settle_flow(self, settlement: Settlement, *, counters_only: bool = False) -> Flow[Decision]:
        """Replace what was taken by what was really used; return what the limits have left.

        `counters_only`: because limits are off.
        """
        if self.prefetch.table:
            settlement = self.prefetch.give_back(settlement)
        answer = yield from self._settled_flow(settlement, counters_only=counters_only)
        if counters_only or (settlement.until and answer.decision.degraded):
            return answer.decision
        if not settlement.until:
            self.unasked.settle(settlement)
            return answer.decision
        try:
            for operation, in_database in self.unasked.settlements(settlement):
                store = self.stores.counting_in(database=in_database).reporting_store
                yield IOCall(store.run, store.arun, operation, frozen_now())
        except StoreUnavailable:
            return answer.resolved.unlimited(degraded=True)
        return answer.decision

    def undo_flow(self, receipt: Receipt) -> Flow[Decision]:
        """Give back what was taken, because the request is refused after all; return what its limits then have left.

        Limits that count refused hits keep it.
        """
        if not receipt.taken:
            return Decision.without_limit()
        decision = yield from self.settle_flow(Settlement.undone(receipt, is_refused=True))
        if decision.degraded:
            logger.warning("A refused request stays counted under some of its limits: the store did not answer.")
        return decision

    def note_failure(self, error: StoreUnavailable) -> None:
        """Report an outage because of an error that left a view."""
        if not isinstance(error, (StoreFull, StoreCommandDenied, StoreDataError)):  # these are logged where they arise
            send(self.stores.counting_in(database=error.is_of_database).outages.failed(error, []))

    # --- the way of a decision ----------------------------------------------------------------------------------------

    def _answer_flow(  # noqa: C901 — one step after the other
        self, asks: Sequence[Ask], mode: AskMode, request: HttpRequest | None, *, counters_only: bool = False
    ) -> Flow[Answer]:
        """Return the answer: by what was taken ahead, the overrides, a refusal that is remembered, or the store."""
        refreshing = overrides.refreshing()
        if refreshing is not None:
            yield refreshing
        if self.prefetch.table and asks and mode == "check" and not (counters_only or asks[0].is_estimate):
            parts = self.prefetch.spend(asks, overrides.table, decides=False)
            if parts is not None:
                return parts.answer(asks)
        frozen = frozen_now()
        now = machine_now() if frozen is None else frozen
        resolved = resolve(asks, overrides.table, now, mode=mode, counters_only=counters_only)
        refusals, scope = self.refusals, scope_of(current())
        if (resolved.by_override or refusals.table) and mode in ("check", "peek"):
            known = self._known(resolved, mode, request)
            if known is not None:
                return known
        hits = resolved.hits(scope, now if frozen is not None else now + self.stores.skew)
        if not hits:
            return Answer(resolved, resolved.decision_by_overrides())
        changes = refusals.changes
        try:
            answer = yield from self._store_flow(resolved, hits, mode, scope, frozen)
        finally:
            if mode in ("refund", "force"):  # there may be room again, or none for longer
                refusals.forget(resolved.subjects)
        if answer.reply is not None:
            yield from self._log_flow(answer, answer.reply, scope, frozen, request)
        if mode == "check" and answer.decision.enforced:
            if answer.decided_at is not None:
                refusals.remember(answer, answer.decided_at, changes)
        elif refusals.table and mode == "check":
            refusals.see_taken(resolved.for_store)
        return answer

    def _known(self, resolved: Resolved, mode: AskMode, request: HttpRequest | None) -> Answer | None:
        """Return the refusal by an override, or the one that is remembered; None if the store must decide."""
        if resolved.by_override:
            decision = resolved.decision_by_overrides()
            if decision.enforced:
                return Answer(resolved, decision)
        return self.refusals.answer(resolved, request) if self.refusals.table and mode == "check" else None

    def _settled_flow(self, settlement: Settlement, *, counters_only: bool) -> Flow[Answer]:
        refreshing = overrides.refreshing()
        if refreshing is not None:
            yield refreshing
        scope, frozen, now = scope_of(current()), frozen_now(), clock.now()
        resolved = settlement.resolve(overrides.table, now, counters_only=counters_only)
        moment = now if frozen is not None else now + self.stores.skew
        hits = settlement.at(resolved.hits(scope, moment), moment, scope)
        if not hits:
            return Answer(resolved, resolved.decision_by_overrides())
        try:
            answer = yield from self._store_flow(resolved, hits, settlement, scope, frozen)
        finally:
            self.refusals.forget(resolved.subjects)
        if answer.reply is not None:
            yield from self._log_flow(answer, answer.reply, scope, frozen, None)
        return answer

    def _store_flow(
        self, resolved: Resolved, hits: Sequence[Hit], mode: AskMode | Settlement, scope: Scope, frozen: int | None
    ) -> Flow[Answer]:
        """Return the flow that asks the store; it also returns what this process has taken ahead."""
        if not (CompiledRule.any_prefetches and takes_ahead(hits)):
            return self.stores.ask_flow(hits, resolved, mode, scope, frozen)
        ask = partial(self.stores.ask_flow, resolved=resolved, mode=mode, scope=scope, frozen=frozen)
        return self.prefetch.around_flow(resolved, hits, mode, overrides.table, ask)

    def _log_flow(
        self, answer: Answer, reply: Reply, scope: Scope, frozen: int | None, request: HttpRequest | None
    ) -> Flow[None]:
        """Write the events that a reply reports. If they cannot be written, the decision holds, and they are lost."""
        events = events_of(answer.hits, reply)
        if not events:
            return
        source = source_of(request)
        appending = AppendEvents(scope.log, [event.of_request(source) for event in events])
        try:
            yield IOCall(self.store.run, self.store.arun, appending, frozen)
        except StoreUnavailable as error:
            logger.warning("%d events could not be written: %s", len(events), error)

    # --- counting -----------------------------------------------------------------------------------------------------

    def _note(self, answer: Answer, request: HttpRequest | None, *, is_reported: bool = True) -> Sequence[Announcement]:
        """Count a decision, unless it was a guess without the store; return the signals to send."""
        decided_at = answer.decided_at
        if answer.numbers is None and answer.spent_at is None and answer.has_groups:
            _log_shadows(answer.decision)
        if is_reported:
            if answer.spent_at is not None:
                for hit in answer.hits:
                    self.metrics.count_spent(answer.spent_at, hit.compiled.spent, 1)
            elif decided_at is not None:
                self.metrics.count(decided_at, answer)
            elif answer.resolved.by_override and not answer.hits:
                self.metrics.count_overrides(answer)
        return self.unasked.count(answer, request) if answer.has_uncounted else ()


@lru_cache(maxsize=4)
def scope_of(settings: QuotaSettings) -> Scope:
    """Return where a site with these settings counts."""
    log = event_log_of(settings.prefix, settings.events, settings.event_days)
    return Scope(settings.prefix, time_zone, log, settings.prefix_in("database"))


def _is_limited(answer: Answer) -> bool:
    """Say whether a limit or an override was asked."""
    return bool(answer.hits or answer.resolved.by_override)


def _log_shadows(decision: Decision) -> None:
    """Log what shadow rules would have refused."""
    for outcome in decision.outcomes:
        if outcome.shadow and not outcome.allowed:
            logger.info("Shadow rule %r would have refused %r.", outcome.rule, outcome.subject)
