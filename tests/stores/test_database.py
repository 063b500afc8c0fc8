"""The database store on SQLite and PostgreSQL: exact under races, on connections of its own, with our errors."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import psycopg
import pytest
from django.db import connection, connections, transaction
from hypothesis import given
from hypothesis import strategies as st

from django_quota import Rule, acheck, check, check_all, counter, lock, once, peek
from django_quota.core.algorithms.fixed_window import WindowCount
from django_quota.core.algorithms.sliding_window import WindowEntry
from django_quota.core.algorithms.token_bucket import Bucket
from django_quota.core.errors import (
    StoreBusy,
    StoreDataError,
    StoreOutOfMemory,
    StorePermissionDenied,
    StoreRefusesWrites,
)
from django_quota.core.keys import status_key
from django_quota.engine.operations import Operation, States
from django_quota.exceptions import ConfigurationError, QuotaExceeded, StoreUnavailable
from django_quota.features.counters.operations import Get, Set
from django_quota.models import QuotaEvent
from django_quota.runtime import runtime
from django_quota.stores.base import Statement
from django_quota.stores.breaker import FAILURES
from django_quota.stores.database import postgresql, sql
from django_quota.stores.database.errors import failure_of
from django_quota.stores.database.sqlite import IN_MEMORY, file_of
from django_quota.stores.database.states import dumps, loads
from django_quota.stores.database.store import DATABASE_CONNECTIONS, DatabaseStore
from tests.support.commands import wait_until
from tests.support.counts import keys_of
from tests.support.databases import end_sessions, running_pgbouncer
from tests.support.inputs import inputs
from tests.support.processes import ended, forks, processes, started
from tests.support.stores import current_store, empty_database, store_on

SUBJECT = "ip:192.0.2.1"
LIMIT = 50


@pytest.fixture
def store(database: dict[str, Any], settings: Any) -> DatabaseStore:
    """The store of the settings on each database."""
    settings.QUOTA = {"STORE": "database"}
    return current_store()  # type: ignore[no-any-return]


def hit(_: object = None, subject: str = SUBJECT) -> bool:
    decision = check(Rule.make("hot", f"{LIMIT}/h", on_unavailable="deny"), subject)
    assert not decision.degraded
    return bool(decision)


def remaining() -> int | None:
    return peek(Rule.make("hot", f"{LIMIT}/h"), SUBJECT).remaining


def test_racing_threads_are_admitted_exactly_up_to_the_limit(store: DatabaseStore) -> None:
    with ThreadPoolExecutor(32) as threads:
        assert sum(threads.map(hit, range(200))) == LIMIT


@pytest.mark.thorough("slow")
def test_racing_tasks_are_admitted_exactly_up_to_the_limit(store: DatabaseStore) -> None:
    async def race() -> int:
        of_sync_code = [hit(subject="user:2"), await asyncio.to_thread(hit, None, "user:2"), hit(subject="user:2")]
        assert of_sync_code == [True] * 3
        decisions = await asyncio.gather(*(acheck(f"{LIMIT}/h", "user:1", name="hot") for _ in range(100)))
        return sum(map(bool, decisions))

    assert asyncio.run(race()) == LIMIT


def test_racing_transfers_move_money_that_is_never_made(store: DatabaseStore) -> None:
    account = counter("account")
    account.set("user:0", 100)

    def move(number: int) -> None:
        account.transfer(f"user:{number % 3}", f"user:{(number + 1) % 3}", 7)

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(move, range(90)))

    totals = [account.get(f"user:{number}") for number in range(3)]
    assert sum(totals) == 100
    assert min(totals) >= 0


@pytest.mark.thorough("slow")
@forks
def test_racing_processes_are_admitted_exactly_up_to_the_limit(store: DatabaseStore, tmp_path: Path) -> None:
    hit(subject="ip:192.0.2.9")  # the parent has a connection, which no child may use

    def race(number: int) -> None:
        with ThreadPoolExecutor(4) as threads:
            admitted = sum(threads.map(hit, range(60)))
        (tmp_path / str(number)).write_text(str(admitted))

    with processes() as children:
        children += [started(partial(race, number)) for number in range(4)]
        assert set(ended(children)) == {0}
    assert sum(int(each.read_text()) for each in tmp_path.glob("?")) == LIMIT
    assert not hit()
    assert hit(subject="ip:192.0.2.9")  # by the connection that the children have inherited


def test_a_hit_is_not_a_part_of_the_request_s_transaction(store: DatabaseStore, django_assert_num_queries: Any) -> None:
    with transaction.atomic():
        QuotaEvent.objects.create(batch=0, at=0, data="[]")  # the request has written, and keeps its lock
        with django_assert_num_queries(0):
            assert hit()
        with ThreadPoolExecutor(1) as thread:  # it holds no subject
            assert thread.submit(hit).result()
        QuotaEvent.objects.create(batch=0, at=0, data="[]")  # SQLite has counted meanwhile, and takes it all the same
        transaction.set_rollback(True)
    assert not QuotaEvent.objects.exists()
    assert remaining() == LIMIT - 2


class _Waiting(Operation):
    """Holds its subject until it is let go."""

    def __init__(self, key: str) -> None:
        super().__init__([key])
        self.begun, self.let_go = threading.Event(), threading.Event()

    def run(self, states: States, now: int) -> None:
        self.begun.set()
        assert self.let_go.wait(60)


def test_other_subjects_do_not_wait_for_one_that_is_held(on_postgres: DatabaseStore) -> None:
    """More threads wait for the held subject than the process has connections."""
    held = _Waiting(status_key("quota", SUBJECT))
    with ThreadPoolExecutor(DATABASE_CONNECTIONS + 4) as threads:
        holding = threads.submit(on_postgres.run, held)
        assert held.begun.wait(60)
        waiting = [threads.submit(hit) for _ in range(DATABASE_CONNECTIONS + 2)]
        assert all(hit(subject=f"ip:198.51.100.{number}") for number in range(10))
        assert not any(each.done() for each in waiting)
        assert peek("5/m", SUBJECT).remaining == 5  # who only looks waits for nobody
        held.let_go.set()
        assert all(each.result() for each in waiting)
        holding.result()


class TestTrips:
    @pytest.fixture
    def sent(self, on_postgres: DatabaseStore) -> Iterator[Mock]:
        send = postgresql._Pipeline.__call__
        with patch.object(postgresql._Pipeline, "__call__", autospec=True, side_effect=send) as sent:
            yield sent

    def test_a_decision_is_two(self, sent: Mock) -> None:
        check_all([("5/m", "ip:192.0.2.1"), ("7/m", "ip:192.0.2.2"), ("100/h", "ip:192.0.2.2"), ("9/m", "user:1")])

        assert sent.call_count == 2

    def test_a_look_is_one(self, sent: Mock) -> None:
        check("5/m", SUBJECT)
        sent.reset_mock()

        peek("5/m", SUBJECT)

        assert sent.call_count == 1

    def test_no_session_remembers_anything(self, sent: Mock, on_postgres: DatabaseStore) -> None:
        """As behind a pooler that gives each transaction another server process."""
        found = []
        for _ in range(3):
            on_postgres.close()
            found.append((hit(), remaining()))

        assert found == [(True, LIMIT - 1), (True, LIMIT - 2), (True, LIMIT - 3)]
        texts = [text.replace("DO UPDATE SET ", "") for call in sent.call_args_list for text, _ in call.args[1]]
        assert [each for each in texts if any(word in each for word in ("PREPARE", "SET ", ", false)"))] == []


def test_whatever_isolation_the_site_has_chosen_each_hit_is_seen(
    postgres: dict[str, Any], settings: Any, django_db_blocker: Any
) -> None:
    strict = {**postgres, "OPTIONS": {"isolation_level": psycopg.IsolationLevel.SERIALIZABLE}}
    with store_on(strict, settings, django_db_blocker) as store:
        empty_database(store)
        with ThreadPoolExecutor(16) as threads:
            assert sum(threads.map(hit, range(16 * 10))) == LIMIT


NASTY = "q'; DROP TABLE django_quota_quotastate; --\\' %s $1 \u2028 \N{GRINNING FACE}"


class TestAStringOfASiteNeverBecomesSQL:
    @pytest.fixture(autouse=True)
    def prefix(self, store: DatabaseStore, settings: Any) -> None:
        settings.QUOTA = {"STORE": "database", "PREFIX": NASTY}

    @pytest.mark.parametrize("subject", ["ip:192.0.2.1", "user:o'neill\\", "post:\0\ud800'); --"], ids=ascii)
    def test_for_a_limit(self, subject: str) -> None:
        assert [bool(check("1/h", subject)) for _ in range(2)] == [True, False]

    def test_for_a_call_that_is_made_once(self) -> None:
        assert once("mail", "user:1", 60)
        assert not once("mail", "user:1", 60)


@pytest.fixture
def pgbouncer(postgres: dict[str, Any], settings: Any, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """The store on PostgreSQL behind a PgBouncer, which has fewer sessions than the store has connections."""
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("No pgbouncer on PATH: apt-get install pgbouncer")
    with running_pgbouncer(program, postgres, 2) as pooler, store_on(pooler, settings, django_db_blocker) as store:
        empty_database(store)
        yield pooler


class TestBehindAPgbouncer:
    @pytest.mark.thorough("slow")
    def test_each_hit_counts_once(self, pgbouncer: dict[str, Any]) -> None:
        with ThreadPoolExecutor(16) as threads:
            assert sum(threads.map(hit, range(16 * 20))) == LIMIT
            assert all(threads.map(lambda number: hit(subject=f"user:{number}"), range(100)))

    def test_a_lock_is_held_once(self, pgbouncer: dict[str, Any]) -> None:
        with lock("import"), pytest.raises(QuotaExceeded):
            lock("import").acquire()

    def test_nothing_stays_in_a_session(self, pgbouncer: dict[str, Any]) -> None:
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(hit, range(16 * 20)))
        with lock("import"):
            pass
        left = "SELECT name FROM pg_settings WHERE source = 'session' UNION ALL SELECT name FROM pg_prepared_statements"
        where = {"host": pgbouncer["HOST"], "port": pgbouncer["PORT"], "user": "quota", "dbname": "postgres"}

        with ExitStack() as sessions:  # an open transaction keeps its session, so these have them all
            others = [sessions.enter_context(psycopg.connect(**where)) for _ in range(2)]
            found = [each.execute(left).fetchall() for each in others]
            assert len({each.execute("SELECT pg_backend_pid()").fetchone() for each in others}) == 2
            held = others[0].execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()

        assert {name for rows in found for (name,) in rows} <= OF_PGBOUNCER
        assert held == (0,)


OF_PGBOUNCER = {"application_name", "client_encoding", "DateStyle", "standard_conforming_strings", "TimeZone"}
"""The settings that PgBouncer itself sets in a session, to those of its client."""


def test_a_connection_that_was_closed_while_it_was_idle_is_replaced(
    on_postgres: DatabaseStore, postgres: dict[str, Any]
) -> None:
    assert hit()
    end_sessions(postgres)
    assert hit()
    assert remaining() == LIMIT - 2


COMMIT = postgresql.PostgresConnection.commit


def test_a_commit_without_an_answer_is_never_repeated(on_postgres: DatabaseStore) -> None:
    def lost(*asked: Any) -> None:
        COMMIT(*asked)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    hit()
    with patch.object(postgresql.PostgresConnection, "commit", autospec=True, side_effect=lost) as tried:
        with pytest.raises(StoreUnavailable, match="closed the connection"):
            on_postgres.run(Set(keys_of("quota:1:{user:1}:c:a"), 5, 10**12))
        assert tried.call_count == 1
    assert on_postgres.breaker.has_failed
    assert on_postgres.run(Get(keys_of("quota:1:{user:1}:c:a"))) == [1, "5", 0]


@pytest.mark.parametrize("kind", [psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure])
class TestTransactionThatTheDatabaseEndsForAnotherOne:
    def test_it_is_repeated_twice(self, kind: type[psycopg.Error], on_postgres: DatabaseStore) -> None:
        left = [kind("for another one"), kind("for another one")]

        def commit(*asked: Any) -> None:
            if left:
                raise left.pop()
            COMMIT(*asked)

        with patch.object(postgresql.PostgresConnection, "commit", autospec=True, side_effect=commit):
            assert hit()

        assert (left, remaining()) == ([], LIMIT - 1)

    def test_it_is_not_repeated_three_times(self, kind: type[psycopg.Error], on_postgres: DatabaseStore) -> None:
        ended = kind("for another one")

        with (
            patch.object(postgresql.PostgresConnection, "commit", autospec=True, side_effect=ended) as tried,
            pytest.raises(StoreUnavailable, match="for another one"),
        ):
            on_postgres.run(Set(keys_of("quota:1:{user:1}:c:a"), 5, 10**12))

        assert tried.call_count == 3


def test_a_database_that_is_gone_is_not_asked_each_time(
    postgres: dict[str, Any], settings: Any, django_db_blocker: Any, tmp_path: Path
) -> None:
    open_ = postgresql.PostgresConnection.__init__
    with (
        store_on({**postgres, "HOST": str(tmp_path)}, settings, django_db_blocker) as store,
        patch.object(postgresql.PostgresConnection, "__init__", autospec=True, side_effect=open_) as opened,
    ):
        asked: list[Any] = ["allow", "deny", "local", "local"]
        decisions = [check(Rule.make(how, "1/h", on_unavailable=how), SUBJECT) for how in asked]
        assert [bool(each) for each in decisions] == [True, False, True, False]
        assert all(each.degraded for each in decisions)
        assert opened.call_count == FAILURES
        assert store.is_refusing()


def test_a_connection_leads_to_where_the_settings_lead(on_postgres: DatabaseStore, postgres: dict[str, Any]) -> None:
    """A test runner renames the database of an alias that is in use."""
    hit()
    connections.settings["default"]["NAME"] = "nowhere"
    try:
        with pytest.raises(StoreUnavailable, match="nowhere"):
            on_postgres.run(Get(keys_of("quota:1:{user:1}:c:a")))
    finally:
        connections.settings["default"]["NAME"] = postgres["NAME"]


def test_a_test_runner_can_drop_the_database_at_its_end(
    on_postgres: DatabaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(runtime, "is_of_site")  # at setup, the alias led elsewhere
    connection.ensure_connection()
    assert hit()
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"

    def are_gone() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(sessions)
            return bool(cursor.fetchone()[0] == 0)

    wait_until(are_gone)


def test_tables_that_are_missing_are_a_clear_error(on_postgres: DatabaseStore) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_quota_quotastate RENAME TO gone")
        try:
            with pytest.raises(ConfigurationError, match=r"manage\.py migrate"):
                hit()
        finally:
            cursor.execute("ALTER TABLE gone RENAME TO django_quota_quotastate")
    assert hit()


def test_another_value_in_a_row_is_an_error_that_names_the_key(store: DatabaseStore) -> None:
    key = "quota:1:{user:1}:c:clicks"
    store.run(Set(keys_of(key), 5, 10**12))
    store.write(lambda _: Statement(f"UPDATE {sql.STATE_TABLE} SET value = 'nonsense' RETURNING 1"))
    for operation in (Get(keys_of(key)), Set(keys_of(key), 6, 10**12)):
        with pytest.raises(StoreDataError, match="clicks"):
            store.run(operation)
    assert hit()


def test_each_error_of_a_driver_becomes_ours() -> None:
    kinds: dict[type[psycopg.Error], type[Exception]] = {
        psycopg.errors.DiskFull: StoreOutOfMemory,
        psycopg.errors.ReadOnlySqlTransaction: StoreRefusesWrites,
        psycopg.errors.InsufficientPrivilege: StorePermissionDenied,
        psycopg.errors.InvalidPassword: StorePermissionDenied,
        psycopg.errors.AdminShutdown: StoreUnavailable,
        psycopg.errors.QueryCanceled: StoreUnavailable,
        psycopg.errors.LockNotAvailable: StoreBusy,
        psycopg.errors.SerializationFailure: StoreBusy,
        psycopg.errors.FeatureNotSupported: StoreRefusesWrites,
        psycopg.OperationalError: StoreUnavailable,
    }
    assert {theirs: type(failure_of(theirs("x")).error) for theirs in kinds} == kinds


@pytest.mark.parametrize("prefix", ["kvóta", "a_b%", "a'b"], ids=["not ASCII", "wildcards of SQL", "a quote"])
def test_names_are_those_of_a_prefix(prefix: str, store: DatabaseStore) -> None:
    for each in (prefix, "kvota", "aXbX"):
        store.run(Set(keys_of(f"{each}:1:{{user:1}}:c:a"), 5, 10**12))

    assert list(store.names(f"{prefix}:1:*")) == [f"{prefix}:1:{{user:1}}:c:a"]


def test_names_are_those_of_the_whole_pattern(store: DatabaseStore) -> None:
    for name in ("user:1}:c:a", "user:1}:c:b", "user:2}:c:a"):
        store.run(Set(keys_of(f"quota:1:{{{name}"), 5, 10**12))

    found = store.names("quota:1:*}:c:a")

    assert sorted(found) == ["quota:1:{user:1}:c:a", "quota:1:{user:2}:c:a"]


def test_few_names_are_read_by_one_query(store: DatabaseStore) -> None:
    store.run(Set(keys_of("quota:1:{user:1}:c:a"), 5, 10**12))
    asked = Mock(side_effect=lambda call: call())

    assert list(store.names("quota:1:*", asked)) == ["quota:1:{user:1}:c:a"]
    assert asked.call_count == 1


def test_an_operation_can_put_one_value_and_drop_another(store: DatabaseStore) -> None:
    one, other = "quota:1:{user:1}:c:a", "quota:1:{user:1}:c:b"

    class Renamed(Operation):
        def run(self, states: States, now: int) -> None:
            states.put(other, states.get(one), now + 10**9)
            states.drop(one)

    store.run(Set(keys_of(one), 5, 10**12))
    store.run(Renamed([one, other]))

    assert [store.run(Get(keys_of(key)))[1] for key in (one, other)] == ["0", "5"]


def test_a_bug_of_an_operation_leaves_nothing_behind(store: DatabaseStore) -> None:
    class Broken(Operation):
        def run(self, states: States, now: int) -> None:
            states.put("quota:1:{user:1}:c:a", 1, now + 10**9)
            states.put("quota:1:{user:2}:c:a", 1, now + 10**9)

    with pytest.raises(KeyError, match="user:2"):
        store.run(Broken(["quota:1:{user:1}:c:a"]))
    assert store.run(Get(keys_of("quota:1:{user:1}:c:a"))) == [1, "0", 0]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (Path("/srv/db.sqlite3"), "/srv/db.quota.sqlite3"),
        ("/srv/data", "/srv/data.quota"),
        ("file:/srv/db.sqlite3?cache=private", "/srv/db.quota.sqlite3"),
        (":memory:", IN_MEMORY),
        ("file:memorydb_default?mode=memory&cache=shared", IN_MEMORY),
        ("", IN_MEMORY),
        ("/srv/files:of/file:a.db", "/srv/files:of/file:a.quota.db"),
        ("/srv/why?.db", "/srv/why?.quota.db"),
    ],
    ids=["a path", "no suffix", "a URI", "memory", "a URI of memory", "no name", "a colon", "a question mark"],
)
def test_sqlite_keeps_states_in_a_file_of_their_own(name: object, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "NAME", name)

    assert file_of("default") == file


WHOLE = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    WHOLE,
    st.builds(WindowCount, WHOLE, WHOLE),
    st.builds(Bucket, WHOLE, WHOLE),
    st.lists(st.builds(WindowEntry, WHOLE, WHOLE, WHOLE)).map(tuple),
    st.dictionaries(st.text(), WHOLE),
    st.dictionaries(st.text(), st.text()),
    st.frozensets(st.text()),
)


@inputs(500)
@given(VALUES)
def test_each_value_comes_back_as_it_was(value: Any) -> None:
    written = dumps(value)
    found = loads(written)
    assert (found, type(found)) == (value, type(value))
    if isinstance(value, (tuple, dict)):  # entries are entries, and a mapping keeps its order
        assert [(type(each), each) for each in found] == [(type(each), each) for each in value]
    assert written.isascii()
    assert "\0" not in written
