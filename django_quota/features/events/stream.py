"""The event log: refusals, bans and near-limit warnings of all processes, in one capped stream in Redis, or in a table.

Decisions write the log. Any number of `EventReader`s read all of it. An `EventGroup` reads the stream as a consumer
group of Redis: each event goes to one reader of the group, and stays until it is acknowledged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django_quota.core.clock import SECOND
from django_quota.core.errors import StoreUnavailable
from django_quota.core.keys import named, system_key
from django_quota.engine.operations import text
from django_quota.stores.base import RedisServers, Store, Tables
from django_quota.stores.database.log import EventTable, LoggedEvent, Position
from django_quota.subjects.addresses import address_of

EVENT_KINDS = ("refused", "banned", "near")
"""The kinds of events: a refusal, a ban that began, a limit that is almost reached."""

BEGINNING = "0-0"
"""The id before all others."""

STREAM_TTL = 400 * 86_400
"""Seconds for which the stream is kept after its last event; `engine/lua/event_log.lua` has the same."""

SEARCHED = 5_000
"""How many events a page of the admin searches: few, because it is read again every few seconds."""

EVENTS_A_PAGE = 500
"""Entries that one call reads."""

CONSUMER = "quota_events"
"""The Redis consumer that all readers of a group share. How long an entry is idle shows that its reader is gone."""

LEFT_AFTER = 60_000
"""Milliseconds after which an event that was handed out and not acknowledged is handed out again."""

_GONE = ("NOGROUP", "no such key")
"""Words in the error of Redis if the stream or the group is gone. They differ by command and version."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Times are microseconds since 1970."""

    id: str
    """Its id in the log, such as `"1763700000000-0"`."""
    kind: str
    """One of `EVENT_KINDS`."""
    rule: str | None
    """The rule's name; None if it is so long that only a digest is known."""
    subject: str | None
    """Who the event is about, such as `"ip:203.0.113.9"`; None if it is so long that only a digest is known."""
    until: int
    """When the same hit is admitted again, or the ban ends. 0: never; a near-limit warning has 0 too."""
    level: int
    """The number of the ban in a row, from 1; 0 for other events."""
    capacity: int
    """The limit."""
    remaining: int
    """How many units of the limit were left."""
    share: float
    """The share of `warn_at` that a near-limit warning reports, such as 0.8; 0 for other events."""

    @classmethod
    def read(cls, entry_id: str, fields: Mapping[str, str]) -> Event:
        """Return the event of an entry. Raises `ValueError` for an entry that another program has written."""
        try:
            kind = fields["kind"]
            numbers = {name: int(fields[name]) for name in ("until", "level", "capacity", "remaining")}
            share = int(fields["share"]) / 1000
            event = cls(entry_id, kind, named(fields["rule"]), named(fields["subject"]), **numbers, share=share)
        except KeyError as error:
            raise ValueError(f"entry {entry_id} has no {error}") from None
        if kind not in EVENT_KINDS:
            raise ValueError(f"entry {entry_id} is of the kind {kind!r}")
        return event

    @property
    def at(self) -> int:
        """The time of the event by the store's clock, to the millisecond."""
        return entry_time(self.id)

    @property
    def value(self) -> str | None:
        """The subject without its kind: `"203.0.113.9"` of `"ip:203.0.113.9"`, but all of `"global"`."""
        return None if self.subject is None else self.subject.partition(":")[2] or self.subject

    @property
    def lasts(self) -> int:
        """The time from the event to its end in microseconds, to the millisecond; 0 if it has no end."""
        return max(0, self.until - self.at) // 1_000 * 1_000 if self.until else 0

    def as_json(self) -> dict[str, Any]:
        """Return the event for JSON: the fields, with times as ISO 8601 in UTC (`until` is null if there is none).

        `ip`: the subject's address, or the network of an IPv6 client; null if the subject is not exactly one.
        """
        address = None if self.subject is None else address_of(self.subject)
        return {**asdict(self), "at": iso(self.at), "until": iso(self.until) if self.until else None, "ip": address}


def iso(moment: int) -> str:
    """Return a moment (microseconds) as ISO 8601 in UTC."""
    return datetime.fromtimestamp(moment // SECOND, UTC).replace(microsecond=moment % SECOND).isoformat()


def entry_time(entry_id: str) -> int:
    """Return the time of an id in microseconds."""
    return int(entry_id.partition("-")[0]) * 1_000


class StreamEntry(NamedTuple):
    """An entry of the stream; `event` is None for an entry that another program has written."""

    id: str
    event: Event | None


class Search(NamedTuple):
    """What a search in an event log has found."""

    events: list[Event]
    """The newest first."""
    is_whole: bool
    """Whether it found as many as were wanted, or has searched all events."""


class EventReader(ABC):
    """Reads the log and changes nothing. Each method raises `StoreUnavailable` if the store does not answer."""

    def last(self, count: int, wanted: Callable[[Event], bool]) -> list[Event]:
        """Return the last `count` events for which `wanted` is true, the oldest first. It may read all events."""
        return self.search(count, wanted, None).events[::-1]

    def search(self, count: int, wanted: Callable[[Event], bool], most: int | None = SEARCHED) -> Search:
        """Return the last `count` events for which `wanted` is true among the last `most` entries; None: among all."""
        found: list[Event] = []
        for number, entry in enumerate(self._backwards()):
            if len(found) >= count:
                break
            if number == most:
                return Search(found, is_whole=False)
            if entry.event is not None and wanted(entry.event):
                found.append(entry.event)
        return Search(found, is_whole=True)

    def _backwards(self) -> Iterator[StreamEntry]:
        before = ""
        while True:
            page = self.newest(EVENTS_A_PAGE, before)
            yield from page
            if len(page) < EVENTS_A_PAGE:
                return
            before = page[-1].id

    @abstractmethod
    def newest(self, count: int, before: str = "") -> list[StreamEntry]:
        """Return the last `count` entries, the newest first. `before`: only entries before this id."""

    @abstractmethod
    def after(self, entry_id: str) -> list[StreamEntry]:
        """Return the entries after this one, at most `EVENTS_A_PAGE`. It does not wait."""

    @abstractmethod
    def last_id(self) -> str:
        """Return the id of the last entry, after which a new reader begins; `BEGINNING` if there is none."""


class EventStream(EventReader):
    """The stream in Redis."""

    def __init__(self, store: RedisServers, prefix: str) -> None:
        self.store = store
        self.key = system_key(prefix, "events")

    def last_id(self) -> str:
        entries = self.newest(1)
        return entries[0].id if entries else BEGINNING

    def newest(self, count: int, before: str = "") -> list[StreamEntry]:
        with self.store.commands() as client:
            return _page(client.xrevrange(self.key, f"({before}" if before else "+", "-", count))

    def after(self, entry_id: str) -> list[StreamEntry]:
        with self.store.commands() as client:
            return _page(client.xrange(self.key, f"({entry_id}", "+", EVENTS_A_PAGE))


class EventRows(EventReader):
    """The rows of a database. An id is `<milliseconds>-<transaction>.<row>`."""

    def __init__(self, store: Tables, prefix: str) -> None:
        self._table = EventTable(store, system_key(prefix, "events"))

    def last_id(self) -> str:
        """Return the id of the last entry that a reader can have seen; see `after`."""
        position = self._table.end()
        return f"0-{position.batch}.{position.id}"

    def newest(self, count: int, before: str = "") -> list[StreamEntry]:
        return list(map(_of_row, self._table.newest(count, _position(before).id if before else None)))

    def after(self, entry_id: str) -> list[StreamEntry]:
        """Return the entries after this one, in the order in which they became visible."""
        return list(map(_of_row, self._table.after(_position(entry_id), EVENTS_A_PAGE)))


def _position(entry_id: str) -> Position:
    batch, _, number = entry_id.partition("-")[2].partition(".")
    return Position(int(batch or 0), int(number or 0))


def _of_row(row: LoggedEvent) -> StreamEntry:
    name = f"{row.at // 1_000}-{row.position.batch}.{row.position.id}"
    fields: dict[str | bytes, str | bytes]
    fields = {} if row.record is None else {field: str(part) for field, part in row.record._asdict().items()}
    return _entry(name, fields)


def event_log(store: Store, prefix: str) -> EventReader | None:
    """Return the log of a store; None for one that keeps no events."""
    if store.redis is not None:
        return EventStream(store.redis, prefix)
    return None if store.database is None else EventRows(store.database, prefix)


def newest_events(store: Store, prefix: str, count: int) -> list[Event]:
    """Return the events among the last `count` entries, the newest first; empty if the store keeps no events."""
    log = event_log(store, prefix)
    entries = [] if log is None else log.newest(count)
    return [entry.event for entry in entries if entry.event is not None]


class Delivery(NamedTuple):
    """What a reader of a group got: entries to handle, and what was lost."""

    entries: list[StreamEntry]
    """The entries to handle and to acknowledge."""
    trimmed: list[str]
    """The ids of events that were handed out, and that the stream dropped before they were acknowledged."""
    lost_after: str
    """The last id that the group had read, if the stream has dropped it: newer events may be lost too; else empty."""


class EventGroup:
    """A consumer group. Each event goes to one reader, and to another if it is not acknowledged in `LEFT_AFTER`.

    Each method raises `StoreUnavailable` if Redis does not answer.
    """

    def __init__(self, stream: EventStream, name: str) -> None:
        self.stream = stream
        self.name = name

    def begin(self, after: str = "$") -> bool:
        """Create the group if there is none, to read what comes after this id; return whether it was created."""
        try:
            with self.stream.store.commands() as client:
                client.xgroup_create(self.stream.key, self.name, after, mkstream=True)
                client.expire(self.stream.key, STREAM_TTL)
        except StoreUnavailable as error:
            if "BUSYGROUP" not in error.reason:
                raise
            return False
        return True

    def take(self) -> Delivery:
        """Return entries that were left for too long, or else new ones. It does not wait.

        Raises `LookupError` if the group is gone because Redis has lost its memory.
        """
        key = self.stream.key
        try:
            with self.stream.store.commands() as client:
                claimed: Any = client.xautoclaim(key, self.name, CONSUMER, LEFT_AFTER, BEGINNING, EVENTS_A_PAGE)
                left = _page(entry for entry in claimed[1] if entry[0] is not None)
                trimmed = [text(gone) for ids in claimed[2:] for gone in ids]
                if left or trimmed:
                    return Delivery(left, trimmed, "")
                read = text(self._state(client).get("last-delivered-id", ""))
                entries = _entries(client.xreadgroup(self.name, CONSUMER, {key: ">"}, EVENTS_A_PAGE))
                is_whole = not entries or self._is_whole(client, read, entries)
                return Delivery(entries, [], "" if is_whole else read)
        except StoreUnavailable as error:
            if not any(words in error.reason for words in _GONE):
                raise
            raise LookupError(f"The group {self.name!r} is gone.") from error

    def _state(self, client: Any) -> Mapping[str, Any]:
        """Return what Redis says of the group; empty if there is none."""
        return next((each for each in client.xinfo_groups(self.stream.key) if text(each["name"]) == self.name), {})

    def _is_whole(self, client: Any, read: str, entries: Sequence[StreamEntry]) -> bool:
        """Return whether nothing was trimmed between the last id that the group had read and these entries.

        It is called after reading, so that it notices what a flood has trimmed until then.
        """
        if read != BEGINNING:
            return bool(client.xrange(self.stream.key, read, read))
        # The group was made while the stream was empty. Redis counts the entries up to the last one that was read.
        state = self._state(client)
        by_others = client.xrange(self.stream.key, f"({entries[-1].id}", text(state["last-delivered-id"]))
        return (state.get("entries-read") or 0) <= len(entries) + len(by_others)

    def acknowledge(self, entries: Iterable[StreamEntry]) -> None:
        """Acknowledge entries: no reader gets them again."""
        with self.stream.store.commands() as client:
            client.xack(self.stream.key, self.name, *(entry.id for entry in entries))


def _entries(reply: Any) -> list[StreamEntry]:
    """Return the entries of a reply of XREADGROUP: `[[key, entries]]`, or, in RESP3, `{key: [entries]}`."""
    if isinstance(reply, dict):
        return [entry for pages in reply.values() for page in pages for entry in _page(page)]
    return [entry for _, page in reply or () for entry in _page(page)]


def _page(reply: Any) -> list[StreamEntry]:
    """Return the entries of a reply of XRANGE."""
    return [_entry(*raw) for raw in reply]


def _entry(entry_id: str | bytes, fields: Mapping[str | bytes, str | bytes] | None) -> StreamEntry:
    name, texts = text(entry_id), {text(key): text(value) for key, value in (fields or {}).items()}
    try:
        return StreamEntry(name, Event.read(name, texts))
    except ValueError:
        return StreamEntry(name, None)
