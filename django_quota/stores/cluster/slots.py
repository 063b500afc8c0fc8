"""The slots of a Redis Cluster, how its servers name each other, and the system keys that each server has.

A key is in one of 16,384 slots, by the part of its name in braces. A slot belongs to one primary at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from redis.cluster import parse_cluster_slots
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from django_quota.stores.redis.config import Address
from django_quota.stores.redis.errors import GarbledError

SLOTS = int(REDIS_CLUSTER_HASH_SLOTS)


Remap = Callable[[tuple[str, int]], tuple[str, int]]
"""Returns the address at which a server can be reached, from the one that it names; redis-py's `address_remap`."""


@lru_cache(maxsize=8192)
def _slot_of_tag(tag: str) -> int:
    return int(key_slot(tag.encode()))


def slot_of(key: str) -> int:
    """Return the slot of a key: from 0 to 16,383."""
    start = key.find("{") + 1
    end = key.find("}", start) if start else -1
    return _slot_of_tag(key[start:end]) if end > start else int(key_slot(key.encode()))


def slot_owners(reply: Any, asked: Address, remap: Remap | None) -> dict[int, Address]:
    """Return the server of each slot from the reply of a server to CLUSTER SLOTS. Raises `GarbledError`."""
    owners: dict[int, Address] = {}
    try:
        for (first, last), servers in parse_cluster_slots(reply).items():
            host, port = servers["primary"]
            slots = range(max(first, 0), min(last + 1, SLOTS))
            owners.update(dict.fromkeys(slots, _reached(f"{host}", int(port), asked, remap)))
    except (TypeError, ValueError, IndexError) as error:
        raise GarbledError("CLUSTER SLOTS cannot be read") from error
    if not owners:
        raise GarbledError("CLUSTER SLOTS names no slots")
    return owners


def redirect_target(error: Exception, asked: Address, remap: Remap | None) -> Address:
    """Return the server that MOVED or ASK names: `"<slot> <host>:<port>"`. Raises `GarbledError`."""
    host, colon, port = str(error).rpartition(" ")[2].rpartition(":")
    if not colon or not port.isdecimal():
        raise GarbledError(f"a slot moves to a server without an address: {error}")
    return _reached(host.strip("[]"), int(port), asked, remap)


def _reached(host: str, port: int, asked: Address, remap: Remap | None) -> Address:
    """Return where a server is reached. One that is named without a host has that of the server that was asked."""
    named = Address(asked.host if host in ("", "?") else host, port)
    return named if remap is None else Address(*remap(named))


# --- system keys ------------------------------------------------------------------------------------------------------

# Each primary needs some system keys for itself, such as the marker of the overrides. The slots are divided into
# regions, and such a key has one name in each region. So every primary has a name in one of its own slots, and a name
# moves together with its slot.

SYSTEM_TAG = "{!}"
SYSTEM_SLOT = slot_of(SYSTEM_TAG)
"""The slot of the keys without a subject."""

REGIONS = 256
"""Parts of the slots, all of one size. A primary with fewer slots than two regions may have no name. If it loses its
memory, nobody notices until all overrides are published again."""


@lru_cache(maxsize=1)
def _tags() -> dict[int, str]:
    """Return a hash tag for each region, by its slot. No subject has such a tag, since keys escape the `!`."""
    first: dict[int, tuple[int, str]] = {}
    for number in range(SLOTS):
        tag = f"{{!{number}}}"
        first.setdefault(slot_of(tag) * REGIONS // SLOTS, (slot_of(tag), tag))
        if len(first) == REGIONS:
            break
    return dict(first.values())


def node_keys(key: str) -> list[str]:
    """Return a system key, and its name in each region of the slots."""
    return [key, *(key.replace(SYSTEM_TAG, tag, 1) for tag in _tags().values())]


def name_on(key: str, server: Address, owner: Callable[[int], Address | None]) -> str:
    """Return one of `node_keys` in a slot of a primary, empty if none is. `owner`: returns the server of a slot."""
    if owner(SYSTEM_SLOT) == server:
        return key
    tag = next((tag for slot, tag in _tags().items() if owner(slot) == server), None)
    return "" if tag is None else key.replace(SYSTEM_TAG, tag, 1)
