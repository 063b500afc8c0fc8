"""The event log of a database, and its list of bans: what pages and commands read of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from django_quota.engine.events import EventRecord
from django_quota.stores.base import Dialect, Statement, Tables
from django_quota.stores.database.sql import BAN_TABLE, EVENT_TABLE, STATE_TABLE, SWEEP_HOUR


class Position(NamedTuple):
    """A place in the log: all events up to it have been written."""

    batch: int
    id: int


class LoggedEvent(NamedTuple):
    """An event of the log."""

    position: Position
    at: int
    """Microseconds since 1970."""
    record: EventRecord | None
    """None for a row that we have not written."""


class LoggedBan(NamedTuple):
    """A ban in force, with the names as keys and fields have them."""

    subject: str
    rule: str
    until: int


class EventTable:
    """The log under a key. Each method raises `StoreUnavailable` if the database does not answer.

    Transactions do not end in the order in which they begin. So a follower of the log sees an event when all older
    transactions of the database have ended, and misses none.
    """

    def __init__(self, store: Tables, key: str) -> None:
        self._store = store
        self._key = key

    def newest(self, count: int, before: int | None = None, since: int = 0, until: int = 0) -> list[LoggedEvent]:
        """Return the last `count` events, the newest first. `before`: only events with a smaller id.

        `since`, `until`: only events from one moment to the other (microseconds); 0: from the first, to the last.
        """
        bounds = {"id < ?": before or 0, "at >= ?": since, "at <= ?": until}
        given = {condition: value for condition, value in bounds.items() if value}
        condition = "".join(f" AND {each}" for each in given)
        return self._read(lambda _: f"{condition} ORDER BY id DESC LIMIT ?", *given.values(), count)

    def after(self, position: Position, count: int) -> list[LoggedEvent]:
        """Return the next `count` events after a place in the log."""
        batch, number = position
        later = " AND (batch > ? OR (batch = ? AND id > ?)) AND {} ORDER BY batch, id LIMIT ?"
        return self._read(lambda dialect: later.format(dialect.settled), batch, batch, number, count)

    def end(self) -> Position:
        """Return the place of the last event that a follower would have seen."""
        found = self._read(lambda dialect: f" AND {dialect.settled} ORDER BY batch DESC, id DESC LIMIT 1")
        return found[0].position if found else Position(0, 0)

    def _read(self, condition: Callable[[Dialect], str], *values: int) -> list[LoggedEvent]:
        """Return events. `condition`: what follows in the query, with a mark for each of the values."""
        return [
            LoggedEvent(Position(batch, number), at, _record(data))
            for batch, number, at, data in self._store.read(
                lambda dialect: Statement(_EVENTS_OF_LOG + condition(dialect), (self._key, *values))
            )
        ]

    def bans(self, now: int, count: int) -> tuple[int, list[LoggedBan]]:
        """Return how many bans are in force, and those that end first."""
        ((total,),) = self._store.read(lambda _: Statement(_COUNT_BANS, (self._key, now)))
        rows = self._store.read(lambda _: Statement(_FIRST_BANS, (self._key, now, count)))
        return int(total), [LoggedBan(*row) for row in rows]


_EVENTS_OF_LOG = "SELECT batch, id, at, data FROM django_quota_quotaevent WHERE log = ?"
_COUNT_BANS = "SELECT count(*) FROM django_quota_quotaban WHERE log = ? AND until > ?"
_FIRST_BANS = (
    "SELECT subject, rule, until FROM django_quota_quotaban WHERE log = ? AND until > ? ORDER BY until LIMIT ?"
)


def _record(data: str) -> EventRecord | None:
    try:
        return EventRecord(*json.loads(data))
    except (ValueError, TypeError):
        return None


# --- what has expired -------------------------------------------------------------------------------------------------


class Expired(NamedTuple):
    """How many rows have expired, or were deleted because they had."""

    states: int = 0
    bans: int = 0
    events: int = 0
    """Events beyond those that the log keeps."""


class KeptEvents(NamedTuple):
    """Which events a log keeps."""

    most: int
    """How many."""
    span: int
    """For how long, in microseconds."""


_COUNT_ROWS = "SELECT count(*) FROM {table} WHERE {condition}"
_DELETE_SOME = (
    "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {condition} LIMIT ?{skip_locked}) RETURNING 1"
)
_LOGS = Statement("SELECT DISTINCT log FROM django_quota_quotaevent")
_BEYOND = "(log = ? AND id <= (SELECT id FROM django_quota_quotaevent WHERE log = ? ORDER BY id DESC LIMIT 1 OFFSET ?))"
_OLD = "at < ?"


def _conditions(store: Tables, now: int, keep: KeptEvents) -> Iterator[tuple[str, Statement]]:
    """Yield each table with the condition of its rows that nobody needs; `keep`: the events of each log that stay."""
    yield STATE_TABLE, Statement("hour <= ?", (now // SWEEP_HOUR,))
    yield BAN_TABLE, Statement("until <= ?", (now,))
    logs = [log for (log,) in store.read(lambda _: _LOGS)]
    values = [value for log in logs for value in (log, log, keep.most)]
    yield EVENT_TABLE, Statement(" OR ".join([_OLD, *[_BEYOND] * len(logs)]), (now - keep.span, *values))


def count_expired(store: Tables, now: int, keep: KeptEvents) -> Expired:
    """Return how many rows a sweep would delete."""
    counts: list[int] = []
    for table, (condition, values) in _conditions(store, now, keep):
        query = Statement(_COUNT_ROWS.format(table=table, condition=condition), values)
        ((count,),) = store.read(lambda _: query)  # noqa: B023 — called at once
        counts.append(int(count))
    return Expired(*counts)


def delete_expired(store: Tables, now: int, keep: KeptEvents, most: int) -> Expired:
    """Delete at most so many expired rows of each table, in one short transaction each; return how many they were.

    It waits for no decision, and a decision waits for it no longer than a batch takes.
    """
    counts: list[int] = []
    for table, (condition, values) in _conditions(store, now, keep):

        def statement(dialect: Dialect) -> Statement:
            skip = dialect.skip_locked
            text = _DELETE_SOME.format(table=table, condition=condition, skip_locked=skip)  # noqa: B023
            return Statement(text, (*values, most))  # noqa: B023

        counts.append(len(store.write(statement)))
    return Expired(*counts)
