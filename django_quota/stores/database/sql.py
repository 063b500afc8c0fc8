"""The statements of the database store, for PostgreSQL and SQLite alike.

Values are part of the text, so several statements are one message to PostgreSQL, and a pooler in between needs no
prepared statements. All texts go through `literal`.
"""

# ruff: noqa: S608 — all texts go through `literal`

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from django_quota.engine.events import EventRecord
from django_quota.stores.database.states import Row

STATES, EVENTS, BANS = "django_quota_quotastate", "django_quota_quotaevent", "django_quota_quotaban"
"""The tables; see `models.QuotaState`, `QuotaEvent` and `QuotaBan`."""

HOUR = 3_600_000_000
"""Microseconds."""


def literal(text: str) -> str:
    """Return a text as a literal of standard SQL, in which a backslash is a backslash. Raises `ValueError` for a null.

    PostgreSQL reads it so in a session with `standard_conforming_strings`, which `PostgresConnection` insists on.
    """
    if "\0" in text:
        raise ValueError("a text with a null character has no place in a database")
    return "'" + text.replace("'", "''") + "'"


def digest(key: str) -> str:
    """Return the primary key of a state: 128 bits of the digest of its key, in hexadecimal digits."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def subject_of(key: str) -> str:
    """Return what a key shares with all keys of its subject."""
    return key.partition("}")[0]


def lock_of(subject: str) -> int:
    """Return the number of a subject's advisory lock, in 64 bits with a sign."""
    return int.from_bytes(hashlib.blake2b(subject.encode(), digest_size=8).digest(), "big", signed=True)


def _ids(keys: Iterable[str]) -> str:
    return ",".join([f"'{digest(key)}'" for key in keys])


def select(keys: Collection[str], now: str) -> str:
    """Return the query for the clock (a row with an empty key) and the rows of these keys.

    `now`: the SQL of the clock.
    """
    clock = f"SELECT '' AS value, {now} AS expires, '' AS key"
    if not keys:
        return clock
    return f"{clock} UNION ALL SELECT value, expires, key FROM {STATES} WHERE id IN ({_ids(keys)})"


def upsert(rows: Iterable[Row]) -> str:
    """Return the statement that writes rows. From its `hour` on, a sweep drops a row.

    `expires` has no index, and `hour` changes once an hour. So PostgreSQL need not touch an index for most hits.
    """
    values = ",".join(
        [
            f"('{digest(key)}',{literal(key)},{literal(value)},{expires},{expires // HOUR + 1})"
            for value, expires, key in rows
        ]
    )
    return (
        f"INSERT INTO {STATES} (id, key, value, expires, hour) VALUES {values} "
        "ON CONFLICT (id) DO UPDATE SET value = excluded.value, expires = excluded.expires, hour = excluded.hour"
    )


def delete(keys: Iterable[str]) -> str:
    """Return the statement that deletes the rows of these keys."""
    return f"DELETE FROM {STATES} WHERE id IN ({_ids(keys)})"


def log_events(log: str, events: Sequence[EventRecord], moment: int, batch: str) -> Iterator[str]:
    """Yield the statements that append events to a log, and keep its list of bans.

    "lifted" takes a ban off the list, and is no event. `batch`: the SQL of the number of this transaction. The lock of
    a subject also protects its bans.
    """
    told = [event for event in events if event.kind != "lifted"]
    if told:
        rows = ",".join([f"({literal(log)},{batch},{moment},{literal(json.dumps(event))})" for event in told])
        yield f"INSERT INTO {EVENTS} (log, batch, at, data) VALUES {rows}"
    begun = {(event.subject, event.rule): event.until for event in told if event.kind == "banned"}
    if begun:
        rows = ",".join(
            [
                f"('{_ban_id(log, subject, rule)}',{literal(log)},{literal(subject)},{literal(rule)},{until})"
                for (subject, rule), until in begun.items()
            ]
        )
        yield (
            f"INSERT INTO {BANS} (id, log, subject, rule, until) VALUES {rows} "
            "ON CONFLICT (id) DO UPDATE SET until = excluded.until"
        )
    ended = [_ban_id(log, event.subject, event.rule) for event in events if event.kind == "lifted"]
    if ended:
        yield f"DELETE FROM {BANS} WHERE id IN ({','.join([repr(each) for each in ended])})"


def _ban_id(log: str, subject: str, rule: str) -> str:
    return digest(f"{log} {subject} {rule}")


PAGE = 1_000
"""Rows of one page, or of one batch."""


def beginning(matching: str) -> str:
    """Return the text with which all keys that match a pattern begin."""
    return re.split(r"[*?\[\\]", matching, maxsplit=1)[0]


def page_of_keys(start: str, after: str) -> str:
    """Return the query for the next keys that begin with a text, after a primary key (or none)."""
    later = f" AND id > '{after}'" if after else ""
    return (
        f"SELECT id, key FROM {STATES} WHERE substr(key, 1, {len(start)}) = {literal(start)}{later} "
        f"ORDER BY id LIMIT {PAGE}"
    )


def rows_of(found: Sequence[Sequence[Any]]) -> tuple[int, list[Row]]:
    """Return the clock and the rows that `select` has found."""
    rows = [Row(*each) for each in found]
    (clock,) = [row.expires for row in rows if not row.key]
    return clock, [row for row in rows if row.key]
