"""The statements of PostgreSQL and their results, by drivers that the tests play."""

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from django.db import connections
from psycopg import errors, pq

from django_quota.exceptions import ConfigurationError
from django_quota.stores.base import Statement
from django_quota.stores.database import postgresql
from django_quota.stores.database.errors import AnswerTimeoutError
from django_quota.stores.database.postgresql import (
    PostgresConnection,
    _ensure_open,
    _numbered,
    _parameter,
    _Pipeline,
    _run_by_psycopg2,
    _time_limits,
)
from django_quota.stores.database.store import DatabaseStore
from tests.support.commands import PATIENCE


@pytest.mark.parametrize(
    ("text", "sent"), [("SELECT 1", b"SELECT 1"), ("? = ?", b"$1 = $2"), ("a(?,?,?)", b"a($1,$2,$3)"), ("?", b"$1")]
)
def test_parameters_are_numbered_from_one(text: str, sent: bytes) -> None:
    assert _numbered(text) == sent


@pytest.mark.parametrize(("value", "sent"), [(-5, b"-5"), ("é", "é".encode()), ("", b"")])
def test_a_parameter_is_sent_as_a_string(value: Any, sent: bytes) -> None:
    assert _parameter(value) == sent


def test_a_parameter_with_a_null_character_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^PostgreSQL cannot keep a string with a null character$"):
        _parameter("a\0b")


@pytest.mark.parametrize(("locks", "each"), [(0, "1000"), (1, "1000"), (2, "500"), (4, "250")])
def test_locks_share_the_time_that_a_transaction_waits(locks: int, each: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "LOCK_WAIT", 1.0)

    found = _time_limits.__wrapped__(locks)

    assert list(found.values) == ["1500", each, "5000"]  # milliseconds: a statement, a lock, a pause


def test_no_setting_outlives_its_transaction() -> None:
    """A pooler may lend the session to others then."""
    found = re.findall(r"set_config\('(\w+)', [^)]*?(\w+)\)", _time_limits().text)

    assert found == [
        ("statement_timeout", "true"),
        ("lock_timeout", "true"),
        ("idle_in_transaction_session_timeout", "true"),
        ("synchronous_commit", "true"),
    ]


# --- psycopg ----------------------------------------------------------------------------------------------------------

SYNCED = SimpleNamespace(status=int(pq.ExecStatus.PIPELINE_SYNC))


def rows(*found: list[Any], types: tuple[int, ...] = (25,)) -> Any:
    """Return the result of a statement; `types`: the numbers of PostgreSQL's types."""
    return SimpleNamespace(
        status=int(pq.ExecStatus.TUPLES_OK),
        nfields=len(types),
        ntuples=len(found),
        ftype=lambda column: types[column],
        get_value=lambda row, column: found[row][column],
    )


FAILED, ABORTED = (
    SimpleNamespace(status=int(pq.ExecStatus.FATAL_ERROR)),
    SimpleNamespace(status=int(pq.ExecStatus.PIPELINE_ABORTED)),
)


class Server:
    """libpq's end of a connection; `results`: what the server sends, in order."""

    socket = 0

    def __init__(self, *results: Any, busy: int = 0) -> None:
        self.results = list(results)
        self.busy = busy
        self.sent: list[tuple[bytes, Any]] = []
        self.enter_pipeline_mode = Mock()
        self.pipeline_sync = Mock()
        self.consume_input = Mock(side_effect=self.read)

    def send_query_params(self, text: bytes, values: Any) -> None:
        self.sent.append((text, values))

    def flush(self) -> int:
        return 0

    def read(self) -> None:
        self.busy -= 1

    def is_busy(self) -> bool:
        return self.busy > 0

    def get_result(self) -> Any:
        return self.results.pop(0) if self.results else None


def run(server: Server, *texts: str, place: int = -1, arrived: Any = lambda _: True) -> Any:
    return _Pipeline(server, arrived)([Statement(text) for text in texts], place)


class TestAPipeline:
    def test_sends_each_statement_with_its_parameters(self) -> None:
        server = Server(rows(), None, rows(), None, SYNCED)

        _Pipeline(server, lambda _: True)([Statement("a ?", ("x",)), Statement("b")])

        assert server.sent == [(b"a $1", [b"x"]), (b"b", None)]
        server.pipeline_sync.assert_called_once_with()

    def test_returns_what_the_last_statement_finds(self) -> None:
        assert run(Server(rows([b"a"]), None, rows([b"b"], [b"c"]), None, SYNCED), "a", "b") == [["b"], ["c"]]

    def test_returns_what_the_statement_at_a_place_finds(self) -> None:
        server = Server(rows([b"a"]), None, rows([b"b"]), None, rows([b"c"]), None, SYNCED)

        assert run(server, "a", "b", "c", place=-2) == [["b"]]

    @pytest.mark.parametrize(
        ("kind", "value", "found"),
        [(20, b"5", 5), (21, b"5", 5), (23, b"-5", -5), (25, b"5", "5"), (20, None, None), (25, None, None)],
    )
    def test_reads_values_by_their_type(self, kind: int, value: Any, found: object) -> None:
        assert run(Server(rows([value], types=(kind,)), None, SYNCED), "a") == [[found]]

    def test_waits_until_results_have_arrived(self) -> None:
        server = Server(rows([b"a"]), None, SYNCED, busy=2)

        assert run(server, "a") == [["a"]]
        assert server.consume_input.call_count == 2

    def test_gives_up_a_server_that_says_nothing(self) -> None:
        with pytest.raises(AnswerTimeoutError, match=f"^no answer within {PATIENCE:.0f} seconds$"):
            run(Server(busy=1), "a", arrived=lambda _: False)

    def test_waits_no_longer_than_until_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = iter([100.0, 100.5, 103.0])
        monkeypatch.setattr(postgresql, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        monkeypatch.setattr(postgresql, "ANSWER_WAIT", 2.0)
        waited: list[float] = []

        def wait(seconds: float) -> bool:
            waited.append(seconds)
            return True

        run(Server(rows(), None, SYNCED, busy=2), "a", arrived=wait)

        assert waited == [1.5, 0.0]

    def test_reads_all_results_before_it_raises_the_first_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = (SimpleNamespace(**vars(FAILED), number=number) for number in (1, 2))
        server = Server(rows(), None, first, None, ABORTED, None, second, None, SYNCED)
        made: list[Any] = []

        def error_of(result: Any, encoding: str) -> Exception:
            made.append((result, encoding))
            return errors.DiskFull("x")

        monkeypatch.setattr(errors, "error_from_result", error_of)

        with pytest.raises(errors.DiskFull):
            run(server, "a", "b", "c", "d")
        assert made == [(first, "utf-8")]
        assert server.results == []

    @pytest.mark.parametrize("sent", [[], [rows(), None]], ids=["at all", "more"])
    def test_says_that_a_connection_is_closed_which_sends_nothing(self, sent: list[Any]) -> None:
        with pytest.raises(psycopg.OperationalError, match=r"^the connection is closed$"):
            run(Server(*sent), "a")

    def test_needs_a_newer_libpq_than_13(self) -> None:
        server = Server()
        server.enter_pipeline_mode.side_effect = errors.NotSupportedError("version 14 needed")

        with pytest.raises(ConfigurationError, match="The libpq of psycopg is too old: version 14 needed") as caught:
            _Pipeline(server, lambda _: True)
        assert str(caught.value) == (
            'The libpq of psycopg is too old: version 14 needed. Install "psycopg[binary]", or libpq 14 or newer.'
        )


class FullBuffers(Server):
    """A connection whose buffers take all that is sent only at the third time."""

    def __init__(self, number: int, *results: Any) -> None:
        super().__init__(*results)
        self.socket = number
        self.left = 2

    def flush(self) -> int:
        self.left -= 1
        return self.left + 1


class TestAStatementThatFillsTheBuffers:
    @pytest.fixture
    def sockets(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            yield ours, theirs

    def test_is_sent_whole_and_read_meanwhile(self, sockets: Any) -> None:
        server = FullBuffers(sockets[0].fileno(), rows([b"a"]), None, SYNCED)

        assert run(server, "a") == [["a"]]
        assert (server.left, server.consume_input.call_count) == (-1, 1)

    def test_is_sent_no_longer_than_a_server_answers(self, sockets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgresql, "ANSWER_WAIT", 0.0)
        fill(sockets[0])

        with pytest.raises(AnswerTimeoutError):
            run(FullBuffers(sockets[0].fileno()), "a")

    def test_is_sent_on_after_the_server_has_said_something(
        self, sockets: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may read on only when we have read what it sends."""
        monkeypatch.setattr(postgresql, "ANSWER_WAIT", 0.0)
        fill(sockets[0])
        sockets[1].send(b"x")

        assert run(FullBuffers(sockets[0].fileno(), rows([b"a"]), None, SYNCED), "a") == [["a"]]


def fill(one: socket.socket) -> None:
    """Send until the buffers of the system are full."""
    with suppress(BlockingIOError):
        while True:
            one.send(b"x" * 1_000_000)


class TestWaitingForASocket:
    @pytest.fixture(params=["poll", "select"])
    def arrived(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        """What waits for one of two sockets, and the other one. Windows has no `poll`."""
        if request.param == "select":
            monkeypatch.setattr(postgresql, "select", SimpleNamespace())
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield postgresql._arrivals_of(ours.fileno()), theirs

    def test_finds_nothing_where_nothing_was_sent(self, arrived: Any) -> None:
        assert not arrived[0](0)

    def test_finds_what_was_sent(self, arrived: Any) -> None:
        arrived[1].send(b"x")

        assert arrived[0](0)

    def test_finds_the_end(self, arrived: Any) -> None:
        arrived[1].close()

        assert arrived[0](0)

    @pytest.mark.parametrize(("seconds", "milliseconds"), [(1.5, 1500), (0.0001, 1), (0, 0)])
    def test_rounds_the_wait_up(self, seconds: float, milliseconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Else it would ask again and again in the last millisecond."""
        poll = Mock()
        monkeypatch.setattr(postgresql, "select", SimpleNamespace(poll=lambda: poll, POLLIN=1))

        postgresql._arrivals_of(7)(seconds)

        poll.register.assert_called_once_with(7, 1)
        poll.poll.assert_called_once_with(milliseconds)


# --- psycopg2 ---------------------------------------------------------------------------------------------------------


class Cursor:
    """A cursor of psycopg2. It keeps what the last statement of a message has found."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.description: Any = None

    def __enter__(self) -> "Cursor":
        return self

    def __exit__(self, *_: object) -> None: ...

    def mogrify(self, text: str, values: Any) -> bytes:
        return (text % tuple(values)).encode()

    def execute(self, message: bytes) -> None:
        self.messages.append(message)
        self.description = message.rpartition(b"; ")[2].startswith(b"SELECT") or None

    def fetchall(self) -> list[Any]:
        return [self.messages[-1]]


class TestPsycopg2:
    @pytest.fixture
    def cursor(self) -> Cursor:
        return Cursor()

    def run(self, cursor: Cursor, *statements: Statement, place: int = -1) -> Any:
        return _run_by_psycopg2(SimpleNamespace(cursor=lambda: cursor), statements, place)

    def test_sends_all_statements_in_one_message(self, cursor: Cursor) -> None:
        self.run(cursor, Statement("BEGIN"), Statement("SELECT ?", (5,)))

        assert cursor.messages == [b"BEGIN; SELECT 5"]

    def test_returns_what_the_last_statement_finds(self, cursor: Cursor) -> None:
        assert self.run(cursor, Statement("BEGIN"), Statement("SELECT 5")) == [b"BEGIN; SELECT 5"]

    def test_sends_what_follows_a_query_in_a_message_of_its_own(self, cursor: Cursor) -> None:
        found = self.run(cursor, Statement("BEGIN"), Statement("SELECT 5"), Statement("COMMIT"), place=-2)

        assert found == [b"BEGIN; SELECT 5"]
        assert cursor.messages == [b"BEGIN; SELECT 5", b"COMMIT"]

    def test_finds_nothing_by_a_statement_that_is_no_query(self, cursor: Cursor) -> None:
        assert len(self.run(cursor, Statement("COMMIT"))) == 0


# --- a connection -----------------------------------------------------------------------------------------------------


class TestOpening:
    @pytest.fixture
    def opened(self) -> Any:
        """What notes in which thread it was opened."""
        found: list[Any] = []
        return SimpleNamespace(ensure_connection=lambda: found.append(threading.current_thread()), found=found)

    def test_happens_in_the_thread_of_sync_code(self, opened: Any) -> None:
        _ensure_open(opened)

        assert opened.found == [threading.current_thread()]

    def test_happens_in_another_thread_where_an_event_loop_runs(self, opened: Any) -> None:
        async def call() -> None:
            _ensure_open(opened)

        asyncio.run(call())

        (thread,) = opened.found
        assert thread is not threading.current_thread()

    def test_raises_its_error_where_an_event_loop_runs(self) -> None:
        async def call() -> None:
            _ensure_open(SimpleNamespace(ensure_connection=Mock(side_effect=psycopg.OperationalError("x"))))  # type: ignore[arg-type]

        with pytest.raises(psycopg.OperationalError):
            asyncio.run(call())


@pytest.fixture
def wrapper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Django's connection to a database that is not there."""
    made = Mock(settings_dict={"AUTOCOMMIT": False, "OPTIONS": {"pool": True}})
    made.connection.fileno.return_value = 0
    made.copy.return_value = made
    monkeypatch.setattr(connections, "create_connection", Mock(return_value=made))
    monkeypatch.setattr(postgresql, "_arrivals_of", lambda _: lambda __: False)
    return made


class TestAConnection:
    def test_has_time_outs_where_the_settings_have_none(self, wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgresql, "ANSWER_WAIT", 2.0)

        PostgresConnection("default")

        wrapper.inc_thread_sharing.assert_called_once_with()
        assert wrapper.settings_dict == {
            "AUTOCOMMIT": True, "OPTIONS": {"connect_timeout": 2, "tcp_user_timeout": 2_000},
        }  # fmt: skip

    def test_has_the_time_outs_of_the_settings(self, wrapper: Any) -> None:
        options = {"connect_timeout": 7, "tcp_user_timeout": 9}
        wrapper.settings_dict["OPTIONS"].update(options)

        PostgresConnection("default")

        assert wrapper.settings_dict["OPTIONS"] == options

    def test_leads_to_the_database_of_its_alias(self, wrapper: Any) -> None:
        PostgresConnection("shops")

        connections.create_connection.assert_called_once_with("shops")  # type: ignore[attr-defined]

    def test_leaves_the_settings_of_the_site_as_they_are(self, on_postgres: DatabaseStore) -> None:
        with on_postgres.pool.lent():
            assert connections.settings["default"]["OPTIONS"] == {}

    def test_that_cannot_be_opened_is_closed(self, wrapper: Any) -> None:
        wrapper.ensure_connection.side_effect = psycopg.OperationalError("x")

        with pytest.raises(psycopg.OperationalError):
            PostgresConnection("default")
        wrapper.connection.close.assert_called_once_with()

    def test_that_was_never_opened_has_nothing_to_close(self, wrapper: Any) -> None:
        made = PostgresConnection("default")
        wrapper.connection = None

        made.close()

    @pytest.fixture
    def sent(self, wrapper: Any) -> Any:
        """A connection that notes what it runs."""
        made = PostgresConnection("default")
        made._run = Mock(return_value=[])
        return made

    def texts(self, connection: Any) -> list[str]:
        return [text.split("(")[0].split(" ISOLATION")[0] for text, _ in connection._run.call_args.args[0]]

    def test_locks_each_subject_once_in_the_order_of_the_locks(self, sent: Any) -> None:
        sent.begin(["quota:1:{a", "quota:1:{b", "quota:1:{c", "quota:1:{a"], Statement("SELECT 1"))

        locks = [values[0] for text, values in sent._run.call_args.args[0] if "advisory" in text]
        assert locks == sorted(set(locks))
        assert len(locks) == 3

    @pytest.mark.parametrize(("subjects", "each"), [("", "1000"), ("a", "1000"), ("ab", "500"), ("aba", "500")])
    def test_shares_the_wait_among_its_locks(
        self, subjects: str, each: str, sent: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgresql, "LOCK_WAIT", 1.0)
        monkeypatch.setattr(postgresql, "_time_limits", _time_limits.__wrapped__)

        sent.begin(subjects, Statement("SELECT 1"))

        (limits,) = [values for text, values in sent._run.call_args.args[0] if "set_config" in text]
        assert limits[1] == each

    def test_begins_so_that_a_replica_refuses_whatever_isolation_the_site_has_chosen(self, sent: Any) -> None:
        sent.begin([], Statement("SELECT 1"))

        first, *_ = sent._run.call_args.args[0]
        assert first == ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", ())

    def test_locks_before_it_reads(self, sent: Any) -> None:
        sent.begin(["quota:1:{a"], Statement("SELECT 1"))

        assert self.texts(sent) == ["BEGIN", "SELECT set_config", "SELECT pg_advisory_xact_lock", "SELECT 1"]

    def test_commits_after_its_statements(self, sent: Any) -> None:
        sent.commit([Statement("INSERT")])

        assert self.texts(sent) == ["INSERT", "COMMIT"]

    def test_reads_in_a_transaction_of_its_own(self, sent: Any) -> None:
        sent.read(Statement("SELECT 1"))

        assert self.texts(sent) == ["BEGIN", "SELECT set_config", "SELECT 1", "COMMIT"]
        assert sent._run.call_args.args[1] == -2

    def test_rolls_back(self, sent: Any) -> None:
        sent.rollback()

        assert self.texts(sent) == ["ROLLBACK"]

    @pytest.mark.parametrize("has_arrived", [True, False], ids=["a notice", "nothing"])
    def test_is_ready_if_the_server_has_said_nothing(self, has_arrived: bool, sent: Any) -> None:
        sent._arrived = Mock(return_value=has_arrived)

        assert sent.is_ready() is not has_arrived
        sent._arrived.assert_called_once_with(0)


def test_a_transaction_waits_for_nothing_for_long(on_postgres: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the disk, nor for a lock, nor for a process that has stopped; and a replica refuses it."""
    monkeypatch.setattr(postgresql, "LOCK_WAIT", 1.0)
    monkeypatch.setattr(postgresql, "_time_limits", _time_limits.__wrapped__)
    names = ("synchronous_commit", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
             "transaction_isolation", "transaction_read_only")  # fmt: skip
    shown = ", ".join(f"current_setting('{name}')" for name in names)

    with on_postgres.pool.lent() as (connection, _):
        found = connection.begin(["a", "b"], Statement(f"SELECT {shown}"))
        connection.rollback()

    assert found == [["off", "1500ms", "500ms", "5s", "read committed", "off"]]
