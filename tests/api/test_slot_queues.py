"""Waiting for a slot: who is served when, who asks the store, and who leaves the queue."""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from django_quota import lock, slot
from django_quota.core.flow import run_async, run_sync
from django_quota.exceptions import QuotaExceeded, StoreUnavailable
from django_quota.features.slots.queues import Caller, pause_before
from django_quota.testing import RedisServer
from django_quota.types import Lease, Slot
from tests.support.calls import both_ways
from tests.support.commands import wait_until
from tests.support.outages import no_answer
from tests.support.processes import forks, in_child
from tests.support.slots import (
    acquired,
    asked_elsewhere,
    calls,
    forget,
    is_asked_for_by,
    released_elsewhere,
    tokens,
    waiting,
    wake_next,
)
from tests.support.stores import caches

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")
unpolled = pytest.mark.usefixtures("unpolled")


@contextmanager
def in_line(number: int, is_async: bool = False, limit: int = 1) -> Iterator[list[Future[Lease]]]:
    """Let threads, or tasks of one event loop, come for a slot, one after the other; yield their futures."""
    with asyncio.Runner() as runner, ThreadPoolExecutor(8) as threads:
        loop, futures = runner.get_loop(), list[Future[Lease]]()
        threads.submit(loop.run_forever)
        try:
            for place in range(1, number + 1):
                line = slot("line", limit, wait=60)
                call = asyncio.run_coroutine_threadsafe(line.aacquire(), loop) if is_async else None
                futures.append(call or threads.submit(line.acquire))
                wait_until(lambda place=place: waiting("line") == place)  # type: ignore[misc]
            yield futures
        finally:
            loop.call_soon_threadsafe(loop.stop)


def let_in_as_they_came(held: list[Lease], futures: list[Future[Lease]]) -> None:
    """Release what is held, for as many callers at a time."""
    while held:
        for lease in held:
            lease.release()
        held, futures = [future.result(60) for future in futures[: len(held)]], futures[len(held) :]
        assert waiting("line") == len(futures)


def released_after_the_first_call(holder: Callable[[], object]) -> Callable[[Any], None]:
    """Return a function that has a holder leave once the store was asked for the slot the first time."""
    asked: list[str] = []

    def see(operation: Any) -> None:
        token = is_asked_for_by(operation)
        if token is not None and not asked:
            asked.append(token)
            holder()

    return see


class TestTheOrder:
    @both_stores
    @unpolled
    @pytest.mark.parametrize("limit", [1, 3])
    @both_ways
    def test_callers_are_let_in_as_they_came(self, limit: int, is_async: bool) -> None:
        held = [slot("line", limit).acquire() for _ in range(limit)]

        with in_line(6, is_async, limit) as futures:
            let_in_as_they_came(held, futures)

        assert lock("line").holders() == []

    @in_memory
    @unpolled
    def test_callers_with_another_limit_have_a_queue_of_their_own(self) -> None:
        held = lock("line").acquire()

        with in_line(1) as futures:
            with slot("line", 2, wait=60):
                held.release()
            futures[0].result(60).release()

    @in_memory
    @unpolled
    def test_a_slot_that_comes_free_wakes_the_first_of_each_queue(self) -> None:
        held = [slot("line", 3).acquire() for _ in range(3)]
        with ThreadPoolExecutor(2) as threads:
            futures = []
            for place, limit in enumerate((1, 3), 1):
                futures.append(threads.submit(slot("line", limit, wait=60).acquire))
                wait_until(lambda place=place: waiting("line") == place)  # type: ignore[misc]

            held.pop().release()  # this lets in the second, whose limit is higher

            held += [futures[1].result(60)]
            while held:
                held.pop().release()
            futures[0].result(60).release()

    @both_stores
    @both_ways
    def test_a_slot_that_another_process_gives_back_is_found(self, is_async: bool) -> None:
        assert asked_elsewhere("line")

        with in_line(1, is_async) as futures:
            released_elsewhere("line")
            futures[0].result(60).release()

    @both_stores
    @both_ways
    def test_a_slot_whose_holder_has_crashed_is_found(self, is_async: bool) -> None:
        crashed = lock("line").acquire()

        with in_line(1, is_async) as futures:
            crashed.renew(0.05)
            futures[0].result(60).release()

    @both_stores
    @pytest.mark.parametrize("seed", range(2))
    def test_callers_that_leave_keep_no_slot(self, seed: int) -> None:
        chance = random.Random(seed)

        async def hold(line: Slot, turns: int) -> None:
            async with line:
                for _ in range(turns):
                    await asyncio.sleep(0)
                assert len(await line.aholders()) <= 2

        async def queue() -> None:
            patient: list[asyncio.Task[None]] = []
            leaving: list[asyncio.Task[None]] = []
            for _ in range(40):
                wait = chance.choice([60, 60, 0.01, 0])
                task = asyncio.create_task(hold(slot("line", 2, wait=wait), chance.randrange(8)))
                (patient if wait == 60 and chance.random() < 0.5 else leaving).append(task)
            while not all(task.done() for task in leaving):
                for _ in range(chance.randrange(20)):
                    await asyncio.sleep(0)
                chance.choice(leaving).cancel()
            await asyncio.wait_for(asyncio.gather(*patient), 60)
            assert await slot("line", 2).aholders() == []

        asyncio.run(queue())

        assert waiting("line") == 0


class TestAskingTheStore:
    @pytest.mark.thorough("slow")
    @in_memory
    def test_only_the_first_in_the_queue_asks(self) -> None:
        asked: list[str | None] = []
        lock("line").acquire()

        with calls(before=lambda operation: asked.append(is_asked_for_by(operation))), in_line(3) as futures:
            asked.clear()
            wait_until(lambda: len(asked) > 5)
            assert len(set(asked)) == 1
            forget("line")
            for future in futures:
                future.result(60).release()

    @in_memory
    @unpolled
    @both_ways
    def test_who_comes_behind_the_first_does_not_ask(self, is_async: bool) -> None:
        asked: list[str | None] = []
        held = lock("line").acquire()

        with calls(before=lambda operation: asked.append(is_asked_for_by(operation))), in_line(4, is_async) as futures:
            wait_until(lambda: asked)
            assert len(asked) == 1
            let_in_as_they_came([held], futures)

    @pytest.mark.parametrize(
        ("estimate", "least", "most"),
        [
            pytest.param(0, 0.005, 0.01, id="at once"),
            pytest.param(9_999, 0.005, 0.01, id="almost in 10 milliseconds"),
            pytest.param(30_000, 0.015, 0.03, id="in 30 milliseconds"),
            pytest.param(50_000, 0.025, 0.05, id="in 50 milliseconds"),
            pytest.param(10**12, 0.025, 0.05, id="in days"),
        ],
    )
    def test_the_first_asks_about_when_a_slot_comes_free_every_5_to_50_milliseconds(
        self, estimate: int, least: float, most: float
    ) -> None:
        pauses = [pause_before(estimate) for _ in range(200)]

        assert least <= min(pauses) < max(pauses) <= most

    @in_memory
    @unpolled
    @both_ways
    def test_a_slot_that_comes_free_before_the_caller_waits_is_not_missed(self, is_async: bool) -> None:
        held = lock("line").acquire()

        with ThreadPoolExecutor(1) as threads, calls(after=released_after_the_first_call(held.release)):
            try:
                threads.submit(acquired, lock("line", wait=600), is_async).result(60)
            finally:
                wake_next("line")  # else the thread would go on

    @in_memory
    def test_a_blocked_event_loop_holds_up_nobody_else(self) -> None:
        blocked, goes_on = threading.Event(), threading.Event()

        async def block() -> None:
            task = asyncio.create_task(lock("line", wait=60).aacquire())
            while waiting("line") != 1:  # noqa: ASYNC110 — nothing tells
                await asyncio.sleep(0)
            blocked.set()
            goes_on.wait(60)
            await (await task).arelease()

        assert asked_elsewhere("line")
        with ThreadPoolExecutor(2) as threads:
            threads.submit(asyncio.run, block())
            assert blocked.wait(60)
            released_elsewhere("line")
            try:
                threads.submit(lock("line", wait=600).acquire).result(30).release()
            finally:
                goes_on.set()

    @in_memory
    def test_a_closed_event_loop_holds_up_nobody_else(self) -> None:
        async def wait_until_queued() -> None:
            while waiting("line") != 1:  # noqa: ASYNC110 — nothing tells
                await asyncio.sleep(0)

        held, loop = lock("line").acquire(), asyncio.new_event_loop()
        caller = lock("line", wait=600).aacquire()
        task = cast("Any", loop.create_task(caller))
        loop.run_until_complete(wait_until_queued())
        loop.close()
        task._log_destroy_pending = False  # asyncio warns of such a task

        held.release()

        lock("line").acquire().release()
        caller.close()
        assert waiting("line") == 0

    @pytest.mark.parametrize("is_async", [False, True], ids=["a thread", "a task"])
    def test_a_wake_ends_one_wait(self, is_async: bool) -> None:
        async def wake_once() -> Caller:
            caller = Caller(deque(), asyncio.get_running_loop() if is_async else None)
            caller.wake()
            if is_async:
                await run_async(caller.waiting(600))
            else:
                run_sync(caller.waiting(600))
            return caller

        caller = asyncio.run(wake_once())

        assert not caller._wakes_thread.is_set()
        assert not caller._wakes_task.is_set()

    @both_stores
    @both_ways
    def test_a_store_that_goes_away_during_the_wait_is_an_error_of_all_who_wait(self, is_async: bool) -> None:
        lock("line", lease=60).acquire()

        with in_line(5, is_async) as futures, no_answer():
            for future in futures:
                with pytest.raises(StoreUnavailable, match="gone"):
                    future.result(60)

        assert waiting("line") == 0

    @in_memory
    @both_ways
    def test_who_comes_while_the_store_is_away_gets_an_error_at_once(self, is_async: bool) -> None:
        lock("line", lease=60).acquire()

        with no_answer(), pytest.raises(StoreUnavailable):
            acquired(lock("line", wait=600), is_async)

        assert waiting("line") == 0


@in_memory
class TestTimeouts:
    @unpolled
    @both_ways
    def test_a_caller_whose_time_is_up_asks_a_last_time(self, is_async: bool) -> None:
        assert asked_elsewhere("line")

        with calls(after=released_after_the_first_call(lambda: released_elsewhere("line"))):
            lease = acquired(lock("line", wait=0.05), is_async)

        assert tokens(lock("line")) == [lease.token]

    @unpolled
    @both_ways
    def test_a_caller_whose_time_is_up_leaves_the_queue(self, is_async: bool) -> None:
        held = lock("line").acquire()

        with in_line(1) as futures:
            with pytest.raises(QuotaExceeded) as refused:
                acquired(lock("line", wait=0.05), is_async)
            let_in_as_they_came([held], futures)

        assert (refused.value.decision.limit, refused.value.decision.remaining) == (1, 0)

    @both_ways
    def test_a_timeout_of_zero_waits_for_no_slot(self, is_async: bool) -> None:
        lock("line").acquire()

        with pytest.raises(QuotaExceeded):
            acquired(lock("line", wait=60), is_async, 0)

    @both_ways
    def test_a_timeout_waits_though_the_slot_has_no_wait(self, is_async: bool) -> None:
        held = lock("line").acquire()

        with calls(after=lambda _: threads.submit(held.release)), ThreadPoolExecutor(1) as threads:
            lease = acquired(lock("line"), is_async, 60)

        assert tokens(lock("line")) == [lease.token]


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    @both_ways
    def test_more_callers_wait_than_there_are_connections(
        self, settings: Any, redis_server: RedisServer, is_async: bool
    ) -> None:
        settings.CACHES = caches(redis_server, max_connections=1)
        held = lock("line").acquire()

        with in_line(5, is_async) as futures:
            let_in_as_they_came([held], futures)

    @forks
    def test_a_forked_process_does_not_wait_behind_its_parent(self) -> None:
        def work() -> int:
            released_elsewhere("line")
            lock("line", wait=600).acquire().release()
            return 0

        assert asked_elsewhere("line")
        with in_line(1) as futures:
            futures[0].add_done_callback(lambda future: future.result().release())  # the parent may be served first

            assert in_child(work) == 0

            futures[0].result(60)
