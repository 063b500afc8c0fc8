"""The limiter decides: it turns a plan into one call to the store, and the reply into a Decision.

While the store does not answer, each rule decides by its `on_unavailable`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from time import perf_counter_ns

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import MAX_GUESSES, frozen_now, machine_now
from django_quota.core.decisions import Decision
from django_quota.core.errors import StoreCommandDenied, StoreDataError, StoreFull, StoreOutOfMemory, StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_sync
from django_quota.core.rules import Rule
from django_quota.engine.codec import Mode, Renew, Settle, consumes
from django_quota.engine.plans import Plan
from django_quota.services.metrics import DecisionMetrics
from django_quota.services.observers import notify, receivers
from django_quota.services.outages import OutageReportingStore, Outages, ongoing
from django_quota.services.refusals import Refusals
from django_quota.services.workers import Workers, part_of
from django_quota.signals import Announcement, asend, banned, near_limit, refused, send
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore
from django_quota.stores.redis.store import RedisStore

logger = logging.getLogger("django_quota")

MAX_TRIPS = 1_000
"""How often the limiter asks the store for one plan, when each reply names more reservations that have expired."""

SIGNALS = {"refused": refused, "banned": banned, "near": near_limit}
"""The signal of each event in a reply."""

_SLOW = "its answers take longer than the periods of a calendar limit last"


class Limiter:
    """Decides plans on one store."""

    def __init__(self, store: Store, metrics: DecisionMetrics | None = None, workers: Workers | None = None) -> None:
        self.store = store
        self.workers = workers
        """Knows how many processes share the limits; None if this is the only one."""
        self.metrics = metrics
        """Counts the decisions; None if nobody needs the figures."""
        self.local = MemoryStore(max_keys=current().memory_keys)
        """Decides for rules with `on_unavailable="local"`."""
        self.refusals = Refusals(store, metrics)
        """The refusals that this process repeats by itself."""
        self.outages = Outages(all_nodes_healthy=lambda: self.store.all_nodes_healthy)
        self.reporting_store = OutageReportingStore(self)
        """The store for services that raise `StoreUnavailable`."""
        self._skew = 0
        """Microseconds by which the store's clock is ahead of ours."""

    def decide(self, plan: Plan, mode: Mode) -> Decision:
        """Decide a plan; see `decision_flow`."""
        return run_sync(self.decision_flow(plan, mode))

    def decision_flow(self, plan: Plan, mode: Mode, *, is_step: bool = False) -> Flow[Decision]:
        """Decide a plan in one call to the store. `is_step`: it is part of a decision, which observers hear as one."""
        began = perf_counter_ns() if receivers else 0
        decision = self._decide_unasked(plan, mode)
        if decision is not None:
            limits_nothing = decision.allowed and not plan
            return decision if is_step or limits_nothing or not receivers else _observed(plan, decision, mode, began)
        refusals = self.refusals
        is_check = mode in ("check", "tentative")
        changes = refusals.changes
        now = frozen_now()
        guess = self._guess(plan, now)
        store = self.store
        try:
            guesses, trips = 0, 0
            while guesses < MAX_GUESSES and trips < MAX_TRIPS:
                reply = yield IOCall(store.run, store.arun, plan.operation(guess, mode), now)
                decision = plan.read(reply, is_last=mode == "check")
                if decision is not None:
                    if is_check and not decision.allowed:
                        refusals.remember(plan, decision, reply[0], changes)
                    announcements = self._note_answer(plan, reply, decision, mode)
                    if receivers and not is_step:
                        _observed(plan, decision, mode, began)
                    if announcements:
                        yield IOCall(send, asend, announcements, Limiter)
                    return decision
                guesses, trips = guesses + (not plan.revise(reply)), trips + 1
                guess = self._learn_clock(reply[0])
            raise StoreUnavailable(_SLOW)  # noqa: TRY301 — it is an outage like any other
        except StoreFull:
            decision = plan.without_store(plan.rules)
            return decision if is_step else _observed(plan, decision, mode, began)
        except StoreUnavailable as error:
            yield IOCall(send, asend, self.outages.failed(error, plan.subjects), Limiter)
            decision = self._decide_without_store(plan, mode, error)
            return decision if is_step else _observed(plan, decision, mode, began)
        finally:
            if mode == "refund" or isinstance(mode, Settle):  # there may be room again
                refusals.forget(plan.subjects)

    def _decide_unasked(self, plan: Plan, mode: Mode) -> Decision | None:
        """Return the decision if the store need not be asked; else None."""
        if mode in ("check", "tentative") and self.refusals.table and (known := self.refusals.answer(plan)) is not None:
            return known
        if not plan:
            return plan.unlimited()
        if ongoing and mode == "check" and self._allows_unasked(plan.rules):
            return plan.unlimited(degraded=True)
        return None

    def allow_unasked(self, rules: Sequence[Rule]) -> Decision | None:
        """Allow a request without a look at it, if its rules allow everything during an outage.

        So limits cost next to nothing then. The Decision has no subject. None if the rules must be decided.
        """
        began = perf_counter_ns() if receivers else 0
        if not rules or not current().enabled or not self._allows_unasked(rules):
            return None
        decision = _allowed_during_outage(rules[0].name)
        if receivers:
            notify(decision, began)
        return decision

    def _allows_unasked(self, rules: Sequence[Rule]) -> bool:
        """Say whether rules allow everything now: Redis is not asked, and all of them say `on_unavailable="allow"`."""
        store = self.store
        if not self.outages.is_on or not isinstance(store, RedisStore) or not store.is_refusing():
            return False
        default = current().on_unavailable
        return {rule.on_unavailable or default for rule in rules} == {"allow"}

    def two_step_flow(self, first: Plan, make_second: Callable[[], Flow[Plan]]) -> Flow[Decision]:
        """Decide two plans of one request, as if they were one. The second is made only if the first allows.

        If the second refuses, what the first spent is given back. Requests that come in between may find less room
        than there is, never more. If the second plan cannot be made, since the body is broken or too large, the
        request fails and what the first spent stays counted.
        """
        began = perf_counter_ns() if receivers else 0
        decision = yield from self.decision_flow(first, "tentative")
        if decision.enforced:
            return _observed(first, decision, "check", began)
        reads = perf_counter_ns() if began else 0
        second = yield from make_second()
        if began:  # a slow client is not a slow check
            began += perf_counter_ns() - reads
        decided = yield from self.decision_flow(second, "check", is_step=True)
        if decided.enforced:
            if self.metrics is not None and first.decided_at is not None and decision.would_refuse:
                self.metrics.count_only_refusals(first.decided_at, decision)
            decision = yield from self._compensation_flow(first, decision)
        else:
            yield from self._confirmation_flow(first, decision)
        return _observed(first, decision.combined_with(decided), "check", began)

    def _confirmation_flow(self, plan: Plan, decision: Decision) -> Flow[None]:
        """Count a tentative plan, which stands now, for the day and in the metrics."""
        if self.metrics is not None and plan.decided_at is not None:
            self.metrics.count(plan.decided_at, plan, decision)
        operation = plan.day_record()
        if operation is None:
            return
        try:
            yield IOCall(self.store.run, self.store.arun, operation, frozen_now())
        except StoreUnavailable as error:
            logger.warning("An allowed request is missing from the usage of the day: %s", error)

    def _compensation_flow(self, plan: Plan, decision: Decision) -> Flow[Decision]:
        """Give back what a tentative plan spent; return how its limits stand after that."""
        try:
            operation = plan.compensation()
            if operation is None:
                return decision
            reply = yield IOCall(self.store.run, self.store.arun, operation, frozen_now())
            return plan.compensated(operation, reply)
        except StoreUnavailable as error:
            logger.warning("A refused request stays counted under some of its limits: %s", error)
            return decision
        finally:
            self.refusals.forget(plan.subjects)

    def note_failure(self, error: StoreUnavailable) -> None:
        """Report an outage because of an error that left a view."""
        if not isinstance(error, (StoreFull, StoreCommandDenied, StoreDataError)):  # these are logged where they arise
            send(self.outages.failed(error, []), Limiter)

    def _guess(self, plan: Plan, now: int | None) -> int:
        """Guess the time of the store, which calendar limits need. A wrong guess costs another call."""
        if now is not None or plan.timeless:
            return now or 0
        return machine_now() + self._skew

    def _learn_clock(self, store_now: int) -> int:
        self._skew = store_now - machine_now()
        return store_now

    def _note_answer(self, plan: Plan, reply: list[int], decision: Decision, mode: Mode) -> list[Announcement]:
        """Count an answer of the store; return the signals to send."""
        announcements: list[Announcement] = []
        if self.outages.is_on:
            announcements = self.outages.answered(wrote=consumes(mode) and plan.has_consumed)
        # A tentative plan that is allowed counts once it stands.
        counts = mode == "check" or (mode == "tentative" and decision.enforced)
        if self.metrics is not None and counts and plan.is_heard(decision):
            self.metrics.count(reply[0], plan, decision)
        if plan.has_groups and mode in ("check", "tentative"):
            for outcome in decision.outcomes:
                if outcome.shadow and not outcome.allowed:
                    logger.info("Shadow rule %r would have refused %r.", outcome.rule, outcome.subject)
        for what, hit in plan.emitted():
            announcements.append((SIGNALS[what], {"rule": hit.rule, "subject": hit.subject, "decision": decision}))
        return announcements

    def _decide_without_store(self, plan: Plan, mode: Mode, failure: StoreUnavailable) -> Decision:
        """Decide each rule by its `on_unavailable`."""
        default = current().without_store(is_full=isinstance(failure, StoreOutOfMemory))
        denied = plan.without_store([rule for rule in plan.rules if (rule.on_unavailable or default) == "deny"])
        if denied.enforced:
            return denied
        local = [rule for rule in plan.rules if rule.limits and (rule.on_unavailable or default) == "local"]
        workers = 1 if self.workers is None else self.workers.number
        divided = partial(part_of, workers=workers)
        try:
            decision = self._decide_locally(plan.only(local, divided), mode) if local else plan.unlimited(degraded=True)
        except StoreFull:
            decision = plan.without_store(local)
        return decision if denied.allowed else decision.combined_with(denied)

    def _decide_locally(self, plan: Plan, mode: Mode) -> Decision:
        """Decide in the memory of this process."""
        moment = clock.now()
        # The memory of this process keeps no reservations: an estimate counts like any other hit, and stays.
        if isinstance(mode, (Renew, Settle)):
            mode = "peek"
        decision = plan.read(self.local.run(plan.operation(moment, mode), moment), degraded=True)
        if decision is None:
            raise RuntimeError("The memory store asked for another form of a plan without overrides.")
        return decision


@lru_cache(maxsize=256)
def _allowed_during_outage(rule: str) -> Decision:
    return Decision(allowed=True, rule=rule, subject="", degraded=True)


def _observed(plan: Plan, decision: Decision, mode: Mode, began: int) -> Decision:
    """Let the observers hear a decision that counts something; for `began` see `notify`."""
    if mode == "check" and plan.is_heard(decision):
        notify(decision, began)
    return decision
