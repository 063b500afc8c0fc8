"""Leases of units that a reservation takes of a counter: make and renew them, and give back what has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import Any, ClassVar

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.errors import RuleError
from django_quota.core.keys import counter_key, grants_key
from django_quota.core.rates import Duration, parse_duration
from django_quota.engine.asks import Ask, Asked, Take
from django_quota.engine.counter_totals import give_back_ended, lease_member
from django_quota.engine.operations import Operation, Script, States, keep, script
from django_quota.engine.receipts import Receipt
from django_quota.engine.resolving import hits_of
from django_quota.limiting.limiter import scope_of


def with_lease(asks: Sequence[Ask], lease: Duration) -> list[Ask]:
    """Return the asks with a lease for each counter. Raises `RuleError` if there is no counter."""
    span = parse_duration("lease", lease)
    if not any(isinstance(ask.rule, Take) for ask in asks):
        raise RuleError(
            f"lease={lease!r} is for counters, and {asks[0].rule.name!r} is a rule.",
            "Leave it out: an estimate under a rule ends with its window.",
        )
    return [
        with_new_lease(ask._replace(rule=replace(ask.rule, leased_for=span))) if isinstance(ask.rule, Take) else ask
        for ask in asks
    ]


def with_new_lease(ask: Ask) -> Ask:
    """Return an ask that takes its units for a lease of its own, if it takes them for a lease."""
    return ask._replace(value=token_hex(8)) if lease_of(ask.rule) else ask


def lease_of(rule: Asked) -> int:
    """Return how long a lease of an entry lasts, in microseconds; 0 if it has none."""
    return rule.leased_for if isinstance(rule, Take) else 0


def renewals_of(receipt: Receipt) -> Iterator[tuple[Take, RenewLeases]]:
    """Yield the operations that renew the leases of a reservation: one for each counter and subject, with its take."""
    members: dict[tuple[Take, str], list[str]] = {}
    for part in receipt.parts:
        for ask in part.asks:
            if isinstance(ask.rule, Take) and ask.rule.leased_for and ask.place in part.taken:
                member = lease_member(ask.value, ask.cost, part.taken[ask.place].drawn)
                members.setdefault((ask.rule, ask.subject), []).append(member)
    for (take, subject), of_place in members.items():
        (hit,) = hits_of([Ask(take, subject, 1)], scope_of(current()), clock.now())
        yield take, RenewLeases(hit.leased_keys[0], of_place, take.leased_for, take.ttl)


# --- operations -------------------------------------------------------------------------------------------------------


_HERE = "features/reservations/"


class RenewLeases(Operation):
    """Let leases last for `span` microseconds from now; the reply is how many of them still hold their units.

    `members`: see `counter_totals.lease_member`. `ttl`: how long the counter lives after a change, in microseconds.
    """

    script: ClassVar[Script] = script("clock", "lifetimes", _HERE + "renew_leases")
    gives_back: ClassVar[bool] = True

    def __init__(self, leased_key: str, members: Sequence[str], span: int, ttl: int) -> None:
        super().__init__([leased_key], span, ttl, *members)

    def has_written(self, reply: Any) -> bool:
        return bool(reply)

    def run(self, states: States, now: int) -> int:
        (key,), (span, ttl, *members) = self.keys, self.arguments()
        held = states.get(key) or {}
        renewed = {member: now + span for member in members if member in held}
        if renewed:
            keep(states, key, {**held, **renewed}, now + span + ttl)
        return len(renewed)


class GiveBackEnded(Operation):
    """Give the units of leases that have ended back to the counter; the reply is how many leases these were."""

    script: ClassVar[Script] = script(
        "clock", "lifetimes", "counter_common", "open_grants", "make_grants", "leased_units", _HERE + "give_back_ended"
    )
    gives_back: ClassVar[bool] = True

    def __init__(self, leased_key: str) -> None:
        total_key = counter_key(leased_key)
        super().__init__([leased_key, total_key, grants_key(total_key)])

    def has_written(self, reply: Any) -> bool:
        return bool(reply)

    def run(self, states: States, now: int) -> int:
        leased_key, total_key, its_grants_key = self.keys
        return give_back_ended(states, leased_key, total_key, its_grants_key, now)
