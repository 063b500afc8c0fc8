"""What each error of a database driver means: our error, whether the database decides, which connection is lost."""

import sqlite3
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db.utils import OperationalError as DjangoOperationalError
from psycopg import errors as theirs

from django_quota.core.errors import (
    StoreBusy,
    StoreDataError,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
)
from django_quota.exceptions import ConfigurationError
from django_quota.stores.database.errors import (
    AnswerTimeoutError,
    NoTurnError,
    database_answered,
    failure_of,
    is_lost,
    is_of_driver,
    of_database,
)


def of_sqlite(code: int, kind: type[sqlite3.Error] = sqlite3.OperationalError, text: str = "x") -> sqlite3.Error:
    error = kind(text)
    error.sqlite_errorcode = code
    return error


def of_psycopg2(state: str, text: str = "x") -> Exception:
    error = type("Error", (Exception,), {"__module__": "psycopg2.errors"})(text)
    error.pgcode = state
    return error  # type: ignore[no-any-return]


def locked(place: str | None) -> Any:
    """Return the error of a lock that was not granted in time; `place`: in the statement, of a table."""
    diag = SimpleNamespace(statement_position=place)
    made = type("LockNotAvailable", (theirs.LockNotAvailable,), {"__module__": "psycopg.errors", "diag": diag})
    return made("canceling statement due to lock timeout")


def caused(cause: Exception) -> Exception:
    error = DjangoOperationalError("in Django's words")
    error.__cause__ = cause
    return error


OUTAGE, LOST, CONFLICT = "outage", "lost", "conflict"

ERRORS: list[tuple[str, Exception, type[Exception], set[str]]] = [
    ("a missing table", theirs.UndefinedTable("x"), ConfigurationError, set()),
    ("a missing column", theirs.UndefinedColumn("x"), ConfigurationError, set()),
    ("a deadlock", theirs.DeadlockDetected("x"), StoreBusy, {CONFLICT}),
    ("a conflict", theirs.SerializationFailure("x"), StoreBusy, {CONFLICT}),
    ("a subject that is locked", locked(None), StoreBusy, set()),
    ("a table that is locked", locked("8"), StoreRefusesWrites, {OUTAGE}),
    ("a statement that is too slow", theirs.QueryCanceled("x"), StoreUnavailable, {OUTAGE}),
    ("a full disk", theirs.DiskFull("x"), StoreOutOfMemory, set()),
    ("a missing permission", theirs.InsufficientPrivilege("x"), StorePermissionDenied, set()),
    ("a wrong password", theirs.InvalidPassword("x"), StorePermissionDenied, {OUTAGE, LOST}),
    ("a wrong password, no state", psycopg.OperationalError("password authentication failed for user"),
     StorePermissionDenied, {OUTAGE, LOST}),
    ("no permission to connect", theirs.InvalidAuthorizationSpecification("x"), StorePermissionDenied,
     {OUTAGE, LOST}),
    ("no place for a connection", theirs.TooManyConnections("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("a server that shuts down", theirs.AdminShutdown("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("a server that crashes", theirs.CrashShutdown("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("a server without memory", theirs.OutOfMemory("x"), StoreUnavailable, set()),
    ("a server that begins", theirs.CannotConnectNow("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("a lost connection", theirs.ConnectionFailure("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("no connection", theirs.SqlclientUnableToEstablishSqlconnection("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("a server that only reads", theirs.ReadOnlySqlTransaction("x"), StoreRefusesWrites, {OUTAGE, LOST}),
    ("a replica", theirs.FeatureNotSupported("x"), StoreRefusesWrites, {OUTAGE, LOST}),
    ("an error without a state", psycopg.OperationalError("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("a division by zero", theirs.DivisionByZero("x"), StoreUnavailable, set()),
    ("no answer", AnswerTimeoutError("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("no turn", NoTurnError("x"), StoreBusy, set()),
    ("an error of the system", OSError("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("in Django's words", caused(theirs.DiskFull("x")), StoreOutOfMemory, set()),
    ("in Django's words alone", DjangoOperationalError("x"), StoreUnavailable, {OUTAGE, LOST}),
    ("a conflict of psycopg2", of_psycopg2("40001"), StoreBusy, {CONFLICT}),
    ("a full disk of psycopg2", of_psycopg2("53100"), StoreOutOfMemory, set()),
    ("SQLite: a full disk", of_sqlite(sqlite3.SQLITE_FULL), StoreOutOfMemory, set()),
    ("SQLite: a file that others hold", of_sqlite(sqlite3.SQLITE_BUSY), StoreRefusesWrites, {OUTAGE}),
    ("SQLite: a snapshot that is held", of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), StoreRefusesWrites, {OUTAGE}),
    ("SQLite: a file to read only", of_sqlite(sqlite3.SQLITE_READONLY), StoreRefusesWrites, {OUTAGE, LOST}),
    ("SQLite: a folder to read only", of_sqlite(sqlite3.SQLITE_CANTOPEN), StoreUnavailable, {OUTAGE, LOST}),
    ("SQLite: a disk that fails", of_sqlite(sqlite3.SQLITE_IOERR_READ), StoreUnavailable, {OUTAGE, LOST}),
    ("SQLite: a missing permission", of_sqlite(sqlite3.SQLITE_PERM), StorePermissionDenied, set()),
    ("SQLite: no authorization", of_sqlite(sqlite3.SQLITE_AUTH), StorePermissionDenied, set()),
    ("SQLite: a damaged file", of_sqlite(sqlite3.SQLITE_CORRUPT, sqlite3.DatabaseError), StoreDataError,
     {OUTAGE, LOST}),
    ("SQLite: another file", of_sqlite(sqlite3.SQLITE_NOTADB, sqlite3.DatabaseError), StoreDataError, {OUTAGE, LOST}),
    ("SQLite: a closed connection", sqlite3.ProgrammingError("Cannot operate on a closed database."), StoreUnavailable,
     {OUTAGE, LOST}),
    ("SQLite: a missing table", of_sqlite(sqlite3.SQLITE_ERROR, text="no such table: a"), ConfigurationError,
     {OUTAGE, LOST}),
    ("SQLite: a missing column", of_sqlite(sqlite3.SQLITE_ERROR, text="no such column: a"), ConfigurationError,
     {OUTAGE, LOST}),
    ("SQLite: another error", of_sqlite(sqlite3.SQLITE_ERROR), StoreUnavailable, set()),
]  # fmt: skip

each_error = pytest.mark.parametrize(
    ("error", "kind", "meant"), [pytest.param(*each[1:], id=each[0]) for each in ERRORS]
)


class TestAnErrorOfADriver:
    @each_error
    def test_becomes_ours(self, error: Exception, kind: type[Exception], meant: set[str]) -> None:
        assert type(failure_of(error).error) is kind

    @each_error
    def test_is_a_failure_of_the_database_only_if_it_does_not_decide(
        self, error: Exception, kind: type[Exception], meant: set[str]
    ) -> None:
        assert database_answered(error) is (OUTAGE not in meant)

    @each_error
    def test_says_whether_its_connection_is_lost(
        self, error: Exception, kind: type[Exception], meant: set[str]
    ) -> None:
        assert is_lost(error) is (LOST in meant)

    @each_error
    def test_says_whether_to_repeat_the_transaction(
        self, error: Exception, kind: type[Exception], meant: set[str]
    ) -> None:
        assert failure_of(error).is_conflict is (CONFLICT in meant)

    def test_is_quoted_in_one_line(self) -> None:
        found: Any = failure_of(theirs.DiskFull("could not extend file\nHINT:  Check free  space."))

        assert found.error.reason == "DiskFull: could not extend file HINT: Check free space."

    def test_is_quoted_in_the_words_of_the_driver(self) -> None:
        found: Any = failure_of(caused(theirs.DiskFull("of psycopg")))

        assert found.error.reason == "DiskFull: of psycopg"

    def test_is_quoted_in_the_words_of_django_if_there_are_no_others(self) -> None:
        found: Any = failure_of(DjangoOperationalError("of Django"))

        assert found.error.reason == "OperationalError: of Django"

    def test_is_quoted_and_not_what_came_before_it(self) -> None:
        error = theirs.DiskFull("a full disk")
        error.__cause__ = OSError("before it")

        found: Any = failure_of(error)

        assert found.error.reason == "DiskFull: a full disk"

    @pytest.mark.parametrize(
        "error",
        [theirs.UndefinedTable("x"), of_sqlite(sqlite3.SQLITE_ERROR, text="no such table: a")],
        ids=["PostgreSQL", "SQLite"],
    )
    def test_of_a_missing_table_says_which_command_makes_it(self, error: Exception) -> None:
        assert str(failure_of(error).error) == (
            "The database has no tables for the states, or old ones. Run: python manage.py migrate django_quota"
        )


@pytest.mark.parametrize("error", [KeyError("x"), StoreBusy("x"), KeyboardInterrupt()], ids=type)
class TestAnErrorFromElsewhere:
    def test_is_not_of_a_driver(self, error: BaseException) -> None:
        assert not is_of_driver(error)

    def test_says_nothing_of_the_database(self, error: BaseException) -> None:
        assert database_answered(error) is None

    def test_leaves_the_connection_as_it_is(self, error: BaseException) -> None:
        assert not is_lost(error)


class TestACallOfTheDatabase:
    def test_says_in_its_error_that_it_is_of_the_database(self) -> None:
        @of_database
        def call() -> None:
            raise StoreUnavailable("x")

        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.is_of_database

    def test_passes_on_what_it_is_given(self) -> None:
        assert of_database(divmod)(7, 2) == (3, 1)

    def test_passes_on_options(self) -> None:
        assert of_database(int)("11", base=2) == 3


def test_a_call_of_the_database_keeps_its_name_and_its_words() -> None:
    @of_database
    def ping() -> None:
        """Ask the database."""

    assert (ping.__name__, ping.__doc__) == ("ping", "Ask the database.")
