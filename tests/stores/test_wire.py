"""The wire of a thread: whatever arrives, and in whatever parts, each reply belongs to its command."""

import random
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import check
from django_quota.stores.redis import reply_reader as reading
from django_quota.stores.redis.wire import Wire
from django_quota.testing.redis_server import RedisServer
from tests.support.stores import caches, redis_store


class Opened:
    """A connection that redis-py has opened to a server that the test plays."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._parser = redis.connection.DefaultParser(socket_read_size=4096)

    def can_read(self) -> bool:
        self._sock.settimeout(0)
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK)) or True
        except BlockingIOError:
            return False
        finally:
            self._sock.settimeout(0.2)

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
    ("said", "error"),
    [
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError),
        (b"-ERR wrong\r\n", redis.ResponseError),
        (b"-LOADING wait\r\n", redis.BusyLoadingError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", InvalidResponse),
        (b"", RedisTimeoutError),
        (b"$5\r\nab", RedisTimeoutError),
    ],
    ids=["no script", "an error", "loading", "no Redis", "silence", "half a reply"],
)
def test_what_is_no_answer_is_an_error_of_redis_py(ends: Any, said: bytes, error: type[Exception]) -> None:
    wire, server = ends
    server.sendall(said)
    with pytest.raises(error):
        wire.read()


@pytest.mark.parametrize("said", [b"", b"$5\r\nab"], ids=["nothing", "half a reply"])
def test_a_server_that_closes_the_connection_has_not_answered(ends: Any, said: bytes) -> None:
    wire, server = ends
    server.sendall(said)
    server.close()
    with pytest.raises(RedisConnectionError, match="closed by server"):
        wire.read()


def test_a_server_that_reads_nothing_ends_the_sending(ends: Any) -> None:
    wire, _ = ends
    with pytest.raises(RedisTimeoutError, match="writing"):
        wire.send(b"x" * 10**8)


def test_only_a_plain_socket_leaves_its_time_outs_to_the_kernel() -> None:
    plain, _other = socket.socketpair()
    encrypted = ssl.create_default_context().wrap_socket(
        socket.socket(), do_handshake_on_connect=False, server_hostname="a"
    )
    with plain, _other, encrypted:
        for each in (plain, encrypted):
            each.settimeout(0.25)
        assert Wire(Opened(plain))._poll is not None
        assert plain.gettimeout() is None
        assert Wire(Opened(encrypted))._poll is None
        assert encrypted.gettimeout() == 0.25


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
    assert not check("9/m", "user:1").degraded
