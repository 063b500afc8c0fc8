"""Adjust: replace what a hit took by what it really used, where it was counted. The specification of `lua/adjust.lua`.

That is how a reservation is settled, and how a request gives back what it took if it is refused after all.
"""

from __future__ import annotations

from typing import Any

from django_quota.core.algorithms import STOCK
from django_quota.core.algorithms.stock import Total
from django_quota.core.errors import StoreDataError
from django_quota.engine.codec import Adjustment
from django_quota.engine.events import change_counts
from django_quota.engine.hits import CompiledLimit, Hit
from django_quota.engine.operations import States


def adjust(states: States, hit: Hit, adjustment: Adjustment, now: int) -> None:
    """Charge what a hit used beyond what it took, even past the limit, or give back what it did not use."""
    moment, actual, places, _, _ = adjustment
    more = actual - hit.cost
    for limit, is_counted in zip(hit.limits, places, strict=True):
        algorithm, parameters, state = limit.algorithm, limit.parameters, state_of(states, limit, now)
        if more > 0 and parameters.capacity > 0:
            after, _ = algorithm.consume(state, parameters, more, now, over=True)
            put_state(states, limit, after)
        elif more < 0 and is_counted:
            after = algorithm.give_back(state, parameters, -more, hit.cost, moment, now)
            replace(states, limit, state, after)
    _recount_day(states, hit, actual, now)


def _recount_day(states: States, hit: Hit, actual: int, now: int) -> None:
    """Let the day count what the hit really used; a hit that used nothing does not count."""
    if hit.day is not None and actual != hit.cost:
        hits = -1 if actual == 0 else 0
        change_counts(states, hit.day.key, {f"{hit.field}:a": hits, f"{hit.field}:u": actual - hit.cost - hits}, now)


def state_of(states: States, limit: CompiledLimit, now: int) -> Any:
    """Return the state of a limit; of a counter, which keeps its plain total, with its expiry.

    Raises `StoreDataError` if the key of a counter holds something else.
    """
    if limit.algorithm is not STOCK:
        return states.get(limit.key)
    units = states.get(limit.key, now)
    if units is not None and not isinstance(units, int):
        raise StoreDataError(f"{limit.key} is not a counter")
    return None if units is None else Total(units, states.expiry(limit.key))


def put_state(states: States, limit: CompiledLimit, state: Any) -> None:
    """Keep the state of a limit."""
    states.put(limit.key, state.units if limit.algorithm is STOCK else state, limit.algorithm.expiry(state))


def replace(states: States, limit: CompiledLimit, before: Any, after: Any) -> None:
    """Replace the state of a limit; None drops it."""
    if after is None:
        states.drop(limit.key)
    elif after is not before:
        put_state(states, limit, after)
