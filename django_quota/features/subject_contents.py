"""What the store holds for a subject: its bans, its leases, and the rules that have counted something."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from django_quota.conf import current
from django_quota.core import keys
from django_quota.core.clock import SECOND, frozen_now
from django_quota.engine.operations import Operation, Script, States, fields_of, script, text
from django_quota.limiting.registry import get_limiter
from django_quota.limiting.stores import CountingStore
from django_quota.stores.base import all_well
from django_quota.stores.scanning import KEYS_A_SCAN

MAX_READ = 100
"""How many leases of one name are read."""

_RULE_FIELDS = frozenset("bew")
"""The kinds of fields of a subject's hash that hold the name of a rule."""


class InspectSubject(Operation):
    """Read the status of a subject and its leases. The reply: see `inspect_subject.lua`."""

    script: ClassVar[Script] = script("clock", "lifetimes", "features/inspect_subject")
    is_slow: ClassVar[bool] = True
    is_reading: ClassVar[bool] = True

    def __init__(self, status_key: str, sets: Sequence[str]) -> None:
        super().__init__([status_key, *sets], MAX_READ)

    def run(self, states: States, now: int) -> list[Any]:
        fields = [part for pair in fields_of(states, self.keys[0]).items() for part in pair]
        return [now, fields, *(_live(states, key, now) for key in self.keys[1:])]


def _live(states: States, key: str, now: int) -> list[Any]:
    members: dict[str, int] = states.get(key) or {}
    live = sorted((stop, member) for member, stop in members.items() if stop > now)
    return [len(live), *(part for stop, member in live[:MAX_READ] for part in (member, stop))]


@dataclass(frozen=True, slots=True)
class BanStatus:
    """A ban in force."""

    rule: str
    field: str
    """The rule's name as a field of a hash: a digest if the name is very long."""
    ends_in: float
    """Seconds."""
    level: int
    """1 for the first ban in a row, 2 for the next, and so on."""


@dataclass(frozen=True, slots=True)
class HeldStatus:
    """The leases of one slot."""

    name: str
    ends_in: tuple[float, ...]
    """Seconds until each ends, the first to end first; only the first hundred are listed."""
    source: str
    """The key that holds them."""
    number: int = 0
    """How many there are in all."""
    limit: int | None = None
    """How many there may be, as callers asked for it recently; None if that is not known."""

    @property
    def is_full(self) -> bool:
        """Whether the next caller is refused, until somebody gives a slot back."""
        return self.limit is not None and self.number >= self.limit


@dataclass(slots=True)
class Contents:
    """The content of the keys of a subject."""

    now: int
    """The store's time, in microseconds since 1970."""
    fields: dict[str, str]
    """The fields of the subject's hash."""
    leases: list[HeldStatus]

    @property
    def rules(self) -> set[str]:
        """The rules that fields of the hash name in full."""
        parts = {part for kind, _, part in (name.partition(":") for name in self.fields) if kind in _RULE_FIELDS}
        return {name for part in parts - {""} if (name := keys.named(part)) is not None}

    def bans(self, rules: Iterable[str] = ()) -> Iterator[BanStatus]:
        """Return the bans in force. `rules`: the names that are known, so that a digest of one can be read."""
        names = keys.names_by_field(rules)
        for field_name, value in sorted(self.fields.items()):
            kind, _, part = field_name.partition(":")
            if kind == "b":
                ends, level, _ = map(int, value.split(" "))
                if ends > self.now:
                    yield BanStatus(names.get(part, keys.named(part) or part), part, (ends - self.now) / SECOND, level)


def read_contents(
    subject: str, sets: Mapping[str, str] = MappingProxyType({}), counting: CountingStore | None = None
) -> Contents:
    """Read a subject's hash and its leases. Raises `StoreUnavailable`.

    `sets`: the name of each slot, by key. `counting`: the store; None for that of the settings.
    """
    counting = counting or get_limiter().stores.first
    operation = InspectSubject(keys.status_key(counting.prefix, subject), list(sets))
    now, flat, *lists = counting.reporting_store.run(operation, frozen_now())
    contents = _contents(now, flat)
    for (key, name), (number, *live) in zip(sets.items(), lists, strict=True):
        if number:
            ends_in = tuple((float(end) - now) / SECOND for end in live[1::2])
            contents.leases.append(HeldStatus(name, ends_in, key, int(number)))
    return contents


def contents_of(subjects: Iterable[str]) -> dict[str, Contents]:
    """Read the hashes of these subjects, in one round trip to a single Redis. Raises `StoreUnavailable`."""
    names = list(dict.fromkeys(subjects))
    operations = [InspectSubject(keys.status_key(current().prefix, name), []) for name in names]
    replies = get_limiter().reporting_store.try_all(operations, frozen_now()) if names else []
    return {name: _contents(*reply) for name, reply in zip(names, all_well(replies), strict=True)}


def _contents(now: int, flat: Iterable[str | bytes]) -> Contents:
    words = list(map(text, flat))
    return Contents(int(now), dict(zip(words[::2], words[1::2], strict=True)), [])


def scan_keys(subject: str, counting: CountingStore | None = None) -> dict[str, keys.Key] | None:
    """Find all keys of a subject by scanning all keys of a store; None for the memory of a process.

    `counting`: the store; None for that of the settings.
    """
    counting = counting or get_limiter().stores.first
    store, prefix = counting.store, counting.prefix
    if not store.is_shared:
        return None
    start = f"{keys.subject_base(prefix, subject)}}}:"
    matching = f"{keys.glob(start)}*"
    if store.redis is None:
        found = list(store.names(matching))
    else:  # only the server of the subject, which may answer while others of a Cluster do not
        with store.redis.commands(store.redis.server_of(start)) as lent:
            client: Any = lent
            found = list(map(text, client.scan_iter(match=matching, count=KEYS_A_SCAN)))
    return {key: read for key in sorted(found) if (read := keys.read(prefix, key)) is not None}
