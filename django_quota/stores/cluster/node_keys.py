"""System keys that each primary of a Redis Cluster needs for itself, such as the marker of the overrides.

The slots are divided into regions, and such a key has one name in each region. So every primary has a name in one of
its own slots, and a name moves together with its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from django_quota.stores.cluster.slots import SLOTS, Address, SlotTable, slot_of

SYSTEM_TAG = "{!}"
SYSTEM_SLOT = slot_of(SYSTEM_TAG)
"""The slot of the keys without a subject."""

REGIONS = 256
"""Parts of the slots, all of one size. A primary with fewer slots than two regions may have no name. If it loses its
memory, nobody notices until all overrides are published again."""

MAX_KNOWN = 1_000
"""Primaries whose name is remembered: a process lives for months, and addresses change."""


@lru_cache(maxsize=1)
def _tags() -> tuple[str, ...]:
    """Return a hash tag for each region. No subject has such a tag, since keys escape the `!`."""
    first: dict[int, str] = {}
    for number in range(SLOTS):
        tag = f"{{!{number}}}"
        first.setdefault(slot_of(tag) * REGIONS // SLOTS, tag)
        if len(first) == REGIONS:
            break
    return tuple(first.values())


def node_keys(key: str) -> list[str]:
    """Return a system key, and its name in each region of the slots."""
    return [key, *(_renamed(key, tag) for tag in _tags())]


class NodeKeys:
    """Knows which name is on which primary. `table`: returns the slot table."""

    def __init__(self, table: Callable[[], SlotTable]) -> None:
        self._table = table
        self._known: dict[Address, str] = {}

    def name(self, key: str, server: Address) -> str:
        """Return one of `node_keys` in a slot of a primary; empty if none of its slots has one."""
        owner = self._table().owner
        if owner(SYSTEM_SLOT) == server:
            return key
        tag = self._known.get(server)
        if tag is None or owner(slot_of(tag)) != server:
            tag = next((tag for tag in _tags() if owner(slot_of(tag)) == server), None)
            if tag is None:
                return ""
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[server] = tag
        return _renamed(key, tag)


def _renamed(key: str, tag: str) -> str:
    return key.replace(SYSTEM_TAG, tag, 1)
