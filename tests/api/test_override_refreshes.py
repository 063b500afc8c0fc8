"""When the copy of the overrides is refreshed, what a refresh reads, and how it treats a table that does not answer."""

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from unittest.mock import patch

import pytest

from django_quota.core.overrides import Override
from django_quota.limiting import overrides as copies
from django_quota.limiting.overrides import Change, NoConnectionError, OverrideCopy
from django_quota.testing import freeze
from tests.support.steps import SECOND, START, Clock

SUBJECT = "ip:192.0.2.1"


class Table:
    """The overrides in a database that a test changes as other processes do; `asked` is what was read of it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.is_private = False
        self.is_in_transaction = False
        self.log: dict[int, Change] = {}
        self.saved: dict[int, Override] = {}
        """By the number of the change."""
        self.asked: list[Any] = []
        self.said_full = 0
        self.closed = 0
        self.no_connection: NoConnectionError | None = None
        self.error: Exception | None = None
        self.seconds = 0.0
        """How long it takes to read all."""

    def block(self, change: int, subject: str = SUBJECT, ends: int = 0) -> None:
        self.log[change] = Change((), full=False)
        self.saved[change] = Override(change, subject, "*", "blocked", ends=ends)

    def read(self, work: Callable[[], None]) -> None:
        self.asked.append("the reader")
        if self.no_connection is not None:
            self.clock.now += self.seconds
            raise self.no_connection
        work()

    def read_here(self, work: Callable[[], None]) -> None:
        self.asked.append("here")
        work()

    def close(self) -> None:
        self.closed += 1

    def changes(self, known: int | None, others: Collection[int]) -> Mapping[int, Change]:
        self.asked.append((known, sorted(others)))
        if self.error is not None:
            raise self.error
        return {number: change for number, change in self.log.items() if number >= (known or 0) or number in others}

    def say_full(self) -> None:
        self.said_full += 1

    def all(self) -> Iterable[Override]:
        self.asked.append("all")
        self.clock.now += self.seconds
        return list(self.saved.values())

    def saved_by(self, changes: Collection[int]) -> Iterable[Override]:
        self.asked.append(sorted(changes))
        return [self.saved[change] for change in sorted(changes) if change in self.saved]


class Reader:
    """The thread of the reader, which works only when a test says so."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.planned: dict[Any, float] = {}

    def call_at(self, moment: float, function: Callable[[], object]) -> bool:
        self.planned[function] = moment
        return True

    def work(self) -> None:
        """Do what is due."""
        for function in [each for each, moment in self.planned.items() if moment <= self.clock.now]:
            del self.planned[function]
            function()

    @property
    def is_due(self) -> bool:
        return any(moment <= self.clock.now for moment in self.planned.values())


@pytest.fixture
def table(elapsed: Clock) -> Table:
    return Table(elapsed)


@pytest.fixture
def reader(elapsed: Clock, monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader(elapsed)
    monkeypatch.setattr(copies, "reader", reader)
    return reader


@pytest.fixture
def copy(table: Table, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> OverrideCopy:
    monkeypatch.setattr(copies, "FIRST_WAIT", 5.0)  # the other tests wait longer
    monkeypatch.setattr(copies, "MAX_WAIT", 1.0)
    copy = OverrideCopy()
    copy.rows = table
    return copy


@pytest.fixture
def waits(copy: OverrideCopy, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the reader work while a decision waits for it; collects how many seconds decisions would wait at most."""
    found: list[float] = []

    def wait(_: Any, timeout: float) -> None:
        found.append(timeout)
        reader.work()

    monkeypatch.setattr(copies, "wait", wait)
    return found


def decide(copy: OverrideCopy) -> bool:
    """Do what a decision does; return whether it waited."""
    call = copy.refreshing()
    if call is None:
        return False
    call.run_sync()
    return True


def blocked(copy: OverrideCopy) -> list[str]:
    return sorted(override.subject for override in copy.table.by_pk.values())


@pytest.fixture
def read_once(copy: OverrideCopy, table: Table, waits: list[float]) -> OverrideCopy:
    """A copy that has read a table with the changes 1 to 3."""
    for number in (1, 2, 3):
        table.block(number, f"user:{number}")
    decide(copy)
    del table.asked[:], waits[:]
    return copy


# --- what is read -----------------------------------------------------------------------------------------------------


def test_the_first_refresh_reads_all(copy: OverrideCopy, table: Table, waits: list[float]) -> None:
    table.block(1)

    assert decide(copy)

    assert table.asked == ["the reader", (None, []), "all"]
    assert blocked(copy) == [SUBJECT]


def test_a_later_refresh_reads_what_is_new(read_once: OverrideCopy, table: Table, clock: Clock) -> None:
    table.block(4)
    clock.now += copies.WAIT_AFTER

    decide(read_once)

    assert table.asked == ["the reader", (3, []), [4]]
    assert SUBJECT in blocked(read_once)


def test_a_refresh_that_finds_nothing_new_reads_no_override(
    read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    clock.now += copies.WAIT_AFTER

    decide(read_once)

    assert table.asked == ["the reader", (3, [])]


def test_the_first_change_of_an_empty_table_is_read_alone(
    copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
) -> None:
    decide(copy)
    table.block(1)
    clock.now += copies.WAIT_AFTER
    del table.asked[:]

    decide(copy)

    assert table.asked == ["the reader", (0, []), [1]]


def test_what_was_removed_is_dropped(read_once: OverrideCopy, table: Table, clock: Clock) -> None:
    table.log[4] = Change([2, 77], full=False)
    clock.now += copies.WAIT_AFTER

    decide(read_once)

    assert blocked(read_once) == ["user:1", "user:3"]


def test_a_row_that_was_deleted_and_then_saved_again_with_its_key_holds(
    read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    table.log[4] = Change([2], full=False)
    table.block(5)
    table.saved[5] = Override(2, "user:2", "*", "blocked")
    clock.now += copies.WAIT_AFTER

    decide(read_once)

    assert blocked(read_once) == ["user:1", "user:2", "user:3"]


@pytest.mark.parametrize(
    ("seconds", "reads"),
    [
        pytest.param(59.5, ["the reader", (3, [])], id="within a minute"),
        pytest.param(60.0, ["the reader", (3, []), "all"], id="after a minute"),
    ],
)
def test_all_are_read_again(
    seconds: float, reads: list[Any], read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    clock.now += seconds

    decide(read_once)

    assert table.asked == reads


@pytest.mark.parametrize(("later", "is_all"), [(199.0, False), (200.0, True)], ids=["before", "after"])
def test_a_table_that_takes_long_is_read_for_a_hundredth_of_the_time(
    later: float, is_all: bool, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
) -> None:
    table.seconds = 2.0
    began = clock.now
    decide(copy)
    del table.asked[:]

    clock.now = began + later
    decide(copy)

    assert ("all" in table.asked) is is_all


@pytest.mark.parametrize(
    ("number", "last"), [pytest.param(500, list(range(4, 504)), id="500"), pytest.param(501, "all", id="one more")]
)
def test_many_changes_are_read_by_their_numbers(
    number: int, last: Any, read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    for change in range(4, 4 + number):
        table.block(change, f"user:{change}")
    clock.now += copies.WAIT_AFTER

    decide(read_once)

    assert table.asked[-1] == last
    assert len(read_once.table) == 3 + number


def test_a_new_override_drops_those_that_have_ended(
    copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
) -> None:
    table.block(1, ends=START)
    table.block(2, "user:2", ends=START + SECOND)
    with freeze(START):
        decide(copy)
        table.block(3, "user:3")
        clock.now += copies.WAIT_AFTER
        decide(copy)

    assert blocked(copy) == ["user:2", "user:3"]


class TestLogThatWentBack:
    """The newest change that is known is no longer there."""

    @pytest.fixture(autouse=True)
    def emptied(self, read_once: OverrideCopy, table: Table, clock: Clock) -> None:
        table.log.clear()
        table.saved.clear()
        table.block(1)
        clock.now += copies.WAIT_AFTER

    def test_all_is_read(self, read_once: OverrideCopy, table: Table) -> None:
        decide(read_once)

        assert table.asked == ["the reader", (3, []), (None, []), "all"]
        assert blocked(read_once) == [SUBJECT]

    def test_a_transaction_that_sees_the_past_changes_nothing(self, read_once: OverrideCopy, table: Table) -> None:
        table.is_in_transaction = True

        decide(read_once)

        assert table.asked == ["the reader", (3, [])]
        assert blocked(read_once) == ["user:1", "user:2", "user:3"]


# --- missing numbers --------------------------------------------------------------------------------------------------


def missing(copy: OverrideCopy, table: Table, clock: Clock) -> list[int]:
    """Return for which missing numbers the next refresh asks."""
    clock.now += copies.WAIT_AFTER
    decide(copy)
    return [each for each in table.asked if isinstance(each, tuple)][-1][1]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("numbers", "gaps"),
    [
        pytest.param([1, 2, 3], [], id="none is missing"),
        pytest.param([3, 4, 7], [1, 2, 5, 6], id="before and between"),
        pytest.param([100], list(range(1, 100)), id="all before the hundredth"),
        pytest.param([101], [], id="a log that begins later"),
        pytest.param([101, 104], [102, 103], id="a gap of a log that begins later"),
        pytest.param([1, 110], list(range(10, 110)), id="at most a hundred"),
        pytest.param([1, 4, 105], list(range(5, 105)), id="the last hundred of several gaps"),
    ],
)
def test_a_new_process_asks_again_for_the_numbers_that_are_missing(
    numbers: list[int], gaps: list[int], copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
) -> None:
    for number in numbers:
        table.block(number)
    decide(copy)

    assert missing(copy, table, clock) == gaps


def test_a_missing_number_that_is_found_is_not_asked_for_again(
    read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    table.block(6)
    assert [missing(read_once, table, clock) for _ in range(2)] == [[], [4, 5]]

    table.block(4)

    assert [missing(read_once, table, clock) for _ in range(2)] == [[4, 5], [5]]


@pytest.mark.parametrize(("seconds", "gaps"), [(3_599.5, [4]), (3_600.0, [])], ids=["within an hour", "after an hour"])
def test_a_missing_number_is_asked_for(
    seconds: float, gaps: list[int], read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    table.block(5)
    missing(read_once, table, clock)

    clock.now += seconds - copies.WAIT_AFTER
    missing(read_once, table, clock)

    assert missing(read_once, table, clock) == gaps


def test_a_number_that_was_missing_before_the_log_was_emptied_is_not_asked_for(
    read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    table.block(6)
    missing(read_once, table, clock)
    table.log.clear()
    table.block(1)

    assert [missing(read_once, table, clock) for _ in range(2)] == [[], []]


# --- when it is read, and who waits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "reads", "waits_for_it"),
    [
        pytest.param(1.25, False, False, id="a new copy"),
        pytest.param(1.5, True, False, id="an older copy"),
        pytest.param(1.75, True, False, id="a copy that is nearly old"),
        pytest.param(2.0, True, True, id="an old copy"),
    ],
)
def test_a_decision_refreshes(
    age: float, reads: bool, waits_for_it: bool, read_once: OverrideCopy, table: Table, clock: Clock, reader: Reader
) -> None:
    clock.now += age

    has_waited = decide(read_once)
    reader.work()

    assert (has_waited, bool(table.asked)) == (waits_for_it, reads)


def test_a_copy_is_as_old_as_the_beginning_of_its_refresh(copy: OverrideCopy, table: Table, waits: list[float]) -> None:
    table.seconds = copies.WAIT_AFTER
    decide(copy)

    assert decide(copy)


def test_the_first_decision_waits_for_five_seconds(copy: OverrideCopy, waits: list[float]) -> None:
    decide(copy)

    assert waits == [5.0]


def test_a_later_decision_waits_for_one_second(read_once: OverrideCopy, waits: list[float], clock: Clock) -> None:
    clock.now += copies.WAIT_AFTER

    decide(read_once)

    assert waits == [1.0]


def test_the_waits_of_a_site_are_five_seconds_and_one_second() -> None:
    """The other tests wait longer, so the module is read as it is written."""
    assert "FIRST_WAIT, MAX_WAIT = 5.0, 1.0\n" in inspect.getsource(copies)


def test_a_copy_that_only_this_process_can_change_is_read_once_and_here(
    copy: OverrideCopy, table: Table, clock: Clock, reader: Reader
) -> None:
    table.is_private = True
    decide(copy)
    clock.now += 10 * copies.ALL_AFTER

    decide(copy)

    assert table.asked == ["here", (None, []), "all"]
    assert not reader.planned


@pytest.mark.parametrize(("is_private", "place"), [(True, "here"), (False, "the reader")], ids=["private", "shared"])
def test_code_can_ask_for_a_refresh_at_any_time(
    is_private: bool, place: str, copy: OverrideCopy, table: Table, waits: list[float]
) -> None:
    table.is_private = is_private
    for _ in range(2):
        copy.refresh()

    assert table.asked == [place, (None, []), "all", place, (0, [])]


class TestWhileTheReaderHangs:
    @pytest.fixture(autouse=True)
    def hung(self, read_once: OverrideCopy, waits: list[float], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        """A decision has waited for a refresh that did not end."""
        monkeypatch.setattr(copies, "wait", lambda _, timeout: waits.append(timeout))
        clock.now += copies.WAIT_AFTER
        assert decide(read_once)
        del waits[:]
        clock.now += 60.0

    def test_the_problem_is_named(self, read_once: OverrideCopy) -> None:
        assert read_once.problem == "the database does not answer"

    def test_no_other_decision_waits(self, read_once: OverrideCopy) -> None:
        assert not decide(read_once)

    def test_a_refresh_that_code_asks_for_does_not_wait(self, read_once: OverrideCopy, waits: list[float]) -> None:
        read_once.refresh()

        assert waits == [0.0]

    def test_decisions_wait_again_after_a_refresh_that_succeeds(
        self, read_once: OverrideCopy, reader: Reader, clock: Clock
    ) -> None:
        decide(read_once)
        reader.work()
        clock.now += copies.WAIT_AFTER

        assert read_once.problem == ""
        assert decide(read_once)


def test_while_the_app_is_not_installed_nothing_is_read(reader: Reader) -> None:
    copy = OverrideCopy()

    copy.refresh()
    copy.note_refusal()

    assert (copy.refreshing(), copy.problem, reader.planned) == (None, "", {})


def test_the_connection_is_closed_two_minutes_after_the_last_refresh(
    read_once: OverrideCopy, table: Table, reader: Reader, clock: Clock
) -> None:
    clock.now += 119.0
    reader.work()
    assert table.closed == 0

    clock.now += 1.0
    reader.work()
    assert table.closed == 1


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "problem", "logged"),
    [
        pytest.param(RuntimeError("the disk is full."), "the disk is full.", "the disk is full", id="its message"),
        pytest.param(RuntimeError(), "RuntimeError", "RuntimeError", id="its class without a message"),
    ],
)
def test_the_problem_of_a_refresh_that_fails_is(
    error: Exception,
    problem: str,
    logged: str,
    read_once: OverrideCopy,
    table: Table,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock.now += copies.WAIT_AFTER

    with patch.object(table, "error", error):
        decide(read_once)

    assert read_once.problem == problem
    assert caplog.messages == [f"The overrides cannot be read: {logged}. This process keeps using the 3 that it knows."]
    assert blocked(read_once) == ["user:1", "user:2", "user:3"]


@pytest.mark.parametrize(("later", "is_tried"), [(1.25, False), (1.5, True)], ids=["soon", "later"])
def test_after_a_failure_a_decision_tries_again(
    later: float, is_tried: bool, read_once: OverrideCopy, table: Table, clock: Clock
) -> None:
    clock.now += copies.WAIT_AFTER
    with patch.object(table, "error", RuntimeError("the disk is full")):
        decide(read_once)
    del table.asked[:]

    clock.now += later
    decide(read_once)

    assert bool(table.asked) is is_tried
    assert bool(read_once.problem) is not is_tried


@pytest.mark.parametrize(("later", "is_tried"), [(1.25, False), (1.5, True)], ids=["soon", "later"])
def test_after_a_failure_a_decision_tries_again_to_read_here(
    later: float, is_tried: bool, copy: OverrideCopy, table: Table, clock: Clock
) -> None:
    table.is_private = True
    with patch.object(table, "error", RuntimeError("the disk is full")):
        decide(copy)
    del table.asked[:]

    clock.now += later
    decide(copy)

    assert table.asked == (["here", (None, []), "all"] if is_tried else [])


@pytest.mark.parametrize(
    "error", [RuntimeError("too late"), NoConnectionError("too late")], ids=["an error", "no connection"]
)
def test_an_error_of_a_refresh_that_is_not_awaited_any_more_changes_nothing(
    error: Exception, read_once: OverrideCopy, table: Table, clock: Clock, reader: Reader
) -> None:
    clock.now += copies.REFRESH_AFTER
    decide(read_once)

    def forget_and_fail() -> None:
        read_once.clear()
        clock.now += copies.MAX_WAIT
        raise error

    with patch.object(table, "read", lambda _: forget_and_fail()):
        reader.work()

    assert read_once.problem == ""


def test_what_a_refresh_reads_that_is_not_awaited_any_more_is_not_used(
    read_once: OverrideCopy, table: Table, clock: Clock, reader: Reader
) -> None:
    clock.now += copies.REFRESH_AFTER
    decide(read_once)

    def forget_and_read(work: Callable[[], None]) -> None:
        read_once.clear()
        work()

    with patch.object(table, "read", forget_and_read):
        reader.work()

    assert blocked(read_once) == []


# --- without a connection ---------------------------------------------------------------------------------------------


class TestServerThatGivesNoConnection:
    @pytest.fixture(autouse=True)
    def refused(self, table: Table) -> None:
        table.no_connection = NoConnectionError("too many clients already")

    def test_the_decision_reads_on_the_connection_of_its_thread(
        self, copy: OverrideCopy, table: Table, waits: list[float]
    ) -> None:
        table.block(1)

        decide(copy)

        assert table.asked == ["the reader", "here", (None, []), "all"]
        assert (blocked(copy), copy.problem) == ([SUBJECT], "")

    def test_it_does_so_in_an_event_loop_too(self, copy: OverrideCopy, table: Table, reader: Reader) -> None:
        table.block(1)

        async def decide_in_a_loop() -> None:
            call = copy.refreshing()
            assert call is not None
            asyncio.get_running_loop().call_soon(reader.work)
            await call.run_async()

        asyncio.run(decide_in_a_loop())

        assert blocked(copy) == [SUBJECT]

    def test_it_is_reported_once_to_all_processes(
        self, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            decide(copy)
            clock.now += copies.WAIT_AFTER

        assert table.said_full == 1
        [record] = caplog.records
        assert record.levelname == "WARNING"
        assert record.getMessage() == (
            "The database had no connection left. For an hour, overrides are read on the connections of the site's "
            "threads."
        )

    def test_in_a_transaction_it_is_not_reported_before_a_later_refresh(
        self, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
    ) -> None:
        table.is_in_transaction = True
        decide(copy)
        reported = [table.said_full]

        table.is_in_transaction = False
        clock.now += copies.WAIT_AFTER
        decide(copy)

        assert [*reported, table.said_full] == [0, 1]

    @pytest.mark.parametrize(("seconds", "asks"), [(3_599.5, False), (3_600.0, True)], ids=["an hour", "longer"])
    def test_the_reader_does_not_ask_for_a_connection_for(
        self, seconds: float, asks: bool, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
    ) -> None:
        began = clock.now
        decide(copy)
        table.no_connection = None
        del table.asked[:]

        clock.now = began + seconds
        decide(copy)

        assert table.asked == ["the reader" if asks else "here", (0, []), "all"]

    @pytest.mark.parametrize(("age", "is_read"), [(1.25, False), (1.5, True)], ids=["new", "older"])
    def test_a_copy_is_read_here_again_if_it_is(
        self, age: float, is_read: bool, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
    ) -> None:
        decide(copy)
        del table.asked[:]

        clock.now += age
        decide(copy)

        assert table.asked == (["here", (0, [])] if is_read else [])

    def test_several_decisions_that_find_an_old_copy_read_it_once(
        self, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
    ) -> None:
        decide(copy)
        clock.now += copies.WAIT_AFTER
        del table.asked[:]

        calls = [copy.refreshing() for _ in range(2)]
        for call in calls:
            assert call is not None
            call.run_sync()

        assert table.asked == ["here", (0, [])]

    def test_several_decisions_that_meet_an_error_read_once(
        self, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
    ) -> None:
        decide(copy)
        clock.now += copies.WAIT_AFTER
        del table.asked[:]
        calls = [copy.refreshing() for _ in range(2)]

        with patch.object(table, "error", RuntimeError("the disk is full")):
            for call in calls:
                assert call is not None
                call.run_sync()

        assert table.asked == ["here", (0, [])]

    def test_if_a_request_has_no_connection_either_the_reader_asks_again(
        self, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
    ) -> None:
        with patch.object(table, "error", RuntimeError("too many clients already")):
            decide(copy)
        assert copy.problem == "too many clients already"
        table.no_connection = None
        del table.asked[:]

        clock.now += copies.WAIT_AFTER
        decide(copy)

        assert table.asked == ["the reader", (None, []), "all"]
        assert (copy.problem, table.said_full) == ("", 0)

    def test_a_server_that_refuses_only_after_a_second_is_down(
        self, copy: OverrideCopy, table: Table, waits: list[float]
    ) -> None:
        table.seconds = copies.MAX_WAIT

        decide(copy)

        assert copy.problem == "too many clients already"
        assert table.asked == ["the reader"]

    def test_no_decision_waits_for_a_server_that_is_down(
        self, copy: OverrideCopy, table: Table, waits: list[float], clock: Clock
    ) -> None:
        table.seconds = copies.MAX_WAIT
        decide(copy)
        clock.now += 60.0

        assert not decide(copy)


class TestRefusalOfARequest:
    """A request of the site got no connection."""

    def test_the_reader_reads_at_once(self, read_once: OverrideCopy, reader: Reader) -> None:
        read_once.note_refusal()

        assert reader.is_due

    def test_it_then_leaves_its_connection_to_the_site(
        self, read_once: OverrideCopy, table: Table, reader: Reader, clock: Clock
    ) -> None:
        read_once.note_refusal()
        reader.work()
        reader.work()
        del table.asked[:]

        clock.now += copies.WAIT_AFTER
        decide(read_once)

        assert (table.said_full, table.closed) == (1, 1)
        assert table.asked == ["here", (3, [])]

    def test_it_counts_before_the_first_decision_too(self, copy: OverrideCopy, table: Table, reader: Reader) -> None:
        copy.note_refusal()
        reader.work()

        assert table.said_full == 1

    def test_a_process_without_a_connection_does_not_ask_for_one(self, read_once: OverrideCopy, reader: Reader) -> None:
        read_once.note_refusal()
        reader.work()
        reader.work()

        read_once.note_refusal()

        assert not reader.is_due

    def test_it_starts_no_refresh_while_the_overrides_cannot_be_read(
        self, read_once: OverrideCopy, table: Table, reader: Reader, clock: Clock
    ) -> None:
        clock.now += copies.WAIT_AFTER
        with patch.object(table, "error", RuntimeError("the server is down")):
            decide(read_once)

        read_once.note_refusal()

        assert not reader.is_due

    def test_it_starts_no_refresh_of_a_table_that_only_this_process_has(
        self, copy: OverrideCopy, table: Table, reader: Reader
    ) -> None:
        table.is_private = True
        decide(copy)

        copy.note_refusal()

        assert not reader.planned


def test_the_report_of_another_process_makes_the_reader_close_its_connection(
    read_once: OverrideCopy, table: Table, reader: Reader, clock: Clock
) -> None:
    table.log[4] = Change((), full=True)
    table.block(5)
    clock.now += copies.WAIT_AFTER
    decide(read_once)
    reader.work()
    del table.asked[:]

    clock.now += copies.WAIT_AFTER
    decide(read_once)

    assert (table.said_full, table.closed) == (0, 1)
    assert table.asked == ["here", (5, [])]


def test_the_report_of_another_process_holds_for_an_hour_though_it_is_read_again(
    read_once: OverrideCopy, table: Table, reader: Reader, clock: Clock
) -> None:
    table.log[4] = Change((), full=True)
    clock.now += copies.WAIT_AFTER
    decide(read_once)
    clock.now += copies.HERE_FOR / 2
    decide(read_once)
    del table.asked[:]

    clock.now += copies.HERE_FOR / 2
    decide(read_once)

    assert table.asked[0] == "the reader"


class TestCleared:
    """What was known is forgotten, as after `migrate`."""

    def test_the_reader_asks_for_a_connection_again(self, copy: OverrideCopy, table: Table, waits: list[float]) -> None:
        table.no_connection = NoConnectionError("too many clients already")
        decide(copy)
        table.no_connection = None
        del table.asked[:]

        copy.clear()
        decide(copy)

        assert table.asked == ["the reader", (None, []), "all"]

    def test_a_decision_waits_though_one_has_waited_in_vain(
        self, copy: OverrideCopy, waits: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(copies, "wait", lambda _, timeout: waits.append(timeout))
        decide(copy)

        copy.clear()
        decide(copy)

        assert waits == [5.0, 5.0]

    def test_a_refusal_of_a_request_before_is_not_reported(
        self, read_once: OverrideCopy, table: Table, reader: Reader
    ) -> None:
        read_once.note_refusal()
        read_once.clear()
        reader.work()

        decide(read_once)

        assert table.said_full == 0


class TestAnotherThreadReads:
    """One thread reads on the connection of its request, and another takes a decision meanwhile."""

    class Held:
        """A lock that another thread holds; says for how many seconds each wanted to wait."""

        def __init__(self) -> None:
            self.waits: list[float] = []

        def acquire(self, timeout: float) -> bool:
            self.waits.append(timeout)
            return False

    @pytest.fixture
    def held(self, copy: OverrideCopy, table: Table, waits: list[float]) -> Held:
        held = self.Held()
        copy._reading_here = held  # type: ignore[assignment]
        table.no_connection = NoConnectionError("too many clients already")
        return held

    def test_without_any_overrides_it_waits_once(
        self, copy: OverrideCopy, table: Table, held: Held, clock: Clock
    ) -> None:
        for _ in range(3):
            decide(copy)
            clock.now += copies.WAIT_AFTER

        assert held.waits == [5.0, 0, 0]
        assert table.asked == ["the reader"]

    def test_with_an_old_copy_it_does_not_wait(
        self, read_once: OverrideCopy, table: Table, held: Held, clock: Clock
    ) -> None:
        clock.now += copies.WAIT_AFTER

        decide(read_once)

        assert held.waits == [0]
        assert table.asked == ["the reader"]
