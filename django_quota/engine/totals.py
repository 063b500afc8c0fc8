"""The total of a counter in a store: a whole number, and beside it the units of it that expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_quota.core.algorithms.stock import Total
from django_quota.core.clock import SECOND
from django_quota.core.errors import StoreDataError
from django_quota.engine.operations import States

OUTLIVES = SECOND
"""How much longer than a total the units of it live that expire: without them, the total would be all that is left."""


def read_total(states: States, total_key: str, grants_key: str, now: int) -> Total:
    """Return a total without what has expired; 0 if there is none. Raises `StoreDataError` for unexpected data."""
    units: Any = states.get(total_key, now)
    kept: Any = states.get(grants_key)
    if (units is not None and not isinstance(units, int)) or (kept is not None and not isinstance(kept, Mapping)):
        raise StoreDataError(f"{total_key} is not a counter")
    return Total.read(units or 0, states.expiry(total_key), kept or {}, now)


def put_total(states: States, keys: Sequence[str], total: Total) -> None:
    """Keep a total, and the units of it that expire, under these two keys."""
    total_key, grants_key = keys
    states.put(total_key, total.units, total.expiry)
    if total.credits:
        states.put(grants_key, {each.member: each.expires for each in total.credits}, total.expiry + OUTLIVES)
    else:
        states.drop(grants_key)
