"""The event stream: refusals, bans and near-limit warnings of all processes, in one capped stream in Redis.

The decision script writes it. It writes bans to a second stream too, under the same ids, because a flood of refusals
trims the first stream and never the second. `EventStream` reads the stream for anybody. `EventGroup` reads it as a
consumer group: each event goes to one consumer of the group, and stays until it is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.clock import SECOND
from django_quota.core.errors import StoreUnavailable
from django_quota.core.keys import BAN_EVENTS, field, named, system_key
from django_quota.engine.events import NextEvent
from django_quota.engine.operations import text
from django_quota.stores.redis.store import RedisStore

KINDS = ("refused", "banned", "near")
"""The kinds of events: a refusal, a ban that began, a limit that is near."""

BEGINNING = "0-0"
"""The id before all others."""

START_ID = "0-1"
"""The id of the entry that a group writes to an empty stream, to start after it. When it is gone, events are too."""

_START = "began"
"""The kind of that entry, which is not an event."""

TTL = 400 * 86_400
"""Seconds for which the stream is kept after its last event; `lua/events.lua` has the same."""

DEAD_TTL = 30 * 86_400
"""Seconds for which dead letters are kept after the last one."""

DEAD_MAXLEN = 10_000
"""Dead letters that a group keeps. The oldest go first."""

PAGE = 500
"""Entries that one call reads."""

WAIT = 1_000
"""Milliseconds for which a read waits for something new: a consumer notices after them that it is to stop."""

OVERDUE = 5.0
"""Seconds after which a waiting read counts as not answered."""

MAX_CLAIM_INTERVAL = 10.0
"""The longest time in seconds between two looks for events that other consumers have left."""


_GONE = ("NOGROUP", "no such key", "UNBLOCKED")
"""Errors of Redis where the stream or the group is gone; they differ by command and version."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Times are microseconds since 1970."""

    id: str
    """Its id in the stream, such as `"1763700000000-0"`."""
    kind: str
    """One of `KINDS`."""
    rule: str | None
    """The rule's name; None if it is so long that only a digest is known."""
    subject: str | None
    """Whom it is about, such as `"ip:203.0.113.9"`; None if it is so long that only a digest is known."""
    until: int
    """When the same hit is admitted again, or the ban ends. 0: never; a near-limit warning has 0 too."""
    level: int
    """The number of the ban in a row, from 1; 0 for other events."""
    capacity: int
    """The limit."""
    remaining: int
    """What was left of the limit."""

    @classmethod
    def read(cls, entry_id: str, fields: Mapping[str, str]) -> Event:
        """Return the event of an entry. Raises `ValueError` for an entry that we have not written."""
        try:
            kind = fields["kind"]
            numbers = {name: int(fields[name]) for name in ("until", "level", "capacity", "remaining")}
            # A dead letter has an id of its own, and among its fields that of the event.
            event = cls(fields.get("id", entry_id), kind, named(fields["rule"]), named(fields["subject"]), **numbers)
        except KeyError as error:
            raise ValueError(f"entry {entry_id} has no {error}") from None
        if kind not in KINDS:
            raise ValueError(f"entry {entry_id} is of the kind {kind!r}")
        return event

    @property
    def at(self) -> int:
        """The time of the event by Redis' clock, to the millisecond."""
        return moment_of(self.id)

    @property
    def value(self) -> str | None:
        """The subject without its kind: `"203.0.113.9"` of `"ip:203.0.113.9"`, but all of `"global"`."""
        return None if self.subject is None else self.subject.partition(":")[2] or self.subject

    @property
    def lasts(self) -> int:
        """The time from the event to its end in microseconds, to the millisecond; 0 if it has no end."""
        return max(0, self.until - self.at) // 1_000 * 1_000 if self.until else 0

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON: the fields, with times as ISO 8601 in UTC (`until` is null if there is none)."""
        return {**asdict(self), "at": iso(self.at), "until": iso(self.until) if self.until else None}


def iso(moment: int) -> str:
    """Return a moment (microseconds) as ISO 8601 in UTC."""
    return datetime.fromtimestamp(moment // SECOND, UTC).replace(microsecond=moment % SECOND).isoformat()


def moment_of(entry_id: str) -> int:
    """Return the time of an id in microseconds."""
    return int(entry_id.partition("-")[0]) * 1_000


class StreamEntry(NamedTuple):
    """An entry of the stream; `event` is None for an entry that we have not written."""

    id: str
    event: Event | None
    is_mark: bool = False
    """Whether it is the entry `START_ID`."""


class EventStream:
    """Reads the stream, for anybody. Each method raises `StoreUnavailable` if Redis does not answer."""

    def __init__(self, store: RedisStore, prefix: str, what: str = "events") -> None:
        self.store = store
        self.prefix = prefix
        self.key = system_key(prefix, what)

    def last(self, count: int, wanted: Callable[[Event], bool]) -> list[Event]:
        """Return the last `count` events for which `wanted` is true, the oldest first."""
        found: list[Event] = []
        for entry in self._backwards():
            if len(found) >= count:
                break
            if entry.event is not None and wanted(entry.event):
                found.append(entry.event)
        return found[::-1]

    def _backwards(self) -> Iterator[StreamEntry]:
        before = "+"
        while True:
            with self.store.commands() as client:
                page = _page(client.xrevrange(self.key, before, "-", PAGE))
            yield from page
            if len(page) < PAGE:
                return
            before = f"({page[-1].id}"

    def last_id(self, before: int | None = None) -> str:
        """Return the id of the last entry, or of the last one before a moment (microseconds); else `BEGINNING`."""
        # The id of an entry, not of a moment: if the entry is gone later, the stream was trimmed past it.
        upper = "+" if before is None else f"({before // 1_000}-0"
        with self.store.commands() as client:
            page = _page(client.xrevrange(self.key, upper, "-", 1))
        return page[0].id if page else BEGINNING

    def newest(self, count: int, after: str = BEGINNING) -> list[StreamEntry]:
        """Return the last `count` entries after this one, the oldest first. It does not wait."""
        with self.store.commands() as client:
            return _page(client.xrevrange(self.key, "+", f"({after}", count))[::-1]

    def after(self, entry_id: str) -> list[StreamEntry]:
        """Return the entries after this one, at most `PAGE`; if there are none, wait for up to a second."""
        with self.store.commands() as client:
            return _entries(_waiting(client, "XREAD", "COUNT", PAGE, "BLOCK", WAIT, "STREAMS", self.key, entry_id))


class Delivery(NamedTuple):
    """What a consumer does next."""

    id: str
    event: Event | None
    """The event; None for an entry that only has to be acknowledged."""
    found: Literal["new", "left", "trimmed", "alien", "mark"] = "new"
    """New; left by a consumer that ended; trimmed before it was done; an entry of somebody else; or `START_ID`."""
    behind: str | None = None
    """The last id that the group had read, where the stream was trimmed past it."""


class EventGroup:
    """A consumer of a group. Each event goes to one consumer, and to another one if it is not acknowledged.

    The consumer's name must be its own: it does first what was left under that name. What other consumers leave for
    `min_idle` seconds is done by the first that looks. Each method raises `StoreUnavailable` if Redis does not
    answer.
    """

    def __init__(self, stream: EventStream, group: str, consumer: str, min_idle: float) -> None:
        self.stream = stream
        self.group = group
        self.consumer = consumer
        self._bans = EventStream(stream.store, stream.prefix, BAN_EVENTS)
        self._saved = BEGINNING
        """The last ban that came from the stream of bans, because the event stream had lost it."""
        self.dead = EventStream(stream.store, stream.prefix, f"dead:{field(group)}")
        """The events that the group gave up."""
        self._min_idle = int(min_idle * 1_000)
        self._own: str | None = BEGINNING
        self._look_at = 0.0

    def begin(self, after: str) -> bool:
        """Create the group if there is none, to read what comes after this id; return whether it was created."""
        start = ("XADD", self.stream.key, START_ID, "kind", _START)  # refused if the stream is not empty
        if after == BEGINNING and self._create(*start, unless="equal or smaller"):
            after = START_ID
        return self._create("XGROUP CREATE", self.stream.key, self.group, after, "MKSTREAM", unless="BUSYGROUP")

    def _create(self, *command: str, unless: str) -> bool:
        """Send a command that creates something, and renew the TTL; False where Redis answers that it is there."""
        try:
            with self.stream.store.commands() as client, client.pipeline() as lent:
                transaction: Any = lent  # redis-py leaves it untyped
                transaction.execute_command(*command)
                transaction.expire(self.stream.key, TTL)
                transaction.execute()
        except StoreUnavailable as error:
            if unless not in error.reason:
                raise
            return False
        return True

    def take(self, wait: int = WAIT) -> Delivery | None:
        """Return what to do next, waiting for at most `wait` milliseconds (above 0); None if there is nothing.

        Raises `LookupError` where the group is gone because Redis has lost its memory.
        """
        try:
            with self.stream.store.commands() as client:
                return self._left_by_itself(client) or self._left_by_others(client) or self._new(client, wait)
        except StoreUnavailable as error:
            if not any(words in error.reason for words in _GONE):
                raise
            raise LookupError(f"The group {self.group!r} is gone.") from error

    def look_back(self) -> None:
        """Take what is left under the consumer's name next: the reply that handed it over may have been lost."""
        self._own = BEGINNING

    def keep(self, entry_id: str, idle: int = 0) -> None:
        """Claim an event again while you work on it: other consumers leave it alone for another `min_idle`."""
        with self.stream.store.commands() as client:
            client.xclaim(self.stream.key, self.group, self.consumer, 0, [entry_id], idle=idle, justid=True)

    def leave(self, entry_id: str) -> None:
        """Leave an event to the first consumer that looks, because you stop before it is done."""
        self.keep(entry_id, self._min_idle + 1)

    def tidy(self) -> None:
        """Delete this consumer, and others of the group that have ended, if nothing is left under their names."""
        with self.stream.store.commands() as client:
            for each in client.xinfo_consumers(self.stream.key, self.group):
                is_gone = text(each["name"]) == self.consumer or each["idle"] >= self._min_idle
                if is_gone and not each["pending"]:
                    client.xgroup_delconsumer(self.stream.key, self.group, each["name"])

    def acknowledge(self, entry_id: str) -> None:
        """Acknowledge an event: no consumer gets it again."""
        with self.stream.store.commands() as client:
            client.xack(self.stream.key, self.group, entry_id)

    def bury(self, entry_id: str) -> None:
        """Give an event up: it goes to `dead` as it is, and no consumer gets it again."""
        with self.stream.store.commands() as client:
            found: Any = client.xrange(self.stream.key, entry_id, entry_id)
            found = found or client.xrange(self._bans.key, entry_id, entry_id)
            with client.pipeline() as transaction:
                for _, fields in found:
                    transaction.xadd(self.dead.key, {**fields, "id": entry_id}, maxlen=DEAD_MAXLEN)
                    transaction.expire(self.dead.key, DEAD_TTL)
                transaction.xack(self.stream.key, self.group, entry_id)
                transaction.execute()

    def _left_by_itself(self, client: Any) -> Delivery | None:
        if self._own is None:
            return None
        entries = _entries(client.xreadgroup(self.group, self.consumer, {self.stream.key: self._own}, 1))
        self._own = entries[0].id if entries else None
        return self._taken(client, entries[0], "left") if entries else None

    def _left_by_others(self, client: Any) -> Delivery | None:
        """Claim what was left for too long, one id at a time, so that a trimmed entry still has its id."""
        if time.monotonic() < self._look_at:
            return None
        for pending in client.xpending_range(self.stream.key, self.group, "-", "+", PAGE, idle=self._min_idle):
            entry_id = pending["message_id"]
            claimed = client.xclaim(self.stream.key, self.group, self.consumer, self._min_idle, [entry_id])
            if claimed and claimed[0][0] is not None:
                return self._taken(client, _entry(*claimed[0]), "left")
            if not client.xrange(self.stream.key, entry_id, entry_id):
                return self._trimmed(client, text(entry_id))
        self._look_at = time.monotonic() + min(MAX_CLAIM_INTERVAL, self._min_idle / 2_000)
        return None

    def _new(self, client: Any, wait: int) -> Delivery | None:
        taken, read = self._next(client)
        if taken is None and read:
            # Without the group, since bans may be lost while it waits.
            _waiting(client, "XREAD", "COUNT", 1, "BLOCK", wait, "STREAMS", self.stream.key, read)
            taken, _ = self._next(client)
        return taken

    def _next(self, client: Any) -> tuple[Delivery | None, str]:
        """Return the next lost ban or new entry, and the last id that the group had read before."""
        operation = NextEvent(self.stream.key, self._bans.key, self.group, self.consumer, self._saved)
        what, read, entries = self.stream.store.run(operation)
        what, read = text(what), text(read)
        if not entries:
            return None, read
        entry = _entry(entries[0][0], _paired(entries[0][1]))
        if what == "ban":
            self._saved = entry.id
            return Delivery(entry.id, entry.event), read
        return self._taken(client, entry, "new")._replace(behind=None if what == "new" else read), read

    def _taken(self, client: Any, entry: StreamEntry, found: Literal["new", "left"]) -> Delivery:
        if entry.event is not None:
            return Delivery(entry.id, entry.event, found)
        if entry.is_mark:
            return Delivery(entry.id, None, "mark")
        is_there = client.xrange(self.stream.key, entry.id, entry.id)
        return Delivery(entry.id, None, "alien") if is_there else self._trimmed(client, entry.id)

    def _trimmed(self, client: Any, entry_id: str) -> Delivery:
        """Return what to do about an entry that was trimmed. The stream of bans keeps bans longer."""
        for ban in _page(client.xrange(self._bans.key, entry_id, entry_id)):
            return Delivery(ban.id, ban.event, "left")
        return Delivery(entry_id, None, "trimmed")


def _waiting(client: Any, *command: str | int) -> Any:
    """Send a command that may wait, and wait for its reply longer than the client's own timeout."""
    with client.client() as one:
        connection: Any = one.connection
        connection.send_command(*command)
        try:
            is_answered = connection.can_read(timeout=OVERDUE)
        except BaseException:
            connection.disconnect()  # the reply may still come, and must not be read as another one
            raise
        if not is_answered:
            connection.disconnect()
            raise RedisTimeoutError(f"{command[0]} was not answered in {OVERDUE:g} s")
        return one.parse_response(connection, command[0])


def _entries(reply: Any) -> list[StreamEntry]:
    """Return the entries of a reply of XREAD: `[[key, entries]]`, or, in RESP3, `{key: [entries]}`."""
    if isinstance(reply, dict):
        return [entry for pages in reply.values() for page in pages for entry in _page(page)]
    return [entry for _, page in reply or () for entry in _page(page)]


def _paired(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def raw_entries(reply: Any) -> list[StreamEntry]:
    """Return the entries of a raw reply of XRANGE: `[[id, [name, value, name, value]]]`."""
    return [_entry(entry_id, _paired(flat or ())) for entry_id, flat in reply]


def _page(reply: Any) -> list[StreamEntry]:
    """Return the entries of a reply of XRANGE."""
    return [_entry(*raw) for raw in reply]


def _entry(entry_id: str | bytes, fields: Mapping[str | bytes, str | bytes] | None) -> StreamEntry:
    name, texts = text(entry_id), {text(key): text(value) for key, value in (fields or {}).items()}
    try:
        return StreamEntry(name, Event.read(name, texts))
    except ValueError:
        return StreamEntry(name, None, is_mark=texts.get("kind") == _START)
