"""Overrides as they are published: where they lie, how they are written, how Redis shows that it still has them all.

The decision script reads them in the subject's own hash, so that they bind at once and cost no further trip. Where they
come from it must not know: the models publish them (see `override_sync`), and limiting works without any.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from redis import Redis

from django_quota.clock import SECOND
from django_quota.keys import field, key_of, named, pattern, subject_base, system_key
from django_quota.operations.base import Operation, text
from django_quota.operations.generations import FinishMarking, Raise
from django_quota.operations.publish import FIELD, Publish
from django_quota.stores.base import Store
from django_quota.stores.redis import RedisStore, Server
from django_quota.stores.walking import Walk

ALL_RULES = "*"
"""What stands for every rule; one for a rule itself goes before it."""

MARKED_FOR = 7 * 86_400
"""Seconds after which all overrides are published again, though Redis may still have them."""

BEGUN_FOR = 3_600
"""Seconds that publishing all of them may take."""

TURN = 1.5
"""Seconds from one look whether Redis holds all of them to the next, whichever process looks. A process that publishes
them says again and again that it is at it: where it dies, the next one looks as soon as this is over."""

Mode = Literal["rate", "exempt", "blocked"]

_LETTERS: dict[Mode, str] = {"rate": "r", "exempt": "x", "blocked": "b"}
_MODES: dict[str, Mode] = {letter: mode for mode, letter in _LETTERS.items()}

on_due: Callable[[], None] | None = None
"""What to call when it is time to look whether Redis holds all overrides; returns at once. The app sets it."""


class Override(NamedTuple):
    """An override of one rule, or of all, for one subject; `rates` for the mode `rate` alone."""

    mode: Mode
    begins: int = 0
    """From when on it holds, in microseconds since 1970; 0: it always has."""
    ends: int = 0
    """From when on it no longer holds, in microseconds since 1970; 0: it always will."""
    rates: str = ""

    @property
    def wire(self) -> str:
        """It as it is published: `"<mode> <from> <until> <rates>"`."""
        return f"{_LETTERS[self.mode]} {self.begins} {self.ends} {self.rates}"

    @classmethod
    def read(cls, wire: str) -> Override:
        """Read what `wire` has written. Raises `ValueError` where it is something else."""
        parts = wire.split(" ", 3)
        if len(parts) != 4 or parts[0] not in _MODES:  # noqa: PLR2004 — mode, from, until, rates
            raise ValueError(f"{wire!r} is no published override")
        return cls(_MODES[parts[0]], int(parts[1]), int(parts[2]), parts[3])

    def in_force(self, now: int) -> bool:
        """Say whether it holds at a moment (microseconds)."""
        return self.begins <= now and (self.ends == 0 or now < self.ends)


def standing_key(prefix: str, subject: str) -> str:
    """Return the key of the hash that a subject's overrides are fields of."""
    return key_of(subject_base(prefix, subject), "s")


def field_of(rule: str) -> str:
    """Return the field of a rule's override; `ALL_RULES` for that of all."""
    return FIELD + (ALL_RULES if rule == ALL_RULES else field(rule))


def publication(key: str, overrides: Mapping[str, Override]) -> Publish:
    """Return the operation that makes the overrides under a `standing_key` these, by rule, and no others."""
    return Publish(key, {field_of(rule): override.wire for rule, override in overrides.items()})


def published(store: RedisStore, prefix: str, subject: str) -> dict[str | None, Override]:
    """Return what Redis holds for a subject, by rule (None for one so long that only its digest is known)."""
    (fields,) = store.of_each(("HGETALL",), [standing_key(prefix, subject)])
    found = {text(name): text(value) for name, value in fields.items()}
    return {_rule_of(name): Override.read(value) for name, value in found.items() if name.startswith(FIELD)}


def _rule_of(name: str) -> str | None:
    part = name.removeprefix(FIELD)
    return ALL_RULES if part == ALL_RULES else named(part)


def run_all(store: Store, operations: Sequence[Operation], now: int | None) -> list[Any]:
    """Do operations of one script: in one trip where the store is Redis. Each is undivided, all of them are not."""
    if not isinstance(store, RedisStore):
        return [store.run(operation, now) for operation in operations]
    return store.run_all(operations, now)


def holders(store: RedisStore, prefix: str, batch: int) -> Iterator[list[str]]:
    """Find the keys of all subjects that Redis holds overrides of, some at a time; a key may come twice.

    Raises `StoreUnavailable` where Redis does not answer; where it is a part of a Cluster, after all others.
    """
    walk = Walk(store)
    for server in walk.servers:
        with walk.past():
            yield from _holders_on(store, server, prefix, batch)
    walk.end()


def _holders_on(store: RedisStore, server: Server, prefix: str, batch: int) -> Iterator[list[str]]:
    cursor = 0
    while True:
        with store.commands(server) as client:
            cursor, keys = _scan(client, cursor, f"{pattern(prefix)}}}:s", batch)
        fields = store.of_each(("HKEYS",), keys)
        yield [
            key for key, names in zip(keys, fields, strict=True) if any(text(name).startswith(FIELD) for name in names)
        ]
        if cursor == 0:
            break


def _scan(client: Redis, cursor: int, matching: str, count: int) -> tuple[int, list[str]]:
    after, keys = client.scan(cursor, match=matching, count=count, _type="HASH")
    return int(after), [text(key) for key in keys]


# --- whether Redis has them all ---------------------------------------------------------------------------------------


def marker_key(prefix: str) -> str:
    """Return the key that shows which generation of the overrides Redis holds; it holds not all where there is none."""
    return system_key(prefix, "overrides")


def turn_key(prefix: str) -> str:
    """Return the key that is there while a process looks whether Redis holds all overrides, and a moment longer."""
    return f"{marker_key(prefix)}:turn"


class Turn:
    """The turn of one process to look whether Redis holds all overrides. It only saves work: two may look at once.

    It ends by itself: so a process that dies keeps the others waiting for no longer than `TURN`.
    """

    def __init__(self, store: RedisStore, prefix: str) -> None:
        self._store = store
        self._key = turn_key(prefix)
        self._kept = 0.0

    def take(self) -> bool:
        """Take it; False where another process has it, or has had it a moment ago."""
        with self._store.commands() as client:
            self._kept = time.monotonic()
            return bool(client.set(self._key, "1", nx=True, px=int(TURN * 1_000)))

    def keep(self) -> None:
        """Keep it: the work goes on. Call it as often as you like."""
        if time.monotonic() > self._kept + TURN / 3:
            self._keep(TURN)

    def rest(self, seconds: float) -> None:
        """Let nobody look for so long."""
        self._keep(seconds)

    def _keep(self, seconds: float) -> None:
        with self._store.commands() as client:
            client.set(self._key, "1", px=int(seconds * 1_000))
        self._kept = time.monotonic()


def is_marked(store: RedisStore, prefix: str, generation: int = 1) -> bool:
    """Say whether all servers show that they hold this generation of the overrides, or a later one."""
    walk = Walk(store)
    for markers in _markers(store, prefix).values():
        with walk.past():
            # Wherever the markers are by now.
            if any(int(shown or 0) < max(1, generation) for shown in store.of_each(("GET",), markers)):
                return False
    walk.end()
    return True


def _markers(store: RedisStore, prefix: str) -> dict[Server, list[str]]:
    """Return the keys by which each server shows what it holds."""
    return store.by_server(store.witnesses(marker_key(prefix)))


def raise_generation(store: RedisStore, prefix: str, least: int) -> int:
    """Note that something was published, behind it; returns the new generation.

    Returns 0 where a server shows no generation, or one below `least`: it has lost something, and is to be told all.
    """
    first, *others = store.witnesses(marker_key(prefix))
    (raised,) = run_all(store, [Raise(first, least)], None)
    if not raised or not all(run_all(store, [Raise(other, least, raised) for other in others], None)):
        return 0
    return int(raised)


class Marking:
    """The way to note that all overrides have been published: `begin`, `told` behind each piece, then `finish`.

    A server counts the pieces that it was told. So it shows where it has lost the last of them meanwhile.
    """

    def __init__(self, store: RedisStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._token = secrets.token_hex(8)
        self._told: Counter[str] = Counter()

    def begin(self) -> None:
        """Note that all overrides are about to be published."""
        for server, markers in _markers(self._store, self._prefix).items():
            with self._store.commands(server) as client, client.pipeline(transaction=False) as pipeline:
                for marker in markers:
                    pipeline.set(self._count_of(marker), 0, ex=BEGUN_FOR)
                pipeline.execute()

    def told(self, key: str) -> None:
        """Note that the server of a key was told a piece."""
        server = self._store.server_of(key)
        marker = self._store.witness(marker_key(self._prefix), server)
        if not marker:
            return
        with self._store.commands(server) as client, client.pipeline(transaction=False) as pipeline:
            pipeline.incrby(self._count_of(marker), 1)
            pipeline.expire(self._count_of(marker), BEGUN_FOR)
            pipeline.execute()
        self._told[marker] += 1

    def finish(self, generation: int) -> int:
        """Note that all overrides have been published, with a generation that must be at least so late.

        Returns the generation; 0 where a server has lost some of them since `begin`.
        """
        markers = self._store.witnesses(marker_key(self._prefix))
        latest = max(1, generation, *(int(shown or 0) for shown in self._store.of_each(("GET",), markers)))
        finished = [
            FinishMarking(marker, self._count_of(marker), self._told[marker], latest, MARKED_FOR * SECOND)
            for marker in markers
        ]
        return latest if all(run_all(self._store, finished, None)) else 0

    def _count_of(self, marker: str) -> str:
        return f"{marker}:{self._token}"
