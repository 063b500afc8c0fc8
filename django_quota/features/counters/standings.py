"""What a subject has left of credits that expire, for those who operate a site."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django_quota.core.clock import frozen_now
from django_quota.features.counters import calls, operations
from django_quota.limiting.registry import get_limiter
from django_quota.stores.base import all_well


@dataclass(frozen=True, slots=True)
class CreditStatus:
    """What a counter holds for a subject, with grants that expire."""

    counter: str
    total: int
    """All that is left, with what never expires."""
    grants: tuple[calls.Grant, ...]
    """The first to expire first."""


def credits_of(subject: str, names: Iterable[str] = ()) -> list[CreditStatus]:
    """Return what a subject holds in the counters of this process, and in others of these names, if any of it expires.

    It takes one round trip to a single Redis. Raises `StoreUnavailable`.
    """
    named = {(name, None): calls.Counter(name) for name in names}
    known: dict[tuple[str, str | None], calls.Counter] = {**named, **calls.made}
    reading = [operations.Grants(of.keys_of(subject)) for of in known.values()]
    replies = all_well(get_limiter().reporting_store.try_all(reading, frozen_now())) if reading else []
    found = [
        CreditStatus(of.name, calls.left_in(*reply), tuple(calls.read_grants(reply)))
        for of, reply in zip(known.values(), replies, strict=True)
        if reply[0] == operations.DONE and calls.read_grants(reply)
    ]
    return sorted(found, key=lambda each: each.counter)
