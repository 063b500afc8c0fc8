"""What decides while the store does not answer: the `on_unavailable` of each rule.

This layer around the store notes when an outage begins and ends. During an outage, it does not ask the store about
plans that it would allow anyway.
"""

from __future__ import annotations

from functools import partial

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.decisions import Decision
from django_quota.core.errors import StoreFull, StoreOutOfMemory, StoreUnavailable
from django_quota.core.flow import Flow
from django_quota.engine.plans import Plan, PlanMode
from django_quota.limiting.outages import Outages
from django_quota.limiting.store_decider import StoreDecider
from django_quota.limiting.workers import Workers, part_of
from django_quota.signals import announce
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore


class Fallback:
    """Decides plans by a store, and without the store if it does not answer.

    `workers` knows how many processes share the limits; None if this is the only one.
    """

    def __init__(self, store: Store, outages: Outages, workers: Workers | None = None) -> None:
        self._store = store
        self._decider = StoreDecider(store)
        self._outages = outages
        self.workers = workers
        self.local = MemoryStore(max_keys=current().memory_keys)
        """Decides for rules with `on_unavailable="local"`."""

    def decision_flow(self, plan: Plan, mode: PlanMode) -> Flow[Decision]:
        """Decide a plan; send the signals of an outage that begins or ends."""
        if not plan:
            return plan.unlimited()
        if self._outages.is_on and mode in ("check", "force") and self._allows_unasked(plan):
            return plan.unlimited(degraded=True)
        try:
            decision = yield from self._decider.decision_flow(plan, mode)
        except StoreFull:
            return plan.without_store(plan.rules)
        except StoreUnavailable as error:
            announcements = self._outages.failed(error, plan.subjects)
            decision = self._decide_without_store(plan, mode, error)
        else:
            if not self._outages.is_on:
                return decision
            announcements = self._outages.answered(wrote=mode in ("check", "force") and bool(plan.taken))
        if announcements:
            yield announce(announcements)
        return decision

    def _allows_unasked(self, plan: Plan) -> bool:
        """Say whether the store would refuse the call, and all rules allow everything in that case."""
        if not self._store.is_refusing():
            return False
        default = current().on_unavailable
        return all((rule.on_unavailable or default) == "allow" for rule in plan.rules)

    def _decide_without_store(self, plan: Plan, mode: PlanMode, failure: StoreUnavailable) -> Decision:
        """Decide each rule by its `on_unavailable`."""
        default = current().without_store(is_full=isinstance(failure, StoreOutOfMemory))
        rules = [rule for rule, _, _, _ in plan.sent]
        denied = plan.without_store([rule for rule in rules if (rule.on_unavailable or default) == "deny"])
        if denied.enforced:
            return denied
        local = [rule for rule in rules if rule.limits and (rule.on_unavailable or default) == "local"]
        workers = 1 if self.workers is None else self.workers.number
        divided = partial(part_of, workers=workers)
        try:
            decision = self._decide_locally(plan.only(local, divided), mode) if local else plan.unlimited(degraded=True)
        except StoreFull:
            decision = plan.without_store(local)
        return decision if denied.allowed else decision.combined_with(denied)

    def _decide_locally(self, plan: Plan, mode: PlanMode) -> Decision:
        """Decide in the memory of this process."""
        moment = clock.now()
        if mode == "adjust":  # what the store took is not in the memory of this process
            mode = "peek"
        decision = plan.read(self.local.run(plan.operation(moment, mode), moment), degraded=True)
        if decision is None:
            raise RuntimeError("The memory store asked for another form of a plan at its own time.")
        return decision
