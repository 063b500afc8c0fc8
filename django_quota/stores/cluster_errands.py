"""Errands over a Redis Cluster: each goes along with a call to the server that has its keys.

Those about the system's keys wait for a call that goes that way, though not for long. A watch has a twin on every
other server: any of them may lose its memory. Its key has one in each region of the slots, and those go with their
slots: so a server that has got or given some has the ones that it should have. It must not know connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from django_quota.stores.errands import Errand, Errands, Taken, Watch
from django_quota.stores.slots import SLOTS, Address, SlotTable, slot_of

SYSTEM_TAG = "{!}"
SYSTEM_SLOT = slot_of(SYSTEM_TAG)
"""The slot of the keys that belong to no subject."""

LONGEST_WAIT = 5.0
"""Seconds after which errands no longer wait for a call to the server of the system's keys."""

MOST_KNOWN = 1_000
"""Servers of which something is remembered: a process lives for months, and addresses change."""

REGIONS = 256
"""Parts of the slots, as large as each other, each with a twin of the key that is watched. A server that has not a
single whole one may have none: it is not watched, and what it loses comes back when all are published again."""

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
    """The errands of a cluster's store, and when they are due again at each server."""

    def __init__(
        self,
        errands: Sequence[Errand],
        table: Callable[[], SlotTable],
        twins: Twins,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._of_system = Errands(errands, clock)
        self._watches = [errand for errand in errands if isinstance(errand, Watch)]
        self._any = bool(errands)
        self._table = table
        self._twins = twins
        self._clock = clock
        self._by_server: dict[Address, Errands] = {}
        self._wait_until = clock() + LONGEST_WAIT

    def due(self, server: Address) -> Sequence[Taken]:
        """Return those that go along to a server now: mostly none."""
        system = self._table().owner(SYSTEM_SLOT) if self._any else None
        if system is None:
            return ()
        if system == server:
            self._wait_until = self._clock() + LONGEST_WAIT
            return self._of_system.due()
        return self._elsewhere(server).due() if self._watches else ()

    def hurry(self, server: Address) -> None:
        """Let them go with the next trip: the server may be a new one, and have lost its memory."""
        self._of_system.hurry()
        self._elsewhere(server).hurry()

    @property
    def are_late(self) -> bool:
        """Whether those about the system's keys have waited long enough: a trip is made for them, once."""
        if not self._any or self._clock() <= self._wait_until:
            return False
        self._wait_until = self._clock() + LONGEST_WAIT
        return True

    def _elsewhere(self, server: Address) -> Errands:
        found = self._by_server.get(server)
        if found is None:
            if len(self._by_server) >= MOST_KNOWN:
                self._by_server.clear()  # those that are left are asked a moment sooner
            twins = [_WatchOfTwin(watch, partial(self._twins.in_a_region, server=server)) for watch in self._watches]
            found = self._by_server.setdefault(server, Errands(twins, self._clock))
        return found


class _WatchOfTwin:
    """A watch on another server than that of the system's keys."""

    def __init__(self, watch: Watch, twin: Callable[[str], str]) -> None:
        self._watch = watch
        self._twin = twin

    def question(self) -> Sequence[str | int] | None:
        asked = self._watch.question()
        twin = self._twin(asked[1]) if asked else ""
        return ("EXISTS", twin) if twin else None

    def answered(self, reply: Any) -> None:
        self._watch.answered(reply)

    def lost(self) -> None:
        pass

    def tell(self) -> None:
        self._watch.tell()
