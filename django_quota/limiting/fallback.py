"""What decides while the store does not answer: the `on_unavailable` of each rule.

`"local"` counts in the memory of the process, which has its part of the limit: see `Workers`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.caching import cached
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Decision
from django_quota.core.errors import RuleError, StoreFull, StoreUnavailable
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import system_key
from django_quota.core.rates import Rate
from django_quota.core.rule_options import OnUnavailable
from django_quota.core.rules import Rule
from django_quota.engine.answers import answered
from django_quota.engine.asks import Ask
from django_quota.engine.decide import Decide
from django_quota.engine.receipts import Settlement
from django_quota.engine.resolving import AskMode, Resolved, Scope
from django_quota.engine.system_operations import RegisterWorker
from django_quota.limiting.flusher import flusher
from django_quota.stores.base import Store
from django_quota.stores.memory import MemoryStore


class Fallback:
    """Decides without the store. `workers`: how many processes share the limits; None: only this one."""

    def __init__(self, workers: Workers | None = None) -> None:
        self.workers = workers
        self.local = MemoryStore(max_keys=current().memory_keys)
        """Decides for rules with `on_unavailable="local"`."""

    @property
    def number_of_workers(self) -> int:
        """How many processes share the limits, including this one."""
        return 1 if self.workers is None else self.workers.number

    def allows(self, resolved: Resolved) -> bool:
        """Return whether all rules allow everything while the store does not answer."""
        return all(_how(ask, StoreUnavailable) == "allow" for ask in resolved.asked)

    def decide(
        self, resolved: Resolved, mode: AskMode | Settlement, scope: Scope, failure: StoreUnavailable
    ) -> Decision:
        """Decide each rule by its `on_unavailable`; return a degraded Decision."""
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
        """Decide in the memory of this process, where each limit is divided by the number of workers."""
        workers, moment = self.number_of_workers, clock.now()
        parts = [Ask(part_of(ask.rule, workers), *ask[1:]) for ask in asks if isinstance(ask.rule, Rule)]
        local = Resolved(parts, parts, moment, overridden=resolved.overridden)
        hits = local.hits(Scope("", scope.zone), moment)
        # What the store took is not in the memory of this process: a settlement only looks.
        operation = Decide(hits, "peek" if isinstance(mode, Settlement) else mode)
        answer = answered(local, hits, self.local.run(operation, moment), degraded=True)
        if answer is None:
            raise RuntimeError("The memory store did not accept the day or period of its own time.")
        return answer.decision


def _how(ask: Ask, failure: type[StoreUnavailable]) -> OnUnavailable:
    """Return the `on_unavailable` that applies to an ask after a failure."""
    is_precious = bool(ask.rule.reads_body) or ask.is_estimate
    return current().without_store(ask.rule.on_unavailable, failure, is_precious=is_precious)


# --- how many processes share the limits ------------------------------------------------------------------------------

REGISTER_INTERVAL = 5.0
"""Seconds between two messages that this process is alive."""

TTL = 30 * SECOND
"""Microseconds for which a process is counted after its last message."""


class Workers:
    """Knows how many processes share the limits of a store; 1 until the store has answered."""

    purpose = "say that this process is alive"
    at_exit = False

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self.number = 1
        """Processes that share the limits, including this one. A forked process begins with its parent's number."""
        self._found = 1
        """The number in the store's last answer."""
        self.after_fork()
        register_fork_aware(self)
        flusher.add(self)

    def after_fork(self) -> None:
        """Use a new token in a forked process, so that it is counted beside its parent."""
        self._token = secrets.token_hex(8)
        self._next = 0.0

    def flush(self) -> None:
        """If due, say that this process is alive, and learn how many are."""
        now = self._clock()
        if now < self._next:
            return
        alive = RegisterWorker(system_key(current().prefix, "workers"), self._token, TTL)
        try:
            found = max(1, int(self._store.run(alive, frozen_now())))
        except StoreUnavailable:  # an outage is reported elsewhere; the last number stays
            return
        # After a store was emptied, the others register within `REGISTER_INTERVAL`: so a lower number must come twice.
        self.number, self._found = max(found, self._found), found
        self._next = now + REGISTER_INTERVAL


@cached(maxsize=1024)
def part_of(rule: Rule, workers: int) -> Rule:
    """Return a rule whose rates are divided by the number of workers. Each rate admits at least one hit.

    Together the workers admit no more than the rule does, or one hit each if there are more workers than hits.
    """
    if workers <= 1:
        return rule
    rates = tuple(
        replace(rate, count=_part(rate.count, workers)) if isinstance(rate, Rate) else rate for rate in rule.rates
    )
    burst = None if rule.burst is None else _part(rule.burst, workers)
    try:
        return replace(rule, rates=rates, burst=burst)
    except RuleError:  # a very slow bucket: its part would refill too slowly to be a rate
        return rule


def _part(count: int, workers: int) -> int:
    return max(1, count // workers) if count else 0
