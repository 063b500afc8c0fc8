"""What an error of a database driver means, and which of our errors replaces it.

Only this module turns errors of drivers into ours.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

from django.db.utils import Error as DjangoDatabaseError

from django_quota.core.caching import P, R
from django_quota.core.errors import (
    ConfigurationError,
    QuotaError,
    StoreBusy,
    StoreDataError,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
)
from django_quota.stores.base import reason_of


def of_database(call: Callable[P, R]) -> Callable[P, R]:
    """Let the errors of a call say that they are of the database; see `StoreUnavailable.is_of_database`."""

    @wraps(call)
    def named(*args: P.args, **options: P.kwargs) -> R:
        try:
            return call(*args, **options)
        except StoreUnavailable as error:
            error.is_of_database = True
            raise

    return named


class AnswerTimeoutError(Exception):
    """The server took too long to answer. It may have run the statements."""


class NoTurnError(Exception):
    """Other processes wrote all the time, so this one had no turn. Nothing was written."""


class Failure(NamedTuple):
    """What an error means."""

    error: QuotaError
    """Our error in its place."""
    is_outage: bool = False
    """Whether the database does not decide now: the breaker counts a failure."""
    is_lost: bool = False
    """Whether the connection is of no use any more: it is lost or silent, or leads to a server that only reads."""
    is_conflict: bool = False
    """Whether the database has ended the transaction in favour of another one: repeat it."""


_MISSING = ConfigurationError(
    "The database has no tables for the states, or old ones.", "Run: python manage.py migrate django_quota"
)

_ERRORS_BY_STATE: tuple[tuple[type[StoreUnavailable], tuple[str, ...]], ...] = (
    (StorePermissionDenied, ("28", "42501")),
    (StoreOutOfMemory, ("53100",)),
    (StoreRefusesWrites, ("25006", "0A000")),
)
"""Our errors, each with the SQLSTATEs of PostgreSQL, or their beginnings, that it is raised for."""

_TABLE_IS_MISSING = ("42P01", "42703")
_CONFLICT = ("40001", "40P01")
_LOCKED = "55P03"
_LOST_STATES = ("08", "28", "53300", "57P", "25006", "0A000")
"""SQLSTATEs of a connection that is lost or not made: connection exceptions, a login that is refused, too many
connections, a server that shuts down, and one that only reads (0A000: a replica, which refuses READ WRITE)."""

_TOO_SLOW = "57014"
"""The SQLSTATE of a statement that took longer than `statement_timeout`."""


def is_of_driver(error: BaseException) -> bool:
    """Say whether an error comes from a driver, and not from our own code or the caller's."""
    if isinstance(error, (DjangoDatabaseError, sqlite3.Error, AnswerTimeoutError, NoTurnError, OSError)):
        return True
    return type(error).__module__.partition(".")[0] in ("psycopg", "psycopg2")


def database_answered(error: BaseException) -> bool | None:
    """Say whether the database works; None if an error comes from elsewhere."""
    return not failure_of(error).is_outage if is_of_driver(error) else None


def is_lost(error: BaseException) -> bool:
    """Say whether the connection on which an error arose is of no use any more."""
    return is_of_driver(error) and failure_of(error).is_lost


def failure_of(error: BaseException) -> Failure:
    """Return what an error of a driver means. Raise its error `from None`: it may show the password."""
    cause = error.__cause__ if isinstance(error, DjangoDatabaseError) and error.__cause__ else error
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause)
    reason = _words_of(cause)
    if isinstance(cause, NoTurnError):
        return Failure(StoreBusy(reason))
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""
    if state in _TABLE_IS_MISSING:
        return Failure(_MISSING)
    if state in _CONFLICT:
        return Failure(StoreBusy(reason), is_conflict=True)
    if state == _LOCKED:
        # Processes of ours lock subjects, by a function. Who locks a table stops all decisions; then PostgreSQL names
        # the place in the statement.
        is_table = _statement_place(cause) is not None
        return Failure(StoreRefusesWrites(reason) if is_table else StoreBusy(reason), is_outage=is_table)
    is_gone = not state or state.startswith(_LOST_STATES)
    kinds = [kind for kind, states in _ERRORS_BY_STATE if state.startswith(states)]
    if not state and "password authentication failed" in reason:  # libpq has no SQLSTATE before the session begins
        kinds = [StorePermissionDenied]
    kind = kinds[0] if kinds else StoreUnavailable
    return Failure(kind(reason), is_outage=is_gone or state == _TOO_SLOW, is_lost=is_gone)


def _statement_place(error: BaseException) -> str | None:
    """Return the place in the statement that PostgreSQL names in an error."""
    place: str | None = getattr(getattr(error, "diag", None), "statement_position", None)
    return place


_SQLITE: dict[int, type[StoreUnavailable]] = {
    sqlite3.SQLITE_FULL: StoreOutOfMemory,
    sqlite3.SQLITE_READONLY: StoreRefusesWrites,
    sqlite3.SQLITE_BUSY: StoreRefusesWrites,
    sqlite3.SQLITE_PERM: StorePermissionDenied,
    sqlite3.SQLITE_AUTH: StorePermissionDenied,
    sqlite3.SQLITE_CORRUPT: StoreDataError,
    sqlite3.SQLITE_NOTADB: StoreDataError,
}

_FILE_IS_LOST = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
)
"""Errors after which the file is opened again: there may be another one under its name by now."""


def _of_sqlite(error: sqlite3.Error) -> Failure:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if "no such table" in str(error) or "no such column" in str(error):
        return Failure(_MISSING, is_outage=True, is_lost=True)  # the file was emptied: the next connection makes them
    is_gone = code in _FILE_IS_LOST or isinstance(error, sqlite3.ProgrammingError)
    is_held = code == sqlite3.SQLITE_BUSY  # all the time: see `SqliteConnection.begin`
    return Failure(_SQLITE.get(code, StoreUnavailable)(_words_of(error)), is_outage=is_gone or is_held, is_lost=is_gone)


def _words_of(error: BaseException) -> str:
    return reason_of(error, " ".join(str(error).split()))
