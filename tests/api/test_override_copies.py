"""The copy of the overrides that each process decides by: how new it is, and what it survives."""

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from django_quota import Rule, acheck, check, peek, raise_limit, reserve
from django_quota.core import clock
from django_quota.limiting import overrides as copies
from django_quota.limiting.flusher import reader
from django_quota.limiting.override_rows import DatabaseRows
from django_quota.limiting.overrides import overrides
from django_quota.models import OverrideChange, Overview, QuotaOverride, Subject
from django_quota.testing import QuotaKit, freeze
from tests.support.databases import OverridesElsewhere, default_database, sqlite_database
from tests.support.inputs import inputs
from tests.support.processes import forks, in_child

SUBJECT = "ip:192.0.2.1"

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
"""SQLite has one transaction that writes, and others see what it has committed."""

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
    overrides.clear()
    assert admits("ip:203.0.113.9")
    return watch


def admits(subject: str = SUBJECT, rule: str = "1000/m") -> bool:
    return bool(check(rule, subject))


def block(subject: str = SUBJECT, **values: Any) -> QuotaOverride:
    return QuotaOverride.objects.create(subject=subject, **{"mode": "blocked", **values})


@contextmanager
def elsewhere() -> Iterator[None]:
    """Let the block change the table as another process does: this one is not told."""
    with patch.object(overrides, "change"):
        yield


def let_refreshes_end() -> None:
    running = overrides._running
    if running is not None:
        running.result(60)


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


@pytest.mark.thorough("slow")
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


def test_a_new_copy_asks_nothing(watch: Watch) -> None:
    with elsewhere():
        block()
    watch.let_pass(copies.REFRESH_AFTER - 0.1)

    with patch.object(overrides, "rows", wraps=overrides.rows) as asked:
        assert admits()
        let_refreshes_end()

    assert not asked.mock_calls


def test_what_this_process_saves_makes_it_read_nothing(watch: Watch) -> None:
    block()

    with patch.object(overrides, "rows", wraps=overrides.rows) as asked:
        assert not admits()
        let_refreshes_end()

    assert not asked.mock_calls


def test_an_older_copy_is_refreshed_in_the_background(watch: Watch) -> None:
    with elsewhere():
        block()
    watch.let_pass(copies.REFRESH_AFTER)

    with patch.object(overrides, "_wait") as waited:
        admits()
    let_refreshes_end()

    assert not waited.called
    assert (admits(), overrides.problem) == (False, "")


def test_a_settlement_looks_for_what_changed_since_its_reservation(watch: Watch) -> None:
    with reserve("1000/m", SUBJECT, 10) as reservation:
        watch.let_pass(copies.REFRESH_AFTER)
        with patch.object(overrides, "rows", wraps=overrides.rows) as asked:
            reservation.settle(5)
            let_refreshes_end()

        assert asked.mock_calls


TABLE = "django_quota_quotaoverride"


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        ([f"DELETE FROM {TABLE} WHERE subject = 'ip:192.0.2.2'"], copies.ALL_AFTER),
        ([f"UPDATE {TABLE} SET subject = 'ip:192.0.2.1'"], copies.ALL_AFTER),
        # a table that went back in time
        ([f"DELETE FROM {TABLE}", "DELETE FROM django_quota_overridechange"], copies.WAIT_AFTER),
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


@pytest.fixture
def without_a_database(watch: Watch) -> list[bool]:
    """A process that knows a block, and whose database has failed for five refreshes; what it decided each time."""
    block()
    found = []
    with patch.object(DatabaseRows, "changes", side_effect=DatabaseError("the connection is closed")):
        for _ in range(5):
            watch.let_pass(10)
            found.append(admits())
            let_refreshes_end()
    return found


def test_without_its_database_what_is_known_holds(without_a_database: list[bool]) -> None:
    assert without_a_database == [False] * 5


@pytest.fixture
def without_a_thread(watch: Watch) -> None:
    """A process that knows a block, and could start no thread when a refresh was due."""
    block()
    watch.let_pass(copies.WAIT_AFTER)
    with patch.object(reader, "call_at", return_value=False):
        admits()


@pytest.mark.usefixtures("without_a_thread")
def test_without_a_thread_what_is_known_holds() -> None:
    assert not admits()


@pytest.mark.usefixtures("without_a_thread")
def test_a_process_that_can_start_no_thread_says_so() -> None:
    assert overrides.problem == "this process can start no thread"


@pytest.mark.usefixtures("without_a_thread")
def test_the_overrides_are_read_as_soon_as_a_thread_can_be_started(watch: Watch) -> None:
    with elsewhere():
        block("ip:192.0.2.2")

    watch.let_pass(copies.WAIT_AFTER)

    assert (admits("ip:192.0.2.2"), overrides.problem) == (False, "")


@pytest.mark.usefixtures("without_a_database")
def test_an_outage_of_the_database_is_one_line_that_says_why(caplog: pytest.LogCaptureFixture) -> None:
    logged = [record for record in caplog.get_records("setup") if record.name == "django_quota.overrides"]

    (line,) = [record.getMessage() for record in logged if record.levelno == logging.ERROR]
    assert line == (
        "The overrides cannot be read: the connection is closed. This process keeps using the 1 that it knows."
    )


@pytest.mark.usefixtures("without_a_database")
def test_the_first_decision_after_an_outage_waits_for_the_refresh(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    with elsewhere():
        block("ip:192.0.2.2")
    watch.let_pass(10)

    assert (admits("ip:192.0.2.2"), overrides.problem) == (False, "")

    let_refreshes_end()  # it logs after it has reported what it read
    assert caplog.record_tuples == [("django_quota.overrides", logging.WARNING, "The overrides can be read again.")]


@contextmanager
def a_database_that_hangs() -> Iterator[None]:
    """Let the next query of a refresh hang for as long as the block lasts."""
    changes, hung, goes_on = DatabaseRows.changes, threading.Event(), threading.Event()

    def hanging(rows: DatabaseRows, *given: Any) -> Any:
        found = changes(rows, *given)
        hung.set()
        goes_on.wait(60)
        return found

    with patch.object(DatabaseRows, "changes", hanging):
        try:
            overrides.refreshing()
            assert hung.wait(60)
            yield
        finally:
            goes_on.set()
            let_refreshes_end()


@pytest.fixture
def hanging(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The waits of a process that knows a block and whose database hangs while it decides four times."""
    block()
    watch.let_pass(10)
    with a_database_that_hangs(), patch.object(copies, "wait", return_value=None) as waited:
        monkeypatch.setattr(copies, "MAX_WAIT", 1.0)
        for _ in range(4):
            assert not admits()
            watch.now += 10  # not by `let_pass`, which waits for the refresh
        yield waited


def test_while_the_database_hangs_decisions_wait_once(hanging: Any) -> None:
    assert (hanging.call_count, overrides.problem) == (1, "the database does not answer")


@pytest.mark.usefixtures("hanging")
def test_while_the_database_hangs_no_second_thread_asks() -> None:
    assert [thread.name for thread in threading.enumerate()].count("django-quota-overrides") == 1


def test_a_database_that_answers_again_is_no_problem_any_more(watch: Watch) -> None:
    block()
    watch.let_pass(10)
    with a_database_that_hangs(), patch.object(copies, "wait", return_value=None):
        admits()

    assert (admits(), overrides.problem) == (False, "")


def test_a_decision_that_comes_later_waits_only_for_the_rest_of_the_second(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MAX_WAIT", 1.0)
    watch.let_pass(10)
    with a_database_that_hangs(), patch.object(copies, "wait", return_value=None) as waited:
        watch.now += 0.75
        admits()
    assert waited.call_args.args[1] == 0.25


def test_after_a_hang_what_changed_meanwhile_holds_with_the_next_refresh(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MAX_WAIT", 0.0)
    watch.let_pass(10)
    with a_database_that_hangs():
        assert admits()
        with elsewhere():
            block()
    monkeypatch.setattr(copies, "MAX_WAIT", 60.0)
    watch.now += copies.WAIT_AFTER
    assert not admits()


@pytest.mark.usefixtures("watch")
def test_a_site_without_a_database_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    admitted = []
    with default_database({"ENGINE": "django.db.backends.dummy"}):
        for _ in range(3):
            overrides.clear()
            admitted.append(admits())

    assert admitted == [True] * 3
    assert (caplog.text, overrides.problem) == ("", "")


@pytest.mark.usefixtures("watch")
def test_missing_tables_are_named(caplog: pytest.LogCaptureFixture) -> None:
    rename = "ALTER TABLE {} RENAME TO {}"
    tables = ["django_quota_overridechange", "elsewhere"]
    with connection.cursor() as cursor:
        cursor.execute(rename.format(*tables))
        try:
            overrides.clear()
            assert admits()
        finally:
            cursor.execute(rename.format(*tables[::-1]))

    [line] = caplog.messages
    assert line == (
        "The overrides cannot be read: the tables of django_quota are missing; run `migrate` to create them. This "
        "process keeps using the 0 that it knows."
    )


class ElsewhereAndLate(OverridesElsewhere):
    """A router that sends overrides to another database, with a replica that is not even there."""

    def db_for_read(self, *_: Any, **__: Any) -> str:
        return "replica"


@pytest.fixture
def theirs(watch: Watch, sqlite: Any, tmp_path: Path, settings: Any) -> Iterator[Any]:
    """The overrides of another database: two exemptions, where the default one has a block. A test sets the router."""
    block("ip:192.0.2.2")
    other = sqlite_database(Path(shutil.copy(sqlite["NAME"], tmp_path / "other.sqlite3")))
    connections.databases["other"] = {**connections.databases["default"], **other}
    rows = QuotaOverride.objects.using("other")
    rows.bulk_create([QuotaOverride(subject=subject, mode="exempt") for subject in (SUBJECT, "ip:192.0.2.2")])
    yield rows
    settings.DATABASE_ROUTERS = []
    connections["other"].close()
    del connections["other"]
    del connections.databases["other"]


@pytest.mark.usefixtures("theirs")
def test_the_rows_of_another_database_do_not_hold() -> None:
    assert (admits(), admits("ip:192.0.2.2"), admits(rule="0/m")) == (True, False, False)


def test_what_is_deleted_in_another_database_stays_here(theirs: Any) -> None:
    theirs.filter(subject="ip:192.0.2.2").delete()

    assert not admits("ip:192.0.2.2")


@pytest.fixture
def routed(theirs: Any, settings: Any) -> Any:
    settings.DATABASE_ROUTERS = [ElsewhereAndLate()]
    overrides.clear()
    return theirs


@pytest.mark.usefixtures("routed")
def test_the_rows_of_the_database_that_a_router_names_hold() -> None:
    assert (admits(rule="0/m"), admits("ip:192.0.2.2")) == (True, True)


def test_what_changes_in_the_database_that_a_router_names_holds_at_once(routed: Any) -> None:
    QuotaOverride.objects.update(mode="blocked")
    assert not admits()

    routed.all().delete()
    assert admits()


def test_what_a_fixture_loads_into_the_database_that_a_router_names_holds_at_once(routed: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    call_command("dumpdata", "django_quota.QuotaOverride", database="other", output=str(file), verbosity=0)
    routed.all().delete()
    assert not admits(rule="0/m")

    call_command("loaddata", str(file), database="other", verbosity=0)

    assert (admits(rule="0/m"), admits("ip:192.0.2.2", rule="0/m")) == (True, True)
    assert len(set(routed.values_list("change", flat=True))) == 2  # each row has a change of its own


def test_a_refresh_forgets_what_was_rolled_back(watch: Watch) -> None:
    with transaction.atomic():
        block()
        during = admits()
        transaction.set_rollback(True)

    overrides.refresh()

    assert (during, admits()) == (False, True)


@pytest.mark.usefixtures("watch")
def test_what_a_savepoint_undoes_does_not_hold_beside_what_its_transaction_has_saved() -> None:
    with transaction.atomic():
        block("ip:192.0.2.2")
        with transaction.atomic():
            block()
            during = admits()
            transaction.set_rollback(True)

        assert (during, admits(), admits("ip:192.0.2.2")) == (False, True, False)


@pytest.mark.usefixtures("watch")
def test_a_refresh_in_a_transaction_forgets_what_a_savepoint_has_undone() -> None:
    with patch.object(DatabaseRows, "is_private", True), transaction.atomic():
        overrides.clear()
        with transaction.atomic():
            row = block()
            overrides.refresh()
            transaction.set_rollback(True)

        overrides.refresh()

        assert row.pk not in overrides.table.by_pk


@pytest.mark.usefixtures("watch")
def test_what_a_transaction_has_not_committed_yet_holds_in_it_though_all_is_read_again() -> None:
    with transaction.atomic():
        block()
        block("ip:192.0.2.2")
        overrides.clear()

        overrides.refresh()

        assert (admits(), admits("ip:192.0.2.2")) == (False, False)


@pytest.mark.usefixtures("watch")
def test_of_two_changes_that_a_transaction_has_not_committed_yet_the_last_holds_though_all_is_read_again() -> None:
    with transaction.atomic():
        row = block()
        row.mode = "exempt"
        row.save()
        overrides.clear()

        overrides.refresh()

        assert admits(rule="0/m")


def test_what_a_test_case_undoes_does_not_hold_though_it_has_run_the_hooks_of_the_commit(watch: Watch) -> None:
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True):
            block()
        during = admits()
        transaction.set_rollback(True)

    assert (during, admits()) == (False, True)


@pytest.mark.parametrize("model", ["quotaoverride", "subject"], ids=["the model", "a proxy of the admin"])
@pytest.mark.parametrize(
    ("place", "seconds"),
    [
        pytest.param(nullcontext, 0.0, id="at once here"),
        pytest.param(elsewhere, copies.WAIT_AFTER, id="soon elsewhere"),
    ],
)
def test_what_a_fixture_loads_holds(
    place: Any, seconds: float, model: str, watch: Watch, the_clock_stands: QuotaKit, tmp_path: Path, settings: Any
) -> None:
    settings.USE_TZ = False  # the moments are those of the settings
    row, file = block(expires=the_clock_stands.now.replace(tzinfo=None) + timedelta(hours=1)), tmp_path / "rows.json"
    call_command("dumpdata", "django_quota.QuotaOverride", output=str(file), verbosity=0)
    file.write_text(file.read_text().replace("django_quota.quotaoverride", f"django_quota.{model}"))
    QuotaOverride.objects.filter(pk=row.pk).update(subject="ip:192.0.2.2")
    assert (admits(), admits("ip:192.0.2.2")) == (True, False)

    with place():
        call_command("loaddata", str(file), verbosity=0)
    watch.let_pass(seconds)

    assert (check("1000/m", SUBJECT).retry_after, admits("ip:192.0.2.2")) == (3_600, True)


@pytest.mark.parametrize("reads", ["all", "changes", "saved_by"])
def test_what_is_saved_during_a_refresh_holds(watch: Watch, monkeypatch: pytest.MonkeyPatch, reads: str) -> None:
    read = getattr(DatabaseRows, reads)
    with elsewhere():
        block("ip:192.0.2.2")
        block("ip:192.0.2.3").delete()

    def overtaken(rows: DatabaseRows, *given: Any) -> Any:
        monkeypatch.setattr(DatabaseRows, reads, read)
        found = read(rows, *given)
        found = found if isinstance(found, dict) else list(found)
        block()
        return found

    monkeypatch.setattr(DatabaseRows, reads, overtaken)
    if reads == "all":
        overrides.clear()

    admitted = []
    for _ in range(2):
        overrides.refresh()
        admitted.append((admits(), admits("ip:192.0.2.2")))

    assert admitted == [(False, False)] * 2


@pytest.mark.always("postgresql")
def test_what_a_process_has_saved_is_not_remembered_without_end(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that saves many rows and decides nothing reads no refresh."""
    monkeypatch.setattr(copies, "MAX_OWN", 3)

    for number in range(10):
        QuotaOverride.objects.create(subject=f"user:{number}", mode="blocked")

    assert len(overrides._own) == 1  # after three, and again after three


@pytest.mark.usefixtures("watch")
def test_a_process_remembers_a_thousand_changes_of_its_own() -> None:
    lengths = []
    for number in range(1, 1_002):
        overrides.change("default", [], [number])
        lengths.append(len(overrides._own))

    assert lengths[-2:] == [1_000, 1]


@pytest.mark.usefixtures("watch")
def test_what_was_undone_does_not_hold_though_more_was_changed_than_a_process_remembers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "MAX_OWN", 1)
    row = block(mode="exempt")

    with transaction.atomic():
        with transaction.atomic():
            row.mode = "blocked"
            row.save()
            transaction.set_rollback(True)
        block("ip:192.0.2.2")

        assert (admits(), admits("ip:192.0.2.2")) == (True, False)


@pytest.mark.usefixtures("watch")
def test_a_process_that_reads_no_refresh_remembers_only_its_last_change() -> None:
    with patch.object(DatabaseRows, "is_private", True):
        overrides.clear()
        overrides.refresh()
        for number in range(3):
            QuotaOverride.objects.create(subject=f"user:{number}", mode="blocked")

    assert len(overrides._own) == 1


def test_many_threads_that_save_one_row_leave_what_the_row_says(watch: Watch) -> None:
    number = OverrideChange.objects.count()
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
    assert OverrideChange.objects.count() == number + 1 + 4 * 5 * 2
    is_exempt = QuotaOverride.objects.get().mode == "exempt"
    assert admits(rule="0/m") == is_exempt
    watch.let_pass(copies.WAIT_AFTER)
    assert admits(rule="0/m") == is_exempt


@pytest.mark.parametrize("is_deleted", [False, True], ids=["saved", "deleted"])
@pytest.mark.parametrize("is_new", [False, True], ids=["an old process", "a new process"])
@on_postgresql
def test_a_change_that_is_committed_after_a_later_one_reaches_every_process(
    watch: Watch, is_new: bool, is_deleted: bool
) -> None:
    row = block("ip:192.0.2.2", mode="exempt") if is_deleted else None
    watch.let_pass(copies.WAIT_AFTER)

    with ThreadPoolExecutor(1) as other, elsewhere(), transaction.atomic():
        if row is not None:
            row.delete()
        else:
            block("ip:192.0.2.2")
        other.submit(in_a_thread, block).result(60)  # it waits for no other change
        if is_new:
            overrides.clear()
        watch.let_pass(copies.WAIT_AFTER)
        assert not admits()
        assert admits("ip:192.0.2.2", rule="0/m") == is_deleted

    with patch.object(DatabaseRows, "all", side_effect=AssertionError):
        watch.let_pass(copies.WAIT_AFTER)
        assert admits("ip:192.0.2.2") == is_deleted
        assert not admits("ip:192.0.2.2", rule="0/m")


def in_a_thread(work: Callable[[], object]) -> None:
    try:
        work()
    finally:
        connections.close_all()


@on_postgresql
def test_a_long_transaction_that_raises_a_limit_holds_up_no_other_change(watch: Watch) -> None:
    with ThreadPoolExecutor(1) as other, transaction.atomic():
        raise_limit(Rule.make("tokens", "1000/d"), "org:7", 500)
        switch_off = partial(call_command, "quota_override", "set", "*", "exempt", verbosity=0, stdout=StringIO())
        other.submit(in_a_thread, switch_off).result(60)
    assert admits(rule="0/m")


def test_a_row_that_bulk_create_updates_is_one_that_has_changed(watch: Watch) -> None:
    block(mode="exempt")

    QuotaOverride.objects.bulk_create(
        [QuotaOverride(subject=SUBJECT, mode="blocked")],
        update_conflicts=True,
        update_fields=["mode"],
        unique_fields=["subject", "rule"],
    )

    assert QuotaOverride.objects.get().change == OverrideChange.objects.latest("pk").pk
    assert copy()[SUBJECT] == "blocked"


def test_what_was_deleted_elsewhere_is_dropped_without_reading_all(watch: Watch) -> None:
    rows = [block("ip:192.0.2.2"), block(), block("ip:192.0.2.3")]
    watch.let_pass(copies.WAIT_AFTER)
    with elsewhere():
        rows[0].delete()
        QuotaOverride.objects.filter(pk=rows[1].pk).delete()

    with CaptureQueriesContext(connection) as here, patch.object(DatabaseRows, "all", side_effect=AssertionError):
        watch.let_pass(copies.WAIT_AFTER)
        assert [admits(subject) for subject in SUBJECTS] == [True, True, False]

    assert not here.captured_queries


@pytest.fixture
def old_changes(watch: Watch) -> int:
    """Another process has changed rows an hour ago, which this one has not read, and one just now; returns the hour."""
    hour_ago = clock.machine_now() - 3_600 * clock.SECOND
    block("ip:192.0.2.2").delete()
    admits()
    watch.let_pass(copies.WAIT_AFTER)
    admits()
    with elsewhere():
        block("ip:192.0.2.3")
        OverrideChange.objects.update(at=hour_ago)
        block()
    return hour_ago


def test_old_changes_are_forgotten(old_changes: int) -> None:
    assert OverrideChange.objects.filter(at__lte=old_changes).count() == 1


@pytest.mark.usefixtures("old_changes")
def test_who_has_not_read_changes_that_are_forgotten_reads_all(watch: Watch) -> None:
    watch.let_pass(copies.WAIT_AFTER)

    assert (admits(), admits("ip:192.0.2.3")) == (False, False)


def test_a_refresh_reads_what_holds_by_the_clock_that_a_test_has_frozen(watch: Watch) -> None:
    with freeze(datetime(2026, 1, 31, 12, tzinfo=UTC)):
        with elsewhere():
            block(expires=datetime(2026, 1, 31, 13, tzinfo=UTC))
        overrides.clear()
        assert not admits()


@forks
def test_a_forked_process_forgets_what_only_its_parent_can_commit(watch: Watch) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the child would share the connection")
    with transaction.atomic():
        block()
        assert not admits()
        assert in_child(lambda: overrides._own != [] or overrides._known is not None) == 0
        assert not admits()


@pytest.mark.usefixtures("watch")
def test_a_forked_process_reads_again_what_its_parent_may_not_commit() -> None:
    with transaction.atomic():
        block()

        overrides.after_fork()

        assert admits()
        transaction.set_rollback(True)


def test_a_forked_process_uses_what_its_parent_has_read(watch: Watch) -> None:
    block()
    watch.let_pass(copies.WAIT_AFTER)
    admits()

    overrides.after_fork()

    assert overrides.refreshing() is None
    assert not admits()


@pytest.mark.usefixtures("watch")
def test_the_first_decision_reads_all() -> None:
    with elsewhere():
        block()
    overrides.clear()

    assert not admits()


def test_an_event_loop_reads_no_database_itself(watch: Watch) -> None:
    async def decide() -> list[bool]:
        allowed = []
        for seconds in (0.0, copies.REFRESH_AFTER, copies.WAIT_AFTER, copies.ALL_AFTER):
            watch.let_pass(seconds)
            allowed.append(bool(await acheck("1000/m", SUBJECT)))
        return allowed

    with elsewhere():
        block()
    overrides.clear()

    allowed = asyncio.run(decide())

    let_refreshes_end()
    assert allowed == [False] * 4
    assert overrides.problem == ""
