"""The event log: refusals, bans and near-limit warnings of all processes, in one capped stream in Redis, or in a table.

The limiter writes the log after the decision that an event reports. The memory store has a log of its process. Any
number of `EventReader`s read all of it. An `EventGroup` reads the stream as a consumer group of Redis: each event goes
to one reader of the group, and stays until it is acknowledged.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, ClassVar, NamedTuple

from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.errors import StoreUnavailable
from django_quota.core.keys import named, system_key
from django_quota.engine.events import EventRecord, LoggedRecord, ReadEvents
from django_quota.engine.operations import text
from django_quota.stores.base import RedisServers, Store, Tables
from django_quota.stores.database.log import EventTable, LoggedEvent, Position
from django_quota.subjects.addresses import address_of
from django_quota.subjects.subject import parts_of

EVENT_KINDS = ("refused", "banned", "near")
"""The kinds of events: a refusal, a ban that began, a limit that is almost reached."""

BEGINNING = "0-0"
"""The id before all others."""

STREAM_TTL = 400 * 86_400
"""Seconds for which the stream of a group is kept until its first event."""

SEARCHED = 5_000
"""How many events a page of the admin searches, so that it is quick with any number of them."""

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
    cost: int
    """How many units the hit needed."""
    user: str | None
    """The subject of the request's user, such as `"user:42"`, or who set a ban; None if nobody is known."""
    method: str
    """The method of the request; empty without a request."""
    path: str
    """Its path, without the query, with control characters escaped; 200 characters at most."""
    reason: str = ""
    """Why a ban was set by hand; `user` then says who set it. Of a refusal "blocked" or "banned", else empty."""

    @property
    def set_by(self) -> str | None:
        """Who set a ban by hand: `user`, if no request caused the event; else None."""
        return None if self.path else self.user

    @classmethod
    def read(cls, entry_id: str, fields: Mapping[str, str]) -> Event:
        """Return the event of an entry. Raises `ValueError` for an entry that another program has written."""
        try:
            kind = fields["kind"]
            event = cls(
                entry_id,
                kind,
                named(fields["rule"]),
                named(fields["subject"]),
                int(fields["until"]),
                int(fields["level"]),
                int(fields["capacity"]),
                int(fields["remaining"]),
                int(fields["share"]) / 1000,
                int(fields["cost"]),
                fields["user"] or None,
                fields["method"],
                fields["path"],
                fields["reason"],
            )
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
    last: str = ""
    """The id of the last entry that it has looked at, after which it can go on; empty if there are no more."""


class EventFilter(NamedTuple):
    """Which events are wanted. What is empty or 0 chooses nothing."""

    kinds: Collection[str] = ()
    rules: Collection[str] = ()
    subjects: Collection[str] = ()
    """Subjects, or parts of them, such as `user:42`. The user of the request counts too."""
    rule: str = ""
    """A part of the rule's name."""
    subject: str = ""
    """A part of the subject."""
    path: str = ""
    """A part of the path."""
    since: int = 0
    """The first moment, in microseconds."""
    until: int = 0
    """The last moment, in microseconds."""

    def __call__(self, event: Event) -> bool:
        """Return whether an event is wanted."""
        if (self.kinds and event.kind not in self.kinds) or (self.rules and event.rule not in self.rules):
            return False
        if self.rule not in (event.rule or "") or self.path not in event.path:
            return False
        if (self.since and event.at < self.since) or (self.until and event.at > self.until):
            return False
        return not (self.subject or self.subjects) or self._is_about(event)

    def _is_about(self, event: Event) -> bool:
        if self.subject and self.subject in (event.subject or ""):
            return True
        parts = {event.subject, event.user, *parts_of(event.subject or "")}
        return not parts.isdisjoint(self.subjects)


class EventReader(ABC):
    """Reads the log and changes nothing. Each method raises `StoreUnavailable` if the store does not answer."""

    def last(self, count: int, wanted: EventFilter) -> list[Event]:
        """Return the last `count` wanted events, the oldest first. It may read all events."""
        return self.search(count, wanted, None).events[::-1]

    def search(self, count: int, wanted: EventFilter, most: int | None = SEARCHED, before: str = "") -> Search:
        """Return the last `count` wanted events among the last `most` entries before an id; None: among all."""
        found: list[Event] = []
        last = ""
        for number, entry in enumerate(self._backwards(wanted, before)):
            if len(found) >= count:
                return Search(found, is_whole=True, last=last)
            if number == most:
                return Search(found, is_whole=False, last=last)
            if entry.event is not None and wanted(entry.event):
                found.append(entry.event)
            last = entry.id
        return Search(found, is_whole=True)

    def _backwards(self, wanted: EventFilter, before: str) -> Iterator[StreamEntry]:
        while True:
            page = self.newest(EVENTS_A_PAGE, before, wanted.since, wanted.until)
            yield from page
            if len(page) < EVENTS_A_PAGE:
                return
            before = page[-1].id

    id_pattern: ClassVar[re.Pattern[str]] = re.compile(r"\d{1,18}-\d{1,18}")
    """What an id in this log looks like."""

    @abstractmethod
    def newest(self, count: int, before: str = "", since: int = 0, until: int = 0) -> list[StreamEntry]:
        """Return the last `count` entries, the newest first. `before`: only entries before this id.

        `since`, `until`: only entries from one moment to the other (microseconds); 0: from the first, to the last.
        """

    def newest_bans(self, count: int) -> tuple[list[Event], int]:
        """Return the bans among the last `count` entries, the newest first, and the time of the oldest of the entries.

        The time is in microseconds; 0 without entries.
        """
        entries = self.newest(count)
        bans = [entry.event for entry in entries if entry.event is not None and entry.event.kind == "banned"]
        return bans, entry_time(entries[-1].id) if entries else 0

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

    def newest(self, count: int, before: str = "", since: int = 0, until: int = 0) -> list[StreamEntry]:
        is_until_first = until and not (before and entry_time(before) <= until)
        latest = str(until // 1_000) if is_until_first else f"({before}" if before else "+"
        with self.store.commands() as client:
            return _page(client.xrevrange(self.key, latest, str(since // 1_000) if since else "-", count))

    def newest_bans(self, count: int) -> tuple[list[Event], int]:
        """Return them without reading the other entries, which are thousands in a flood."""
        with self.store.commands() as client:
            reply: Any = client.xrevrange(self.key, "+", "-", count)
        raw = [(name, fields) for name, fields in reply if {fields.get(b"kind"), fields.get("kind")} & _BANNED]
        bans = [entry.event for entry in _page(raw) if entry.event is not None]
        return bans, entry_time(text(reply[-1][0])) if reply else 0

    def after(self, entry_id: str) -> list[StreamEntry]:
        with self.store.commands() as client:
            return _page(client.xrange(self.key, f"({entry_id}", "+", EVENTS_A_PAGE))


class EventRows(EventReader):
    """The rows of a database. An id is `<milliseconds>-<transaction>.<row>`."""

    id_pattern = re.compile(r"\d{1,18}-\d{1,18}\.\d{1,18}")

    def __init__(self, store: Tables, prefix: str) -> None:
        self._table = EventTable(store, system_key(prefix, "events"))

    def last_id(self) -> str:
        """Return the id of the last entry that a reader can have seen; see `after`."""
        position = self._table.end()
        return f"0-{position.batch}.{position.id}"

    def newest(self, count: int, before: str = "", since: int = 0, until: int = 0) -> list[StreamEntry]:
        return list(map(_of_row, self._table.newest(count, _position(before).id if before else None, since, until)))

    def after(self, entry_id: str) -> list[StreamEntry]:
        """Return the entries after this one, in the order in which they became visible."""
        return list(map(_of_row, self._table.after(_position(entry_id), EVENTS_A_PAGE)))


def _position(entry_id: str) -> Position:
    batch, _, number = entry_id.partition("-")[2].partition(".")
    return Position(int(batch or 0), int(number or 0))


def _of_row(row: LoggedEvent) -> StreamEntry:
    return _of_record(f"{row.at // 1_000}-{row.position.batch}.{row.position.id}", row.record)


def _of_record(name: str, record: EventRecord | None) -> StreamEntry:
    fields: dict[str | bytes, str | bytes]
    fields = {} if record is None else {field: str(part) for field, part in record._asdict().items()}
    return _entry(name, fields)


class MemoryEvents(EventReader):
    """The log in the memory of this process. An id is as in Redis."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._reading = ReadEvents([system_key(prefix, "events")])
        self._store = store

    def _entries(self) -> Sequence[LoggedRecord]:
        found: Sequence[LoggedRecord] = self._store.run(self._reading, frozen_now())
        return found

    def last_id(self) -> str:
        entries = self._entries()
        return entries[-1].id if entries else BEGINNING

    def newest(self, count: int, before: str = "", since: int = 0, until: int = 0) -> list[StreamEntry]:
        first: tuple[float, float] = (since // 1_000, 0)
        last: tuple[float, float] = (until // 1_000, inf) if until else (inf, 0)
        last = min(last, _parts(before)) if before else last
        found = [each for each in reversed(self._entries()) if first <= _parts(each.id) <= last and each.id != before]
        return [_of_record(*each) for each in found[:count]]

    def after(self, entry_id: str) -> list[StreamEntry]:
        found = [each for each in self._entries() if _parts(each.id) > _parts(entry_id)]
        return [_of_record(*each) for each in found[:EVENTS_A_PAGE]]


def _parts(entry_id: str) -> tuple[float, float]:
    moment, _, number = entry_id.partition("-")
    return int(moment), int(number)


def event_log(store: Store, prefix: str) -> EventReader:
    """Return the log of a store."""
    if store.redis is not None:
        return EventStream(store.redis, prefix)
    return MemoryEvents(store, prefix) if store.database is None else EventRows(store.database, prefix)


def newest_events(store: Store, prefix: str, count: int) -> list[Event]:
    """Return the events among the last `count` entries, the newest first."""
    entries = event_log(store, prefix).newest(count)
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


_FIELDS: Mapping[str | bytes, str] = {name.encode(): name for name in EventRecord._fields}
"""The fields of an event, as redis-py returns them."""


_BANNED = frozenset({b"banned", "banned"})
"""The kind of a ban, as redis-py returns it."""


def _entry(entry_id: str | bytes, fields: Mapping[str | bytes, str | bytes] | None) -> StreamEntry:
    name = text(entry_id)
    texts = {  # a search reads thousands of entries, and most of them as bytes
        _FIELDS.get(key) or text(key): value.decode(errors="backslashreplace") if type(value) is bytes else str(value)
        for key, value in (fields or {}).items()
    }
    try:
        return StreamEntry(name, Event.read(name, texts))
    except ValueError:
        return StreamEntry(name, None)


# --- floods -----------------------------------------------------------------------------------------------------------


FLOOD = 5
"""How many subjects, or else how many refusals of one subject, are a flood."""

FLOOD_GAP = 600 * SECOND
"""Microseconds without a refusal after which a flood has ended."""


class Flood(NamedTuple):
    """Refusals by one rule, one soon after the other."""

    events: Sequence[Event]
    """The newest first."""
    subjects: int
    """How many subjects were refused."""

    @property
    def rule(self) -> str | None:
        """The rule that refused them."""
        return self.events[0].rule

    @property
    def subject(self) -> str | None:
        """The subject that was refused, if it was only one."""
        return self.events[0].subject if self.subjects == 1 else None

    @property
    def kind_of_subjects(self) -> str:
        """The kind of all subjects, such as "user"; empty if they differ, or if one has several.

        A name too long to keep does not count.
        """
        names = {event.subject for event in self.events if event.subject}
        kinds = {"" if "+" in name else name.partition(":")[0] for name in names}
        return kinds.pop() if len(kinds) == 1 else ""

    @property
    def at(self) -> int:
        """The time of the last refusal, in microseconds."""
        return self.events[0].at

    @property
    def since(self) -> int:
        """The time of the first refusal, in microseconds."""
        return self.events[-1].at


def with_floods(events: Iterable[Event]) -> list[Event | Flood]:
    """Return events (the newest first) with floods in place of their refusals, each where its last refusal was."""
    runs: dict[str | None, list[Event]] = {}
    flood_of: dict[str, Flood] = {}
    all_events = list(events)
    ended: list[list[Event]] = []
    for event in all_events:
        if event.kind != "refused":
            continue
        run = runs.get(event.rule)
        if run is None or run[-1].at - event.at > FLOOD_GAP:
            run = runs[event.rule] = []
            ended.append(run)
        run.append(event)
    for run in ended:
        for flood in _floods(run):
            flood_of.update(dict.fromkeys((event.id for event in flood.events), flood))
    shown: list[Event | Flood] = []
    for event in all_events:
        of_event = flood_of.get(event.id)
        if of_event is None:
            shown.append(event)
        elif of_event.events[0] is event:
            shown.append(of_event)
    return shown


def _floods(run: Sequence[Event]) -> list[Flood]:
    """Return the floods among refusals by one rule: of many subjects, or else of single ones."""
    by_subject: dict[str | None, list[Event]] = {}
    for event in run:
        by_subject.setdefault(event.subject, []).append(event)
    if len(by_subject) >= FLOOD:
        return [Flood(run, len(by_subject))]
    return [Flood(of_subject, 1) for of_subject in by_subject.values() if len(of_subject) >= FLOOD]
