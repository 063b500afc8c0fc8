"""The operations of leases of units of a counter: renew them, and give back what has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django_quota.core.keys import counter_key, grants_key
from django_quota.engine.counter_totals import give_back_ended
from django_quota.engine.operations import Operation, Script, States, keep, script

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
        "clock", "lifetimes", "counter_common", "book", "grants_of_book", "leased_units", _HERE + "give_back_ended"
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
