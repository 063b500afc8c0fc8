"""System keys that each primary of a Redis Cluster needs for itself, such as the marker of the overrides.

The slots are divided into regions, and such a key has one name in each region. So every primary has a name in one of
its own slots, and a name moves together with its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from django_quota.stores.cluster.slots import SLOTS, Address, slot_of

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
