"""What decides while the store does not answer: the `on_unavailable` of each rule."""

from __future__ import annotations

from functools import partial

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.decisions import Decision
from django_quota.core.errors import StoreFull, StoreUnavailable
from django_quota.core.rule_options import OnUnavailable
from django_quota.core.rules import Rule
from django_quota.engine.plans import Plan, PlanMode
from django_quota.limiting.workers import Workers, part_of
from django_quota.stores.memory import MemoryStore


class Fallback:
    """Decides plans without their store. `workers` knows how many processes share the limits; None: only this one."""

    def __init__(self, workers: Workers | None = None) -> None:
        self.workers = workers
        self.local = MemoryStore(max_keys=current().memory_keys)
        """Decides for rules with `on_unavailable="local"`."""

    def allows(self, plan: Plan) -> bool:
        """Say whether all rules of a plan allow everything while the store does not answer."""
        return all(_how(plan, rule, StoreUnavailable) == "allow" for rule in plan.rules)

    def decide(self, plan: Plan, mode: PlanMode, failure: StoreUnavailable) -> Decision:
        """Decide each rule by its `on_unavailable`."""
        hows = [(rule, _how(plan, rule, type(failure))) for rule, _, _, _ in plan.sent]
        denied = plan.without_store([rule for rule, how in hows if how == "deny"])
        if denied.enforced:
            return denied
        local = [rule for rule, how in hows if rule.limits and how == "local"]
        try:
            decision = self._decide_locally(plan, local, mode) if local else plan.unlimited(degraded=True)
        except StoreFull:
            decision = plan.without_store(local)
        return decision if denied.allowed else decision.combined_with(denied)

    def _decide_locally(self, plan: Plan, rules: list[Rule], mode: PlanMode) -> Decision:
        """Decide these rules in the memory of this process, each by its part of the limits."""
        part = plan.only(rules, partial(part_of, workers=1 if self.workers is None else self.workers.number))
        moment = clock.now()
        if mode == "adjust":  # what the store took is not in the memory of this process
            mode = "peek"
        decision = part.read(self.local.run(part.operation(moment, mode), moment), degraded=True)
        if decision is None:
            raise RuntimeError("The memory store asked for another form of a plan at its own time.")
        return decision


def _how(plan: Plan, rule: Rule, failure: type[StoreUnavailable]) -> OnUnavailable:
    """Return what decides a rule of a plan after a failure."""
    is_precious = bool(rule.reads_body) or plan.settles_later(rule)
    return current().without_store(rule.on_unavailable, failure, is_precious=is_precious)
