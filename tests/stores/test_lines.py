"""What an event loop's connection to Redis makes of what arrives on it, and of its end."""

import asyncio
import select
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock, call

import pytest
import redis
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota.core.errors import StoreBusy, StoreUnavailable
from django_quota.exceptions import ConfigurationError
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis import async_wire
from django_quota.stores.redis.async_wire import AsyncWire, ByLoop, Line, Loading, cancellable
from django_quota.stores.redis.connections import ASK, CHECK_AFTER_IDLE, Source
from tests.support.commands import PATIENCE
from tests.support.event_loops import settled, until
from tests.support.outages import fail
from tests.support.sentinels import played_sentinels
from tests.support.steps import Clock

LATE = 99.0


# --- a line -----------------------------------------------------------------------------------------------------------


class Ends:
    """A line whose transport a test plays, on a wire that notes what the line reports."""

    def __init__(self, sock: socket.socket) -> None:
        self.wire = Mock()
        self.transport = Mock()
        self.transport.get_extra_info.return_value = sock
        parser = DefaultParser(socket_read_size=4096)
        connection = SimpleNamespace(_parser=parser, _writer=SimpleNamespace(transport=self.transport))
        self.line = Line(self.wire, connection)

    def sent(self, *futures: Any) -> list[Any]:
        """Let commands be under way; None: one whose reply nobody waits for."""
        made = [asyncio.get_running_loop().create_future() if each is None else each for each in futures]
        self.line.under_way.extend(made)
        self.line.send([b"x"] * len(made), LATE)
        return made

    @property
    def lost(self) -> Any:
        """The error with which the line was reported as lost."""
        ((line, error, _),) = [each.args for each in self.wire.lost.call_args_list]
        assert line is self.line
        return error


@pytest.fixture
def with_line() -> Iterator[Callable[..., None]]:
    ours, other = socket.socketpair()

    def run(test: Callable[[Ends], None]) -> None:
        async def whole() -> None:
            test(Ends(ours))

        asyncio.run(whole())

    yield run
    ours.close()
    other.close()


class TestReplies:
    def test_reach_their_calls_in_order(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            futures = ends.sent(None, None, None)
            ends.line.data_received(b"+A\r\n:1\r\n-ERR no\r\n")

            assert [each.result() for each in futures[:2]] == [b"A", 1]
            assert type(futures[2].result()) is ResponseError

        with_line(test)

    def test_reach_nobody_where_the_call_was_cancelled(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            gone, waits = ends.sent(None, None)
            gone.cancel()
            ends.line.data_received(b"+A\r\n+B\r\n")

            assert waits.result() == b"B"

        with_line(test)

    @pytest.mark.parametrize(
        ("said", "has_answered"),
        [
            (b"+OK\r\n", True),
            (b"-ERR no\r\n", True),
            (b"-LOADING x\r\n", False),
            (b"-LOADING x\r\n+OK\r\n", True),
            (b"+OK\r\n-LOADING x\r\n", True),
        ],
        ids=["a reply", "an error", "not yet", "the second of two", "the first of two"],
    )
    def test_say_whether_the_server_serves(self, said: bytes, has_answered: bool, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            ends.sent(*[None] * said.count(b"\r\n"))
            ends.line.data_received(said)

            ends.wire.heard.assert_called_once_with(has_answered=has_answered)

        with_line(test)

    def test_make_room_for_calls_that_wait(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            ends.sent(None)
            ends.line.data_received(b"+OK\r\n")

            ends.wire.go_on.assert_called_once_with(is_known=False)

        with_line(test)

    @pytest.mark.parametrize("data", [b"", b"+O", b">1\r\n+x\r\n"], ids=["nothing", "a part", "a notice"])
    def test_that_have_not_arrived_say_nothing(self, data: bytes, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            ends.sent(None)
            ends.line.data_received(data)

            ends.wire.heard.assert_not_called()
            ends.wire.lost.assert_not_called()

        with_line(test)

    @pytest.mark.parametrize(
        ("said", "error"), [(b"+A\r\n", IndexError), (b"HTTP/1.1\r\n", InvalidResponse)], ids=["too many", "no reply"]
    )
    def test_that_nobody_asked_for_end_the_line(self, said: bytes, error: type[Exception], with_line: Any) -> None:
        def test(ends: Ends) -> None:
            ends.line.data_received(said)

            assert type(ends.lost) is error
            ends.transport.abort.assert_called_once_with()

        with_line(test)

    @pytest.mark.parametrize(
        "more", [b"", b"-ERR no\r\n", b"+OK\r\n"], ids=["alone", "before an error", "before a reply"]
    )
    def test_of_a_server_that_has_become_a_replica_end_the_line(self, more: bytes, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            future, *_ = ends.sent(None, None)
            ends.line.data_received(b"-READONLY You can't write\r\n" + more)

            assert type(future.result()) is ReadOnlyError
            assert str(ends.lost) == "Connection lost: the server cannot serve"
            ends.wire.heard.assert_called_once_with(has_answered=True)
            ends.wire.go_on.assert_not_called()

        with_line(test)

    def test_count_for_the_writes_that_they_answer(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            ends.sent(None, None)
            ends.sent(None)
            assert len(ends.line.writes) == 2

            left = []
            for _ in range(3):
                ends.line.data_received(b"+A\r\n")
                left.append(len(ends.line.writes))

            assert left == [2, 1, 0]

        with_line(test)

    def test_count_as_a_use_of_the_line(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            ends.sent(None)
            ends.line.used = -1.0
            ends.line.data_received(b"+A\r\n")

            assert ends.line.used > 0

        with_line(test)

    def test_of_a_line_that_was_lost_reach_nobody(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            (future,) = ends.sent(None)
            ends.line.lost(None)
            ends.line.data_received(b"+A\r\n")

            assert not future.done()
            ends.wire.heard.assert_not_called()

        with_line(test)


class TestALineThatIdled:
    @pytest.fixture
    def asked(self, with_line: Any) -> Callable[..., Ends]:
        """Return a line that was asked whether it serves, and says this."""

        def asked(said: bytes) -> Ends:
            found: list[Ends] = []

            def test(ends: Ends) -> None:
                ends.line.is_asked = True
                ends.line.under_way.append(None)
                ends.line.send([b"x"], LATE)
                ends.line.data_received(said)
                found.append(ends)

            with_line(test)
            return found[0]

        return asked

    @pytest.mark.parametrize("said", [b"*2\r\n:1\r\n:2\r\n", b"-NOPERM x\r\n"], ids=["well", "an error"])
    def test_is_used_if_it_answers(self, said: bytes, asked: Any) -> None:
        ends = asked(said)

        assert (ends.line.is_asked, ends.line.is_lost) == (False, False)
        ends.wire.go_on.assert_called_once_with(is_known=True)

    def test_says_nothing_of_the_server_if_it_answers(self, asked: Any) -> None:
        asked(b"+OK\r\n").wire.heard.assert_not_called()

    def test_is_left_if_it_leads_to_a_replica(self, asked: Any) -> None:
        ends = asked(b"-READONLY x\r\n")

        assert ends.lost is None
        ends.wire.go_on.assert_not_called()


class TestTheEndOfALine:
    @pytest.mark.parametrize(
        "end",
        [
            lambda line: line.eof_received(),
            lambda line: line.connection_lost(None),
            lambda line: line.connection_lost(ConnectionResetError("x")),
        ],
        ids=["the end of what it sends", "closed", "reset"],
    )
    def test_by_the_server_is_a_closed_connection(self, end: Any, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            end(ends.line)

            assert (type(ends.lost), str(ends.lost)) == (RedisConnectionError, "Connection closed by server.")

        with_line(test)

    def test_by_another_error_is_reported_with_it(self, with_line: Any) -> None:
        error = OSError("no route to host")

        def test(ends: Ends) -> None:
            ends.line.connection_lost(error)

            assert ends.lost is error

        with_line(test)

    def test_is_known_once_it_is_closed(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            ends.line.eof_received()
            assert not ends.line.closed.done()
            for _ in range(2):
                ends.line.connection_lost(None)
            assert ends.line.closed.done()

        with_line(test)

    def test_is_reported_once_with_what_was_under_way(self, with_line: Any) -> None:
        def test(ends: Ends) -> None:
            (future,) = ends.sent(None)
            ends.line.lost(error := RedisTimeoutError("late"))
            ends.line.lost(RedisConnectionError("again"))

            ends.wire.lost.assert_called_once()
            line, found, under_way = ends.wire.lost.call_args.args
            assert (line, found, list(under_way)) == (ends.line, error, [future])
            assert (len(ends.line.under_way), len(ends.line.writes)) == (0, 0)
            ends.transport.abort.assert_called_once_with()

        with_line(test)


@pytest.mark.parametrize("commands", [[b"a"], [b"a", b"b"]], ids=len)
def test_commands_go_out_in_one_write(commands: list[bytes], with_line: Any) -> None:
    def test(ends: Ends) -> None:
        ends.line.send(commands, LATE)

        assert ends.transport.write.call_args_list == [call(b"".join(commands))]

    with_line(test)


@pytest.mark.parametrize(("has_poll", "is_seen"), [(True, True), (False, False)], ids=["Linux", "Windows"])
def test_a_line_sees_what_its_loop_has_not_read(has_poll: bool, is_seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_poll:
        monkeypatch.delattr(select, "poll")
    ours, other = socket.socketpair()

    async def look() -> None:
        line = Ends(ours).line
        assert not line.has_arrived()
        other.send(b"x")
        assert line.has_arrived() is is_seen

    with ours, other:
        asyncio.run(look())


def test_looking_at_what_has_arrived_holds_up_no_loop(monkeypatch: pytest.MonkeyPatch, with_line: Any) -> None:
    poll = Mock()
    monkeypatch.setattr(select, "poll", lambda: poll)

    with_line(lambda ends: ends.line.has_arrived())

    poll.poll.assert_called_once_with(0)


def test_a_connection_without_a_socket_is_a_clear_error() -> None:
    connection = SimpleNamespace(_parser=DefaultParser(socket_read_size=1), _writer=object())

    with pytest.raises(ConfigurationError) as caught:
        Line(Mock(), connection)
    assert caught.value.problem == "The connections of this alias have no sockets. Perhaps it is fakeredis."


# --- the wire ---------------------------------------------------------------------------------------------------------


class Wire:
    """A wire without a connection, which is not made either."""

    def __init__(self, **more: Any) -> None:
        self.breaker = Breaker(clock=Clock())
        options = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
        self.wire: Any = AsyncWire(Source(Mock, options, more.get("sentinels")), 1.0, self.breaker)
        vars(self.wire)["_open"] = Mock()

    def execute(self) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.wire.execute(("PING",)))

    async def fail_with(self, error: BaseException, calls: int = 1) -> list[Any]:
        """Let calls wait, and fail them so; return their errors."""
        tasks = [self.execute() for _ in range(calls)]
        await settled()
        self.wire._fail(error)
        return await asyncio.gather(*tasks, return_exceptions=True)


class TestAProbe:
    """The only call that an open breaker lets pass after a while."""

    def due(self, wire: Wire) -> None:
        clock: Any = wire.breaker._clock
        fail(wire.breaker)
        clock.now += 1

    def test_that_is_cancelled_lets_another_one_ask(self) -> None:
        async def test() -> None:
            self.due(wire := Wire())
            task = wire.execute()
            await settled()
            assert wire.breaker.is_refusing()
            task.cancel()
            await settled()
            assert not wire.breaker.is_refusing()

        asyncio.run(test())

    def test_that_was_not_sent_lets_another_one_ask(self) -> None:
        async def test() -> None:
            self.due(wire := Wire())
            await wire.fail_with(StoreBusy("busy"))
            assert wire.breaker.is_open
            assert not wire.breaker.is_refusing()

        asyncio.run(test())

    def test_whose_connection_is_cut_lets_another_one_ask(self) -> None:
        async def test() -> None:
            self.due(wire := Wire())
            probe = wire.execute()
            await settled()
            wire.wire.lost(Mock(is_asked=False), RedisConnectionError("Connection closed by server."), [None])
            assert not wire.breaker.is_refusing()
            probe.cancel()

        asyncio.run(test())

    def test_that_fails_lets_nobody_ask(self) -> None:
        async def test() -> None:
            self.due(wire := Wire())
            await wire.fail_with(RedisTimeoutError("late"))
            assert wire.breaker.is_refusing()

        asyncio.run(test())


class TestAWire:
    def test_refuses_calls_while_the_breaker_is_open(self) -> None:
        async def test() -> None:
            fail((wire := Wire()).breaker)
            with pytest.raises(StoreUnavailable):
                await wire.execute()
            wire.wire._open.assert_not_called()

        asyncio.run(test())

    def test_refuses_calls_above_a_number_that_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(async_wire, "MOST_WAITING", 2)

        async def test() -> None:
            wire = Wire()
            tasks = [wire.execute() for _ in range(3)]
            await settled()
            assert [task.done() for task in tasks] == [False, False, True]
            with pytest.raises(StoreBusy, match="2 calls of this event loop wait until they are sent"):
                await tasks[2]
            wire.wire._fail(StoreBusy("the end"))
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(test())

    def test_ends_the_wait_of_late_calls_though_one_of_them_was_cancelled(self) -> None:
        async def test() -> None:
            wire = Wire()
            cancelled, late = wire.execute(), wire.execute()
            await settled()
            cancelled.cancel()
            await settled()
            wire.wire._waited = 1.0
            wire.wire._look()
            with pytest.raises(StoreBusy, match="others kept this event loop busy for 1 s"):
                await late

        asyncio.run(test())

    def test_says_how_many_calls_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(async_wire, "MOST_WAITING", 1_000)

        async def test() -> None:
            wire = Wire()
            wire.wire._waiting.extend(range(1_000))
            with pytest.raises(StoreBusy) as caught:
                await wire.execute()
            assert caught.value.reason == "1,000 calls of this event loop wait until they are sent"

        asyncio.run(test())

    def test_has_one_wire_beside_it_for_what_takes_long(self) -> None:
        async def test() -> None:
            wire = Wire().wire
            assert wire.beside() is wire.beside()
            assert (wire.beside().most_under_way, wire.most_under_way) == (1, async_wire.MOST_UNDER_WAY)
            assert wire.beside()._breaker is wire._breaker

        asyncio.run(test())

    @pytest.mark.parametrize("is_current", [True, False], ids=["its line", "an earlier line"])
    def test_forgets_only_a_line_that_it_has(self, is_current: bool) -> None:
        async def test() -> None:
            wire, lost, other = Wire().wire, Mock(is_asked=False), Mock()
            wire._line = lost if is_current else other
            wire.lost(lost, None, [])
            assert wire._line is (None if is_current else other)

        asyncio.run(test())

    @pytest.mark.parametrize(
        ("error", "is_asked", "has_failed"),
        [(RedisTimeoutError("x"), False, True), (RedisTimeoutError("x"), True, False), (None, False, False)],
        ids=["silence", "silence after it idled", "no error"],
    )
    def test_has_failed_only_if_a_call_was_not_answered(
        self, error: Exception | None, is_asked: bool, has_failed: bool
    ) -> None:
        async def test() -> None:
            wire, future = Wire(), asyncio.get_running_loop().create_future()
            wire.wire.lost(Mock(is_asked=is_asked), error, [future, None])
            assert (wire.breaker.has_failed, future.done()) == (has_failed, has_failed)

        asyncio.run(test())

    def test_opens_another_line_for_calls_that_wait(self) -> None:
        async def test() -> None:
            wire = Wire()
            task = wire.execute()
            await settled()
            wire.wire._open.reset_mock()
            wire.wire.lost(Mock(is_asked=False), None, [])
            wire.wire._open.assert_called_once_with()
            task.cancel()

        asyncio.run(test())

    @pytest.mark.parametrize(("failures", "waits"), [(1, True), (2, False)], ids=["closed", "opens now"])
    def test_lets_calls_wait_while_the_breaker_is_closed(self, failures: int, waits: bool) -> None:
        async def test() -> None:
            fail((wire := Wire()).breaker, failures)
            task, future = wire.execute(), asyncio.get_running_loop().create_future()
            await settled()
            wire.wire.lost(Mock(is_asked=False), RedisTimeoutError("x"), [future])
            await settled()
            assert task.done() is not waits
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(test())

    @pytest.mark.parametrize(
        ("address", "is_closing", "is_fit"),
        [(None, False, True), (("h", 1), False, True), (("another", 1), False, False), (None, True, False)],
        ids=["no sentinels", "the primary", "a former primary", "a connection that closes"],
    )
    def test_uses_only_a_line_that_leads_to_the_primary(self, address: Any, is_closing: bool, is_fit: bool) -> None:
        async def test() -> None:
            line = Mock(connection=SimpleNamespace(host="h", port=1))
            line.transport.is_closing.return_value = is_closing
            wire = Wire(sentinels=address and played_sentinels(address)).wire
            assert wire._is_fit(line, has_read=True, is_known=True) is is_fit
            assert line.lost.call_args_list == ([] if is_fit else [call(None)])

        asyncio.run(test())

    @pytest.mark.parametrize(
        ("idled", "is_known", "is_fit"),
        [(CHECK_AFTER_IDLE - 0.25, False, True), (CHECK_AFTER_IDLE, False, False), (CHECK_AFTER_IDLE, True, True)],
        ids=["shortly", "for long", "for long, but it has just answered"],
    )
    def test_asks_a_line_that_idled_whether_it_serves(self, idled: float, is_known: bool, is_fit: bool) -> None:
        async def test() -> None:
            wire = Wire().wire
            wire._waiting.append("a call")
            wire._loop = SimpleNamespace(time=lambda: 100.0 + idled, call_at=Mock())
            line = Mock(is_asked=False, used=100.0, under_way=[])
            line.transport.is_closing.return_value = False
            assert wire._is_fit(line, has_read=True, is_known=is_known) is is_fit
            assert (line.is_asked, line.under_way) == (not is_fit, [] if is_fit else [None])
            assert [each.args[0] for each in line.send.call_args_list] == ([] if is_fit else [[ASK]])

        asyncio.run(test())

    def test_asks_no_line_while_nobody_waits(self) -> None:
        async def test() -> None:
            line = Mock(used=-100.0)
            line.transport.is_closing.return_value = False
            assert Wire().wire._is_fit(line, has_read=False, is_known=False)
            line.send.assert_not_called()

        asyncio.run(test())

    def test_plans_one_write_for_the_calls_of_a_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(AsyncWire, "_write", write := Mock())

        async def test() -> None:
            wire = Wire()
            tasks = [wire.execute() for _ in range(3)]
            await settled()
            for task in tasks:
                task.cancel()

        asyncio.run(test())

        assert write.call_count == 1

    @pytest.mark.parametrize("option", ["socket_timeout", "retry_on_timeout"])
    def test_may_have_other_options_than_its_pool(self, option: str) -> None:
        async def made() -> Any:
            return async_wire.async_wire(redis.ConnectionPool(socket_timeout=1), bool, Breaker(), **{option: 9})

        assert asyncio.run(made())._source.options[option] == 9

    @pytest.mark.parametrize(("has_read", "is_fit"), [(False, False), (True, True)], ids=["not yet", "by now"])
    def test_lets_the_loop_read_what_has_arrived_before_it_writes(self, has_read: bool, is_fit: bool) -> None:
        async def test() -> None:
            wire = Wire().wire
            wire._waiting.append("a call")
            wire._loop = SimpleNamespace(time=lambda: 100.0, call_soon=Mock())
            line = Mock(used=100.0)
            line.transport.is_closing.return_value = False
            line.has_arrived.return_value = True
            assert wire._is_fit(line, has_read=has_read, is_known=False) is is_fit
            assert (wire._loop.call_soon.call_count, wire._is_due) == (not is_fit, not is_fit)

        asyncio.run(test())

    def test_that_is_closed_ends_once_the_last_reply_has_come(self) -> None:
        async def test() -> None:
            wire, future = Wire().wire, asyncio.get_running_loop().create_future()
            wire._line = line = Mock(under_way=[future], is_lost=False)
            await wire.aclose()
            line.lost.assert_not_called()
            future.set_result(1)
            wire.go_on()
            line.lost.assert_called_once_with(None)

        asyncio.run(test())

    def test_that_is_closed_waits_for_its_socket(self) -> None:
        async def test() -> None:
            wire, closed = Wire().wire, asyncio.get_running_loop().create_future()
            wire._line = Mock(under_way=[], is_lost=True, closed=closed)
            closing = asyncio.ensure_future(wire.aclose())
            await settled()
            assert not closing.done()
            closed.set_result(None)
            await closing

        asyncio.run(test())

    def test_that_is_closed_does_not_wait_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(async_wire, "CLOSING", 0.0)

        async def test() -> None:
            wire = Wire().wire
            wire._line = Mock(under_way=[], is_lost=True, closed=asyncio.get_running_loop().create_future())
            async with asyncio.timeout(PATIENCE):
                await wire.aclose()

        asyncio.run(test())

    def test_that_is_closed_sends_what_waits_before_it_ends(self) -> None:
        async def test() -> None:
            wire = Wire().wire
            wire._waiting.append("a call")
            wire._line = line = Mock(under_way=[], is_lost=False)
            await wire.aclose()
            line.lost.assert_not_called()

        asyncio.run(test())

    def test_is_closed_with_all_that_belongs_to_it(self) -> None:
        async def test() -> None:
            clients = [AsyncMock(), AsyncMock()]
            pool = SimpleNamespace(sentinel_manager=SimpleNamespace(sentinels=clients), is_master=True)
            wire = Wire(sentinels=pool).wire
            wire._slow = AsyncMock()
            await wire.aclose()
            wire._slow.aclose.assert_awaited_once_with()
            for each in clients:
                each.aclose.assert_awaited_once_with(close_connection_pool=True)

        asyncio.run(test())

    @pytest.mark.parametrize(("is_done", "is_closed"), [(True, True), (False, False)], ids=["answered", "under way"])
    def test_that_is_closed_lets_what_is_under_way_end(self, is_done: bool, is_closed: bool) -> None:
        async def test() -> None:
            wire, future = Wire().wire, asyncio.get_running_loop().create_future()
            if is_done:
                future.set_result(1)
            wire._line = line = Mock(under_way=[future, None], is_lost=False)
            wire.go_on()
            line.lost.assert_not_called()
            wire._is_closed = True
            wire.go_on()
            assert line.lost.call_args_list == ([call(None)] if is_closed else [])

        asyncio.run(test())

    @pytest.mark.parametrize(("has_answered", "has_failed"), [(True, False), (False, True)])
    def test_reports_what_it_hears_to_the_breaker(self, has_answered: bool, has_failed: bool) -> None:
        async def test() -> None:
            wire = Wire()
            if has_answered:
                fail(wire.breaker, 1)
            wire.wire.heard(has_answered=has_answered)
            assert wire.breaker.has_failed is has_failed

        asyncio.run(test())

    def test_shows_no_frames_of_redis_py_in_its_errors(self) -> None:
        async def test() -> None:
            error = RedisConnectionError("x")
            with suppress(RedisConnectionError):
                open_by_redis_py(error)
            (found,) = await Wire().fail_with(error)
            names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(found.__traceback__)]
            assert ("execute" in names, "open_by_redis_py" in names) == (True, False)

        asyncio.run(test())


OF_A_REQUEST: ContextVar[str] = ContextVar("of_a_request", default="")


class TestWhatAWireDoesLater:
    """It outlives the request that opens it, so it must not keep what belongs to that."""

    @pytest.fixture
    def seen(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Which request each step belongs to."""
        found: list[str] = []

        async def opened(_: AsyncWire) -> None:
            found.append(OF_A_REQUEST.get())

        for name in ("_write", "_look"):
            monkeypatch.setattr(AsyncWire, name, lambda *_, **__: found.append(OF_A_REQUEST.get()))
        monkeypatch.setattr(AsyncWire, "_opened", opened)
        return found

    @pytest.mark.parametrize(
        "does",
        [
            lambda wire: asyncio.ensure_future(wire.execute(("PING",))),
            lambda wire: wire._late(1.0),
            lambda wire: wire._open(),
            lambda wire: wire._is_fit(arrived(), has_read=False, is_known=False),
        ],
        ids=["writes", "looks for what is late", "connects", "writes after it has read"],
    )
    def test_knows_nothing_of_a_request(self, does: Any, seen: list[str]) -> None:
        async def test() -> None:
            OF_A_REQUEST.set("a request")
            wire: Any = AsyncWire(Source(Mock, {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}), 1.0, Breaker())
            wire._tick = 0.0
            wire._waiting.append("a call")
            call = does(wire)
            await until(lambda: seen)
            assert seen == [""]
            if isinstance(call, asyncio.Task):
                call.cancel()

        asyncio.run(test())

    def test_begins_a_tick_after_the_first_call(self) -> None:
        async def test() -> None:
            wire = Wire().wire
            wire._loop = SimpleNamespace(time=lambda: 7.0, call_at=Mock())
            assert (wire._late(1.0), wire._late(2.0)) == (1.0, 2.0)
            assert wire._loop.call_at.call_args_list == [call(7.0 + 0.05, wire._look, context=wire._context)]

        asyncio.run(test())

    def test_goes_on_without_it_while_something_is_late(self) -> None:
        async def test() -> None:
            wire = Wire().wire
            wire._waiting.append(SimpleNamespace(until=1.0))
            wire._loop = SimpleNamespace(time=lambda: 7.0, call_at=Mock())
            wire._look()
            assert wire._loop.call_at.call_args_list == [call(7.0 + 0.05, wire._look, context=wire._context)]

        asyncio.run(test())


def arrived() -> Any:
    """A line on which something has arrived that the loop has not read."""
    line = Mock()
    line.transport.is_closing.return_value = False
    line.has_arrived.return_value = True
    return line


def open_by_redis_py(error: Exception) -> None:
    """Fail as redis-py does, whose frames have the password."""
    raise error


# --- beside the wire --------------------------------------------------------------------------------------------------


class TestOneObjectALoop:
    def test_is_known_to_the_loop_that_asked_last(self) -> None:
        by_loop = ByLoop(AsyncMock)

        async def ask() -> Any:
            assert by_loop.known() is None
            made = await by_loop.get()
            assert by_loop.known() is made is await by_loop.get()
            return made

        first, second = asyncio.run(ask()), asyncio.run(ask())
        assert first is not second

    def test_is_closed_with_its_loop(self) -> None:
        by_loop = ByLoop(AsyncMock)

        async def ask() -> Any:
            made = await by_loop.get()
            made.aclose.assert_not_awaited()
            return made

        asyncio.run(ask()).aclose.assert_awaited_once_with()
        assert (len(by_loop._by_loop), by_loop._latest) == (0, None)

    def test_is_forgotten_with_a_loop_that_was_closed_without_its_end(self) -> None:
        by_loop = ByLoop(AsyncMock)
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(by_loop.get())
        assert list(by_loop._by_loop) == [loop]

        async def ask() -> None:
            await by_loop.get()
            assert list(by_loop._by_loop) == [asyncio.get_running_loop()]

        asyncio.run(ask())

    def test_is_not_known_to_another_loop(self) -> None:
        by_loop = ByLoop(AsyncMock)

        async def other() -> Any:
            return by_loop.known(), await by_loop.get()

        async def ask() -> None:
            made = await by_loop.get()
            known, of_other = await asyncio.to_thread(asyncio.run, other())
            assert (known, by_loop.known()) == (None, None)
            assert await by_loop.get() is made is not of_other

        asyncio.run(ask())


class TestAScriptThatIsSent:
    def test_is_sent_by_the_first_who_notices(self) -> None:
        async def test() -> None:
            loading = Loading()
            assert not await loading.by_another("a")
            assert not await loading.by_another("b")
            waiting = asyncio.ensure_future(loading.by_another("a"))
            await settled()
            assert not waiting.done()
            loading.done("a")
            assert await waiting
            assert not await loading.by_another("a")

        asyncio.run(test())

    def test_is_awaited_by_others_though_one_of_them_is_cancelled(self) -> None:
        async def test() -> None:
            loading = Loading()
            await loading.by_another("a")
            gone, waits = (asyncio.ensure_future(loading.by_another("a")) for _ in range(2))
            await settled()
            gone.cancel()
            await settled()
            loading.done("a")
            assert await waits

        asyncio.run(test())


class TestACallOfRedisPy:
    @pytest.mark.parametrize("fails", [False, True], ids=["well", "an error"])
    def test_that_hides_a_cancellation_is_cancelled(self, fails: bool) -> None:
        async def hides() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if fails:
                    raise RedisConnectionError("x") from None

        async def test() -> None:
            task = asyncio.ensure_future(cancellable(hides()))
            await settled()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()

        asyncio.run(test())

    def test_ends_well_in_a_task_that_has_survived_a_cancellation(self) -> None:
        async def call_of_redis() -> int:
            return 5

        async def test() -> int:
            cast("asyncio.Task[int]", asyncio.current_task()).cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            return await cancellable(call_of_redis())

        assert asyncio.run(test()) == 5

    def test_returns_its_result(self) -> None:
        async def call_of_redis() -> int:
            return 5

        assert asyncio.run(cancellable(call_of_redis())) == 5
