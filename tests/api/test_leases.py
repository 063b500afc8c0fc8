"""Slots and locks: who gets in, who waits, and what becomes of a lost lease; and `acquire`, a hit that waits."""

import asyncio
import math
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User

from django_quota import Rule, aacquire, acquire, ban, check, lock, peek, slot
from django_quota.exceptions import LeaseLost, QuotaExceeded, RuleError, StoreUnavailable
from django_quota.features.slots.queues import pause_before
from django_quota.features.slots.renewal import RETRY, Renewer
from django_quota.limiting.flusher import flusher
from django_quota.testing import QuotaKit, RedisServer, freeze
from django_quota.types import Lease, Slot
from tests.support.commands import wait_until
from tests.support.outages import no_answer
from tests.support.processes import forks, in_child
from tests.support.slots import (
    asked_elsewhere,
    calls,
    counting_held_up,
    forget,
    is_asked_for_by,
    nobody_renews,
    released_elsewhere,
    waiting,
    wake_next,
)
from tests.support.steps import SECOND, START
from tests.support.stores import caches

both_stores = pytest.mark.usefixtures("either_store")
in_memory = pytest.mark.usefixtures("memory_store")
both_ways = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def within(held: Slot, work: Callable[[], object], is_async: bool) -> None:
    async def hold() -> None:
        async with held:
            work()

    if is_async:
        asyncio.run(hold())
    else:
        with held:
            work()


def acquired(line: Slot, is_async: bool, *timeout: float) -> Lease:
    return asyncio.run(line.aacquire(*timeout)) if is_async else line.acquire(*timeout)


def tokens(line: Slot) -> list[str]:
    return [token for token, _ in line.holders()]


@both_stores
def test_as_many_as_the_limit_hold_a_slot_and_a_second_release_changes_nothing() -> None:
    export = slot("export", 2)
    first, second = export.acquire(), export.acquire()
    with pytest.raises(QuotaExceeded):
        export.acquire()
    first.release()
    third = export.acquire()
    first.release()
    assert set(tokens(export)) == {second.token, third.token}


@in_memory
@both_ways
def test_a_block_gives_its_slot_back_also_after_an_error_and_though_limiting_is_off(
    is_async: bool, settings: Any
) -> None:
    def look() -> None:
        for same in (lock("export"), slot("export", 1)):
            with pytest.raises(QuotaExceeded):
                same.acquire()
        if errors:
            raise errors.pop()

    settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
    errors = [ZeroDivisionError()]
    with pytest.raises(ZeroDivisionError):
        within(lock("export"), look, is_async)
    within(lock("export"), look, is_async)
    assert lock("export").holders() == []


@in_memory
def test_subjects_and_names_do_not_share_slots() -> None:
    with lock("a"), lock("a", subject="user:1"), lock("b"), pytest.raises(QuotaExceeded, match="of user:1 is held"):
        lock("a", subject=User(pk=1)).acquire()


@in_memory
def test_one_slot_object_serves_threads_and_nested_blocks() -> None:
    shared = slot("export", 8)
    inside = threading.Barrier(4)

    def hold() -> set[str]:
        with shared as outer, shared as inner:
            inside.wait(60)
            mine = {outer.token, inner.token}
            assert mine <= set(tokens(shared))
            inside.wait(60)
        return mine

    with ThreadPoolExecutor(4) as threads:
        held = [future.result() for future in [threads.submit(hold) for _ in range(4)]]
    assert (len(set.union(*held)), shared.holders()) == (8, [])


@in_memory
def test_a_block_may_end_in_another_thread_or_task_and_no_more_often_than_it_began() -> None:
    async def hold() -> None:
        shared = slot("export", 2)
        mine = await shared.__aenter__()
        await asyncio.create_task(shared.__aenter__())
        await asyncio.create_task(shared.__aexit__(None, None, None))
        assert tokens(shared) == [mine.token]
        await asyncio.to_thread(shared.__exit__, None, None, None)
        assert tokens(shared) == []
        with pytest.raises(RuntimeError, match="'export' was exited more often than it was entered"):
            shared.__exit__(None, None, None)

    asyncio.run(hold())


@in_memory
def test_a_decision_shows_what_is_left_and_a_refusal_says_when_the_next_lease_ends() -> None:
    export = slot("export", 2, subject="user:7")
    for seconds, remaining in ((0, 1), (5, 0)):
        with freeze(START + seconds * SECOND):
            decision = export.acquire().decision
            assert (decision.limit, decision.remaining, decision.outcomes[0].retry_after) == (2, remaining, 0.0)
            assert decision.reset_after == 30.0
    assert decision.explain() == "Allowed by rule 'export' for user:7; 0 of 2 are left."
    with freeze(START + 7 * SECOND):
        with pytest.raises(QuotaExceeded) as refused:
            export.acquire()
        with pytest.raises(QuotaExceeded, match=r"^Lock 'export' of .* 28 seconds"):
            lock("export", subject="user:7").acquire()  # under its lower limit both leases have to end
    decision = refused.value.decision
    assert (decision.allowed, decision.remaining, decision.retry_after) == (False, 0, 23.0)
    assert str(refused.value) == "All 2 slots 'export' of user:7 are held; try again in 23 seconds."
    assert pickle.loads(pickle.dumps(refused.value)).decision == decision


@in_memory
class TestLeases:
    def test_a_lease_ends_on_time_and_then_it_is_lost(self) -> None:
        with freeze(START):
            lost, unmissed = lock("export").acquire(), lock("other").acquire()
        with freeze(START + 30 * SECOND - 1), pytest.raises(QuotaExceeded):
            lock("export").acquire()
        with freeze(START + 30 * SECOND):
            held = lock("export").acquire()
            acts: list[Callable[[], Any]] = [lost.renew, lambda: asyncio.run(lost.arenew()), lost.release]
            for act in (*acts, unmissed.release):  # also where nobody took its slot
                with pytest.raises(LeaseLost, match="slot '"):
                    act()
            assert tokens(lock("export")) == [held.token]

    @both_ways
    def test_the_end_of_a_block_says_that_the_lease_was_lost_and_hides_no_error(self, is_async: bool) -> None:
        def lose() -> None:
            forget("export")
            _ = 1 / 0

        with pytest.raises(LeaseLost):
            within(lock("export"), lambda: forget("export"), is_async)
        with pytest.raises(ZeroDivisionError):
            within(lock("export"), lose, is_async)

    def test_a_renewed_lease_lasts_from_then_on_and_holders_are_listed_by_their_ends(self) -> None:
        export = slot("export", 3)
        with freeze(START):
            long = export.acquire()
        with freeze(START + 20 * SECOND):
            short = slot("export", 3, lease=2).acquire()
            for seconds in (None, 50):
                long.renew(seconds)
                assert export.holders() == [(short.token, 2.0), (long.token, seconds or 30.0)]
            asyncio.run(long.arenew(10))
        with freeze(START + 22 * SECOND):
            assert asyncio.run(export.aholders()) == [(long.token, 8.0)]

    def test_a_release_that_was_not_answered_may_be_tried_again(self) -> None:
        for is_done in (False, True):
            lease = lock("line").acquire()
            with no_answer(done=is_done), pytest.raises(StoreUnavailable):
                lease.release()
            lease.release()
            assert lock("line").holders() == []


class TestRenewingInTheBackground:
    @both_stores
    @both_ways
    def test_it_renews_every_third_of_the_lease_and_counts_a_lost_holder_again(
        self, is_async: bool, renewed_often: list[float]
    ) -> None:
        def hold() -> None:
            for _ in range(3):
                (lease,) = held._held
                lease.renew(20)
                wait_until(lambda: lock("export").holders()[0][1] > 30)
            forget("export")
            wait_until(lambda: tokens(lock("export")) == [lease.token])

        held = lock("export", lease=60, renew=True)
        with pytest.raises(LeaseLost):
            within(held, hold, is_async)
        assert (lock("export").holders(), renewed_often) == ([], [20.0])
        wait_until(nobody_renews)

    @both_stores
    @pytest.mark.usefixtures("renewed_often")
    def test_nobody_is_let_in_until_those_above_the_limit_have_left(self) -> None:
        def is_asked_after_a_loss() -> bool:
            forget("export")
            return asked_elsewhere("export")

        lease = lock("export", renew=True).acquire()
        wait_until(is_asked_after_a_loss)
        wait_until(lambda: len(lock("export").holders()) == 2)
        released_elsewhere("export")
        with pytest.raises(QuotaExceeded):
            lock("export").acquire()
        with pytest.raises(LeaseLost):
            lease.release()
        lock("export").acquire().release()

    @in_memory
    def test_a_forgotten_lease_ends_by_itself(self) -> None:
        lock("export", lease=0.1, renew=True).acquire()
        wait_until(lambda: not lock("export").holders() and nobody_renews())

    @both_stores
    @pytest.mark.usefixtures("renewed_often")
    @both_ways
    def test_a_renewal_under_way_takes_no_slot_that_was_given_back(self, is_async: bool) -> None:
        with counting_held_up() as (under_way, goes_on):
            lease = lock("export", renew=True).acquire()
            forget("export")
            assert under_way.wait(60)
            with pytest.raises(LeaseLost):
                asyncio.run(lease.arelease()) if is_async else lease.release()
            goes_on.set()
            wait_until(nobody_renews)
        assert lock("export").holders() == []


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


unpolled = pytest.mark.usefixtures("unpolled")


class TestWaiting:
    @both_stores
    @unpolled
    @pytest.mark.parametrize(("limit", "is_async"), [(1, True), (3, False)])
    def test_callers_are_let_in_as_they_came(self, limit: int, is_async: bool) -> None:
        held = [slot("line", limit).acquire() for _ in range(limit)]
        with in_line(6, is_async, limit) as futures:
            let_in_as_they_came(held, futures)
        assert lock("line").holders() == []

    @in_memory
    def test_only_the_first_asks(self) -> None:
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
    def test_a_slot_that_comes_free_before_the_caller_waits_is_not_missed(self, is_async: bool) -> None:
        def release_after_the_first(operation: Any) -> None:
            if is_asked_for_by(operation) and not waits:
                waits.append(waiting("line"))
                held.release()

        waits: list[int] = []
        held = lock("line").acquire()
        with ThreadPoolExecutor(1) as threads, calls(after=release_after_the_first):
            try:
                threads.submit(acquired, lock("line", wait=600), is_async).result(60)
            finally:
                wake_next("line")  # else the thread would go on
        assert waits == [1]

    @in_memory
    @unpolled
    def test_callers_with_another_limit_do_not_hold_each_other_up(self) -> None:
        held = lock("line").acquire()
        with in_line(1) as futures:
            with slot("line", 2, wait=60):
                held.release()
            futures[0].result(60).release()

    @both_stores
    @both_ways
    def test_a_slot_that_another_process_gives_back_or_loses_is_found(self, is_async: bool) -> None:
        assert asked_elsewhere("line")
        with in_line(2, is_async) as futures:
            released_elsewhere("line")
            crashed = futures[0].result(60)
            crashed.renew(0.05)
            futures[1].result(60).release()

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
        with ThreadPoolExecutor(1) as threads:
            threads.submit(asyncio.run, block())
            assert blocked.wait(60)
            released_elsewhere("line")
            lock("line", wait=60).acquire().release()
            goes_on.set()

    @in_memory
    @unpolled
    @both_ways
    def test_a_caller_whose_time_is_up_asks_a_last_time_and_leaves_the_queue(self, is_async: bool) -> None:
        def release_after_the_first(operation: Any) -> None:
            asked.append(is_asked_for_by(operation))
            if len(asked) == 1:
                released_elsewhere("line")

        asked: list[str | None] = []
        assert asked_elsewhere("line")
        with calls(after=release_after_the_first):
            lease = acquired(lock("line", wait=0.05), is_async)
        assert [token for token in asked if token] == [lease.token] * 2
        with in_line(1) as futures:  # so does one that is not the first
            with pytest.raises(QuotaExceeded) as refused:
                acquired(lock("line", wait=0.05), is_async)
            assert (refused.value.decision.limit, refused.value.decision.remaining) == (1, 0)
            let_in_as_they_came([lease], futures)

    @in_memory
    @both_ways
    def test_the_timeout_of_one_call_takes_precedence_over_the_wait_of_the_slot(self, is_async: bool) -> None:
        held = lock("line").acquire()
        with pytest.raises(QuotaExceeded):
            acquired(lock("line", wait=60), is_async, 0)
        with calls(after=lambda _: threads.submit(held.release)), ThreadPoolExecutor(1) as threads:
            acquired(lock("line"), is_async, 60)

    @both_stores
    @pytest.mark.parametrize("seed", range(2))
    def test_callers_that_leave_keep_no_slot_and_block_no_queue(self, seed: int) -> None:
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

    @in_memory
    @both_ways
    def test_a_store_that_goes_away_during_the_wait_is_an_error_of_all_who_wait(self, is_async: bool) -> None:
        lock("line", lease=60).acquire()
        with in_line(5, is_async) as futures, no_answer():
            for future in futures:
                with pytest.raises(StoreUnavailable, match="gone"):
                    future.result(60)
            with pytest.raises(StoreUnavailable):
                acquired(lock("line", wait=600), is_async)
        assert waiting("line") == 0


@pytest.mark.usefixtures("redis_cache")
class TestOnRedis:
    def test_a_slot_is_a_command_each_way_and_its_keys_expire_with_its_leases(self, raw: redis.Redis) -> None:
        key, lately = "quota:1:{user:7}:l:export", "quota:1:{user:7}:lately:export"
        export = slot("export", 2, lease=20, wait=60, subject="user:7")
        export.acquire().release()  # loads the scripts
        raw.flushdb()
        raw.config_resetstat()
        with export:
            assert raw.keys() == [key.encode()]
            with export:  # now it is full
                assert 0 < int(raw.pttl(key)) <= 20_001
        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == 4
        assert raw.keys() == [lately.encode()]
        assert 0 < int(raw.pttl(lately)) <= 20_001
        export.acquire().renew(300)
        assert int(raw.pttl(key)) > 290_000

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


@in_memory
def test_a_wrong_argument_is_named_and_who_waits_pauses_for_5_to_50_ms() -> None:
    assert all(0.005 <= pause_before(estimate) <= 0.05 for estimate in (0, 10_000, 10**12) for _ in range(99))
    wrong: list[tuple[str, list[Any], Callable[[Any], object]]] = [
        ("name of a slot", ["", "  ", None], lambda name: slot(name, 1)),
        ("limit=", [0, 1.5, True, "10", 1_000_001], lambda limit: slot("export", limit)),
        ("lease=", [0, None, "5", True, math.nan, 366 * 86_400 + 1], lambda lease: slot("export", 1, lease=lease)),
        ("lease=", [-1, math.inf], lambda lease: lock("export", subject=f"user:{lease}").acquire().renew(lease)),
        ("wait=", [-1, math.nan], lambda wait: lock("export", wait=wait)),
        ("timeout=", [-1, math.inf], lambda timeout: lock("export").acquire(timeout)),
        ("renew=", [1], lambda renew: lock("export", renew=renew)),
        (".", [7, ""], lambda subject: lock("export", subject=subject)),
    ]
    for argument, values, use in wrong:
        for value in values:
            with pytest.raises(RuleError, match=argument):
                use(value)


@both_ways
@in_memory
def test_a_hit_waits_for_room_or_its_place_and_refuses_at_once_if_that_takes_too_long(
    is_async: bool, the_clock_stands: QuotaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 2))
        the_clock_stands.advance(seconds)
        check("1/10s", "user:42")  # another caller is faster each time

    async def asleep(seconds: float) -> None:
        sleep(seconds)

    def take(rate: Any, cost: int = 1, **options: Any) -> Any:
        call: Any = aacquire if is_async else acquire
        found = call(rate, "user:42", cost, **options)
        return asyncio.run(found) if is_async else found

    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(asyncio, "sleep", asleep)
    decision = take("2/m", timeout=5)  # with room it is a check
    assert (decision.allowed, decision.remaining, slept) == (True, 1, [])
    check("2/m", "user:42")
    for timeout in (0, 59.9):
        decision = take("2/m", timeout=timeout)
        assert (decision.allowed, decision.retry_after) == (False, 60.0)
    assert not take("2/m", 3, timeout=60)  # a cost that it never admits
    banning = Rule.make("banning", "2/m", ban={"after": "9/m", "for": "1h"})
    ban("user:42", banning, 600)
    assert take(banning, timeout=60).outcomes[0].why == "banned"
    assert (slept, peek("2/m", "user:42").remaining) == ([], 0)
    assert take("2/m", timeout=60)
    assert all(take("6/m", timeout=60, algorithm="leaky_bucket") for _ in range(3))
    assert slept == [60, 10, 10]
    assert not take("1/10s", timeout=35), "it waits again, and no longer than the timeout"
    assert slept[3:] == [10] * 3


def test_an_error_of_the_log_ends_no_later_renewal(memory_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    own = Renewer()
    moments: list[float] = []
    monkeypatch.setattr(flusher, "call_at", lambda at, _: moments.append(at))
    lease = slot("export", 1, lease=60).acquire()
    monkeypatch.setattr(lease, "keeping", fail)
    monkeypatch.setattr("django_quota.features.slots.renewal.logger.exception", fail)  # as a handler may
    own.add(lease, 0.0)
    for planned in (2, 3):
        with pytest.raises(ZeroDivisionError):
            own._renew_due()
        assert len(moments) == planned
    lease.release()


@pytest.mark.parametrize("interval", [0.5, 20.0])
def test_a_renewal_that_was_not_answered_is_tried_again_within_a_second(
    memory_store: None, monkeypatch: pytest.MonkeyPatch, interval: float
) -> None:
    own, pauses = Renewer(), list[float]()
    monkeypatch.setattr(flusher, "call_at", lambda at, _: pauses.append(at - 1_000.0))
    monkeypatch.setattr("django_quota.core.clock.elapsed", lambda: 1_000.0)
    own.add(lease := slot("export", 1).acquire(), interval, first=0.0)
    with no_answer():
        own._renew_due()
    monkeypatch.setattr("django_quota.core.clock.elapsed", lambda: 1_000.0 + RETRY)
    own._renew_due()
    assert pauses == [0.0, min(interval, RETRY), RETRY + interval]
    lease.release()
