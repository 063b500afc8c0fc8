"""The wire of a thread: whatever arrives, and in whatever parts, each reply belongs to its command."""

import random
import select
import signal
import socket
import ssl
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from types import FrameType
from typing import Any, cast
from unittest.mock import Mock, call

import pytest
import redis
from redis._parsers import _RESP2Parser
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import check
from django_quota.exceptions import ConfigurationError
from django_quota.features.usage.days import ReadDays
from django_quota.stores.redis import wire as reading
from django_quota.stores.redis.errors import is_cut
from django_quota.stores.redis.wire import Wire
from django_quota.testing.redis_server import RedisServer
from tests.faults.calls import caches_at
from tests.faults.sockets import listening, reset
from tests.support.commands import PATIENCE, wait_until
from tests.support.stores import caches, redis_store, replace_store


class Opened:
    """A connection that redis-py has opened to a server that the test plays."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._parser = DefaultParser(socket_read_size=4096)

    def disconnect(self) -> None:
        self._sock.close()


@pytest.fixture(params=["hiredis", "Python"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Wire, socket.socket]]:
    """A wire, and the server's end of it."""
    if request.param == "Python":
        monkeypatch.setattr(reading, "hiredis", None)
    ours, server = socket.socketpair()
    ours.settimeout(0.2)
    wire = Wire(Opened(ours))
    yield wire, server
    wire.close()
    server.close()


REPLIES = {
    "one string": (b"$5\r\nab\r\nc\r\n", b"ab\r\nc"),
    "an empty string": (b"$0\r\n\r\n", b""),
    "nothing": (b"$-1\r\n", None),
    "a number": (b":-7\r\n", -7),
    "a status": (b"+OK\r\n", b"OK"),
    "a list": (b"*3\r\n$1\r\na\r\n*1\r\n:2\r\n$-1\r\n", [b"a", [2], None]),
    "a large string": (b"$100000\r\n" + b"x" * 100_000 + b"\r\n", b"x" * 100_000),
    "a notice before the reply": (b">2\r\n+message\r\n+x\r\n+OK\r\n", b"OK"),
    "numbers": (b"$16\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n\r\n", b"\r\n" * 8),
}


@pytest.mark.parametrize("part", [1, 3, 7, 10**6], ids=["byte by byte", "in threes", "in sevens", "at once"])
@pytest.mark.parametrize("kind", REPLIES)
def test_a_reply_is_read_whole_however_it_arrives(ends: Any, kind: str, part: int) -> None:
    wire, server = ends
    said, reply = REPLIES[kind]
    part = max(part, len(said) // 500)

    def serve() -> None:
        for first in range(0, len(said), part):
            server.sendall(said[first : first + part])

    thread = threading.Thread(target=serve)
    thread.start()
    assert wire.read() == reply
    thread.join()
    assert wire.is_ready()


@pytest.mark.parametrize(
    "stray", [b"$1\r\nx\r\n", b":1\r\n", b"$", b""], ids=["a reply", "a number", "a byte", "the end"]
)
def test_a_wire_with_more_than_the_reply_or_that_has_ended_is_not_used_again(ends: Any, stray: bytes) -> None:
    wire, server = ends
    assert wire.is_ready()
    server.sendall(b"$1\r\na\r\n" + stray)
    if not stray:
        server.close()
    assert wire.read() == b"a"
    assert not wire.is_ready()


def test_two_replies_that_arrive_together_are_two(ends: Any) -> None:
    wire, server = ends
    server.sendall(b"+OK\r\n$1\r\na\r\n")
    assert [wire.read(), wire.read()] == [b"OK", b"a"]
    assert wire.is_ready()


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError, "No matching script."),
        (b"-ERR wrong\r\n", redis.ResponseError, "wrong"),
        (b"-LOADING wait\r\n", redis.BusyLoadingError, "wait"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", InvalidResponse, ""),
        (b"$x\r\nab\r\n", InvalidResponse, ""),
        (b"", RedisTimeoutError, "Timeout reading from socket"),
        (b"$5\r\nab", RedisTimeoutError, "Timeout reading from socket"),
    ],
    ids=["no script", "an error", "loading", "no Redis", "no length", "silence", "half a reply"],
)
def test_an_error_reply_or_a_missing_reply_is_an_error_of_redis_py(
    ends: Any, said: bytes, error: type[Exception], words: str
) -> None:
    wire, server = ends
    server.sendall(said)
    with pytest.raises(error) as caught:
        wire.read()
    assert str(caught.value) == words or not words


@pytest.mark.parametrize("said", [b"", b"$5\r\nab"], ids=["nothing", "half a reply"])
def test_a_server_that_closes_the_connection_has_not_answered(ends: Any, said: bytes) -> None:
    wire, server = ends
    server.sendall(said)
    server.close()
    with pytest.raises(RedisConnectionError) as caught:
        wire.read()
    assert str(caught.value) == "Connection closed by server."


def test_a_server_that_reads_nothing_ends_the_sending(ends: Any) -> None:
    wire, _ = ends
    with pytest.raises(RedisTimeoutError, match=r"^Timeout writing to socket$"):
        wire.send(b"x" * 10**8)


@pytest.mark.thorough("slow")
def test_the_time_out_of_a_second_reply_is_one_of_redis_py(ends: Any) -> None:
    wire, server = ends
    server.sendall(b"+OK\r\n$5\r\nab")
    assert wire.read() == b"OK"
    with pytest.raises(RedisTimeoutError):
        wire.read()


@pytest.mark.parametrize(("does", "what"), [("send", "writing to"), ("read", "reading from")], ids=["send", "read"])
def test_a_connection_that_was_reset_raises_an_error_of_redis_py(does: str, what: str) -> None:
    """At which a Cluster reads its slots again."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        ours.settimeout(PATIENCE)
        wire = Wire(Opened(ours))
        reset(listener.accept()[0])
        wait_until(lambda: not wire.is_ready())
        with pytest.raises(RedisConnectionError, match=r"reset by peer|[Bb]roken pipe") as caught:
            wire.read() if does == "read" else wire.send(b"x")
        assert str(caught.value) == f"Error while {what} socket: {caught.value.__cause__}"
        assert is_cut(caught.value)


@pytest.mark.thorough("slow")
def test_a_timer_of_the_process_does_not_prolong_the_wait_for_a_reply(ends: Any) -> None:
    """Each of its signals interrupts the wait, and a time-out that the kernel keeps would begin anew."""
    wire, _ = ends
    rung: list[int] = []

    def ring(*_: object) -> None:
        rung.append(1)
        if len(rung) == 100:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(RedisTimeoutError):
            wire.read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 1 <= len(rung) < 100


class LateSocket(socket.socket):
    """A socket as of gevent: in a busy process its time-out may be over when the first bytes have arrived."""

    waited = 0

    def recv(self, *arguments: Any) -> bytes:
        self.waited += 1
        if self.waited == 1:
            select.select([self], [], [], PATIENCE)
            raise TimeoutError("timed out")
        return super().recv(*arguments)


@pytest.mark.parametrize("parser", [DefaultParser, _RESP2Parser], ids=["the usual parser", "that in Python"])
def test_a_late_look_at_a_socket_of_another_library_takes_nothing_of_the_reply(parser: type[Any]) -> None:
    ours, server = socket.socketpair()
    late, connection = LateSocket(fileno=ours.detach()), cast("Any", redis.Connection)(parser_class=parser)
    late.settimeout(0.2)
    connection._sock = late
    connection._parser.on_connect(connection)
    wire = Wire(connection)
    assert wire.is_ready()
    server.sendall(b"*2\r\n$1\r\na\r\n:1\r\n")
    assert (wire.read(), late.waited) == ([b"a", 1], 2)
    assert wire.is_ready()
    server.sendall(b"x")
    assert not wire.is_ready()
    wire.close()
    server.close()


def test_only_a_plain_socket_is_waited_for_by_its_poll_object() -> None:
    plain, _other = socket.socketpair()
    encrypted = ssl.create_default_context().wrap_socket(
        socket.socket(), do_handshake_on_connect=False, server_hostname="a"
    )
    with plain, _other, encrypted:
        for each in (plain, encrypted):
            each.settimeout(0.25)
        assert Wire(Opened(plain))._timeout == 250
        assert plain.gettimeout() == 0
        assert Wire(Opened(encrypted))._timeout is None
        assert encrypted.gettimeout() == 0.25


@pytest.mark.thorough("slow")
def test_every_reply_belongs_to_its_call_though_threads_are_interrupted(
    redis_server: RedisServer, raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has a subject and a cost of its own. A third of the calls ends where the reply is awaited."""
    settings.CACHES = caches(redis_server, max_connections=4)
    read, wrong, interrupted = Wire.read, list[Any](), threading.Event()

    def interrupting(wire: Wire) -> Any:
        if interrupted.is_set() and random.random() < 1 / 3:
            raise KeyboardInterrupt
        return read(wire)

    def work(number: int) -> None:
        for turn in range(100):
            cost = number * 100 + turn + 1
            try:
                decision = check("100000/h", f"user:{number}-{turn}", cost)
            except KeyboardInterrupt:
                continue
            if decision.remaining != 100_000 - cost or decision.degraded:
                wrong.append((number, turn, decision))

    check("9/m", "user:warm")
    monkeypatch.setattr(Wire, "read", interrupting)
    interrupted.set()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    pool: Any = redis_store().server.pool
    assert (pool._permits.qsize(), len(pool._idle) <= 4) == (4, True)


def test_a_wire_that_is_in_use_while_its_pool_closes_is_closed_afterwards(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    check("9/m", "user:1")
    pool: Any = redis_store().server.pool
    wire = pool._connected()
    pool.close()
    pool._keep(wire)
    assert (len(pool._idle), wire.is_ready()) == (0, False)


@pytest.mark.parametrize("is_used_before", [True, False], ids=["used before", "first used now"])
def test_a_thread_that_still_uses_a_replaced_store_leaves_no_connection_behind(
    is_used_before: bool, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    replaced = redis_store()
    if is_used_before:
        replaced.run(ReadDays(["quota:1:{user:1}:c:a"]))
    replace_store()

    replaced.run(ReadDays(["quota:1:{user:1}:c:a"]))

    assert len(replaced.server.pool._idle) == 0


class Interrupted(BaseException):
    """As the time limit of a task, or Ctrl-C."""


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Interrupt this thread at a step of the code between a store and its socket, counted from 1."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("connections.py", "wire.py", "breaker.py")):
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            raise Interrupted
        return trace

    before = sys.gettrace()
    # Python 3.12 reports opcodes at all only if a frame asked for them before tracing began.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def echoed(text: str) -> Any:
    """Return a string as the Redis of the store repeats it."""
    return redis_store().server.pool.execute(["EVAL", "return ARGV[1]", 0, text]).decode()


def test_a_call_that_is_interrupted_at_any_step_leaves_its_reply_to_nobody(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    assert echoed("warm") == "warm"
    replies = []
    for step in count(1):
        with suppress(Interrupted):
            with interrupted_at(step):
                replies.append((f"lost {step}", echoed(f"lost {step}")))
            break
        replies.append((f"kept {step}", echoed(f"kept {step}")))

    assert [(sent, found) for sent, found in replies if found != sent] == []
    assert step > 100
    assert not redis_store().server.breaker.has_failed


@pytest.mark.parametrize("how", ["interrupted", "too late"])
def test_a_reply_that_comes_after_its_call_has_ended_belongs_to_no_other(
    how: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(client: socket.socket) -> None:
        """Send the reply to a command `lost` with that to the next command."""
        held = b""
        while data := client.recv(65_536):
            if b"EVAL" not in data:
                client.sendall(b"%1\r\n$5\r\nproto\r\n:3\r\n" if b"HELLO" in data else b"+OK\r\n" * data.count(b"*"))
                continue
            said = data.split(b"\r\n")[-2]
            held += b"$%d\r\n%s\r\n" % (len(said), said)
            if said != b"lost":
                client.sendall(held)
                held = b""

    with listening(serve) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", PATIENCE)
        assert echoed("warm") == "warm"
        if how == "interrupted":
            with monkeypatch.context() as patch:
                patch.setattr(Wire, "read", Mock(side_effect=Interrupted))
                with pytest.raises(Interrupted):
                    echoed("lost")
        else:
            pool: Any = redis_store().server.pool
            pool._idle[-1]._timeout = 100  # milliseconds, of this connection alone: a busy machine may be late later
            with pytest.raises(RedisTimeoutError):
                echoed("lost")
        assert echoed("kept") == "kept"


class ClosedMeanwhile(deque[Any]):
    """Idle connections of a pool that another thread closes at the moment when one comes back."""

    def __init__(self, pool: Any) -> None:
        super().__init__()
        self._pool = pool

    def append(self, connection: Any) -> None:
        self._pool.close()
        super().append(connection)


def test_a_wire_that_comes_back_at_the_moment_when_its_pool_closes_is_closed(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    pool: Any = redis_store().server.pool
    wire = pool._connected()
    pool._idle = ClosedMeanwhile(pool)

    pool._keep(wire)

    assert (len(pool._idle), wire.is_ready()) == (0, False)


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(0.25, 250), (0.0001, 1), (0.2501, 251), (10.0**7, 2**31 - 1)], ids=str
)
def test_a_time_out_is_waited_for_in_whole_milliseconds(seconds: float, milliseconds: int) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        ours.settimeout(seconds)

        assert Wire(Opened(ours))._timeout == milliseconds


def test_a_command_that_does_not_fit_into_the_buffers_is_sent_whole(ends: Any) -> None:
    wire, server = ends
    sent, received = b"x" * 5_000_000, bytearray()
    wire._timeout = PATIENCE * 1_000

    def read() -> None:
        while len(received) < len(sent):
            received.extend(server.recv(1_000_000))

    thread = threading.Thread(target=read)
    thread.start()
    wire.send(sent)
    thread.join()

    assert received == sent
    assert wire._socket.gettimeout() == 0  # it blocks no read


@pytest.mark.parametrize(
    ("fits", "calls"),
    [
        (4, [call.send(b"abcd")]),
        (3, [call.send(b"abcd"), call.settimeout(0.2), call.sendall(b"d"), call.setblocking(False)]),
    ],
    ids=["all fits", "a part fits"],
)
def test_only_what_does_not_fit_into_the_buffers_waits_for_room(
    ends: Any, fits: int, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, _ = ends
    buffers = Mock(send=Mock(return_value=fits))
    with monkeypatch.context() as patched:  # the fixture closes the real one
        patched.setattr(wire, "_socket", buffers)

        wire.send(b"abcd")

    assert buffers.method_calls == calls


def test_whether_a_wire_is_ready_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    poll = Mock()
    monkeypatch.setattr(select, "poll", lambda: poll)
    ours, other = socket.socketpair()
    ours.settimeout(0.2)
    with ours, other:
        Wire(Opened(ours)).is_ready()

    assert poll.method_calls == [call.register(ours, select.POLLIN), call.poll(0)]


def test_a_socket_of_gevent_keeps_its_own_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the place of Python's own class of sockets."""
    monkeypatch.setattr(socket.socket, "__module__", "gevent._socket3")
    ours, other = socket.socketpair()
    ours.settimeout(0.25)
    with ours, other:
        assert (Wire(Opened(ours))._timeout, ours.gettimeout()) == (None, 0.25)


class TestWithoutPoll:
    """As on Windows, and where eventlet has taken it away."""

    @pytest.fixture
    def both_ends(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Wire, socket.socket]]:
        monkeypatch.delattr(select, "poll")
        ours, server = socket.socketpair()
        ours.settimeout(PATIENCE)
        with ours, server:
            yield Wire(Opened(ours)), server

    def test_a_socket_keeps_its_own_time_out(self, both_ends: Any) -> None:
        assert (both_ends[0]._timeout, both_ends[0]._socket.gettimeout()) == (None, PATIENCE)

    def test_a_reply_is_read(self, both_ends: Any) -> None:
        wire, server = both_ends
        server.sendall(b"+OK\r\n")

        assert wire.read() == b"OK"

    def test_a_command_is_sent(self, both_ends: Any) -> None:
        wire, server = both_ends

        wire.send(b"command")

        assert server.recv(100) == b"command"

    def test_whether_a_wire_is_ready_is_said_at_once(self, both_ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(select, "select", looked := Mock(return_value=([], [], [])))

        assert both_ends[0].is_ready()
        looked.assert_called_once_with([both_ends[0]._socket], [], [], 0)

    def test_a_wire_is_not_ready_if_something_has_arrived(self, both_ends: Any) -> None:
        wire, server = both_ends
        assert wire.is_ready()

        server.sendall(b"+OK\r\n")

        assert not wire.is_ready()


def test_a_wire_is_not_ready_if_tls_has_decrypted_more_than_was_read() -> None:
    sock: Any = Mock()
    sock.pending.return_value = 1

    assert not Wire(Opened(sock)).is_ready()


class EncryptedSocket(socket.socket):
    """A socket as of TLS: all that it has decrypted was read."""

    def pending(self) -> int:
        return 0


@pytest.mark.parametrize("said", [b"x", b""], ids=["something", "the end"])
def test_a_wire_is_not_ready_if_something_has_arrived_that_tls_has_not_decrypted(said: bytes) -> None:
    ours, server = socket.socketpair()
    with EncryptedSocket(fileno=ours.detach()) as encrypted, server:
        wire = Wire(Opened(encrypted))
        assert wire.is_ready()

        server.sendall(said) if said else server.close()

        assert not wire.is_ready()


def test_a_socket_that_times_out_with_nothing_there_is_late() -> None:
    ours, server = socket.socketpair()
    late = LateSocket(fileno=ours.detach())
    late.settimeout(0.01)
    with late, server:
        late.waited = 1  # its next wait is that of the system
        with pytest.raises(RedisTimeoutError, match="reading"):
            Wire(Opened(late)).read()


def test_connections_without_a_socket_are_of_an_imitation() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Wire(Opened(object()))
    assert caught.value.problem == "The connections of this alias have no sockets. Perhaps it is fakeredis."


def test_in_python_a_string_ends_where_its_length_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "hiredis", None)
    ours, server = socket.socketpair()
    ours.settimeout(PATIENCE)
    with ours, server:
        server.sendall(b"$2\r\nabxx")
        with pytest.raises(InvalidResponse, match=r"^these bytes are not a reply$"):
            Wire(Opened(ours)).read()
