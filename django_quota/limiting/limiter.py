"""The limiter: it turns a plan into a Decision, counts the Decision, and notifies the observers.

Overrides come first: they need no store. Then the store is asked once. Two layers save that call: a refusal that the
process remembers (`refusals`), and what decides while the store does not answer (`fallback`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter_ns

from django_quota.core import clock
from django_quota.core.clock import MAX_GUESSES, frozen_now, machine_now
from django_quota.core.decisions import Decision, updated
from django_quota.core.errors import StoreCommandDenied, StoreDataError, StoreFull, StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_sync
from django_quota.engine.codec import EventKind
from django_quota.engine.hits import Hit
from django_quota.engine.plans import Plan, PlanMode
from django_quota.limiting.cleaning import Cleaning
from django_quota.limiting.fallback import Fallback
from django_quota.limiting.flusher import flusher
from django_quota.limiting.metrics import DecisionMetrics
from django_quota.limiting.observers import notify, receivers
from django_quota.limiting.outages import OutageReportingStore, Outages
from django_quota.limiting.overrides import overrides
from django_quota.limiting.refusals import Refusals
from django_quota.limiting.unasked import UnaskedHits
from django_quota.limiting.workers import Workers
from django_quota.signals import Announcement, announce, banned, near_limit, refused, send
from django_quota.stores.base import Store

logger = logging.getLogger("django_quota")

_SIGNALS = {"refused": refused, "banned": banned, "near": near_limit}
"""The signal of each event in a reply."""


class Limiter:
    """Decides plans on one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.metrics = DecisionMetrics(store)
        """Counts the decisions."""
        self.unasked = UnaskedHits(store)
        """Counts what is decided without the store."""
        self.cleaning = None if store.database is None else Cleaning(store.database)
        """Deletes expired rows; None if the store forgets by itself."""
        self.outages = Outages(all_nodes_healthy=lambda: store.all_nodes_healthy)
        self.reporting_store = OutageReportingStore(store, self.outages)
        """The store for features that raise `StoreUnavailable`."""
        self.fallback = Fallback(Workers(store) if store.is_shared else None)
        self.refusals = Refusals(self.unasked, self.metrics)
        self._skew = 0
        """Microseconds by which the store's clock is ahead of ours."""

    def close(self) -> None:
        """End what it does in the background, and close its stores."""
        flusher.remove(self.metrics, self.refusals, self.unasked, self.fallback.workers, self.cleaning)
        self.store.close()
        self.fallback.local.close()

    def decide(self, plan: Plan, mode: PlanMode) -> Decision:
        """Decide a plan; see `decision_flow`."""
        return run_sync(self.decision_flow(plan, mode))

    def decision_flow(self, plan: Plan, mode: PlanMode) -> Flow[Decision]:
        """Decide a plan in one call to the store, count the decision and notify the observers."""
        began = perf_counter_ns() if receivers else 0
        decision = yield from self._ask_flow(plan, mode)
        if mode in ("check", "force"):
            announcements = self._note([(plan, decision)], decision, began)
            if announcements:
                yield announce(announcements)
        elif mode == "adjust":
            self.unasked.settle(plan)
        return decision

    def two_step_flow(self, first: Plan, make_second: Callable[[], Flow[Plan]]) -> Flow[Decision]:
        """Decide two plans of one request, as if they were one. The second is made only if the first allows.

        If the second refuses, what the first spent is given back. Meanwhile, other requests may find less room than
        there is, never more. If the second plan cannot be made, since the body is broken or too large, the request
        fails and what the first spent stays counted.
        """
        began = perf_counter_ns() if receivers else 0
        decision = yield from self._ask_flow(first, "check")
        counted = [(first, decision)]
        if not decision.enforced:
            reads = perf_counter_ns()
            second = yield from make_second()
            began += (perf_counter_ns() - reads) if began else 0  # a slow client is not a slow check
            decided = yield from self._ask_flow(second, "check")
            counted.append((second, decided))
            if decided.enforced:
                del counted[0]
                if first.decided_at is not None and decision.would_refuse:
                    self.metrics.count_only_refusals(first.decided_at, decision)
                decision = updated(decision, (yield from self.undo_flow(first)))
            decision = decision.combined_with(decided)
        announcements = self._note(counted, decision, began)
        if announcements:
            yield announce(announcements)
        return decision

    def undo_flow(self, plan: Plan) -> Flow[Decision]:
        """Give back what a plan took, because its request is refused after all; return what its limits then have left.

        Limits that count refused hits keep it.
        """
        taken = plan.taken
        if not taken:
            return plan.unlimited()
        plan.is_undone = True
        decision = yield from self.decision_flow(plan.settled(taken, undone=True), "adjust")
        if decision.degraded:
            logger.warning("A refused request stays counted under some of its limits: the store did not answer.")
        return decision

    def note_failure(self, error: StoreUnavailable) -> None:
        """Report an outage because of an error that left a view."""
        if not isinstance(error, (StoreFull, StoreCommandDenied, StoreDataError)):  # these are logged where they arise
            send(self.outages.failed(error, []))

    def _ask_flow(self, plan: Plan, mode: PlanMode) -> Flow[Decision]:
        """Return the decision on a plan: by the overrides, by a refusal that is remembered, or by the store."""
        refreshing = overrides.refreshing()
        if refreshing is not None:
            yield refreshing
        if overrides.table and not plan.is_compiled:
            plan.override(overrides.table, clock.now(), mode)
        if plan.here and (not plan or (plan.is_blocked and mode in ("check", "peek"))):
            return plan.decided_here()
        refusals = self.refusals
        if refusals.table and mode == "check":
            known = refusals.answer(plan)
            if known is not None:
                return known
        changes = refusals.changes
        try:
            decision = yield from self._store_flow(plan, mode)
        finally:
            if mode in ("refund", "adjust"):  # there may be room again
                refusals.forget(plan.subjects)
        if not decision.allowed and mode == "check" and plan.decided_at is not None:
            refusals.remember(plan, decision, plan.decided_at, changes)
        return decision

    def _store_flow(self, plan: Plan, mode: PlanMode) -> Flow[Decision]:
        """Return the decision of the store, or of each rule's `on_unavailable`; send the signals of either."""
        if not plan:
            return plan.unlimited()
        outages, counts = self.outages, mode in ("check", "force")
        if outages.is_on and counts and self.store.is_refusing() and self.fallback.allows(plan):
            return plan.unlimited(degraded=True)
        try:
            decision = yield from self._call_flow(plan, mode)
        except StoreFull:
            return plan.without_store(plan.rules)
        except StoreUnavailable as error:
            announcements = outages.failed(error, plan.subjects)
            decision = self.fallback.decide(plan, mode, error)
        else:
            announcements = [_announcement(decision, *event) for event in plan.emitted()]
            if outages.is_on:
                announcements += outages.answered(wrote=counts and bool(plan.taken))
        if announcements:
            yield announce(announcements)
        return decision

    def _call_flow(self, plan: Plan, mode: PlanMode) -> Flow[Decision]:
        """Ask the store, again if the plan was for another day or period. Raises `StoreUnavailable`."""
        store, now = self.store, frozen_now()
        guess = now if now is not None else 0 if plan.timeless else machine_now() + self._skew
        for _ in range(MAX_GUESSES):
            reply = yield IOCall(store.run, store.arun, plan.operation(guess, mode), now)
            decision = plan.read(reply, is_last=mode == "check")
            if decision is not None:
                return decision
            guess = reply[0]
            self._skew = guess - machine_now()
        raise StoreUnavailable("each answer came in another day or another period of a calendar limit")

    def _note(self, steps: list[tuple[Plan, Decision]], decision: Decision, began: int) -> list[Announcement]:
        """Count the decision of each step, and notify the observers once, of the decision on all steps.

        Return the signals to send.
        """
        announcements: list[Announcement] = []
        for plan, decided in steps:
            if plan.has_groups:
                _log_shadows(decided)
            self._count(plan, decided)
            if plan.here or plan.unlimited_hits:
                announcements += self.unasked.count(plan, decided)
        if receivers and steps[0][0].is_reported(decision) and any(plan or plan.here for plan, _ in steps):
            notify(decision, began)
        return announcements

    def _count(self, plan: Plan, decision: Decision) -> None:
        """Count a decision in the metrics, unless it was a guess without the store."""
        if not plan.is_reported(decision):
            return
        decided_at = clock.now() if plan.is_decided_here else plan.decided_at
        if decided_at is not None:
            self.metrics.count(decided_at, plan, decision)


def _announcement(decision: Decision, what: EventKind, hit: Hit, value: int) -> Announcement:
    """Return the signal of an event in a reply."""
    values = {"rule": hit.rule, "subject": hit.subject, "decision": decision}
    return _SIGNALS[what], {**values, "share": value / 1000} if what == "near" else values


def _log_shadows(decision: Decision) -> None:
    """Log what shadow rules would have refused."""
    for outcome in decision.outcomes:
        if outcome.shadow and not outcome.allowed:
            logger.info("Shadow rule %r would have refused %r.", outcome.rule, outcome.subject)
