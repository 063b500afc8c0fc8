"""The limiter: it turns a plan into a Decision, counts the Decision, and notifies the observers.

The overrides are first: they need no store. Below them are layers, each around the next: refusals from memory
(`refusals`), what decides while the store does not answer (`fallback`), and the call to the store (`store_decider`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter_ns

from django_quota.conf import current, time_zone
from django_quota.core import clock
from django_quota.core.decisions import Decision, updated
from django_quota.core.errors import StoreCommandDenied, StoreDataError, StoreFull, StoreUnavailable
from django_quota.core.flow import Flow, run_sync
from django_quota.engine.plans import Asked, Plan, PlanMode
from django_quota.limiting.cleaning import Cleaning
from django_quota.limiting.fallback import Fallback
from django_quota.limiting.metrics import DecisionMetrics
from django_quota.limiting.observers import notify, receivers
from django_quota.limiting.outages import OutageReportingStore, Outages
from django_quota.limiting.overrides import overrides
from django_quota.limiting.refusals import Refusals
from django_quota.limiting.unasked import UnaskedHits
from django_quota.limiting.workers import Workers
from django_quota.signals import announce, send
from django_quota.stores.base import Store

logger = logging.getLogger("django_quota")


class Limiter:
    """Decides plans on one store."""

    def __init__(
        self,
        store: Store,
        metrics: DecisionMetrics | None = None,
        workers: Workers | None = None,
        cleaning: Cleaning | None = None,
    ) -> None:
        self.store = store
        self.cleaning = cleaning
        """Deletes expired rows; None if the store forgets by itself."""
        self.metrics = metrics
        """Counts the decisions; None if nobody needs the figures."""
        self.unasked = UnaskedHits(store)
        """Counts what is decided without the store."""
        self.outages = Outages(all_nodes_healthy=lambda: store.all_nodes_healthy)
        self.reporting_store = OutageReportingStore(store, self.outages)
        """The store for features that raise `StoreUnavailable`."""
        self.fallback = Fallback(store, self.outages, workers)
        self.refusals = Refusals(self.fallback, self.unasked, metrics)

    def decide(self, plan: Plan, mode: PlanMode) -> Decision:
        """Decide a plan; see `decision_flow`."""
        return run_sync(self.decision_flow(plan, mode))

    def decision_flow(self, plan: Plan, mode: PlanMode) -> Flow[Decision]:
        """Decide a plan in one call to the store, count the decision and notify the observers."""
        began = perf_counter_ns() if receivers else 0
        decision = yield from self._ask_flow(plan, mode)
        if mode in ("check", "force") and (plan or plan.here):
            yield from self._tell_flow([(plan, decision)], decision, began)
        elif mode == "adjust" and plan.here:
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
                if self.metrics is not None and first.decided_at is not None and decision.would_refuse:
                    self.metrics.count_only_refusals(first.decided_at, decision)
                decision = updated(decision, (yield from self.undo_flow(first)))
            decision = decision.combined_with(decided)
        yield from self._tell_flow(counted, decision, began)
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
        """Return the decision on a plan, by the overrides or by the layers below."""
        refreshing = overrides.refreshing()
        if refreshing is not None:
            yield refreshing
        if overrides.table and not plan.is_compiled:
            plan.override(overrides.table, clock.now(), mode)
        if plan.here and (not plan or (plan.is_blocked and mode in ("check", "peek"))):
            return plan.decided_here()
        return (yield from self.refusals.decision_flow(plan, mode))

    def _tell_flow(self, steps: list[tuple[Plan, Decision]], decision: Decision, began: int) -> Flow[None]:
        """Count the decision of each step, and notify the observers once, of the decision on all steps."""
        announcements = []
        for plan, decided in steps:
            self._count(plan, decided)
            if plan.here:
                announcements += self.unasked.count(plan, decided)
        if receivers and steps[0][0].is_heard(decision):
            notify(decision, began)
        if announcements:
            yield announce(announcements)

    def _count(self, plan: Plan, decision: Decision) -> None:
        """Count a decision in the metrics, unless it was a guess without the store."""
        if self.metrics is None or not plan.is_heard(decision):
            return
        decided_at = clock.now() if plan.is_decided_here else plan.decided_at
        if decided_at is not None:
            self.metrics.count(decided_at, plan, decision)


def new_plan(asked: list[Asked]) -> Plan:
    """Return a plan of what rules ask for, by the settings."""
    settings = current()
    return Plan(settings.prefix, settings.events, time_zone, asked)
