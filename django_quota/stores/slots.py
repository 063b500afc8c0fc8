"""The slot table of a Redis Cluster: which server has which keys, as far as is known. It sends nothing by itself.

Source: the Redis Cluster specification. A key lies in one of 16,384 slots, by the part of its name in braces; a slot
belongs to one primary at a time. The table may be out of date: a server that no longer has a slot says who has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from django_quota.forks import begins_anew_in_children
from django_quota.stores.wire import out_of_step, paired

SLOTS = int(REDIS_CLUSTER_HASH_SLOTS)

REFRESH_EVERY = 0.1
"""Seconds between two readings of the table, at least, however much speaks for another one."""


UNKNOWN = "?"
"""What stands for the name of a server that is to be reached by a name, and has none."""

_WITH_METADATA = 3
"""Parts of a server in CLUSTER SLOTS: those behind are told from Redis 7 on."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str, asked: Address) -> Address:
        """Read `"<host>:<port>"`; a server that does not know its own name means the one that was asked."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]") or asked.host, int(port.partition("@")[0]))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Remap = Callable[[tuple[str, int]], tuple[str, int]]
"""From where a server says that it listens to where it can be reached, as redis-py's `address_remap`."""


@lru_cache(maxsize=8192)
def _slot_of_tag(tag: str) -> int:
    return int(key_slot(tag.encode()))


def slot_of(key: str) -> int:
    """Return the slot of a key: from 0 to 16,383."""
    start = key.find("{") + 1
    end = key.find("}", start) if start else -1
    return _slot_of_tag(key[start:end]) if end > start else int(key_slot(key.encode()))


class SlotTable:
    """Who has which slot. `seeds`: where to ask at first; for any thread and event loop.

    `clock`: returns seconds that never go back.
    """

    def __init__(
        self, seeds: Iterable[Address], remap: Remap | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seeds = list(seeds)
        self._remap = remap
        self._clock = clock
        self._owners: list[Address | None] = [None] * SLOTS
        self.forget_parent()
        begins_anew_in_children(self)
        self._primaries: list[Address] = []
        self._readings = 0
        self._read_at = -REFRESH_EVERY
        self._is_doubtful = True

    def forget_parent(self) -> None:
        """Go on in a forked process."""
        self._guard = threading.Lock()

    def owner(self, slot: int) -> Address | None:
        """Return who has a slot; None where it is not known."""
        return self._owners[slot]

    @property
    def primaries(self) -> list[Address]:
        """All that have slots, each once."""
        return self._primaries

    @property
    def known(self) -> set[Address]:
        """All that may be asked: the primaries, and where to ask at first."""
        return {*self._primaries, *self._seeds}

    @property
    def sources(self) -> list[Address]:
        """Whom to ask for the table: another one each time, since who is cut off from the others has an old one."""
        primaries = self._primaries
        first = self._readings % max(1, len(primaries))
        return list(dict.fromkeys([*primaries[first:], *primaries[:first], *self._seeds]))

    @property
    def is_due(self) -> bool:
        """Whether it should be read again, and may be."""
        return self._is_doubtful and self._clock() - self._read_at >= REFRESH_EVERY

    def begin_reading(self) -> None:
        """Note that somebody reads it now: others go on with what is known."""
        self._read_at = self._clock()
        self._readings += 1

    def doubt(self) -> None:
        """Note that it may be out of date."""
        self._is_doubtful = True

    def moved(self, slot: int, to: Address) -> Address:
        """Note where a server says that a slot is; return how it is reached."""
        reached = self._reached(to)
        with self._guard:
            self._owners[slot] = reached
            if reached not in self._primaries:
                self._primaries = _each_once(self._owners)
            self._is_doubtful = True  # one slot seldom comes alone
        return reached

    def reached(self, to: Address) -> Address:
        """Return how a server is reached that another one names."""
        return self._reached(to)

    def learn(self, reply: Sequence[Any], asked: Address) -> None:
        """Take over the reply to CLUSTER SLOTS, raw, from the server that was asked. Raises `GarbledError`."""
        owners: list[Address | None] = [None] * SLOTS
        for first, last, named in _told(reply, asked):
            owners[first : last + 1] = [self._reached(named)] * (last - first + 1)
        with self._guard:
            self._owners = owners
            self._primaries = _each_once(owners)
            self._is_doubtful = False

    def _reached(self, address: Address) -> Address:
        return address if self._remap is None else Address(*self._remap(address))


def _each_once(owners: Iterable[Address | None]) -> list[Address]:
    return sorted({owner for owner in owners if owner is not None})


def _told(reply: Sequence[Any], asked: Address) -> list[tuple[int, int, Address]]:
    """Return the first and the last slot of each range, and who has it. Raises `GarbledError`."""
    told = []
    try:
        for first, last, primary, *_ in reply:
            if not 0 <= int(first) <= int(last) < SLOTS:
                raise out_of_step(reply)
            told.append((int(first), int(last), Address(_host(primary) or asked.host, int(primary[1]))))
    except (TypeError, ValueError, IndexError) as error:
        raise out_of_step(reply) from error
    return told


def _host(server: Sequence[Any]) -> str:
    """Return the name or IP of a server in CLUSTER SLOTS; empty where it is the one that was asked."""
    name = _text(server[0])
    if name != UNKNOWN:
        return name
    # Where it is to be reached by a name that it lacks.
    told = paired(server[3]) if len(server) > _WITH_METADATA else {}
    return next((_text(value) for word, value in told.items() if _text(word) == "ip"), "")


def _text(name: Any) -> str:
    if name is not None and not isinstance(name, (str, bytes)):
        raise TypeError(f"{type(name).__name__} is no name")
    return name.decode() if isinstance(name, bytes) else name or ""
