"""What decides while the store does not answer: the `on_unavailable` of each rule."""

from __future__ import annotations

from collections.abc import Sequence

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.decisions import Decision
from django_quota.core.errors import StoreFull, StoreUnavailable
from django_quota.core.rule_options import OnUnavailable
from django_quota.core.rules import Rule
from django_quota.engine.answers import answered
from django_quota.engine.asks import Ask
from django_quota.engine.decide import Decide
from django_quota.engine.receipts import Settlement
from django_quota.engine.resolving import AskMode, Resolved, Scope
from django_quota.limiting.workers import Workers, part_of
from django_quota.stores.memory import MemoryStore


class Fallback:
    """Decides without the store. `workers` knows how many processes share the limits; None: only this one."""

    def __init__(self, workers: Workers | None = None) -> None:
        self.workers = workers
        self.local = MemoryStore(max_keys=current().memory_keys)
        """Decides for rules with `on_unavailable="local"`."""

    def allows(self, resolved: Resolved) -> bool:
        """Say whether all rules allow everything while the store does not answer."""
        return all(_how(ask, StoreUnavailable) == "allow" for ask in resolved.asked)

    def decide(
        self, resolved: Resolved, mode: AskMode | Settlement, scope: Scope, failure: StoreUnavailable
    ) -> Decision:
        """Decide each rule by its `on_unavailable`."""
        hows = [(ask, _how(ask, type(failure))) for ask in resolved.for_store]
        denied = resolved.without_store([ask.rule for ask, how in hows if how == "deny"])
        if denied.enforced:
            return denied
        local = [ask for ask, how in hows if ask.rule.limits and how == "local"]
        try:
            decision = (
                self._decide_locally(resolved, local, mode, scope) if local else resolved.unlimited(degraded=True)
            )
        except StoreFull:
            decision = resolved.without_store([ask.rule for ask in local])
        return decision if denied.allowed else decision.combined_with(denied)

    def _decide_locally(
        self, resolved: Resolved, asks: Sequence[Ask], mode: AskMode | Settlement, scope: Scope
    ) -> Decision:
        """Decide what is asked in the memory of this process, each rule by its part of the limits."""
        workers, moment = 1 if self.workers is None else self.workers.number, clock.now()
        parts = [Ask(part_of(ask.rule, workers), *ask[1:]) for ask in asks if isinstance(ask.rule, Rule)]
        local = Resolved(parts, parts, moment, overridden=resolved.overridden)
        hits = local.hits(Scope("", scope.zone), moment)
        # What the store took is not in the memory of this process: a settlement only looks.
        operation = Decide(hits, "peek" if isinstance(mode, Settlement) else mode)
        answer = answered(local, hits, self.local.run(operation, moment), degraded=True)
        if answer is None:
            raise RuntimeError("The memory store asked for another form of a request at its own time.")
        return answer.decision


def _how(ask: Ask, failure: type[StoreUnavailable]) -> OnUnavailable:
    """Return what decides a rule after a failure."""
    is_precious = bool(ask.rule.reads_body) or ask.is_estimate
    return current().without_store(ask.rule.on_unavailable, failure, is_precious=is_precious)
