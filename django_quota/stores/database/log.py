"""The event log of a database, and its list of bans: what pages and commands read of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from django_quota.engine.events import EventRecord
from django_quota.stores.database.connections import Connection
from django_quota.stores.database.sql import BANS, EVENTS, HOUR, STATES, literal
from django_quota.stores.database.store import DatabaseStore

# ruff: noqa: S608 — all texts go through `literal`


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

    def __init__(self, store: DatabaseStore, key: str) -> None:
        self._store = store
        self._log = literal(key)

    def newest(self, count: int, before: int | None = None) -> list[LoggedEvent]:
        """Return the last `count` events, the newest first. `before`: only events with a smaller id."""
        older = "" if before is None else f" AND id < {before}"
        return self._read(lambda _: f"{older} ORDER BY id DESC LIMIT {count}")

    def after(self, position: Position, count: int) -> list[LoggedEvent]:
        """Return the next `count` events after a place in the log."""
        batch, number = position
        return self._read(
            lambda connection: (
                f" AND (batch > {batch} OR (batch = {batch} AND id > {number})) AND "
                f"{connection.settled} ORDER BY batch, id LIMIT {count}"
            )
        )

    def end(self) -> Position:
        """Return the place of the last event that a follower would have seen."""
        found = self._read(lambda connection: f" AND {connection.settled} ORDER BY batch DESC, id DESC LIMIT 1")
        return found[0].position if found else Position(0, 0)

    def _read(self, condition: Any) -> list[LoggedEvent]:
        def query(connection: Connection) -> str:
            return f"SELECT batch, id, at, data FROM {EVENTS} WHERE log = {self._log}{condition(connection)}"

        return [
            LoggedEvent(Position(batch, number), at, _record(data))
            for batch, number, at, data in self._store.read(query)
        ]

    def bans(self, now: int, count: int) -> tuple[int, list[LoggedBan]]:
        """Return how many bans are in force, and those that end first."""
        in_force = f"FROM {BANS} WHERE log = {self._log} AND until > {now}"
        ((total,),) = self._store.read(lambda _: f"SELECT count(*) {in_force}")
        rows = self._store.read(lambda _: f"SELECT subject, rule, until {in_force} ORDER BY until LIMIT {count}")
        return int(total), [LoggedBan(*row) for row in rows]


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


def _conditions(store: DatabaseStore, now: int, keep: int) -> Iterator[tuple[str, str]]:
    """Yield each table with the condition of its rows that nobody needs; `keep`: how many events of each log."""
    yield STATES, f"hour <= {now // HOUR}"
    yield BANS, f"until <= {now}"
    logs = [log for (log,) in store.read(lambda _: f"SELECT DISTINCT log FROM {EVENTS}")]
    oldest = " OR ".join(
        f"(log = {literal(log)} AND id <= (SELECT id FROM {EVENTS} WHERE log = {literal(log)} "
        f"ORDER BY id DESC LIMIT 1 OFFSET {keep}))"
        for log in logs
    )
    yield EVENTS, oldest or "1 = 0"


def count_expired(store: DatabaseStore, now: int, keep: int) -> Expired:
    """Return how many rows a sweep would delete."""
    counts: list[int] = []
    for table, condition in _conditions(store, now, keep):
        ((count,),) = store.read(lambda _: f"SELECT count(*) FROM {table} WHERE {condition}")  # noqa: B023
        counts.append(int(count))
    return Expired(*counts)


def delete_expired(store: DatabaseStore, now: int, keep: int, most: int) -> Expired:
    """Delete at most so many expired rows of each table, in one short transaction each; return how many they were.

    It waits for no decision, and a decision waits for it no longer than a batch takes.
    """
    counts: list[int] = []
    for table, condition in _conditions(store, now, keep):

        def statement(connection: Connection) -> str:
            chosen = f"SELECT id FROM {table} WHERE {condition} LIMIT {most}{connection.skip_locked}"  # noqa: B023
            return f"DELETE FROM {table} WHERE id IN ({chosen}) RETURNING 1"  # noqa: B023

        counts.append(len(store.write(statement)))
    return Expired(*counts)
