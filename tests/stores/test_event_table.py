"""The log of events in a database, its list of bans, and what expires there."""

import pytest

from django_quota.engine.events import EventRecord
from django_quota.features.counters.operations import Set
from django_quota.stores.base import Statement
from django_quota.stores.database import sql
from django_quota.stores.database.log import (
    EventTable,
    Expired,
    KeptEvents,
    LoggedBan,
    LoggedEvent,
    Position,
    count_expired,
    delete_expired,
)
from django_quota.stores.database.store import DatabaseStore
from tests.support.counts import keys_of

LOG, OTHER = "quota:1:{!}:events", "other:1:{!}:events"


def log(store: DatabaseStore, *events: EventRecord, at: int = 5, key: str = LOG) -> None:
    with store.pool.lent() as (connection, _):
        connection.begin((), Statement("SELECT 1"))
        connection.commit(list(sql.log_events(key, events, at, connection.batch)))


def refused(number: int) -> EventRecord:
    return EventRecord("refused", "r", f"s{number}")


def banned(subject: str, until: int, rule: str = "r") -> EventRecord:
    return EventRecord("banned", rule, subject, until=until)


@pytest.fixture
def store(on_sqlite: DatabaseStore) -> DatabaseStore:
    """A database with five events, at moments 1 to 5, and one in another log."""
    for number in range(1, 6):
        log(on_sqlite, refused(number), at=number)
    log(on_sqlite, refused(9), key=OTHER)
    return on_sqlite


@pytest.fixture
def table(store: DatabaseStore) -> EventTable:
    return EventTable(store, LOG)


def subjects(events: list[LoggedEvent]) -> str:
    return "".join(each.record.subject[1:] if each.record else "?" for each in events)


class TestTheNewestEvents:
    @pytest.mark.parametrize(("count", "found"), [(1, "5"), (3, "543"), (9, "54321")])
    def test_come_first_up_to_a_number(self, count: int, found: str, table: EventTable) -> None:
        assert subjects(table.newest(count)) == found

    @pytest.mark.parametrize(
        ("bounds", "found"),
        [({}, "54321"), ({"since": 4}, "54"), ({"until": 2}, "21"), ({"since": 2, "until": 4}, "432"),
         ({"since": 6}, ""), ({"since": 0, "until": 0}, "54321")],
        ids=str,
    )  # fmt: skip
    def test_are_those_between_two_moments(self, bounds: dict[str, int], found: str, table: EventTable) -> None:
        assert subjects(table.newest(9, **bounds)) == found

    def test_are_those_that_were_written_last_though_the_clock_has_stepped_back(
        self, store: DatabaseStore, table: EventTable
    ) -> None:
        log(store, refused(6), at=2)

        assert subjects(table.newest(2)) == "65"

    def test_are_those_before_another(self, table: EventTable) -> None:
        third = table.newest(9)[2]

        assert subjects(table.newest(9, third.position.id)) == "21"

    def test_are_read_as_they_were_written(self, table: EventTable) -> None:
        (found,) = table.newest(1)

        assert found == LoggedEvent(Position(0, 5), 5, refused(5))

    @pytest.mark.parametrize("data", ["nonsense", "5", "[]", '{"a":1}', "null"])
    def test_have_no_record_where_another_program_has_written(
        self, data: str, table: EventTable, store: DatabaseStore
    ) -> None:
        store.write(lambda _: Statement(f"UPDATE {sql.EVENT_TABLE} SET data = ? WHERE at = 5 RETURNING 1", [data]))

        assert [each.record is None for each in table.newest(2)] == [True, False]


class TestAFollower:
    def test_begins_after_the_last_event(self, table: EventTable) -> None:
        assert table.end() == table.newest(1)[0].position

    def test_begins_at_the_beginning_of_an_empty_log(self, on_sqlite: DatabaseStore) -> None:
        assert EventTable(on_sqlite, LOG).end() == Position(0, 0)

    def test_sees_each_event_once_in_its_order(self, table: EventTable) -> None:
        place, found = Position(0, 0), ""
        while events := table.after(place, 2):
            assert len(events) <= 2
            found += subjects(events)
            place = events[-1].position

        assert found == "12345"

    @pytest.mark.parametrize(
        ("batches", "after", "found"),
        [((1, 1, 2), (1, 1), "23"), ((1, 1, 2), (1, 2), "3"), ((2, 1, 1), (1, 3), "1"), ((3, 2, 1), (0, 9), "321")],
        ids=["within a transaction", "the next transaction", "a longer transaction", "all"],
    )
    def test_sees_the_events_of_later_transactions(
        self, batches: tuple[int, ...], after: tuple[int, int], found: str, on_sqlite: DatabaseStore
    ) -> None:
        for number, batch in enumerate(batches, 1):
            log(on_sqlite, refused(number))
            numbered = Statement(f"UPDATE {sql.EVENT_TABLE} SET batch = ? WHERE id = ? RETURNING 1", [batch, number])
            on_sqlite.write(lambda _: numbered)  # noqa: B023 — called at once

        assert subjects(EventTable(on_sqlite, LOG).after(Position(*after), 9)) == found

    def test_ends_at_the_last_transaction(self, on_sqlite: DatabaseStore) -> None:
        for _ in range(2):
            log(on_sqlite, refused(1))
        on_sqlite.write(lambda _: Statement(f"UPDATE {sql.EVENT_TABLE} SET batch = 7 WHERE id = 1 RETURNING 1"))

        assert EventTable(on_sqlite, LOG).end() == Position(7, 1)


class TestBans:
    @pytest.fixture(autouse=True)
    def bans(self, store: DatabaseStore) -> None:
        log(store, banned("a", 30), banned("b", 10), banned("c", 20))
        log(store, banned("d", 99), key=OTHER)

    @pytest.mark.parametrize(
        ("now", "count", "total", "first"),
        [(0, 9, 3, "bca"), (0, 2, 3, "bc"), (9, 9, 3, "bca"), (10, 9, 2, "ca"), (30, 9, 0, "")],
    )
    def test_in_force_come_in_the_order_of_their_ends(
        self, now: int, count: int, total: int, first: str, table: EventTable
    ) -> None:
        found, bans = table.bans(now, count)

        assert (found, "".join(each.subject for each in bans)) == (total, first)

    def test_say_whom_they_are_about(self, table: EventTable) -> None:
        assert table.bans(0, 1)[1] == [LoggedBan("b", "r", 10)]

    def test_of_a_subject_are_one_under_each_rule(self, table: EventTable, store: DatabaseStore) -> None:
        log(store, banned("b", 50), banned("b", 40, "other"))

        assert [each.until for each in table.bans(0, 9)[1] if each.subject == "b"] == [40, 50]

    def test_that_are_lifted_leave_the_list(self, table: EventTable, store: DatabaseStore) -> None:
        log(store, EventRecord("lifted", "r", "b"))

        assert [each.subject for each in table.bans(0, 9)[1]] == ["c", "a"]

    def test_are_forgotten_for_one_log(self, table: EventTable, store: DatabaseStore) -> None:
        forgotten = store.write(lambda _: sql.forget_bans(LOG))

        assert len(forgotten) == 3
        assert table.bans(0, 9) == (0, [])
        assert EventTable(store, OTHER).bans(0, 9)[0] == 1


# --- what has expired -------------------------------------------------------------------------------------------------


ALL = KeptEvents(most=99, span=10**9)


class TestWhatHasExpired:
    @pytest.mark.parametrize(("now", "count"), [(19, 2), (20, 3), (30, 4), (9, 0)])
    def test_are_bans_that_have_ended(self, now: int, count: int, store: DatabaseStore) -> None:
        log(store, *(banned(subject, until) for subject, until in zip("abcd", (10, 15, 20, 30), strict=True)))

        assert count_expired(store, now, ALL).bans == count

    @pytest.mark.parametrize(("hours", "count"), [(0, 0), (1, 0), (2, 1)])
    def test_are_states_an_hour_after_their_end(self, hours: int, count: int, store: DatabaseStore) -> None:
        store.run(Set(keys_of("quota:1:{a}:c:x"), 1, sql.SWEEP_HOUR), 0)

        assert count_expired(store, hours * sql.SWEEP_HOUR, ALL).states == count

    @pytest.mark.parametrize(("hours", "count"), [(2, 0), (3, 0), (4, 1)])
    def test_are_states_an_hour_after_the_end_that_was_written_last(
        self, hours: int, count: int, store: DatabaseStore
    ) -> None:
        for ends in (1, 3):
            store.run(Set(keys_of("quota:1:{a}:c:x"), 1, ends * sql.SWEEP_HOUR), 0)

        assert count_expired(store, hours * sql.SWEEP_HOUR, ALL).states == count

    @pytest.mark.parametrize(("most", "count"), [(9, 0), (5, 0), (4, 1), (1, 4), (0, 6)])
    def test_are_events_of_each_log_above_a_number(self, most: int, count: int, store: DatabaseStore) -> None:
        assert count_expired(store, 5, KeptEvents(most, 99)).events == count

    @pytest.mark.parametrize(("span", "count"), [(5, 0), (4, 0), (3, 1), (0, 4)])
    def test_are_events_that_are_too_old(self, span: int, count: int, store: DatabaseStore) -> None:
        assert count_expired(store, 5, KeptEvents(99, span)).events == count

    def test_are_no_events_of_an_empty_log(self, on_sqlite: DatabaseStore) -> None:
        assert count_expired(on_sqlite, 5, KeptEvents(0, 0)) == Expired()

    def test_is_deleted_in_batches(self, store: DatabaseStore) -> None:
        log(store, *(EventRecord("listed", "r", subject, until=1) for subject in "abc"))
        for subject in "abcd":
            store.run(Set(keys_of(f"quota:1:{{{subject}}}:c:x"), 1, 1), -2 * sql.SWEEP_HOUR)

        found = [delete_expired(store, 5, KeptEvents(2, 99), 2) for _ in range(3)]

        assert found == [Expired(2, 2, 2), Expired(2, 1, 1), Expired(0, 0, 0)]


def test_a_sweep_of_postgresql_waits_for_no_row_that_is_in_use(on_postgres: DatabaseStore) -> None:
    log(on_postgres, *(banned(subject, 1) for subject in "ab"))
    with on_postgres.pool.lent() as (connection, _):
        connection.begin((), Statement(f"SELECT 1 FROM {sql.BAN_TABLE} WHERE subject = 'a' FOR UPDATE"))

        swept = delete_expired(on_postgres, 5, KeptEvents(0, 99), 9)

        connection.rollback()
    assert swept == Expired(0, 1, 2)


def test_a_follower_on_postgresql_sees_no_event_before_older_transactions_have_ended(
    on_postgres: DatabaseStore,
) -> None:
    """An older transaction may still write an event that comes before it."""
    table = EventTable(on_postgres, LOG)
    with on_postgres.pool.lent() as (connection, _):
        connection.begin((), Statement("SELECT pg_current_xact_id()::text"))
        log(on_postgres, refused(2), at=10**18)
        seen = table.after(Position(0, 0), 9)
        end = table.end()

        connection.commit(list(sql.log_events(LOG, [refused(1)], 10**18, connection.batch)))

    assert (seen, end) == ([], Position(0, 0))
    assert subjects(table.after(Position(0, 0), 9)) == "12"


def test_a_follower_on_postgresql_sees_an_old_event_whatever_transactions_go_on(on_postgres: DatabaseStore) -> None:
    """A transaction of ours would have been ended long ago, so it is one of somebody else."""
    table = EventTable(on_postgres, LOG)
    ((now,),) = on_postgres.read(lambda dialect: Statement(f"SELECT {dialect.now}"))
    with on_postgres.pool.lent() as (connection, _):
        connection.begin((), Statement("SELECT pg_current_xact_id()::text"))
        for number, ago in enumerate((60_000_000, 16_000_000, 14_000_000), 1):
            log(on_postgres, refused(number), at=now - ago)

        seen = table.after(Position(0, 0), 9)

        connection.rollback()
    assert subjects(seen) == "12"


def test_the_ids_of_events_in_a_file_never_come_again(store: DatabaseStore, table: EventTable) -> None:
    """Else who follows the log would take a new event for one that it has seen."""
    last = table.newest(1)[0].position
    delete_expired(store, 5, KeptEvents(0, 0), 99)

    log(store, refused(7))

    assert subjects(table.after(last, 9)) == "7"
