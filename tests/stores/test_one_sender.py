"""Threads that meet on their way to Redis: one sends for all who wait, and each gets its own reply or its own error."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count
from types import FrameType
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import check
from django_quota.stores.redis import connections, one_sender
from django_quota.stores.redis.one_sender import FAR_ROUNDS, MOST_TOGETHER, OneSender, Queued
from django_quota.testing.redis_server import RedisServer
from tests.support.commands import PATIENCE, wait_until
from tests.support.processes import forks, in_child
from tests.support.stores import caches, redis_store


class Interrupted(BaseException):
    """As the time limit of a task, or Ctrl-C."""


class PlayedWire:
    """A wire to a server that repeats each command, once the replies are let through."""

    def __init__(self) -> None:
        self.generation = 0
        self.writes: list[bytes] = []
        self.is_written = threading.Event()
        self.is_let_through = threading.Event()
        self.instead: dict[bytes, BaseException] = {}
        """What reading raises, or an error reply, in the place of the reply to a command."""
        self.is_reply = False

    def send(self, commands: bytes) -> None:
        self.writes.append(commands)
        self.is_written.set()

    def replies(self, number: int, _seconds: float) -> Iterator[Any]:
        words = self.writes[-1].split()
        assert self.is_let_through.wait(PATIENCE)
        assert len(words) == number
        for word in words:
            error = self.instead.get(word)
            if error is not None and not self.is_reply:
                raise error
            yield error or word


class Crowd:
    """Threads that ask one sender over a played wire."""

    def __init__(self) -> None:
        self.wire: Any = PlayedWire()
        self.one_sender = OneSender(PATIENCE)
        self.alone: list[bytes] = []
        """What threads sent by themselves, since nobody had taken it."""
        self.threads: list[threading.Thread] = []

    def send(self, command: bytes, for_all: OneSender | None) -> Any:
        if for_all is not None:
            return for_all.send(self.wire, command)
        self.alone.append(command)
        return command.strip()

    def ask(self, word: bytes) -> Any:
        return self.one_sender.ask(word + b" ", self.send)

    def start(self, *words: bytes) -> "Future[Any]":
        """Ask one after the other in a thread of its own; the future has the last reply, or an error."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result([self.ask(word) for word in words][-1])
            except BaseException as error:  # noqa: BLE001 — also an interruption
                future.set_exception(error)

        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()
        return future

    def sending(self, *words: bytes) -> "Future[Any]":
        """Let a thread send the first of these words, and wait for the reply."""
        future = self.start(*words)
        assert self.wire.is_written.wait(PATIENCE)
        return future

    def waiting(self, *words: bytes) -> "list[Future[Any]]":
        """Let a thread for each of these words wait in the queue, in this order."""
        futures = []
        for word in words:
            before = len(self.one_sender._queue)
            futures.append(self.start(word))
            wait_until(lambda before=before: len(self.one_sender._queue) > before)
        return futures

    def finish(self) -> None:
        self.wire.is_let_through.set()
        for thread in self.threads:
            thread.join(PATIENCE)


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crowd]:
    """Its calls wait for each other for as long as a test needs, and take no server for one far away."""
    monkeypatch.setattr(one_sender, "LONGEST_IN_QUEUE", PATIENCE)
    monkeypatch.setattr(one_sender, "NEAR", 10 * PATIENCE)
    made = Crowd()
    yield made
    made.finish()


# --- who sends what ---------------------------------------------------------------------------------------------------


def test_who_waits_while_another_sends_goes_out_in_the_next_write(crowd: Crowd) -> None:
    crowd.sending(b"first")
    crowd.waiting(b"second", b"third", b"fourth")

    crowd.finish()

    assert crowd.wire.writes == [b"first ", b"second third fourth "]


def test_each_thread_gets_the_reply_to_its_own_command(crowd: Crowd) -> None:
    futures = [crowd.sending(b"first"), *crowd.waiting(b"second", b"third")]

    crowd.finish()

    assert [each.result(0) for each in futures] == [b"first", b"second", b"third"]


def test_a_thread_that_asks_again_does_not_send_for_who_waited_before_it(crowd: Crowd) -> None:
    crowd.sending(b"first", b"again")
    crowd.waiting(b"second")

    crowd.finish()

    assert crowd.wire.writes[1].startswith(b"second ")


def test_one_write_has_at_most_64_commands(crowd: Crowd) -> None:
    crowd.sending(b"first")
    crowd.waiting(*(b"%d" % number for number in range(MOST_TOGETHER + 6)))

    crowd.finish()

    assert [len(write.split()) for write in crowd.wire.writes] == [1, 64, 6]


def test_a_call_that_nobody_takes_in_time_goes_out_alone(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd.sending(b"first")
    monkeypatch.setattr(one_sender, "LONGEST_IN_QUEUE", 0.001)

    assert crowd.ask(b"second") == b"second"
    assert crowd.alone == [b"second "]


def test_a_call_that_went_out_alone_is_not_sent_again(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd.sending(b"first")
    monkeypatch.setattr(one_sender, "LONGEST_IN_QUEUE", 0.001)
    crowd.ask(b"second")
    crowd.finish()

    crowd.ask(b"third")

    assert crowd.wire.writes == [b"first ", b"third "]


def test_calls_to_a_server_far_away_do_not_wait_for_each_other(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_sender, "NEAR", 0)
    crowd.wire.is_let_through.set()
    for _ in range(FAR_ROUNDS):
        crowd.ask(b"late")

    crowd.ask(b"next")

    assert (len(crowd.wire.writes), crowd.alone) == (FAR_ROUNDS, [b"next "])


def test_one_reply_from_near_shows_that_a_server_is_not_far_away(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd.wire.is_let_through.set()
    for near in (0, PATIENCE, 0):
        monkeypatch.setattr(one_sender, "NEAR", near)
        for _ in range(FAR_ROUNDS - 1 if near == 0 else 1):
            crowd.ask(b"word")

    crowd.ask(b"next")

    assert crowd.alone == []


# --- what fails -------------------------------------------------------------------------------------------------------


LOST = {
    "lost": (RedisConnectionError("Connection closed by server."), RedisConnectionError),
    "late": (RedisTimeoutError("Timeout reading from socket"), RedisTimeoutError),
    "unreadable": (ValueError("no number"), ValueError),
    "interrupted": (Interrupted(), RedisConnectionError),
}


@pytest.mark.parametrize(("error", "of_others"), LOST.values(), ids=LOST)
def test_a_write_that_fails_fails_those_whose_replies_have_not_come(
    error: BaseException, of_others: type[Exception], crowd: Crowd
) -> None:
    crowd.sending(b"first")
    futures = crowd.waiting(b"second", b"third", b"fourth")
    crowd.wire.instead[b"third"] = error

    crowd.finish()

    assert [type(each.exception(0)) for each in futures] == [type(error), of_others, of_others]


def test_a_reply_that_came_before_the_connection_was_lost_is_kept(crowd: Crowd) -> None:
    crowd.sending(b"first")
    futures = crowd.waiting(b"second", b"third", b"fourth")
    crowd.wire.instead[b"fourth"] = RedisConnectionError("Connection closed by server.")

    crowd.finish()

    assert futures[1].result(0) == b"third"


@pytest.mark.parametrize(("error", "of_others"), LOST.values(), ids=LOST)
def test_who_waits_while_a_write_fails_is_sent_by_the_next(
    error: BaseException, of_others: type[Exception], crowd: Crowd
) -> None:
    first = crowd.sending(b"first")
    futures = crowd.waiting(b"second", b"third")
    crowd.wire.instead[b"first"] = error

    crowd.finish()

    assert first.exception(0) is error
    assert [each.result(0) for each in futures] == [b"second", b"third"]


def test_an_error_reply_belongs_to_its_own_call(crowd: Crowd) -> None:
    crowd.sending(b"first")
    futures = crowd.waiting(b"second", b"third", b"fourth")
    crowd.wire.instead, crowd.wire.is_reply = {b"third": NoScriptError("No matching script.")}, True

    crowd.finish()

    assert (futures[0].result(0), type(futures[1].exception(0)), futures[2].result(0)) == (
        b"second", NoScriptError, b"fourth",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "is_left"), [(ReadOnlyError("replica"), True), (NoScriptError("none"), False)], ids=["replica", "script"]
)
def test_a_wire_is_left_if_a_reply_to_others_says_so(error: Exception, is_left: bool, crowd: Crowd) -> None:
    crowd.sending(b"first")
    crowd.waiting(b"second", b"third")
    crowd.wire.instead, crowd.wire.is_reply = {b"third": error}, True

    crowd.finish()

    assert (crowd.wire.generation != 0) is is_left


def test_a_call_whose_sender_hangs_ends_after_its_time_out(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd.one_sender._timeout = 0.001
    crowd.sending(b"first")
    monkeypatch.setattr(one_sender, "LONGEST_IN_QUEUE", 0.001)

    def taken(call: Queued) -> bool:
        """Say that another thread has taken it."""
        crowd.one_sender._queue.clear()
        return False

    monkeypatch.setattr(crowd.one_sender, "_remove", taken)
    with pytest.raises(RedisTimeoutError):
        crowd.ask(b"second")


def test_the_command_of_a_thread_that_is_interrupted_while_it_waits_is_not_sent(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd.sending(b"first")
    with monkeypatch.context() as patch:
        patch.setattr(Queued, "wait", interrupting)
        with pytest.raises(Interrupted):
            crowd.ask(b"second")
    crowd.waiting(b"third")

    crowd.finish()

    assert crowd.wire.writes == [b"first ", b"third "]


def interrupting(*_: object) -> bool:
    raise Interrupted


def interrupted_at(step: int) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that interrupts its thread at a step of the one sender, counted from 1."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != one_sender.__file__:
            return None
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left == 0:
            raise Interrupted
        return trace

    return trace


def asks_until_interrupted(crowd: Crowd, step: int) -> bool:
    """Ask in this thread, and return whether it was interrupted at a step."""
    before = sys.gettrace()
    sys.settrace(interrupted_at(step))
    try:
        crowd.ask(b"mine")
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_sender_that_is_interrupted_at_any_step_loses_no_call_and_passes_the_turn_on(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd.wire.is_let_through.set()
    send, queue = crowd.send, crowd.one_sender._queue
    for step in count(1):
        joined = list[Queued]()

        def send_with_another(command: bytes, for_all: OneSender | None, joined: list[Queued] = joined) -> Any:
            """Send while another call waits, which has no thread here."""
            joined.append(Queued(b"other "))
            queue.append(joined[0])
            return send(command, for_all)

        with monkeypatch.context() as patch:
            patch.setattr(crowd, "send", send_with_another)
            was_interrupted = asks_until_interrupted(crowd, step)
        assert all(other.is_answered or other in queue for other in joined), step
        queue.clear()
        assert crowd.start(b"next").result(PATIENCE) == b"next"
        if not was_interrupted:
            break
    assert (step > 100, crowd.alone) == (True, [])


def test_a_call_that_is_interrupted_at_any_step_of_its_wait_leaves_the_queue(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_sender, "LONGEST_IN_QUEUE", 0.001)
    ahead = Queued(b"ahead ")
    crowd.one_sender._queue.append(ahead)
    for step in count(1):
        was_interrupted = asks_until_interrupted(crowd, step)
        assert list(crowd.one_sender._queue) == [ahead], step
        if not was_interrupted:
            break
    assert step > 50


# --- with Redis -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pool(redis_server: RedisServer, raw: redis.Redis, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The connections of threads that have one sender from the first call on."""
    monkeypatch.setattr(connections, "SEPARATE", 0)
    monkeypatch.setattr(one_sender, "NEAR", PATIENCE)
    settings.CACHES = caches(redis_server)
    return redis_store().server.pool


def in_threads(number: int, work: Callable[[int], object]) -> None:
    """Run a function in several threads that begin together."""
    barrier = threading.Barrier(number)

    def begin(each: int) -> None:
        barrier.wait(PATIENCE)
        work(each)

    threads = [threading.Thread(target=begin, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


COUNTED = "return {ARGV[1], redis.call('INCR', KEYS[1])}"


def test_threads_whose_connections_are_killed_get_their_own_replies_or_an_error(pool: Any, raw: redis.Redis) -> None:
    """No command is counted twice: each thread has a key, whose count is that of its replies, and of lost ones."""
    wrong, replies, lost, ended = list[Any](), [0] * 12, [0] * 12, threading.Event()
    breaker = redis_store().server.breaker

    def work(number: int) -> None:
        for turn in range(100):
            word = f"{number}-{turn}-" + "x" * random.choice((0, 10, 20_000))
            try:
                reply = pool.execute(["EVAL", COUNTED, 1, f"count:{number}", word])
            except (redis.RedisError, OSError):
                lost[number] += 1
            else:
                replies[number] += 1
                if reply[0].decode() != word:
                    wrong.append((word[:9], reply[0][:9]))
            breaker.succeeded()

    def kill() -> None:
        while not ended.wait(0.01):
            raw.client_kill_filter(_type="normal", skipme=True)

    killing = threading.Thread(target=kill)
    killing.start()
    in_threads(12, work)
    ended.set()
    killing.join()
    counts = [int(raw.get(f"count:{number}") or 0) for number in range(12)]  # type: ignore[arg-type]
    assert wrong == []
    assert [(each, low <= each <= low + more) for each, low, more in zip(counts, replies, lost, strict=True)] == [
        (each, True) for each in counts
    ]


def test_threads_that_meet_all_send_a_script_that_redis_has_forgotten(pool: Any, raw: redis.Redis) -> None:
    check("1000/m", "user:warm")
    degraded = list[bool]()

    def work(number: int) -> None:
        for _ in range(20):
            degraded.append(check("1000/m", f"user:{number}").degraded)
            raw.script_flush()

    in_threads(8, work)
    assert degraded == [False] * 160


def test_a_store_that_is_closed_while_threads_wait_answers_them(pool: Any) -> None:
    replies = list[Any]()

    def work(number: int) -> None:
        for turn in range(50):
            if number == 0:
                pool.close()
            word = f"{number}-{turn}"
            replies.append(pool.execute(["ECHO", word]).decode() == word)

    in_threads(8, work)
    assert replies == [True] * 400


@forks
def test_a_forked_worker_does_not_wait_for_a_sender_of_its_parent(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_sender, "LONGEST_IN_QUEUE", PATIENCE)
    check("9/m", "user:1")
    is_held, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._one_sender._turn:
            is_held.set()
            ended.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(PATIENCE)
    try:
        assert in_child(lambda: not check("9/m", "user:1").degraded) == 1
    finally:
        ended.set()
        holder.join()


# --- when threads share -----------------------------------------------------------------------------------------------


def shares(settings: Any, server: RedisServer, under_way: int, **options: Any) -> bool:
    """Say whether a call shares a connection while so many others are under way."""
    settings.CACHES = caches(server)
    pool: Any = redis_store().server.pool
    shared = list[bytes]()
    pool._one_sender.ask = lambda command, send: shared.append(command) or send(command, None)
    for _ in range(under_way):
        pool._permits.get()
    pool.execute(("PING",), **options)
    return bool(shared)


@pytest.mark.parametrize(
    ("under_way", "expected"), [(0, False), (1, False), (2, True), (7, True)], ids=["one", "two", "three", "eight"]
)
def test_threads_share_from_the_third_call_at_once(
    under_way: int, expected: bool, redis_server: RedisServer, settings: Any
) -> None:
    assert shares(settings, redis_server, under_way) is expected


def test_a_call_that_takes_long_shares_with_nobody(redis_server: RedisServer, settings: Any) -> None:
    assert not shares(settings, redis_server, 7, is_slow=True)


def test_greenlets_share_with_nobody(redis_server: RedisServer, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of gevent or eventlet take turns by themselves."""
    monkeypatch.setattr(connections, "has_threads", lambda: False)

    assert not shares(settings, redis_server, 7)
