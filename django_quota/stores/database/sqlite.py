"""SQLite: states are in a file of their own, beside the site's database: `db.quota.sqlite3` beside `db.sqlite3`.

SQLite has one writer at a time. In the file of the site, a hit would wait for the transaction of the very request that
it belongs to, and the request's own writes would fail because a hit was written since it began to read. The store makes
the file, without migration or alias. A database in memory keeps its states in memory, too.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from django.db import connections

from django_quota.core.clock import machine_now
from django_quota.stores.base import Statement
from django_quota.stores.database.errors import NoTurnError
from django_quota.stores.database.sql import BAN_TABLE, EVENT_TABLE, STATE_TABLE

FILE_WAIT = 1.0
"""Seconds that a transaction waits for other processes."""

IN_MEMORY = ":memory:"

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS {STATE_TABLE} (
    id TEXT PRIMARY KEY, key TEXT NOT NULL, value TEXT NOT NULL, expires INTEGER NOT NULL, hour INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {STATE_TABLE}_hour ON {STATE_TABLE} (hour);
CREATE TABLE IF NOT EXISTS {EVENT_TABLE} (
    id INTEGER PRIMARY KEY AUTOINCREMENT, log TEXT NOT NULL, batch INTEGER NOT NULL, at INTEGER NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS {EVENT_TABLE}_order ON {EVENT_TABLE} (batch, id);
CREATE TABLE IF NOT EXISTS {BAN_TABLE} (
    id TEXT PRIMARY KEY, log TEXT NOT NULL, subject TEXT NOT NULL, rule TEXT NOT NULL, until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {BAN_TABLE}_until ON {BAN_TABLE} (until);
"""


def file_of(alias: str) -> str:
    """Return the file of the states for the database of an alias; `IN_MEMORY` for one in memory."""
    name = str(connections.settings[alias]["NAME"])
    if not name or name == IN_MEMORY or "mode=memory" in name:
        return IN_MEMORY
    path = Path(name.removeprefix("file:").partition("?")[0] if name.startswith("file:") else name)
    return str(path.with_name(f"{path.stem}.quota{path.suffix}"))


class SqliteConnection:
    """The connection of this process to the file. One thread uses it at a time."""

    now = "quota_now()"
    batch = "0"
    settled = "1"
    skip_locked = ""

    def __init__(self, alias: str) -> None:
        # Autocommit: the transactions are ours. The time-out is for `_prepare`: `begin` waits in its own way.
        connection = sqlite3.connect(file_of(alias), timeout=FILE_WAIT, isolation_level=None, check_same_thread=False)
        connection.create_function("quota_now", 0, machine_now)
        self._connection = connection
        try:
            self._prepare()
        except BaseException:
            connection.close()
            raise

    def _prepare(self) -> None:
        self._connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {_SCHEMA}")
        self._connection.execute("PRAGMA busy_timeout = 0")

    def begin(self, subjects: Iterable[str], query: Statement) -> Sequence[Sequence[Any]]:  # noqa: ARG002 — it locks the file
        """Begin a transaction that has locked the file, and return what a query finds in it.

        Raises `NoTurnError` if others wrote all the time, and SQLITE_BUSY if another process held the file.
        """
        until = time.monotonic() + FILE_WAIT
        version = None
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if version is None:
                    version = self._version()
                if time.monotonic() > until:
                    if version != self._version():
                        raise NoTurnError(f"other processes have written for {FILE_WAIT:.0f} s") from None
                    raise
            # SQLite's own waiting grows to a tenth of a second, and lets those go first who have come last.
            time.sleep(random.uniform(0.0002, 0.002))  # noqa: S311 — no secret
        return self._connection.execute(*query).fetchall()

    def _version(self) -> Any:
        """Return a number that changes when another connection commits."""
        return self._connection.execute("PRAGMA data_version").fetchone()

    def commit(self, statements: Sequence[Statement]) -> None:
        """Run these statements and commit."""
        for statement in statements:
            self._connection.execute(*statement)
        self._connection.execute("COMMIT")

    def read(self, query: Statement) -> Sequence[Sequence[Any]]:
        """Return what a query finds. It waits for no writer."""
        return self._connection.execute(*query).fetchall()

    def rollback(self) -> None:
        """End the transaction; nothing of it stays."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def is_ready(self) -> bool:
        """Say that the connection is open: there is no server."""
        return True

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
