"""Overrides in Redis: their keys, their encoding, and the marker that shows whether Redis holds all of them.

The decision script reads them in the hash of the subject, so they apply at once and cost no further round trip.
`override_sync` publishes them from the database. Limits work without any.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from django_quota.core.clock import SECOND
from django_quota.core.keys import field, key_of, subject_base, system_key
from django_quota.engine.operations import Operation, text
from django_quota.engine.override_operations import FIELD, CompletePublication, PublishOverrides, RaiseGeneration
from django_quota.services.scanning import Walk
from django_quota.stores.base import Store
from django_quota.stores.redis.store import RedisStore, Server

ALL_RULES = "*"
"""Stands for all rules. An override for one rule goes before it."""

MARKER_TTL = 7 * 86_400
"""Seconds after which all overrides are published again, though Redis may still hold them."""

PUBLICATION_TTL = 3_600
"""Seconds that the publication of all overrides may take."""

LOCK_TTL = 1.5
"""Seconds from one check that Redis holds all overrides to the next, whichever process checks. A process that
publishes extends its lock. If it dies, the next check starts when the lock has expired."""

Mode = Literal["rate", "exempt", "blocked"]

_LETTERS: dict[Mode, str] = {"rate": "r", "exempt": "x", "blocked": "b"}
_MODES: dict[str, Mode] = {letter: mode for mode, letter in _LETTERS.items()}


class Override(NamedTuple):
    """An override of one rule, or of all, for one subject; `rates` only for the mode `rate`."""

    mode: Mode
    begins: int = 0
    """Its start in microseconds since 1970; 0: it has always applied."""
    ends: int = 0
    """Its end in microseconds since 1970; 0: it has none."""
    rates: str = ""

    @property
    def encoded(self) -> str:
        """It as it is published: `"<mode> <from> <until> <rates>"`."""
        return f"{_LETTERS[self.mode]} {self.begins} {self.ends} {self.rates}"

    @classmethod
    def read(cls, encoded: str) -> Override:
        """Read what `encoded` has written."""
        letter, begins, ends, rates = encoded.split(" ", 3)
        return cls(_MODES[letter], int(begins), int(ends), rates)

    def in_force(self, now: int) -> bool:
        """Return whether it applies at a moment (microseconds)."""
        return self.begins <= now and (self.ends == 0 or now < self.ends)


def status_key(prefix: str, subject: str) -> str:
    """Return the key of the hash that a subject's overrides are fields of."""
    return key_of(subject_base(prefix, subject), "s")


def publication(key: str, overrides: Mapping[str, Override]) -> PublishOverrides:
    """Return the operation that makes the overrides under a `status_key` these, by rule, and no others."""
    fields = {FIELD + (rule if rule == ALL_RULES else field(rule)): each.encoded for rule, each in overrides.items()}
    return PublishOverrides(key, fields)


def try_all(store: Store, operations: Sequence[Operation], now: int | None) -> list[Any]:
    """Run operations as `run_all` does. In Redis, one that fails has its error in place of its reply."""
    return store.try_all(operations, now) if isinstance(store, RedisStore) else run_all(store, operations, now)


def run_all(store: Store, operations: Sequence[Operation], now: int | None) -> list[Any]:
    """Do operations of one script, in one round trip if the store is Redis. Each is atomic, not all of them."""
    if not isinstance(store, RedisStore):
        return [store.run(operation, now) for operation in operations]
    return store.run_all(operations, now)


def with_overrides(store: RedisStore, keys: Sequence[str]) -> list[str]:
    """Return those of these status keys whose subjects have overrides in Redis."""
    fields = store.of_each(("HKEYS",), keys)
    return [key for key, names in zip(keys, fields, strict=True) if any(text(name).startswith(FIELD) for name in names)]


# --- whether Redis holds all of them ----------------------------------------------------------------------------------


def marker_key(prefix: str) -> str:
    """Return the key of the marker: the generation that Redis holds. Without it, Redis does not hold all overrides."""
    return system_key(prefix, "overrides")


def lock_key(prefix: str) -> str:
    """Return the key of the lock; see `take_lock`."""
    return f"{marker_key(prefix)}:lock"


def take_lock(store: RedisStore, prefix: str, *, again: bool = False) -> bool:
    """Take the lock of the process that checks whether Redis holds all overrides; False if another process has it.

    `again`: whether this process has it, and keeps it. Nobody releases it: it expires by itself, so a process that dies
    keeps the others waiting for at most `LOCK_TTL`. Two may check at once: the lock only saves work.
    """
    with store.commands() as client:
        return bool(client.set(lock_key(prefix), "1", nx=not again, px=int(LOCK_TTL * 1_000)))


def is_marked(store: RedisStore, prefix: str, generation: int = 1) -> bool:
    """Return whether all servers show this generation of the overrides, or a later one."""
    walk = Walk(store)
    for markers in _markers(store, prefix).values():
        with walk.past():
            if any(int(shown or 0) < max(1, generation) for shown in store.of_each(("GET",), markers)):
                return False
    walk.end()
    return True


def _markers(store: RedisStore, prefix: str) -> dict[Server, list[str]]:
    """Return the keys of the markers, by server."""
    return store.by_server(store.node_keys(marker_key(prefix)))


def raise_generation(store: RedisStore, prefix: str, least: int) -> int:
    """Raise the markers after a publication; return the new generation.

    Returns 0 if a server shows no generation, or one below `least`: it has lost overrides.
    """
    first, *others = store.node_keys(marker_key(prefix))
    (raised,) = run_all(store, [RaiseGeneration(first, least)], None)
    if not raised or not all(run_all(store, [RaiseGeneration(other, least, raised) for other in others], None)):
        return 0
    return int(raised)


class Marking:
    """Marks Redis as complete after all overrides are published: call `begin`, `count` after each batch, then `finish`.

    Each server counts its batches. So it shows whether it has lost one of them meanwhile.
    """

    def __init__(self, store: RedisStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._token = secrets.token_hex(8)
        self._counted: Counter[str] = Counter()

    def begin(self) -> None:
        """Start the count of each server."""
        for server, markers in _markers(self._store, self._prefix).items():
            self._add(server, markers, 0)

    def count(self, key: str) -> None:
        """Count a batch for the server of a key."""
        server = self._store.server_of(key)
        marker = self._store.node_key(marker_key(self._prefix), server)
        if marker:
            self._add(server, [marker], 1)
            self._counted[marker] += 1

    def _add(self, server: Server, markers: Iterable[str], number: int) -> None:
        with self._store.commands(server) as client, client.pipeline(transaction=False) as pipeline:
            for marker in markers:
                pipeline.incrby(self._count_of(marker), number)
                pipeline.expire(self._count_of(marker), PUBLICATION_TTL)
            pipeline.execute()

    def finish(self, generation: int) -> int:
        """Mark all servers as complete, with `generation` or a later one.

        Returns the generation; 0 if a server has lost a batch since `begin`.
        """
        markers = self._store.node_keys(marker_key(self._prefix))
        latest = max(1, generation, *(int(shown or 0) for shown in self._store.of_each(("GET",), markers)))
        finished = [
            CompletePublication(marker, self._count_of(marker), self._counted[marker], latest, MARKER_TTL * SECOND)
            for marker in markers
        ]
        return latest if all(run_all(self._store, finished, None)) else 0

    def _count_of(self, marker: str) -> str:
        return f"{marker}:{self._token}"
