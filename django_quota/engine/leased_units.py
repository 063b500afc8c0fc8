"""Units of a counter that are taken for a lease: what its holder does not settle or renew goes back by itself.

The specification of `engine/lua/leased_units.lua`. The total of the counter is without these units, so nothing else
needs to know them. The next reservation with a lease gives back what has ended, and so does the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping

from django_quota.core.algorithms.stock import read_drawn
from django_quota.engine.operations import States, keep
from django_quota.engine.totals import put_total, read_total


def lease_member(lease: str, units: int, drawn: str) -> str:
    """Return the member of the sorted set that stands for units that were taken for a lease.

    `drawn`: what was taken of grants; see `stock.drawn_text`.
    """
    return f"{lease}:{units}:{drawn}"


def take_for_lease(states: States, leased_key: str, member: str, ends: int, stop: int) -> None:
    """Note until when units are taken. `stop`: until when the store remembers, so that they can go back later."""
    members: Mapping[str, int] = states.get(leased_key) or {}
    keep(states, leased_key, {**members, member: ends}, stop)


def end_lease(states: States, leased_key: str, member: str) -> bool:
    """End a lease, without giving its units back; return whether they were still taken."""
    members: dict[str, int] = dict(states.get(leased_key) or {})
    if members.pop(member, None) is None:
        return False
    keep(states, leased_key, members, 0)
    return True


def give_back_ended(states: States, leased_key: str, total_key: str, grants_key: str, now: int) -> int:
    """Give back the units of leases that have ended; return how many leases these were.

    The units of grants that have expired meanwhile are lost.
    """
    members: Mapping[str, int] = states.get(leased_key) or {}
    ended = sorted((stop, member) for member, stop in members.items() if stop <= now)
    if not ended:
        return 0
    total = read_total(states, total_key, grants_key, now)
    for _, member in ended:
        _, units, drawn = member.split(":")
        more = total.credited(int(units), read_drawn(drawn), now)
        total = more if more.fits else total
    expiry = max(states.expiry(total_key), states.expiry(leased_key))
    put_total(states, (total_key, grants_key), total._replace(expiry=expiry))
    gone = {member for _, member in ended}
    keep(states, leased_key, {member: stop for member, stop in members.items() if member not in gone}, 0)
    return len(ended)
