"""How many processes share the limits, so that each can take its part while the store does not answer.

While a process serves requests, its flusher says every five seconds that it is alive.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from django_quota.conf import current
from django_quota.core.caching import cached
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.errors import RuleError, StoreUnavailable
from django_quota.core.forks import register_fork_aware
from django_quota.core.keys import system_key
from django_quota.core.rates import Rate
from django_quota.core.rules import Rule
from django_quota.engine.system_operations import RegisterWorker
from django_quota.limiting.flusher import flusher
from django_quota.stores.base import Store

INTERVAL = 5.0
"""Seconds between two signs of life."""

TTL = 30 * SECOND
"""Microseconds for which a process counts after its last sign of life."""


class Workers:
    """Knows how many processes share the limits of a store; only this one, until the store has said."""

    purpose = "say that this process is alive"
    at_exit = False

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self.number = 1
        """Processes that share the limits, with this one; in a forked process, at first what its parent knew."""
        self._found = 1
        """What the store said last."""
        self.after_fork()
        register_fork_aware(self)
        flusher.add(self)

    def after_fork(self) -> None:
        """Count as one more in a forked process."""
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
        except StoreUnavailable:  # an outage is reported elsewhere; what was learned before holds
            return
        # A store that was emptied learns of the others within `INTERVAL`: so a lower number must come twice.
        self.number, self._found = max(found, self._found), found
        self._next = now + INTERVAL


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
