"""The event stream: what every process was refused, banned or warned about, in one capped stream in Redis.

The decision script writes it, and bans into a second stream as well, under the same ids: a flood of refusals trims the
first, and never the second. Here they are read: by anybody (`EventStream`), or by a consumer group that hands every
event to one of its consumers and keeps it until it is acknowledged (`EventGroup`). It must not know what is done with
events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.clock import SECOND
from django_quota.exceptions import StoreUnavailable
from django_quota.keys import BAN_EVENTS, field, named, system_key
from django_quota.operations.base import text
from django_quota.stores.redis import RedisStore

KINDS = ("refused", "banned", "near")
"""What events tell of: a refusal, a ban that began, a limit that is near."""

BEGINNING = "0-0"
"""The id before all others."""

BEGAN = "0-1"
"""The id of the entry that a group writes to an empty stream, to begin behind it: once it is gone, events are, too."""

_BEGAN = "began"
"""The kind of that entry. It is no event, and nobody is told of it."""

KEPT = 400 * 86_400
"""Seconds that the stream is kept after its last event, as `lua/telling.lua` has it."""

DEAD_KEPT = 30 * 86_400
"""Seconds that dead letters are kept after the last one."""

DEAD_MAXLEN = 10_000
"""Dead letters that a group keeps; the oldest go first."""

PAGE = 500
"""Entries that are read at a time."""

WAIT = 1_000
"""Milliseconds that a read waits for something new: so long may a consumer take to notice that it is to stop."""

OVERDUE = 5.0
"""Seconds after which a read that waits has not been answered at all."""

LONGEST_BETWEEN_LOOKS = 10.0
"""Seconds after which a consumer looks again for what others of its group have left behind."""


_GONE = ("NOGROUP", "no such key", "UNBLOCKED")
"""What Redis says, by command, version and moment, where the stream or the group is gone."""


_NEXT = """
-- Hands over the next entry of the group, or the next ban that was lost before it. At once, since a flood
-- trims the stream at any time: a ban that it takes between a look and a read would be passed by.
-- While the group reads nothing new, each consumer that begins finds all lost bans: none is lost with its consumer.
--
-- KEYS   [1] the event stream; [2] the stream of bans
-- ARGV   [1] the group; [2] the consumer; [3] the last lost ban that the consumer was handed
-- reply  {what, read, entries}: "new", "ban", or "behind" where the stream was trimmed past what was read;
--        what the group had read up to then; at most one entry
local read = '0-0'
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local of = {}
  for at = 1, #group, 2 do of[group[at]] = group[at + 1] end
  if of['name'] == ARGV[1] then read = of['last-delivered-id'] end
end
local function numbers(id) return string.match(id, '^(%d+)-(%d+)$') end
local function is_later(one, other)
  local time, number = numbers(one)
  local other_time, other_number = numbers(other)
  if time ~= other_time then return tonumber(time) > tonumber(other_time) end
  return tonumber(number) > tonumber(other_number)
end
local what = 'new'
if read == '0-0' or not redis.call('XRANGE', KEYS[1], read, read)[1] then
  if read ~= '0-0' then what = 'behind' end
  local after = is_later(ARGV[3], read) and ARGV[3] or read
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  local bans = redis.call('XRANGE', KEYS[2], '(' .. after, first and '(' .. first[1] or '+', 'COUNT', 1)
  if bans[1] then return { 'ban', read, bans } end
end
-- Trimming takes the oldest first: while the last that was read is there, nothing behind it is missing.
local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[1], '>')
return { what, read, found and found[1] and found[1][2] or {} }
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Times are microseconds since 1970."""

    id: str
    """Its id in the stream, such as `"1763700000000-0"`."""
    kind: str
    """One of `KINDS`."""
    rule: str | None
    """The rule's name; None where it is so long that only a digest is known."""
    subject: str | None
    """Whom it is about, such as `"ip:203.0.113.9"`; None where it is so long that only a digest is known."""
    until: int
    """When the same hit is admitted again, or the ban ends; 0: never, or, near a limit, nothing."""
    level: int
    """Which ban in a row it is, from 1; 0 for what is no ban."""
    capacity: int
    """The limit."""
    remaining: int
    """What was left of it."""

    @classmethod
    def read(cls, entry_id: str, fields: Mapping[str, str]) -> Event:
        """Return the event of an entry of the stream. Raises `ValueError` where it is none of ours."""
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
        """When it happened, by Redis' clock, to the millisecond."""
        return moment_of(self.id)

    @property
    def value(self) -> str | None:
        """The subject without what kind it is: `"203.0.113.9"` of `"ip:203.0.113.9"`, and all of `"global"`."""
        return None if self.subject is None else self.subject.partition(":")[2] or self.subject

    @property
    def lasts(self) -> int:
        """From the event until its end, in microseconds, to the millisecond as `at`; 0 where it has none."""
        return max(0, self.until - self.at) // 1_000 * 1_000 if self.until else 0

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it: the fields, and times as ISO 8601 in UTC (`until` null where there is none)."""
        return {**asdict(self), "at": iso(self.at), "until": iso(self.until) if self.until else None}


def iso(moment: int) -> str:
    """Return a moment (microseconds) as ISO 8601 in UTC."""
    return datetime.fromtimestamp(moment // SECOND, UTC).replace(microsecond=moment % SECOND).isoformat()


def moment_of(entry_id: str) -> int:
    """Return the moment (microseconds) that an id of the stream stands for."""
    return int(entry_id.partition("-")[0]) * 1_000


class Entry(NamedTuple):
    """An entry of the stream; `event` is None where it is none of ours."""

    id: str
    event: Event | None
    is_mark: bool = False
    """Whether it only says that a group began here."""


class EventStream:
    """The stream, for whoever wants to look. Every method raises `StoreUnavailable` where Redis does not answer."""

    def __init__(self, store: RedisStore, prefix: str, what: str = "events") -> None:
        self.store = store
        self.prefix = prefix
        self.key = system_key(prefix, what)

    def last(self, count: int, wanted: Callable[[Event], bool]) -> list[Event]:
        """Return the last events that are wanted, the oldest first, `count` at most."""
        found: list[Event] = []
        for entry in self._backwards():
            if len(found) >= count:
                break
            if entry.event is not None and wanted(entry.event):
                found.append(entry.event)
        return found[::-1]

    def _backwards(self) -> Iterator[Entry]:
        before = "+"
        while True:
            with self.store.commands() as client:
                page = _page(client.xrevrange(self.key, before, "-", PAGE))
            yield from page
            if len(page) < PAGE:
                return
            before = f"({page[-1].id}"

    def last_id(self, before: int | None = None) -> str:
        """Return the id of the last entry, or of the last before a moment (microseconds); `BEGINNING` without one."""
        # The id of a real entry, not of a moment: by its absence one sees that the stream was trimmed past it.
        upper = "+" if before is None else f"({before // 1_000}-0"
        with self.store.commands() as client:
            page = _page(client.xrevrange(self.key, upper, "-", 1))
        return page[0].id if page else BEGINNING

    def newest(self, count: int, after: str = BEGINNING) -> list[Entry]:
        """Return the last entries behind this one, the oldest first, `count` at most, and wait for none."""
        with self.store.commands() as client:
            return _page(client.xrevrange(self.key, "+", f"({after}", count))[::-1]

    def after(self, entry_id: str) -> list[Entry]:
        """Return the entries behind this one, `PAGE` at most; where there is none, wait up to a second for some."""
        with self.store.commands() as client:
            return _entries(_waiting(client, "XREAD", "COUNT", PAGE, "BLOCK", WAIT, "STREAMS", self.key, entry_id))


class Taken(NamedTuple):
    """What a consumer is to do next."""

    id: str
    event: Event | None
    """The event; None where there is nothing to do but to acknowledge."""
    found: Literal["new", "left", "trimmed", "alien", "mark"] = "new"
    """New; left behind by a consumer that ended; trimmed away before it was done; no event at all; or `BEGAN`."""
    behind: str | None = None
    """Where the stream was trimmed past what the group had read: the last id that it had read."""


class EventGroup:
    """A consumer of a group: every event is taken by one of them, and again by another where it is not acknowledged.

    Its name must be its own: what was left under it is done first. What others leave unfinished for `min_idle` seconds
    is done by whoever looks first. Every method raises `StoreUnavailable` where Redis does not answer.
    """

    def __init__(self, stream: EventStream, group: str, consumer: str, min_idle: float) -> None:
        self.stream = stream
        self.group = group
        self.consumer = consumer
        self._bans = EventStream(stream.store, stream.prefix, BAN_EVENTS)
        self._saved = BEGINNING
        """The last ban that was taken from the stream of bans, since the event stream had lost it."""
        self.dead = EventStream(stream.store, stream.prefix, f"dead:{field(group)}")
        """The events that the group has given up."""
        self._min_idle = int(min_idle * 1_000)
        self._own: str | None = BEGINNING
        self._look_at = 0.0

    def begin(self, after: str) -> bool:
        """Make the group where there is none, to read what comes behind this id; say whether it was made."""
        if after == BEGINNING and self._mark():
            after = BEGAN
        try:
            with self.stream.store.commands() as client, client.pipeline() as transaction:
                transaction.xgroup_create(self.stream.key, self.group, after, mkstream=True)
                transaction.expire(self.stream.key, KEPT)
                transaction.execute()
        except StoreUnavailable as error:
            if "BUSYGROUP" not in error.reason:
                raise
            return False
        return True

    def _mark(self) -> bool:
        """Write `BEGAN` to the stream where that is empty; say whether it was."""
        try:
            with self.stream.store.commands() as client, client.pipeline() as transaction:
                transaction.xadd(self.stream.key, {"kind": _BEGAN}, id=BEGAN)
                transaction.expire(self.stream.key, KEPT)
                transaction.execute()
        except StoreUnavailable as error:
            if "equal or smaller" not in error.reason:
                raise
            return False
        return True

    def take(self, wait: int = WAIT) -> Taken | None:
        """Return what to do next, waiting for it (milliseconds, above 0); None where there is nothing.

        Raises `LookupError` where the group is gone: Redis has lost its memory.
        """
        try:
            with self.stream.store.commands() as client:
                return self._left_by_itself(client) or self._left_by_others(client) or self._new(client, wait)
        except StoreUnavailable as error:
            if not any(words in error.reason for words in _GONE):
                raise
            raise LookupError(f"The group {self.group!r} is gone.") from error

    def look_back(self) -> None:
        """Take next what is left under the consumer's name: a reply that got lost may have handed something over."""
        self._own = BEGINNING

    def keep(self, entry_id: str) -> None:
        """Say that one is still busy with an event: others leave it alone for another `min_idle`."""
        with self.stream.store.commands() as client:
            client.xclaim(self.stream.key, self.group, self.consumer, 0, [entry_id], justid=True)

    def leave(self, entry_id: str) -> None:
        """Leave an event to whoever looks first: one stops before it is done."""
        with self.stream.store.commands() as client:
            client.xclaim(
                self.stream.key, self.group, self.consumer, 0, [entry_id], idle=self._min_idle + 1, justid=True
            )

    def tidy(self) -> None:
        """Drop the consumer, and others of the group that are gone, where they have nothing left to do."""
        with self.stream.store.commands() as client:
            for each in client.xinfo_consumers(self.stream.key, self.group):
                is_gone = text(each["name"]) == self.consumer or each["idle"] >= self._min_idle
                if is_gone and not each["pending"]:
                    client.xgroup_delconsumer(self.stream.key, self.group, each["name"])

    def acknowledge(self, entry_id: str) -> None:
        """Say that an event is done: nobody gets it again."""
        with self.stream.store.commands() as client:
            client.xack(self.stream.key, self.group, entry_id)

    def bury(self, entry_id: str) -> None:
        """Give an event up: it goes to `dead`, as it stands, and nobody gets it again."""
        with self.stream.store.commands() as client:
            found: Any = client.xrange(self.stream.key, entry_id, entry_id)
            found = found or client.xrange(self._bans.key, entry_id, entry_id)
            with client.pipeline() as transaction:
                for _, fields in found:
                    transaction.xadd(self.dead.key, {**fields, "id": entry_id}, maxlen=DEAD_MAXLEN)
                    transaction.expire(self.dead.key, DEAD_KEPT)
                transaction.xack(self.stream.key, self.group, entry_id)
                transaction.execute()

    def _left_by_itself(self, client: Any) -> Taken | None:
        if self._own is None:
            return None
        entries = _entries(client.xreadgroup(self.group, self.consumer, {self.stream.key: self._own}, 1))
        self._own = entries[0].id if entries else None
        return self._taken(client, entries[0], "left") if entries else None

    def _left_by_others(self, client: Any) -> Taken | None:
        """Take over what has been idle for too long: one id at a time, so that what was trimmed away has a name."""
        if time.monotonic() < self._look_at:
            return None
        for pending in client.xpending_range(self.stream.key, self.group, "-", "+", PAGE, idle=self._min_idle):
            entry_id = pending["message_id"]
            claimed = client.xclaim(self.stream.key, self.group, self.consumer, self._min_idle, [entry_id])
            if claimed and claimed[0][0] is not None:
                return self._taken(client, _entry(*claimed[0]), "left")
            if not client.xrange(self.stream.key, entry_id, entry_id):
                return self._trimmed(client, text(entry_id))
        self._look_at = time.monotonic() + min(LONGEST_BETWEEN_LOOKS, self._min_idle / 2_000)
        return None

    def _new(self, client: Any, wait: int) -> Taken | None:
        taken, read = self._next(client)
        if taken is None and read:
            # Without the group: who waits does not know yet whether bans get lost meanwhile.
            _waiting(client, "XREAD", "COUNT", 1, "BLOCK", wait, "STREAMS", self.stream.key, read)
            taken, _ = self._next(client)
        return taken

    def _next(self, client: Any) -> tuple[Taken | None, str]:
        """Return the next lost ban, or what is new in the stream; and what the group had read up to then."""
        keys = self.stream.key, self._bans.key
        what, read, entries = client.eval(_NEXT, len(keys), *keys, self.group, self.consumer, self._saved)
        what, read = text(what), text(read)
        if not entries:
            return None, read
        entry = _entry(entries[0][0], _paired(entries[0][1]))
        if what == "ban":
            self._saved = entry.id
            return Taken(entry.id, entry.event), read
        return self._taken(client, entry, "new")._replace(behind=None if what == "new" else read), read

    def _taken(self, client: Any, entry: Entry, found: Literal["new", "left"]) -> Taken:
        if entry.event is not None:
            return Taken(entry.id, entry.event, found)
        if entry.is_mark:
            return Taken(entry.id, None, "mark")
        is_there = client.xrange(self.stream.key, entry.id, entry.id)
        return Taken(entry.id, None, "alien") if is_there else self._trimmed(client, entry.id)

    def _trimmed(self, client: Any, entry_id: str) -> Taken:
        """Return what to do about an entry that the stream does not hold any more: a ban is kept longer."""
        for ban in _page(client.xrange(self._bans.key, entry_id, entry_id)):
            return Taken(ban.id, ban.event, "left")
        return Taken(entry_id, None, "trimmed")


def _waiting(client: Any, *command: str | int) -> Any:
    """Send a command that may wait, and wait for its reply longer than the client's own time-out may be."""
    with client.client() as one:
        connection: Any = one.connection
        connection.send_command(*command)
        try:
            is_answered = connection.can_read(timeout=OVERDUE)
        except BaseException:
            connection.disconnect()  # the reply may still come: nobody else must read it
            raise
        if not is_answered:
            connection.disconnect()
            raise RedisTimeoutError(f"{command[0]} was not answered in {OVERDUE:g} s")
        return one.parse_response(connection, command[0])


def _entries(reply: Any) -> list[Entry]:
    """Return the entries of a reply of XREAD: `[[key, entries]]`, or, in RESP3, `{key: [entries]}`."""
    if isinstance(reply, dict):
        return [entry for pages in reply.values() for page in pages for entry in _page(page)]
    return [entry for _, page in reply or () for entry in _page(page)]


def _paired(flat: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _page(reply: Any) -> list[Entry]:
    """Return the entries of a reply of XRANGE."""
    return [_entry(*raw) for raw in reply]


def _entry(entry_id: str | bytes, fields: Mapping[str | bytes, str | bytes] | None) -> Entry:
    name, texts = text(entry_id), {text(key): text(value) for key, value in (fields or {}).items()}
    try:
        return Entry(name, Event.read(name, texts))
    except ValueError:
        return Entry(name, None, is_mark=texts.get("kind") == _BEGAN)
