"""What an error of a database driver tells, and which of our errors replaces it.

Only this module turns errors of drivers into ours.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from django.db.utils import Error as DjangoDatabaseError

from django_quota.core.errors import (
    ConfigurationError,
    QuotaError,
    StoreDataError,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
)

MAX_REASON_LENGTH = 400
"""Characters of a driver's text that are passed on."""


class AnswerTimeoutError(Exception):
    """The server took too long for an answer. It may have done what it was asked for."""


class Failure(NamedTuple):
    """What an error tells."""

    error: QuotaError
    """Our error in its place."""
    is_silence: bool = False
    """Whether the database is gone or does not answer, so that the breaker counts a failure."""
    is_conflict: bool = False
    """Whether the database has ended the transaction in favour of another one: repeat it."""


_MISSING = ConfigurationError(
    "The database has no tables for the states, or old ones.", "Run: python manage.py migrate django_quota"
)

_KINDS: tuple[tuple[type[StoreUnavailable], tuple[str, ...]], ...] = (
    (StorePermissionDenied, ("28", "42501")),
    (StoreOutOfMemory, ("53100",)),
    (StoreRefusesWrites, ("25006",)),
)
"""Our errors, each with the SQLSTATEs of PostgreSQL, or their beginnings, that it is raised for."""

_TABLE_IS_MISSING = ("42P01", "42703")
_CONFLICT = ("40001", "40P01")
_SILENCE = ("", "08", "53300", "57P")
"""SQLSTATEs of a connection that is lost or not made: none at all, connection exceptions, too many connections, and
a server that shuts down."""


def is_of_driver(error: BaseException) -> bool:
    """Say whether an error comes from a driver, and not from our own code or the caller's."""
    if isinstance(error, (DjangoDatabaseError, sqlite3.Error, AnswerTimeoutError, OSError)):
        return True
    return type(error).__module__.partition(".")[0] in ("psycopg", "psycopg2")


def answered(error: BaseException) -> bool | None:
    """Say whether the database has answered; None if an error comes from elsewhere."""
    return not failure_of(error).is_silence if is_of_driver(error) else None


def failure_of(error: BaseException) -> Failure:
    """Return what an error of a driver tells. Raise its error `from None`: it may show the password."""
    cause = error.__cause__ if isinstance(error, DjangoDatabaseError) and error.__cause__ else error
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause)
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""
    if state in _TABLE_IS_MISSING:
        return Failure(_MISSING)
    reason = _reason(cause)
    if state in _CONFLICT:
        return Failure(StoreUnavailable(reason), is_conflict=True)
    for kind, states in _KINDS:
        if state.startswith(states):
            return Failure(kind(reason))
    if not state and "password authentication failed" in reason:  # libpq tells no SQLSTATE before the session begins
        return Failure(StorePermissionDenied(reason), is_silence=True)
    return Failure(StoreUnavailable(reason), is_silence=not state or state.startswith(_SILENCE[1:]))


_SQLITE: dict[int, type[StoreUnavailable]] = {
    sqlite3.SQLITE_FULL: StoreOutOfMemory,
    sqlite3.SQLITE_READONLY: StoreRefusesWrites,
    sqlite3.SQLITE_PERM: StorePermissionDenied,
    sqlite3.SQLITE_AUTH: StorePermissionDenied,
    sqlite3.SQLITE_CORRUPT: StoreDataError,
    sqlite3.SQLITE_NOTADB: StoreDataError,
}


def _of_sqlite(error: sqlite3.Error) -> Failure:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if "no such table" in str(error) or "no such column" in str(error):
        return Failure(_MISSING, is_silence=True)  # somebody has emptied the file: the next connection makes them
    is_gone = code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR) or isinstance(error, sqlite3.ProgrammingError)
    return Failure(_SQLITE.get(code, StoreUnavailable)(_reason(error)), is_silence=is_gone)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= MAX_REASON_LENGTH else f'{text[:MAX_REASON_LENGTH]}...'}"
