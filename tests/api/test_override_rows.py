"""The table of overrides: what is saved there, what a process reads of it, and on which connection."""

import gc
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_quota import check
from django_quota.core import clock
from django_quota.core.overrides import Override
from django_quota.limiting import override_rows
from django_quota.limiting.override_rows import DatabaseRows, ReaderConnection
from django_quota.limiting.overrides import Change, NoConnectionError
from django_quota.models import OverrideChange, QuotaOverride
from django_quota.operating.override_lists import save_list
from tests.support.commands import PATIENCE
from tests.support.databases import OverridesElsewhere, another_database, default_database, sqlite_database

SUBJECT = "ip:192.0.2.1"

pytestmark = pytest.mark.usefixtures("memory_store", "database")


@pytest.fixture
def other(sqlite: Any, tmp_path: Path, settings: Any) -> Iterator[str]:
    """Let the overrides be in another database than the default one; yields its alias."""
    with another_database("other", sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "other.sqlite3")))):
        settings.DATABASE_ROUTERS = [OverridesElsewhere()]
        yield "other"
        settings.DATABASE_ROUTERS = []


# --- saving -----------------------------------------------------------------------------------------------------------

Save = Callable[[dict[str, Any]], QuotaOverride]


def set_override(values: dict[str, Any]) -> QuotaOverride:
    return override_rows.set_override("search", SUBJECT, values)


def change_override(values: dict[str, Any]) -> QuotaOverride:
    return override_rows.change_override("search", SUBJECT, lambda _: values)


both = pytest.mark.parametrize("save", [set_override, change_override])


@both
@pytest.mark.parametrize(
    ("values", "field"),
    [
        pytest.param({"mode": "never"}, "mode", id="an unknown mode"),
        pytest.param({"mode": "rate", "rate": "10"}, "rate", id="no rate"),
        pytest.param({"mode": "exempt", "reason": "x" * 501}, "reason", id="a long reason"),
    ],
)
def test_a_wrong_value_is_named_and_nothing_is_saved(save: Save, values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        save(values)

    assert list(caught.value.message_dict) == [field]
    assert not QuotaOverride.objects.exists()


@both
def test_an_override_replaces_the_one_of_its_subject_and_rule_alone(save: Save) -> None:
    for rule, subject in (("search", SUBJECT), ("api", SUBJECT), ("search", "ip:192.0.2.0")):
        QuotaOverride.objects.create(rule=rule, subject=subject, mode="blocked")

    returned = save({"mode": "exempt"})

    assert (returned.subject, returned.rule, returned.mode) == (SUBJECT, "search", "exempt")
    saved = QuotaOverride.objects.order_by("pk").values_list("rule", "subject", "mode")
    assert list(saved) == [
        ("search", SUBJECT, "exempt"),
        ("api", SUBJECT, "blocked"),
        ("search", "ip:192.0.2.0", "blocked"),
    ]


def test_an_override_of_a_subject_that_is_written_in_another_way_replaces_it() -> None:
    for subject in ("ip:2001:db8::1", "ip:2001:DB8:0::1"):
        override_rows.set_override("search", subject, {"mode": "exempt"})

    (row,) = QuotaOverride.objects.all()
    assert row.subject == "ip:2001:db8::/64"


@pytest.mark.parametrize(
    "save",
    [set_override, change_override, lambda values: save_list([SUBJECT], "bots", "search", values)],
    ids=["set", "changed", "a list"],
)
def test_a_transaction_that_saves_writes_before_it_reads(save: Save) -> None:
    """SQLite refuses one that reads first, if another process has written meanwhile."""
    with CaptureQueriesContext(connection) as queries:
        save({"mode": "exempt"})

    _, first, *_ = [each["sql"].split()[0] for each in queries.captured_queries]
    assert first == "INSERT"


@both
def test_a_change_that_cannot_be_saved_is_not_logged(save: Save, other: str) -> None:
    def fail(execute: Any, sql: str, *given: Any) -> Any:
        if "quotaoverride" in sql:
            raise DatabaseError("the disk is full")
        return execute(sql, *given)

    with connections[other].execute_wrapper(fail), pytest.raises(DatabaseError, match="disk"):
        save({"mode": "exempt"})

    assert not OverrideChange.objects.using(other).exists()


class TestAddedByAnotherMeanwhile:
    """A change that finds no override, while another process adds the override before it is saved."""

    def change(self, failures: int, given: list[QuotaOverride | None]) -> None:
        """Let this many tries fail; collect what each found."""

        def values(row: QuotaOverride | None) -> dict[str, Any]:
            given.append(row)
            if len(given) <= failures:
                QuotaOverride.objects.create(subject=SUBJECT, rule="search", mode="blocked")
            return {"mode": "exempt"}

        override_rows.change_override("search", SUBJECT, values)

    def test_it_is_tried_again_and_finds_what_is_there_then(self) -> None:
        given: list[QuotaOverride | None] = []

        self.change(2, given)

        assert given == [None] * 3
        assert QuotaOverride.objects.get().mode == "exempt"

    def test_the_third_failure_is_raised(self) -> None:
        given: list[QuotaOverride | None] = []

        with pytest.raises(IntegrityError):
            self.change(4, given)

        assert len(given) == 3


# --- the log of changes -----------------------------------------------------------------------------------------------

HOUR = 3_600 * clock.SECOND


def log(*changes: tuple[str, bool, int]) -> None:
    """Let the log have these changes, from the number 1 on: what each removed, whether it is full, and its age."""
    now = clock.machine_now()
    OverrideChange.objects.bulk_create(
        OverrideChange(pk=pk, removed=removed, full=full, at=now - age)
        for pk, (removed, full, age) in enumerate(changes, 1)
    )


@pytest.fixture
def the_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock.machine_now()
    monkeypatch.setattr("django_quota.core.clock.machine_now", lambda: now)


@pytest.mark.parametrize(
    ("known", "others", "numbers"),
    [
        pytest.param(None, (), [1, 2, 3, 4], id="all"),
        pytest.param(2, (), [2, 3, 4], id="from a number on"),
        pytest.param(3, {1}, [1, 3, 4], id="a missing one too"),
        pytest.param(4, (), [4], id="none is new"),
        pytest.param(4, {2, 9}, [2, 4], id="the missing one alone"),
        pytest.param(9, (), [], id="the log has been emptied"),
    ],
)
def test_the_changes_are_read_by_their_numbers(known: int | None, others: Any, numbers: list[int]) -> None:
    log(*[("", False, 0)] * 4)

    assert sorted(DatabaseRows().changes(known, others)) == numbers


@pytest.mark.parametrize("known", [None, 0, 5])
def test_an_empty_log_has_no_changes(known: int | None) -> None:
    assert DatabaseRows().changes(known, ()) == {}


def test_a_change_says_what_was_removed() -> None:
    log(("7 19", False, 0), ("", False, 0))

    assert DatabaseRows().changes(None, ()) == {1: Change([7, 19], full=False), 2: Change([], full=False)}


def test_a_change_that_is_known_is_not_reported_again() -> None:
    log(("7", True, 0))

    assert DatabaseRows().changes(1, ()) == {1: Change((), full=False)}


@pytest.mark.usefixtures("the_machine_stands")
def test_a_report_that_the_database_is_full_holds_for_an_hour() -> None:
    log(("", True, HOUR), ("", True, HOUR - 1), ("", False, 0))

    assert [change.full for change in DatabaseRows().changes(None, ()).values()] == [False, True, False]


def test_all_processes_read_that_the_database_is_full() -> None:
    DatabaseRows().say_full()

    assert list(DatabaseRows().changes(None, ()).values()) == [Change([], full=True)]


def test_the_report_that_a_database_is_full_is_in_that_of_the_overrides(other: str) -> None:
    DatabaseRows().say_full()

    assert [OverrideChange.objects.using(alias).count() for alias in ("default", other)] == [0, 1]


def test_an_error_of_a_database_that_has_the_tables_stays_as_it_is() -> None:
    def fail(*_: Any) -> Any:
        raise DatabaseError("the disk does not answer")

    log(("", False, 0))
    with patch.object(OverrideChange.objects, "using", side_effect=fail), pytest.raises(DatabaseError) as caught:
        DatabaseRows().changes(None, ())

    assert str(caught.value) == "the disk does not answer"


@pytest.mark.parametrize("model", [QuotaOverride, OverrideChange], ids=["overrides", "changes"])
def test_a_table_that_is_missing_is_named(model: type[Model]) -> None:
    names = [model._meta.db_table, "elsewhere"]
    with connection.schema_editor() as schema:
        schema.alter_db_table(model, *names)

    missing = override_rows.missing_tables("default")

    with connection.schema_editor() as schema:
        schema.alter_db_table(model, *names[::-1])
    assert missing == {model._meta.db_table}


# --- rows -------------------------------------------------------------------------------------------------------------

YEAR = 365 * 86_400 * clock.SECOND


@pytest.mark.parametrize(
    ("starts", "expires", "begins", "ends"),
    [
        pytest.param(None, None, 0, 0, id="without moments"),
        pytest.param(
            datetime(1971, 1, 1, tzinfo=UTC), datetime(1973, 1, 1, tzinfo=UTC), YEAR, 3 * YEAR + YEAR // 365, id="both"
        ),
        pytest.param(datetime(1960, 1, 1, tzinfo=UTC), datetime(1965, 1, 1, tzinfo=UTC), 0, 1, id="before 1970"),
    ],
)
def test_a_row_is_an_override(starts: datetime | None, expires: datetime | None, begins: int, ends: int) -> None:
    row = QuotaOverride(pk=7, subject=SUBJECT, rule="search", mode="rate", rate="5/m", starts=starts, expires=expires)

    found = override_rows.override_of(row)

    assert found == Override(7, SUBJECT, "search", "rate", "5/m", begins, ends)


def test_a_moment_of_a_site_without_time_zones_is_in_its_own_zone(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    moment = datetime(1970, 1, 1, 10)  # noqa: DTZ001

    with timezone.override("America/New_York"):  # as a request may have
        assert override_rows.microseconds_of_row(moment) == 3_600 * clock.SECOND
        assert override_rows.moment_of_row(3_600 * clock.SECOND) == moment


def test_a_moment_of_a_site_with_time_zones_has_one() -> None:
    moment = datetime(1970, 1, 1, 1, tzinfo=UTC)

    assert override_rows.microseconds_of_row(moment) == 3_600 * clock.SECOND
    assert override_rows.moment_of_row(3_600 * clock.SECOND) == moment


@pytest.fixture
def ended(database: object) -> None:
    """Three overrides hold for ever, one for an hour, and one has ended. Those that were added last sort first."""
    now = datetime.now(UTC)
    ends = [None, None, None, now + timedelta(hours=1), now - timedelta(seconds=1)]
    for number, expires in enumerate(ends, 1):
        QuotaOverride.objects.create(pk=number, subject=f"user:{9 - number}", mode="exempt", expires=expires)


@pytest.mark.usefixtures("ended")
def test_all_overrides_are_those_that_have_not_ended() -> None:
    assert [override.pk for override in DatabaseRows().all()] == [1, 2, 3, 4]


@pytest.mark.usefixtures("ended")
def test_as_many_overrides_are_counted_as_a_process_holds() -> None:
    assert override_rows.count_overrides() == 4


@pytest.mark.usefixtures("ended")
def test_of_the_rows_that_a_change_saved_those_that_have_ended_are_read_too() -> None:
    changes = QuotaOverride.objects.filter(pk__in=[2, 5]).values_list("change", flat=True)

    assert [override.pk for override in DatabaseRows().saved_by(list(changes))] == [2, 5]


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(("rows", "queries"), [(1, 5), (3, 3), (4, 2), (5, 2)])
def test_rows_are_read_by_several_queries_each_once(rows: int, queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override_rows, "OVERRIDES_A_QUERY", rows)

    with CaptureQueriesContext(connection) as asked:
        assert [override.pk for override in DatabaseRows().all()] == [1, 2, 3, 4]

    assert len(asked) == queries


def test_a_query_reads_5000_rows() -> None:
    with CaptureQueriesContext(connection) as asked:
        list(DatabaseRows().all())

    assert asked.captured_queries[0]["sql"].endswith("LIMIT 5000")


def test_a_table_that_is_emptied_holds_no_overrides() -> None:
    QuotaOverride.objects.create(subject=SUBJECT, mode="blocked")
    assert not check("10/m", SUBJECT)

    call_command("flush", verbosity=0, interactive=False)

    assert check("10/m", SUBJECT)


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings_of", "is_private"),
    [
        pytest.param({"ENGINE": "django.db.backends.dummy"}, True, id="no database"),
        pytest.param({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, True, id="SQLite in memory"),
        pytest.param({"ENGINE": "django.db.backends.sqlite3", "NAME": "a.sqlite3"}, False, id="SQLite in a file"),
        pytest.param({"ENGINE": "django.db.backends.postgresql", "NAME": "a"}, False, id="PostgreSQL"),
    ],
)
def test_only_this_process_can_change_the_overrides_of(settings_of: dict[str, Any], is_private: bool) -> None:
    with default_database(settings_of):
        assert DatabaseRows().is_private is is_private


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Do work as the reader does: in a thread of its own. Close all that it has opened; return or raise its result."""

    def run() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(run).result(PATIENCE)


@pytest.fixture
def reader() -> ReaderConnection:
    return ReaderConnection()


POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "NAME": "a"}


@pytest.mark.parametrize(
    ("given", "options"),
    [
        pytest.param({}, {"connect_timeout": 2, "tcp_user_timeout": 10_000}, id="by default two seconds"),
        pytest.param({"connect_timeout": 9}, {"connect_timeout": 9, "tcp_user_timeout": 10_000}, id="as the site says"),
    ],
)
def test_the_reader_of_postgresql_waits(
    given: dict[str, int], options: dict[str, int], reader: ReaderConnection
) -> None:
    def used() -> dict[str, Any]:
        with patch("django.db.backends.postgresql.base.DatabaseWrapper.ensure_connection"):
            reader.use("default")
            return {name: connections["default"].settings_dict["OPTIONS"].get(name) for name in options}

    with default_database({**POSTGRESQL, "OPTIONS": given}):
        assert in_a_thread(used) == options


def test_the_reader_of_a_backend_that_is_not_djangos_waits_as_the_site_says(
    reader: ReaderConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shop_backend", ModuleType("shop_backend"))
    monkeypatch.setitem(sys.modules, "shop_backend.base", import_module(f"{POSTGRESQL['ENGINE']}.base"))

    def used() -> dict[str, Any]:
        with patch("django.db.backends.postgresql.base.DatabaseWrapper.ensure_connection"):
            reader.use("default")
            return dict(connections["default"].settings_dict["OPTIONS"])

    with default_database({**POSTGRESQL, "ENGINE": "shop_backend", "OPTIONS": {"connect_timeout": 9}}):
        assert in_a_thread(used) == {"connect_timeout": 9}


def test_the_reader_waits_for_mysql_two_seconds_and_then_ten() -> None:
    assert override_rows._PATIENCE["mysql"] == {"connect_timeout": 2, "read_timeout": 10}


def test_the_reader_sees_what_is_committed_where_the_site_does_not_commit_by_itself(
    database: dict[str, Any], reader: ReaderConnection
) -> None:
    def used() -> bool:
        reader.use("default")
        return connections["default"].get_autocommit()

    with default_database({**database, "AUTOCOMMIT": False}):
        assert in_a_thread(used) is True


def test_the_reader_uses_its_connection_again(reader: ReaderConnection) -> None:
    def used() -> list[Any]:
        was_open = [reader.use("default") for _ in range(2)]
        first = connections["default"]
        first.close()
        return [*was_open, reader.use("default"), connections["default"] is first]

    assert in_a_thread(used) == [False, True, False, False]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL takes no path as a name
def test_a_database_that_a_test_runner_has_renamed_has_another_connection(
    tmp_path: Path, reader: ReaderConnection
) -> None:
    def used() -> list[Any]:
        reader.use("default")
        with patch.dict(connections.settings["default"], NAME=str(tmp_path / "renamed.sqlite3")):
            return [reader.use("default"), connections["default"].settings_dict["NAME"]]

    assert in_a_thread(used) == [False, str(tmp_path / "renamed.sqlite3")]


def test_the_reader_changes_no_setting_of_the_site(reader: ReaderConnection) -> None:
    given = {**POSTGRESQL, "AUTOCOMMIT": False, "OPTIONS": {"pool": True}}

    def used() -> None:
        with patch("django.db.backends.postgresql.base.DatabaseWrapper.ensure_connection"):
            reader.use("default")

    with default_database(given):
        in_a_thread(used)
        site = connections.settings["default"]

    assert (site["AUTOCOMMIT"], site["OPTIONS"]) == (False, {"pool": True})


def test_another_alias_has_another_connection_even_with_the_same_settings(
    database: dict[str, Any], reader: ReaderConnection
) -> None:
    def used() -> list[Any]:
        reader.use("default")
        first = connections["default"]
        was_open = reader.use("other")
        return [was_open, connections["other"].connection is None, first.connection is None]

    with another_database("other", database):
        assert in_a_thread(used) == [False, False, True]


def test_a_connection_that_cannot_even_be_closed_is_replaced(reader: ReaderConnection) -> None:
    def used() -> bool:
        reader.use("default")
        first = connections["default"]
        with patch.object(first, "close", side_effect=DatabaseError("it is broken")):
            reader.close()
        first.close()
        reader.use("default")
        return connections["default"] is not first

    assert in_a_thread(used)


def test_a_database_that_cannot_be_reached_is_said_to_give_no_connection(
    tmp_path: Path, reader: ReaderConnection
) -> None:
    with (
        default_database(sqlite_database(tmp_path / "nowhere" / "a.sqlite3")),
        pytest.raises(NoConnectionError, match="unable to open database file"),
    ):
        in_a_thread(lambda: reader.use("default"))


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError, DatabaseError], ids=lambda kind: kind.__name__)
def test_any_error_of_a_driver_that_connects_means_that_there_is_no_connection(
    kind: type[Exception], reader: ReaderConnection
) -> None:
    def used() -> None:
        with patch(f"{BaseDatabaseWrapper.__module__}.BaseDatabaseWrapper.ensure_connection", side_effect=kind("it")):
            reader.use("default")

    with pytest.raises(NoConnectionError, match=r"^it$"):
        in_a_thread(used)


def test_a_forked_process_keeps_the_connection_of_its_parent_from_being_closed(reader: ReaderConnection) -> None:
    def after_a_fork() -> bool:
        with patch("django.db.backends.base.base.BaseDatabaseWrapper.ensure_connection"):
            reader.use("default")
        parents = weakref.ref(connections["default"])
        del connections["default"]
        reader.after_fork()
        gc.collect()
        return parents() is not None

    assert in_a_thread(after_a_fork)


def test_a_forked_process_has_a_connection_of_its_own(reader: ReaderConnection) -> None:
    def after_a_fork() -> list[bool]:
        reader.use("default")
        parents = connections["default"]
        reader.after_fork()
        reader.close()
        was_open, is_open = reader.use("default"), parents.connection is not None
        parents.close()
        return [was_open, is_open]

    assert in_a_thread(after_a_fork) == [False, True]


class TestWorkOfTheReaderThatFails:
    @pytest.fixture
    def rows(self) -> DatabaseRows:
        return DatabaseRows()

    @pytest.mark.parametrize(("is_open", "times"), [(False, 1), (True, 2)], ids=["new", "an old one"])
    def test_it_is_tried_again_if_the_connection_is(self, is_open: bool, times: int, rows: DatabaseRows) -> None:
        done: list[int] = []

        def fail() -> None:
            done.append(1)
            raise OperationalError("the server has closed the connection")

        def read() -> None:
            if is_open:
                rows.read(lambda: None)
            rows.read(fail)

        with pytest.raises(OperationalError, match="closed the connection"):
            in_a_thread(read)

        assert len(done) == times

    def test_there_is_no_connection_if_the_database_has_none_for_the_second_try(self, rows: DatabaseRows) -> None:
        def fail() -> None:
            raise OperationalError("the server has closed the connection")

        answers = [True, NoConnectionError("too many clients already")]
        with (
            patch.object(ReaderConnection, "use", side_effect=answers),
            pytest.raises(NoConnectionError, match="too many clients already"),
        ):
            in_a_thread(lambda: rows.read(fail))


class TestOnTheConnectionOfARequest:
    """What is read there, if the reader has no connection of its own."""

    def test_one_that_has_broken_is_closed_for_the_next_request(self) -> None:
        connection.ensure_connection()
        raw: Any = connection.connection
        raw.close()

        def ask() -> None:
            QuotaOverride.objects.exists()

        with pytest.raises((ProgrammingError, OperationalError)):
            DatabaseRows().read_here(ask)

        assert connection.connection is None
        assert not QuotaOverride.objects.exists()

    def test_one_that_still_works_stays_open_after_an_error(self) -> None:
        connection.ensure_connection()
        connection.close_at = None  # CONN_MAX_AGE: None
        before: Any = connection.connection

        with pytest.raises((ProgrammingError, OperationalError)), connection.cursor() as cursor:
            DatabaseRows().read_here(lambda: cursor.execute("SELECT 1 FROM nowhere"))

        assert connection.connection is before

    def test_a_transaction_that_has_failed_is_not_read_in(self) -> None:
        done: list[str] = []

        with transaction.atomic():
            transaction.set_rollback(True)
            DatabaseRows().read_here(lambda: done.append("read"))
        DatabaseRows().read_here(lambda: done.append("after it"))

        assert done == ["after it"]

    def test_a_transaction_is_known_to_be_one(self, other: str) -> None:
        found = [DatabaseRows().is_in_transaction]
        with transaction.atomic():  # of another database
            found.append(DatabaseRows().is_in_transaction)
        with transaction.atomic(using=other):
            found.append(DatabaseRows().is_in_transaction)

        assert found == [False, False, True]

    def test_a_transaction_is_read_in_at_a_savepoint_of_its_own(self, other: str) -> None:
        found: list[int] = []

        with transaction.atomic(using=other):
            DatabaseRows().read_here(lambda: found.append(len(connections[other].savepoint_ids)))

        assert found == [1]
