"""The slot table of a Redis Cluster: which server has which slot. It sends nothing by itself.

Source: the Redis Cluster specification. A key is in one of 16,384 slots, by the part of its name in braces. A slot
belongs to one primary at a time. The table may be out of date: a server that no longer has a slot names the one that
has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from django_quota.core.forks import register_fork_aware
from django_quota.stores.redis.errors import GarbledError

SLOTS = int(REDIS_CLUSTER_HASH_SLOTS)

REFRESH_INTERVAL = 0.1
"""The least time in seconds between two readings of the table."""

UNKNOWN = "?"
"""What CLUSTER SLOTS says for a server that should have a name and has none."""

_WITH_METADATA = 3
"""Parts of a server in CLUSTER SLOTS before the metadata, which Redis 7 and later send."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str, asked: Address) -> Address:
        """Read `"<host>:<port>"`. Without a host it is that of the server that was asked."""
        host, _, port = text.rpartition(":")
        return cls(host.strip("[]") or asked.host, int(port.partition("@")[0]))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


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


class SlotTable:
    """The server of each slot, for any thread and event loop.

    `seeds`: the servers to ask first. `clock`: returns seconds and never goes back.
    """

    def __init__(
        self, seeds: Iterable[Address], remap: Remap | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seeds = list(seeds)
        self._remap = remap
        self._clock = clock
        self._owners: list[Address | None] = [None] * SLOTS
        self.after_fork()
        register_fork_aware(self)
        self._primaries: list[Address] = []
        self._readings = 0
        self._read_at = -REFRESH_INTERVAL
        self._is_doubtful = True

    def after_fork(self) -> None:
        """Replace the lock in a forked process: another thread may have held it at the fork."""
        self._lock = threading.Lock()

    def owner(self, slot: int) -> Address | None:
        """Return the server of a slot; None if it is not known."""
        return self._owners[slot]

    @property
    def primaries(self) -> list[Address]:
        """All servers with slots, each once."""
        return self._primaries

    @property
    def known(self) -> set[Address]:
        """All servers that may be asked: the primaries and the seeds."""
        return {*self._primaries, *self._seeds}

    @property
    def sources(self) -> list[Address]:
        """The servers to ask for the table, another one first each time: one that is cut off has an old table."""
        primaries = self._primaries
        first = self._readings % max(1, len(primaries))
        return list(dict.fromkeys([*primaries[first:], *primaries[:first], *self._seeds]))

    @property
    def is_due(self) -> bool:
        """Whether it should be read again, and may be."""
        return self._is_doubtful and self._clock() - self._read_at >= REFRESH_INTERVAL

    def begin_reading(self) -> None:
        """Note that a caller reads the table now. Other callers use the old one meanwhile."""
        self._read_at = self._clock()
        self._readings += 1

    def doubt(self) -> None:
        """Note that it may be out of date."""
        self._is_doubtful = True

    def moved(self, slot: int, to: Address) -> Address:
        """Note the server that an answer names for a slot; return the address at which it is reached."""
        reached = self._reached(to)
        with self._lock:
            self._owners[slot] = reached
            if reached not in self._primaries:
                self._primaries = _each_once(self._owners)
            self._is_doubtful = True  # one slot seldom comes alone
        return reached

    def reached(self, to: Address) -> Address:
        """Return the address at which a server that another one names is reached."""
        return self._reached(to)

    def learn(self, reply: Sequence[Any], asked: Address) -> None:
        """Take over the raw reply of a server to CLUSTER SLOTS. Raises `GarbledError`."""
        owners: list[Address | None] = [None] * SLOTS
        for first, last, named in _ranges(reply, asked):
            owners[first : last + 1] = [self._reached(named)] * (last - first + 1)
        with self._lock:
            self._owners = owners
            self._primaries = _each_once(owners)
            self._is_doubtful = False

    def _reached(self, address: Address) -> Address:
        return address if self._remap is None else Address(*self._remap(address))


def _each_once(owners: Iterable[Address | None]) -> list[Address]:
    return sorted({owner for owner in owners if owner is not None})


def _ranges(reply: Sequence[Any], asked: Address) -> list[tuple[int, int, Address]]:
    """Return the first and the last slot of each range, and its server. Raises `GarbledError`."""
    ranges = []
    try:
        for first, last, primary, *_ in reply:
            if not 0 <= int(first) <= int(last) < SLOTS:
                raise GarbledError("CLUSTER SLOTS names a slot that does not exist")
            ranges.append((int(first), int(last), Address(_host(primary) or asked.host, int(primary[1]))))
    except (TypeError, ValueError, IndexError) as error:
        raise GarbledError("CLUSTER SLOTS cannot be read") from error
    return ranges


def _host(server: Sequence[Any]) -> str:
    """Return the name or IP of a server in CLUSTER SLOTS; empty for the server that was asked."""
    name = _text(server[0])
    if name != UNKNOWN:
        return name
    # The server should have a name and has none: its metadata may have the IP.
    metadata = pairs(server[3]) if len(server) > _WITH_METADATA else {}
    return next((_text(value) for word, value in metadata.items() if _text(word) == "ip"), "")


def pairs(reply: Any) -> Any:
    """Return a mapping from a list of names and values in turn; unchanged if redis-py has made it a mapping."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _text(name: Any) -> str:
    if name is not None and not isinstance(name, (str, bytes)):
        raise TypeError(f"{type(name).__name__} is no name")
    return name.decode() if isinstance(name, bytes) else name or ""
