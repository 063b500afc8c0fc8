"""The copy of the overrides that each process decides by: how new it is, and what it survives."""

import asyncio
import logging
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from django_quota import acheck, check, peek
from django_quota.limiting import overrides as copies
from django_quota.limiting.override_rows import DatabaseRows
from django_quota.limiting.overrides import overrides
from django_quota.models import OverrideChanges, Overview, QuotaOverride, Subject
from django_quota.testing import QuotaKit
from tests.support.databases import default_database, sqlite_database
from tests.support.inputs import inputs
from tests.support.processes import forks, in_child

SUBJECT = "ip:192.0.2.1"

pytestmark = pytest.mark.usefixtures("memory_store")


class Watch:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def let_pass(self, seconds: float) -> None:
        """Let time pass. A refresh under way ends before, as one that takes milliseconds does."""
        let_refreshes_end()
        self.now += seconds


@pytest.fixture
def watch(database: Any, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Let the test say how old the copy is, which was read just now."""
    watch = Watch()
    monkeypatch.setattr("django_quota.core.clock.elapsed", watch)
    with overrides._lock:  # a refresh of the test before, whose clock was another, changes nothing any more
        overrides._running = None
        overrides.clear()
    assert admits("ip:203.0.113.9")
    return watch


def admits(subject: str = SUBJECT, rule: str = "1000/m") -> bool:
    return bool(check(rule, subject))


def block(subject: str = SUBJECT, **values: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(subject=subject, mode="blocked", **values)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Let the block change the table as another process does: this one is not told."""
    with patch.object(overrides, "change"):
        yield


def let_refreshes_end() -> None:
    for thread in threading.enumerate():
        if thread.name == "django-quota-overrides":
            thread.join(60)


SUBJECTS = [f"ip:192.0.2.{number}" for number in range(1, 4)]


def table() -> dict[str, str]:
    return {row.subject: row.mode for row in QuotaOverride.objects.all()}


def copy() -> dict[str, str]:
    """Return by what this process decides. A peek uses no limit up, however often it is asked."""
    blocked = {subject: "blocked" for subject in SUBJECTS if not peek("1/m", subject)}
    return blocked | {subject: "exempt" for subject in SUBJECTS if peek("0/m", subject)}


def save(rows: Any, subject: str, mode: str) -> None:
    row = rows.filter(subject=subject).first() or rows.model(subject=subject)
    row.mode = mode
    row.save()


def save_in_bulk(rows: Any, subject: str, mode: str) -> None:
    saved = list(rows.filter(subject=subject))
    for row in saved:
        row.mode = mode
    rows.bulk_update(saved, ["mode"])
    rows.bulk_create([] if saved else [rows.model(subject=subject, mode=mode)])


def rename(rows: Any, subject: str, mode: str) -> None:
    if subject not in table():
        rows.filter(pk=rows.values_list("pk", flat=True).first()).update(subject=subject)


ACTS: list[Any] = [
    save, save_in_bulk, rename,
    lambda rows, subject, mode: [row.delete() for row in rows.filter(subject=subject)],
    lambda rows, subject, mode: rows.update_or_create(subject=subject, rule="*", defaults={"mode": mode}),
    lambda rows, subject, mode: rows.update(mode=mode),
    lambda rows, subject, mode: rows.all().delete(),
]  # fmt: skip
MANAGERS = [QuotaOverride.objects, Subject.objects, Overview.objects]
MODES = ["blocked", "exempt"]
PLACES = ["here", "elsewhere", "undone", "committed", "read again"]
changes = st.tuples(*map(st.sampled_from, (ACTS, MANAGERS, SUBJECTS, MODES)))
ALSO = (save, MANAGERS[0], SUBJECTS[2])
EACH = [
    ((ACTS[n % 7], MANAGERS[n % 3], SUBJECTS[n % 2], MODES[n % 2]), (*ALSO, MODES[n // 2 % 2]), PLACES[n % 5])
    for n in range(15)
]
"""Each act and each place, in other company each time."""


@inputs(60, [HealthCheck.function_scoped_fixture])
@example(EACH)
@given(st.lists(st.tuples(changes, changes, st.sampled_from(PLACES)), max_size=5))
def test_a_process_decides_by_what_the_table_says(watch: Watch, steps: list[Any]) -> None:
    QuotaOverride.objects.all().delete()
    for (act, *of), (other, *whose), place in steps:
        if place in ("here", "elsewhere"):
            with elsewhere() if place == "elsewhere" else nullcontext():
                act(*of)
            watch.let_pass(copies.WAIT_AFTER if place == "elsewhere" else 0)
        else:
            with transaction.atomic():
                act(*of)
                assert copy() == table()
                with transaction.atomic():
                    other(*whose)
                    assert copy() == table()
                    transaction.set_rollback(place == "undone")
                assert copy() == table()
                if place == "read again":  # which leaves what is not committed yet
                    overrides.clear()
                    overrides.refresh()
                    assert copy() == table()
                transaction.set_rollback(of[1] == SUBJECTS[0])
        assert copy() == table()


def test_a_new_copy_asks_nothing_and_an_older_one_is_refreshed_in_the_background(watch: Watch) -> None:
    with elsewhere():
        block()
    watch.let_pass(copies.REFRESH_AFTER - 0.1)
    with CaptureQueriesContext(connection) as queries:
        assert admits()
    assert not queries.captured_queries
    watch.let_pass(0.1)
    with patch.object(overrides, "_wait") as waited:
        admits()
    assert not waited.called
    let_refreshes_end()
    assert (admits(), overrides.problem) == (False, "")


TABLE = "django_quota_quotaoverride"


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([f"DELETE FROM {TABLE} WHERE subject = 'ip:192.0.2.2'"], copies.ALL_AFTER),
        ([f"UPDATE {TABLE} SET subject = 'ip:192.0.2.1'"], copies.ALL_AFTER),
        # a table that went back in time
        ([f"DELETE FROM {TABLE}", "UPDATE django_quota_overridechanges SET number = 0"], copies.WAIT_AFTER),
    ],
)
def test_what_sql_changes_is_noticed_within_a_minute(watch: Watch, changes: list[str], after: float) -> None:
    with elsewhere():
        block("ip:192.0.2.2")
    watch.let_pass(copies.WAIT_AFTER)
    assert not admits("ip:192.0.2.2")
    with connection.cursor() as cursor:
        for change in changes:
            cursor.execute(change)
    watch.let_pass(after)
    assert admits("ip:192.0.2.2")


def test_without_its_database_what_is_known_holds_and_one_line_says_why(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    block()
    with patch.object(DatabaseRows, "latest", side_effect=DatabaseError("the connection is closed")):
        for _ in range(5):
            watch.let_pass(10)
            assert not admits()
            let_refreshes_end()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line.startswith("The overrides cannot be read: the connection is closed. Those that this process knows hold")
    with elsewhere():
        block("ip:192.0.2.2")
    watch.let_pass(10)  # the first decision after the outage waits for the refresh
    assert (admits("ip:192.0.2.2"), overrides.problem) == (False, "")
    let_refreshes_end()  # it logs after it has told what it read
    assert "can be read again" in caplog.text


def test_a_query_that_hangs_is_made_anew_and_changes_nothing_in_the_end(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest, hung, released = DatabaseRows.latest, threading.Event(), threading.Event()

    def hanging(rows: DatabaseRows) -> tuple[int, int]:
        found = latest(rows)
        if not hung.is_set():
            hung.set()
            released.wait(60)
        return found

    monkeypatch.setattr(DatabaseRows, "latest", hanging)
    monkeypatch.setattr(copies, "MAX_WAIT", 0.0)
    watch.let_pass(10)
    assert [admits(), admits(), admits()] == [True, True, True]
    assert hung.wait(60)  # else the refresh in its place may hang instead
    refresh = overrides._running
    assert refresh is not None
    with elsewhere():
        block()
    watch.now += copies.REFRESH_AFTER
    assert admits()
    watch.now += copies.GIVE_UP_AFTER
    monkeypatch.setattr(copies, "MAX_WAIT", 60.0)
    assert (admits(), overrides.problem) == (False, "")
    released.set()
    refresh.result(60)
    assert not admits()


def test_missing_tables_are_named_and_a_site_without_a_database_logs_nothing(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    with default_database({"ENGINE": "django.db.backends.dummy"}):
        for _ in range(3):
            overrides.clear()
            assert admits()
    assert (caplog.text, overrides.problem) == ("", "")
    rename = "ALTER TABLE {} RENAME TO {}"
    tables = ["django_quota_overridechanges", "elsewhere"]
    with connection.cursor() as cursor:
        cursor.execute(rename.format(*tables))
        try:
            overrides.clear()
            assert admits()
        finally:
            cursor.execute(rename.format(*tables[::-1]))
    assert "the tables of django_quota are missing; run `migrate` to create them" in caplog.text


class ElsewhereAndLate:
    """A router that sends overrides to another database, with a replica that is not even there."""

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return "other" if model.__name__.startswith(("QuotaOverride", "OverrideChanges")) else None

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return "replica"


def test_the_rows_of_the_database_that_a_router_names_hold_and_no_others(
    watch: Watch, sqlite: Any, tmp_path: Path, settings: Any
) -> None:
    block("ip:192.0.2.2")
    other = sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "other.sqlite3")))
    connections.databases["other"] = {**connections.databases["default"], **other}
    try:
        theirs = QuotaOverride.objects.using("other")
        theirs.bulk_create([QuotaOverride(subject=subject, mode="exempt") for subject in (SUBJECT, "ip:192.0.2.2")])
        assert (admits(), admits("ip:192.0.2.2"), admits(rule="0/m")) == (True, False, False)
        theirs.filter(subject="ip:192.0.2.2").delete()
        assert not admits("ip:192.0.2.2")
        settings.DATABASE_ROUTERS = [ElsewhereAndLate()]
        overrides.clear()
        assert (admits(rule="0/m"), admits("ip:192.0.2.2")) == (True, True)
        QuotaOverride.objects.update(mode="blocked")
        assert not admits()
        theirs.get().delete()
        assert admits()
    finally:
        settings.DATABASE_ROUTERS = []
        connections["other"].close()
        del connections["other"]
        del connections.databases["other"]


def test_what_a_fixture_loads_holds_at_once_here_and_soon_elsewhere(
    watch: Watch, the_clock_stands: QuotaKit, tmp_path: Path, settings: Any
) -> None:
    settings.USE_TZ = False  # the moments are those of the settings
    row, file = block(expires=the_clock_stands.now.replace(tzinfo=None) + timedelta(hours=1)), tmp_path / "rows.json"
    call_command("dumpdata", "django_quota.QuotaOverride", output=str(file), verbosity=0)
    for place, seconds in ((nullcontext(), 0.0), (elsewhere(), copies.WAIT_AFTER)):
        QuotaOverride.objects.filter(pk=row.pk).update(subject="ip:192.0.2.2")
        assert (admits(), admits("ip:192.0.2.2")) == (True, False)
        with place:
            call_command("loaddata", str(file), verbosity=0)
        watch.let_pass(seconds)
        assert (check("1000/m", SUBJECT).retry_after, admits("ip:192.0.2.2")) == (3_600, True)


@pytest.mark.parametrize("reads", ["all", "since", "pks"])
def test_what_is_saved_during_a_refresh_holds(watch: Watch, monkeypatch: pytest.MonkeyPatch, reads: str) -> None:
    read = getattr(DatabaseRows, reads)
    with elsewhere():
        block("ip:192.0.2.2")
        block("ip:192.0.2.3").delete()

    def overtaken(rows: DatabaseRows, *given: int) -> Any:
        monkeypatch.setattr(DatabaseRows, reads, read)
        found = list(read(rows, *given))
        block()
        return found

    monkeypatch.setattr(DatabaseRows, reads, overtaken)
    if reads == "all":
        overrides.clear()
    for _ in range(2):
        overrides.refresh()
        assert (admits(), admits("ip:192.0.2.2")) == (False, False)


@pytest.mark.always("postgresql")
def test_many_threads_that_save_one_row_leave_what_the_row_says(watch: Watch) -> None:
    number = OverrideChanges.objects.count()
    row = block()

    def save(mode: str) -> None:
        for _ in range(5):
            QuotaOverride.objects.filter(pk=row.pk).update(mode=mode)
            saved = QuotaOverride.objects.get(pk=row.pk)
            saved.mode = mode
            saved.save()
        connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(save, ("blocked", "exempt") * 2))
    assert OverrideChanges.objects.get().number == number + 1 + 4 * 5 * 2
    is_exempt = QuotaOverride.objects.get().mode == "exempt"
    assert admits(rule="0/m") == is_exempt
    watch.let_pass(copies.WAIT_AFTER)
    assert admits(rule="0/m") == is_exempt


@forks
def test_a_forked_process_forgets_what_only_its_parent_can_commit(watch: Watch) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the child would share the connection")
    with transaction.atomic():
        block()
        assert not admits()
        assert in_child(lambda: overrides._own != [] or overrides._known is not None) == 0
        assert not admits()


def test_the_first_decision_reads_all_and_an_event_loop_reads_no_database_itself(watch: Watch) -> None:
    async def decide() -> None:
        for seconds in (0.0, copies.REFRESH_AFTER, copies.WAIT_AFTER, copies.ALL_AFTER):
            watch.let_pass(seconds)
            assert not await acheck("1000/m", SUBJECT)

    with elsewhere():
        block()
    overrides.clear()
    assert not admits()
    overrides.clear()
    asyncio.run(decide())
    let_refreshes_end()
    assert overrides.problem == ""
