"""Calls that end before their reply comes: cancelled, interrupted, or in a forked process."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from django_quota import acheck, check
from django_quota.exceptions import StoreUnavailable
from django_quota.stores.redis.wire import Wire
from django_quota.testing import RedisServer
from tests.faults.calls import CALLS, assert_own_answers, caches_at, call_problem, use_site_rules
from tests.faults.sockets import listening
from tests.support.cancelling import Steps
from tests.support.commands import PATIENCE
from tests.support.outages import due_breaker, new_breaker, new_outages
from tests.support.processes import forks, in_child
from tests.support.selection import thorough
from tests.support.steps import Clock
from tests.support.stores import caches, redis_store

ASYNC = {
    "check sliding allow", "check sliding deny", "peek", "reset", "reserve", "counter.incr", "slot", "waiting slot",
    "once", "@quota allow", "@concurrency deny", "middleware local", "holders",
}  # fmt: skip
TO_THE_END = {"reserve", "slot", "waiting slot", "@concurrency deny"}
"""Those whose store calls go on in a task of their own, so that the caller has few awaits."""
STEPS = 60
"""The most awaits, or turns of the loop, at which a call is cancelled."""


@pytest.mark.parametrize("connection", ["kept", thorough("faults", "new")])
@pytest.mark.parametrize("call", [call for call in CALLS if call.name in ASYNC], ids=lambda call: call.name)
def test_a_task_cancelled_at_any_await_leaves_no_reply(
    call: Any, connection: str, redis_server: RedisServer, raw: redis.Redis, settings: Any, caplog: Any
) -> None:
    settings.CACHES = caches(redis_server, max_connections=2)
    use_site_rules(settings)
    check("9/m", "user:1")
    breaker = new_breaker(failures=1)

    async def ask(step: int) -> tuple[Any, bool]:
        """Return the answer or the error, and whether the call was cancelled: at an await, or at a turn of the loop."""
        if connection == "kept":
            steps = Steps(call.asynchronous(None), step)
            return (await asyncio.gather(asyncio.ensure_future(steps.run()), return_exceptions=True))[0], steps.was_cut
        await (await redis_store().server.wires.get()).aclose()
        task = asyncio.ensure_future(call.asynchronous(None))
        for _ in range(step + 1):
            await asyncio.sleep(0)
        was_cut = task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0], was_cut

    async def run() -> tuple[list[Any], dict[int, list[int | None]], Any]:
        """Return what was raised at each step, what later calls were answered, and the answer of the whole call."""
        raised, later = list[Any](), dict[int, list[int | None]]()
        for step in range(STEPS):
            answer, was_cut = await ask(step)
            if not was_cut:
                return raised, later, answer
            raised.append(answer)
            later[step] = [(await acheck(f"{n}/m", f"user:{n}")).limit for n in (1_000 + step, 2_000 + step)]
        assert connection == "new", f"The call has more than {STEPS} awaits."
        return raised, later, await call.asynchronous(None)  # a Redis that is busy answers after more turns of the loop

    raised, later, answer = asyncio.run(run())

    assert [repr(error)[:300] for error in raised if not isinstance(error, asyncio.CancelledError)] == []
    assert later == {step: [1_000 + step, 2_000 + step] for step in later}
    assert call_problem(call, answer) == ""
    assert len(raised) >= (3 if connection == "new" and call.name not in TO_THE_END else 1)
    assert not breaker.is_open
    assert "unavailable" not in caplog.text


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_interrupted_probe_passes_to_the_next_caller(mode: str, settings: Any) -> None:
    """A task is cancelled, a thread is interrupted as by Ctrl-C."""
    asked = threading.Event()

    def greets_and_hangs(socket: Any) -> None:
        while data := socket.recv(65_536):
            if b"EVALSHA" in data:
                asked.set()
            else:
                socket.sendall(b"%1\r\n$5\r\nproto\r\n:3\r\n" if b"HELLO" in data else b"+OK\r\n" * data.count(b"*"))

    with listening(greets_and_hangs) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", 30)
        breaker = due_breaker()
        if mode == "sync":
            with interrupted(asked), pytest.raises(KeyboardInterrupt):
                check("9/m", "user:1")
        else:

            async def cancelled() -> None:
                task = asyncio.ensure_future(acheck("9/m", "user:1"))
                assert await asyncio.to_thread(asked.wait, PATIENCE)
                task.cancel()
                await task

            with pytest.raises(asyncio.CancelledError):
                asyncio.run(cancelled())
        assert breaker.is_open
        assert not breaker.is_refusing()  # the probe is free, and it was no failure
        assert breaker.acquire()


@contextmanager
def interrupted(when: threading.Event) -> Iterator[None]:
    """Interrupt the main thread as Ctrl-C does, once it waits for a reply."""
    me = threading.get_ident()

    def interrupt() -> None:
        if when.wait(PATIENCE):
            signal.pthread_kill(me, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["send", "read"])
def test_an_interrupted_thread_leaves_no_reply(
    where: str, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    use_site_rules(settings)
    check("9/m", "user:1")
    ours = redis_store()
    pool: Any = ours.server.pool
    permits = pool._permits.qsize()
    (kept,) = pool._idle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wire, where, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            check("5/m", "user:2")

    assert kept not in pool._idle
    assert pool._permits.qsize() == permits
    assert_own_answers("sync")
    assert not ours.server.breaker.is_open


@forks
def test_a_forked_worker_does_not_wait_for_a_thread_of_its_parent(
    redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    check("9/m", "user:1")
    outages: Any = new_outages(Clock())

    def work() -> bool:
        outages.failed(StoreUnavailable("x"), [])
        return not check("9/m", "user:1").degraded

    with outages._lock:
        assert in_child(work) == 1
