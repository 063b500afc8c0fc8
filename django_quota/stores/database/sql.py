"""The statements of the database store, for PostgreSQL and SQLite alike.

Values are parameters: none becomes part of the SQL. So the SQL depends only on the number of keys or rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

from django_quota.engine.events import EventRecord
from django_quota.stores.base import Statement
from django_quota.stores.database.states import StateRow

STATE_TABLE, EVENT_TABLE, BAN_TABLE = "django_quota_quotastate", "django_quota_quotaevent", "django_quota_quotaban"
"""The tables; see `models.QuotaState`, `QuotaEvent` and `QuotaBan`. The SQL below names them literally."""

SWEEP_HOUR = 3_600_000_000
"""An hour in microseconds: the unit of `hour`, by which a sweep finds expired states."""


def state_id(key: str) -> str:
    """Return the primary key of a state: 128 bits of the digest of its key, in hexadecimal digits."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def subject_prefix(key: str) -> str:
    """Return what a key shares with all keys of its subject."""
    return key.partition("}")[0]


def lock_of(subject: str) -> int:
    """Return the number of a subject's advisory lock: 64 bits, signed."""
    return int.from_bytes(hashlib.blake2b(subject.encode(), digest_size=8).digest(), "big", signed=True)


def marks(count: int) -> str:
    """Return question marks for so many parameters."""
    return ",".join("?" * count)


# --- states -----------------------------------------------------------------------------------------------------------

_CLOCK = "SELECT '' AS value, {now} AS expires, '' AS key"
_SELECT = (
    "SELECT '' AS value, {now} AS expires, '' AS key "
    "UNION ALL SELECT value, expires, key FROM django_quota_quotastate WHERE id IN ({marks})"
)
_UPSERT = (
    "INSERT INTO django_quota_quotastate (id, key, value, expires, hour) VALUES {rows} "
    "ON CONFLICT (id) DO UPDATE SET value = excluded.value, expires = excluded.expires, hour = excluded.hour"
)
_DELETE = "DELETE FROM django_quota_quotastate WHERE id IN ({marks})"
_PAGE = "SELECT id, key FROM django_quota_quotastate WHERE substr(key, 1, ?) = ? AND id > ? ORDER BY id LIMIT ?"


@lru_cache(maxsize=128)
def _select_text(count: int, now: str) -> str:
    return (_SELECT if count else _CLOCK).format(now=now, marks=marks(count))


@lru_cache(maxsize=128)
def _rows_text(text: str, count: int, row: str) -> str:
    return text.format(rows=",".join([f"({row})"] * count))


def select(keys: Collection[str], now: str) -> Statement:
    """Return the query for the clock (a row with an empty key) and the rows of these keys.

    `now`: the SQL of the clock.
    """
    return Statement(_select_text(len(keys), now), [state_id(key) for key in keys])


def upsert(rows: Collection[StateRow]) -> Statement:
    """Return the statement that writes rows. From its `hour` on, a sweep drops a row.

    `expires` has no index, and `hour` changes once an hour. So PostgreSQL need not touch an index for most hits.
    """
    values: list[str | int] = []
    for value, expires, key in rows:
        values += (state_id(key), key, value, expires, expires // SWEEP_HOUR + 1)
    return Statement(_rows_text(_UPSERT, len(rows), "?,?,?,?,?"), values)


def delete(keys: Collection[str]) -> Statement:
    """Return the statement that deletes the rows of these keys."""
    return Statement(_DELETE.format(marks=marks(len(keys))), [state_id(key) for key in keys])


def rows_of(found: Sequence[Sequence[Any]]) -> tuple[int, list[StateRow]]:
    """Return the clock and the rows that `select` has found."""
    rows = [StateRow(*each) for each in found]
    (clock,) = [row.expires for row in rows if not row.key]
    return clock, [row for row in rows if row.key]


KEYS_A_PAGE = 1_000
"""Keys that one query of a walk over all keys returns."""


BEFORE_ALL = "0" * 32
"""The id before that of each state."""


def beginning(matching: str) -> str:
    """Return the string with which all keys that match a pattern begin."""
    return re.split(r"[*?\[\\]", matching)[0]


def page_of_keys(start: str, after: str) -> Statement:
    """Return the query for the next keys that begin with a string. `after`: the last id so far, or `BEFORE_ALL`."""
    return Statement(_PAGE, (len(start), start, after, KEYS_A_PAGE))


# --- events and bans --------------------------------------------------------------------------------------------------

_LOG_EVENT = "INSERT INTO django_quota_quotaevent (log, batch, at, data) VALUES {rows}"
_LOG_BAN = (
    "INSERT INTO django_quota_quotaban (id, log, subject, rule, until) VALUES {rows} "
    "ON CONFLICT (id) DO UPDATE SET until = excluded.until"
)
_LIFT = "DELETE FROM django_quota_quotaban WHERE id IN ({marks})"


def log_events(log: str, events: Sequence[EventRecord], moment: int, batch: str) -> Iterator[Statement]:
    """Yield the statements that append events to a log, and keep its list of bans.

    "lifted" and "listed" change the list alone. `batch`: the SQL of the number of this transaction. The lock of a
    subject also protects its bans.
    """
    logged = [event for event in events if event.is_logged]
    if logged:
        values = [value for event in logged for value in (log, moment, json.dumps(event))]
        yield Statement(_rows_text(_LOG_EVENT, len(logged), f"?,{batch},?,?"), values)
    begun = {(event.subject, event.rule): event.until for event in events if event.lists_ban}
    if begun:
        bans = [(_ban_id(log, *ban), log, *ban, until) for ban, until in begun.items()]
        yield Statement(_rows_text(_LOG_BAN, len(bans), "?,?,?,?,?"), [value for ban in bans for value in ban])
    ended = [_ban_id(log, event.subject, event.rule) for event in events if event.kind == "lifted"]
    if ended:
        yield Statement(_LIFT.format(marks=marks(len(ended))), ended)


def forget_bans(log: str) -> Statement:
    """Return the statement that empties the list of bans of a log."""
    return Statement("DELETE FROM django_quota_quotaban WHERE log = ? RETURNING 1", [log])


def _ban_id(log: str, subject: str, rule: str) -> str:
    return state_id(f"{log} {subject} {rule}")
