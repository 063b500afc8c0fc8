"""Overrides as they are published: where they lie, how they are written, how Redis shows that it still has them all.

The decision script reads them in the subject's own hash, so that they bind at once and cost no further trip. Where they
come from it must not know: the models publish them (see `publishing`), and limiting works without any.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from redis import Redis, ResponseError

from django_quota.keys import field, key_of, named, pattern, subject_base, system_key
from django_quota.operations.base import Operation, text
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

LOCKED_FOR = 60
"""Seconds that a process which publishes all of them keeps others from doing the same, unless it says so again."""

Mode = Literal["rate", "exempt", "blocked"]

_LETTERS: dict[Mode, str] = {"rate": "r", "exempt": "x", "blocked": "b"}
_MODES: dict[str, Mode] = {letter: mode for mode, letter in _LETTERS.items()}

on_lost: Callable[[], None] | None = None
"""What to call when Redis turns out to have lost the overrides; returns at once. The app sets it."""


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
    """Return the key whose absence says that Redis does not hold all overrides: it has lost its memory, or is new."""
    return system_key(prefix, "overrides")


def is_marked(store: RedisStore, prefix: str) -> bool:
    """Say whether Redis still shows that it holds all overrides."""
    walk = Walk(store)
    for markers in _markers(store, prefix).values():
        with walk.past():
            if not all(store.of_each(("EXISTS",), markers)):  # wherever they are by now
                return False
    walk.end()
    return True


def _markers(store: RedisStore, prefix: str) -> dict[Server, list[str]]:
    """Return the keys by which each server shows that it has not lost its memory."""
    return store.by_server(store.witnesses(marker_key(prefix)))


def begin_marking(store: RedisStore, prefix: str) -> str:
    """Note that all overrides are about to be published; returns what `finish_marking` takes."""
    begun = secrets.token_hex(8)
    for server, markers in _markers(store, prefix).items():
        with store.commands(server) as client, client.pipeline(transaction=False) as pipeline:
            for marker in markers:
                pipeline.set(f"{marker}:{begun}", "1", ex=BEGUN_FOR)
            pipeline.execute()
    return begun


def finish_marking(store: RedisStore, prefix: str, begun: str) -> bool:
    """Note that all overrides have been published; False where Redis has lost its memory since `begin_marking`."""
    for server, markers in _markers(store, prefix).items():
        with store.commands(server) as client, client.pipeline(transaction=False) as pipeline:
            for marker in markers:
                pipeline.expire(f"{marker}:{begun}", MARKED_FOR)
                pipeline.rename(f"{marker}:{begun}", marker)
            try:
                pipeline.execute()
            except ResponseError as error:
                if "no such key" not in str(error):
                    raise
                return False
    return True


@contextmanager
def locked(store: RedisStore, prefix: str) -> Iterator[Callable[[], None] | None]:
    """Hold the lock of the process that publishes all; yields what keeps it, None where another one holds it.

    It only saves work: two that publish at once do no harm. So it is let go without asking whose it has become.
    """
    key = f"{marker_key(prefix)}:lock"
    with store.commands() as client:
        is_ours = client.set(key, "1", nx=True, ex=LOCKED_FOR)
    if not is_ours:
        yield None
        return

    def keep() -> None:
        with store.commands() as client:
            client.expire(key, LOCKED_FOR)

    try:
        yield keep
    finally:
        with store.commands() as client:
            client.delete(key)
