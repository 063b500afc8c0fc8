"""What counters hold for a subject, for those who operate a site."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django_quota.core.clock import frozen_now
from django_quota.features.counters import calls, operations
from django_quota.limiting.registry import get_limiter
from django_quota.stores.base import all_well


@dataclass(frozen=True, slots=True)
class CounterStatus:
    """What a counter holds for a subject, with what is left of grants that expire."""

    counter: str
    total: int
    """All that is left, with what never expires."""
    grants: tuple[calls.Grant, ...]
    """The first to expire first."""


def counters_of(subject: str, names: Iterable[str] = (), decided: Collection[str] = ()) -> list[CounterStatus]:
    """Return what the counters of this process, and others of these names, hold for a subject, unless it is nothing.

    `decided`: those that requests have asked for units; they are returned also if they hold nothing.

    It takes one round trip to each store that has counters. Raises `StoreUnavailable`.
    """
    known = {(name, None, None): calls.Counter(name) for name in names} | calls.made
    found = []
    for in_database in (False, True):
        counters = [of for of in known.values() if (of.store is not None) == in_database]
        if not counters:
            continue
        store = get_limiter().counting_in(database=in_database).reporting_store
        replies = all_well(store.try_all([operations.Grants(of.keys_of(subject)) for of in counters], frozen_now()))
        for of, reply in zip(counters, replies, strict=True):
            if reply[0] != operations.DONE:
                continue
            total, grants = calls.left_in(*reply), tuple(calls.read_grants(reply))
            if total or grants or of.name in decided:
                found.append(CounterStatus(of.name, total, grants))
    return sorted(found, key=lambda each: each.counter)
