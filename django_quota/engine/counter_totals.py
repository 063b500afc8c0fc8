"""What a counter holds in a store: its total, beside it the units that expire, and those that are taken for a lease."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django_quota.core.algorithms.stock import Total, read_drawn
from django_quota.core.clock import SECOND
from django_quota.core.errors import StoreDataError
from django_quota.engine.operations import States, keep

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


# --- leases -----------------------------------------------------------------------------------------------------------
#
# What the holder of a lease does not settle or renew goes back by itself. This is the specification of
# `engine/lua/leased_units.lua`. The total is without these units, so nothing else needs to know them. The next
# reservation with a lease gives back what has ended, and so does the sweep.


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


_LEASED = re.compile(r"[^:]*:([0-9]+):(.*)")
"""What `lease_member` returns."""


def give_back_ended(states: States, leased_key: str, total_key: str, grants_key: str, now: int) -> int:
    """Give back the units of leases that have ended; return how many leases these were.

    The units of grants that have expired meanwhile are lost.
    """
    members: Any = states.get(leased_key) or {}
    if not isinstance(members, Mapping):
        raise StoreDataError(f"{leased_key} holds no units of leases")
    ended = sorted((stop, member) for member, stop in members.items() if stop <= now)
    if not ended:
        return 0
    total = read_total(states, total_key, grants_key, now)
    for _, member in ended:
        found = _LEASED.fullmatch(member)
        if found is None:
            raise StoreDataError(f"{leased_key} holds no units of leases")
        units, drawn = found.groups()
        more = total.credited(int(units), read_drawn(drawn), now)
        total = more if more.fits else total
    expiry = max(states.expiry(total_key), states.expiry(leased_key))
    put_total(states, (total_key, grants_key), total._replace(expiry=expiry))
    gone = {member for _, member in ended}
    keep(states, leased_key, {member: stop for member, stop in members.items() if member not in gone}, 0)
    return len(ended)
