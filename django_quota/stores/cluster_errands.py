"""Errands over a Redis Cluster: they go along with a call to the server that has the system's keys.

They wait for a call that goes that way, though not for long. Here, too, are the names of the system keys that each
server has: any of them may lose its memory. Some have a twin in each region of the slots, and those go with their
slots: so a server that has got or given some has the ones that it should have. It must not know connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from django_quota.stores.errands import Errand, Errands, Taken
from django_quota.stores.slots import SLOTS, Address, SlotTable, slot_of

SYSTEM_TAG = "{!}"
SYSTEM_SLOT = slot_of(SYSTEM_TAG)
"""The slot of the keys that belong to no subject."""

LONGEST_WAIT = 1.0
"""Seconds after which errands no longer wait for a call to the server of the system's keys."""

MOST_KNOWN = 1_000
"""Servers of which something is remembered: a process lives for months, and addresses change."""

REGIONS = 256
"""Parts of the slots, as large as each other, each with a twin of such a key. A server that has not a single whole one
may have none: what it loses is not noticed, and comes back when all overrides are published again."""

_TAGS = tuple(f"{{!{number}}}" for number in range(16_384))
"""What system keys that each server has one of are named by: enough to find one for any server."""


@lru_cache(maxsize=1)
def _tags_of_regions() -> tuple[str, ...]:
    first: dict[int, str] = {}
    for tag in _TAGS:
        first.setdefault(slot_of(tag) * REGIONS // SLOTS, tag)
        if len(first) == REGIONS:
            break
    return tuple(first.values())


def in_each_region(key: str) -> list[str]:
    """Return a system key, and its twin in each region of the slots."""
    return [key, *(_twin(key, tag) for tag in _tags_of_regions())]


def _twin(key: str, tag: str) -> str:
    return key.replace(SYSTEM_TAG, tag, 1)


class Twins:
    """The names of system keys that each server has one of. `table`: returns the slot table."""

    def __init__(self, table: Callable[[], SlotTable]) -> None:
        self._table = table
        self._tags: dict[Address, str] = {}
        self._tags_of_regions: dict[Address, str] = {}

    def name(self, key: str, server: Address) -> str:
        """Return the name under which a server keeps a system key: in a slot that it has; empty where it has none."""
        return self._name(key, server, self._tags, lambda: _TAGS)

    def in_a_region(self, key: str, server: Address) -> str:
        """Return the name of one of `in_each_region` in a slot that a server has; empty where there is none."""
        return self._name(key, server, self._tags_of_regions, _tags_of_regions)

    def _name(self, key: str, server: Address, known: dict[Address, str], tags: Callable[[], Sequence[str]]) -> str:
        owner = self._table().owner
        if owner(SYSTEM_SLOT) == server:
            return key
        tag = known.get(server)
        if tag is None or owner(slot_of(tag)) != server:
            # No subject is called so: keys escape the sign.
            tag = next((tag for tag in tags() if owner(slot_of(tag)) == server), None)
            if tag is None:
                return ""
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[server] = tag
        return _twin(key, tag)


class ClusterErrands:
    """The errands of a cluster's store, and when they are due again."""

    def __init__(
        self, errands: Sequence[Errand], table: Callable[[], SlotTable], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._errands = Errands(errands, clock)
        self._any = bool(errands)
        self._table = table
        self._clock = clock
        self._wait_until = clock() + LONGEST_WAIT

    def due(self, server: Address) -> Sequence[Taken]:
        """Return those that go along to a server now: mostly none."""
        if not self._any or self._table().owner(SYSTEM_SLOT) != server:
            return ()
        self._wait_until = self._clock() + LONGEST_WAIT
        return self._errands.due()

    def hurry(self) -> None:
        """Let them go with the next trip: a server may be a new one, and have lost its memory."""
        self._errands.hurry()

    @property
    def are_late(self) -> bool:
        """Whether they have waited long enough for a call that goes their way: a trip is made for them, once."""
        if not self._any or self._clock() <= self._wait_until:
            return False
        self._wait_until = self._clock() + LONGEST_WAIT
        return True
