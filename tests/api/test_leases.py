"""Slots and locks: who gets in, who waits, in which order, and what becomes of a lease that is lost."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User

from django_quota import Lease, lock, slot
from django_quota.exceptions import LeaseLost, QuotaExceeded, RuleError, StoreUnavailable
from django_quota.testing import RedisServer, freeze
from tests.support.clusters import Cluster
from tests.support.commands import wait_until
from tests.support.outages import no_answer
from tests.support.slots import (
    asked_elsewhere,
    forget,
    is_asked_for_by,
    is_release,
    keys_of,
    nobody_is_told,
    released_elsewhere,
    waiting,
    waits,
)
from tests.support.steps import SECOND, START
from tests.support.stores import caches, current_store

LEASE = 30 * SECOND


both_stores = pytest.mark.usefixtures("either_store")


def until_so_many_wait(name: str, number: int) -> None:
    wait_until(lambda: len(waiting(name)) == number)


async def auntil_so_many_wait(name: str, number: int) -> None:
    await until(lambda: len(waiting(name)) == number)


# --- who gets in ------------------------------------------------------------------------------------------------------


@both_stores
class TestHolding:
    def test_as_many_as_the_limit_hold_it_at_once(self) -> None:
        export = slot("export", 2)
        first, second = export.acquire(), export.acquire()
        with pytest.raises(QuotaExceeded):
            export.acquire()
        first.release()
        third = export.acquire()
        assert {token for token, _ in export.holders()} == {second.token, third.token}

    def test_a_block_holds_it_and_gives_it_back(self) -> None:
        with slot("export", 1) as lease:
            assert [token for token, _ in slot("export", 1).holders()] == [lease.token]
        assert slot("export", 1).holders() == []

    def test_a_block_gives_it_back_after_an_error(self) -> None:
        with pytest.raises(ZeroDivisionError), slot("export", 1):
            _ = 1 / 0
        assert slot("export", 1).holders() == []

    def test_an_async_block_holds_it_and_gives_it_back(self) -> None:
        async def hold() -> None:
            async with slot("export", 1) as lease:
                assert [token for token, _ in await slot("export", 1).aholders()] == [lease.token]
                with pytest.raises(QuotaExceeded):
                    await slot("export", 1).aacquire()
            assert await slot("export", 1).aholders() == []

        asyncio.run(hold())

    def test_a_lock_is_a_slot_of_one(self) -> None:
        with lock("export"), pytest.raises(QuotaExceeded):
            slot("export", 1).acquire()

    def test_subjects_and_names_do_not_share_slots(self) -> None:
        with lock("a"), lock("a", subject="user:1"), lock("b"), lock("a", subject=User(pk=2)):
            with pytest.raises(QuotaExceeded, match="user:1"):
                lock("a", subject=User(pk=1)).acquire()
            with pytest.raises(QuotaExceeded, match="user:2"):
                lock("a", subject="user:2").acquire()

    def test_one_slot_object_serves_threads_and_nested_blocks(self) -> None:
        shared = slot("export", 8)
        inside = threading.Barrier(4)

        def hold() -> set[str]:
            with shared as outer, shared as inner:
                inside.wait(60)
                mine = {outer.token, inner.token}
                assert mine <= {token for token, _ in shared.holders()}
                inside.wait(60)
            return mine

        with ThreadPoolExecutor(4) as threads:
            tokens = [future.result() for future in [threads.submit(hold) for _ in range(4)]]
        assert len(set.union(*tokens)) == 8
        assert shared.holders() == []
        assert not shared._held

    def test_one_slot_object_serves_tasks(self) -> None:
        shared = slot("export", 3)

        async def hold() -> None:
            inside = asyncio.Barrier(3)

            async def task() -> str:
                async with shared as lease:
                    await inside.wait()
                    return lease.token

            tokens = await asyncio.gather(*(task() for _ in range(3)))
            assert len(set(tokens)) == 3
            assert await shared.aholders() == []

        asyncio.run(hold())

    def test_a_block_may_end_in_another_thread(self) -> None:
        shared = lock("export")
        shared.__enter__()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(shared.__exit__, None, None, None).result(60)
        assert shared.holders() == []

    def test_a_block_may_end_in_another_task(self) -> None:
        async def hold() -> None:
            shared = slot("export", 2)
            mine = await shared.__aenter__()
            await asyncio.create_task(shared.__aenter__())
            assert len(await shared.aholders()) == 2
            await asyncio.create_task(shared.__aexit__(None, None, None))
            assert [token for token, _ in await shared.aholders()] == [mine.token]
            await shared.__aexit__(None, None, None)
            assert await shared.aholders() == []

        asyncio.run(hold())

    def test_a_block_that_began_nowhere_cannot_end(self) -> None:
        with pytest.raises(RuntimeError, match="'export' was exited more often than it was entered"):
            slot("export", 1).__exit__(None, None, None)

    def test_it_holds_though_limiting_is_turned_off(self, settings: Any) -> None:
        settings.QUOTA = {**settings.QUOTA, "ENABLED": False}
        with lock("export"), pytest.raises(QuotaExceeded):
            lock("export").acquire()


@both_stores
class TestDecisions:
    def test_the_lease_shows_what_is_left(self) -> None:
        with freeze(START):
            export = slot("export", 3, subject="user:7")
            export.acquire()
            decision = export.acquire().decision
        assert (decision.allowed, decision.rule, decision.subject) == (True, "export", "user:7")
        assert (decision.limit, decision.remaining, decision.retry_after) == (3, 1, 0.0)
        assert decision.reset_after == 30.0
        assert decision.explain() == "Allowed by rule 'export' for user:7. 1 left."

    def test_a_refusal_says_when_the_next_lease_ends(self) -> None:
        export = slot("export", 2)
        with freeze(START):
            export.acquire()
        with freeze(START + 5 * SECOND):
            export.acquire()
        with freeze(START + 7 * SECOND), pytest.raises(QuotaExceeded) as refused:
            export.acquire()
        decision = refused.value.decision
        assert (decision.allowed, decision.enforced, decision.remaining) == (False, True, 0)
        assert (decision.retry_after, decision.reset_after) == (23.0, 28.0)
        assert str(refused.value) == "Rule 'export' admits 2 at once for global; try again in 23 seconds."
        assert pickle.loads(pickle.dumps(refused.value)).decision == decision

    def test_under_a_lower_limit_it_says_when_enough_leases_have_ended(self) -> None:
        for second in range(4):
            with freeze(START + second * SECOND):
                slot("export", 4).acquire()
        with freeze(START + 4 * SECOND), pytest.raises(QuotaExceeded) as refused:
            slot("export", 2).acquire()
        assert refused.value.decision.retry_after == 28.0  # of the four, the third has to end

    def test_holders_are_listed_with_their_ends_and_the_list_writes_nothing(self) -> None:
        export = slot("export", 3)
        with freeze(START):
            long = export.acquire()
        with freeze(START + SECOND):
            short = slot("export", 3, lease=2).acquire()
            assert export.holders() == [(short.token, 2.0), (long.token, 29.0)]
        with freeze(START + 3 * SECOND):
            assert asyncio.run(export.aholders()) == [(long.token, 27.0)]


# --- leases -----------------------------------------------------------------------------------------------------------


@both_stores
class TestLeases:
    def test_a_lease_ends_on_time_and_not_before(self) -> None:
        with freeze(START):
            lock("export").acquire()
        with freeze(START + LEASE - 1), pytest.raises(QuotaExceeded):
            lock("export").acquire()
        with freeze(START + LEASE):
            lock("export").acquire()

    def test_releasing_a_lost_lease_says_so_and_leaves_the_next_holder_alone(self) -> None:
        with freeze(START):
            lost = lock("export").acquire()
        with freeze(START + LEASE):
            held = lock("export").acquire()
            with pytest.raises(LeaseLost, match="export"):
                lost.release()
            assert [token for token, _ in lock("export").holders()] == [held.token]

    def test_an_ended_lease_is_lost_though_nobody_took_its_slot(self) -> None:
        with freeze(START):
            lease = lock("export").acquire()
        with freeze(START + LEASE), pytest.raises(LeaseLost):
            lease.release()

    def test_the_end_of_a_block_says_that_the_lease_was_lost(self) -> None:
        with freeze(START), pytest.raises(LeaseLost), lock("export"):
            forget("export")

    def test_a_lost_lease_does_not_hide_the_error_of_the_block(self) -> None:
        def lose() -> None:
            with lock("export"):
                forget("export")
                _ = 1 / 0

        with pytest.raises(ZeroDivisionError):
            lose()

    def test_a_lost_lease_does_not_hide_the_error_of_an_async_block(self) -> None:
        async def lose() -> None:
            async with lock("export"):
                forget("export")
                _ = 1 / 0

        with pytest.raises(ZeroDivisionError):
            asyncio.run(lose())

    def test_an_async_block_says_that_the_lease_was_lost(self) -> None:
        async def lose() -> None:
            async with lock("export"):
                forget("export")

        with pytest.raises(LeaseLost):
            asyncio.run(lose())

    def test_releasing_twice_changes_nothing(self) -> None:
        with lock("export") as first:
            first.release()
            second = lock("export").acquire()
            first.release()
        assert [token for token, _ in lock("export").holders()] == [second.token]

    @pytest.mark.parametrize("seconds", [None, 50])
    def test_a_renewed_lease_lasts_from_then_on(self, seconds: float | None) -> None:
        with freeze(START):
            lease = lock("export").acquire()
        with freeze(START + 20 * SECOND):
            lease.renew(seconds)
            assert lock("export").holders() == [(lease.token, seconds or 30.0)]
            asyncio.run(lease.arenew(10))
            assert lock("export").holders() == [(lease.token, 10.0)]
            lease.release()

    def test_a_lost_lease_cannot_be_renewed(self) -> None:
        with freeze(START):
            lease = lock("export").acquire()
        with freeze(START + LEASE):
            with pytest.raises(LeaseLost):
                lease.renew()
            with pytest.raises(LeaseLost):
                asyncio.run(lease.arenew())
            assert lock("export").holders() == []

    def test_a_released_lease_cannot_be_renewed(self) -> None:
        lease = lock("export").acquire()
        lease.release()
        with pytest.raises(LeaseLost):
            lease.renew()

    @pytest.mark.parametrize("seconds", [0, -1, True, "30", float("nan"), float("inf"), 1e12])
    def test_it_is_renewed_by_seconds_only(self, seconds: Any) -> None:
        lease = lock("export").acquire()
        with pytest.raises(RuleError, match="lease="):
            lease.renew(seconds)
        lease.release()


def seconds_left(name: str) -> float:
    """Return how long the lease of the one who holds a slot lasts."""
    ((_, seconds),) = lock(name).holders()
    return seconds


def the_thread_has_ended() -> bool:
    return not any(thread.name == "django-quota-lease" for thread in threading.enumerate())


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 — nothing tells
        await asyncio.sleep(0)


@both_stores
class TestRenewingInTheBackground:
    def test_a_thread_renews_it_for_as_long_as_it_is_held(self, renewed_often: list[float]) -> None:
        with lock("export", lease=60, renew=True) as lease:
            for _ in range(3):
                lease.renew(20)
                wait_until(lambda: seconds_left("export") > 30)
        assert lock("export").holders() == []
        assert the_thread_has_ended()
        assert renewed_often == [20.0]  # a third of what it lasts

    def test_a_task_renews_it_for_as_long_as_it_is_held(self, renewed_often: list[float]) -> None:
        async def hold() -> None:
            async with lock("export", lease=60, renew=True) as lease:
                for _ in range(3):
                    await lease.arenew(20)
                    await until(lambda: seconds_left("export") > 30)
            assert await lock("export").aholders() == []
            assert len(asyncio.all_tasks()) == 1

        asyncio.run(hold())
        assert renewed_often == [20.0]

    def test_a_lease_that_was_lost_raises_when_the_block_ends(self) -> None:
        lease = lock("export", lease=0.3, renew=True).acquire()
        forget("export")
        wait_until(the_thread_has_ended)
        with pytest.raises(LeaseLost):
            lease.release()

    def test_a_lease_that_a_task_lost_raises_when_the_block_ends(self) -> None:
        async def lose() -> None:
            async with lock("export", lease=0.3, renew=True):
                forget("export")
                await until(lambda: len(asyncio.all_tasks()) == 1)

        with pytest.raises(LeaseLost):
            asyncio.run(lose())

    def test_a_forgotten_lease_ends_by_itself(self) -> None:
        lock("export", lease=0.3, renew=True).acquire()
        wait_until(lambda: not lock("export").holders())
        wait_until(the_thread_has_ended)

    def test_a_lease_of_a_task_may_be_released_from_a_thread(self) -> None:
        async def hold() -> None:
            lease = await lock("export", renew=True).aacquire()
            await asyncio.to_thread(lease.release)
            assert await lock("export").aholders() == []
            await until(lambda: len(asyncio.all_tasks()) == 1)

        asyncio.run(hold())

    def test_a_lease_of_a_thread_may_be_released_from_a_task(self) -> None:
        lease = lock("export", renew=True).acquire()
        asyncio.run(lease.arelease())
        assert lock("export").holders() == []
        wait_until(the_thread_has_ended)


# --- waiting ----------------------------------------------------------------------------------------------------------


@contextmanager
def in_line(name: str, number: int, wait: float = 60) -> Iterator[list[Future[Lease]]]:
    """Let threads come for a slot, one after the other; yield their futures."""
    with ThreadPoolExecutor(number) as threads:
        futures = []
        for place in range(1, number + 1):
            futures.append(threads.submit(slot(name, 1, wait=wait).acquire))
            until_so_many_wait(name, place)
        yield futures


@pytest.fixture
def a_place_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may stop one who waits for longer than its place in the line is kept."""
    monkeypatch.setattr("django_quota.services.leases.PLACE_TTL", 60 * SECOND)
    monkeypatch.setattr("django_quota.stores.wait_queue.PLACE_TTL", 60 * SECOND)


@pytest.fixture
def places_are_kept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_quota.stores.wait_queue.KEEP_INTERVAL", 0.02)


@pytest.fixture
def only_wake_ups_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by itself what has become of its waiter."""
    monkeypatch.setattr("django_quota.stores.wait_queue.KEEP_INTERVAL", 60.0)


@both_stores
@pytest.mark.usefixtures("a_place_is_kept")
class TestWaiting:
    def test_threads_are_let_in_as_they_came(self) -> None:
        held = lock("line").acquire()
        with in_line("line", 5) as futures:
            for future in futures:
                held.release()
                held = future.result(60)
        held.release()

    def test_tasks_are_let_in_as_they_came(self) -> None:
        async def queue() -> None:
            held = await lock("line").aacquire()
            tasks = []
            for place in range(1, 6):
                tasks.append(asyncio.create_task(lock("line", wait=60).aacquire()))
                await auntil_so_many_wait("line", place)
            for task in tasks:
                await held.arelease()
                held = await task
            await held.arelease()

        asyncio.run(queue())

    def test_a_task_and_a_thread_wake_each_other(self) -> None:
        async def hold_after_a_thread() -> Lease:
            return await lock("line", wait=60).aacquire()

        held = lock("line").acquire()
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(asyncio.run, hold_after_a_thread())
            until_so_many_wait("line", 1)
            held.release()
            asyncio.run(future.result(60).arelease())
        assert lock("line").holders() == []

    def test_several_slots_that_come_free_let_as_many_in(self) -> None:
        held = [slot("line", 3).acquire() for _ in range(3)]
        with ThreadPoolExecutor(5) as threads:
            futures = []
            for place in range(1, 6):
                futures.append(threads.submit(slot("line", 3, wait=60).acquire))
                until_so_many_wait("line", place)
            for lease in held:
                lease.release()
            leases = [future.result(60) for future in futures[:3]]
            assert len(waiting("line")) == 2
            for lease in leases:
                lease.release()
            assert len([future.result(60) for future in futures[3:]]) == 2

    def test_a_caller_that_does_not_wait_does_not_overtake(self) -> None:
        held = lock("line").acquire()
        assert not asked_elsewhere("line", wait=60)
        held.release()
        with pytest.raises(QuotaExceeded) as refused:
            lock("line").acquire()
        assert refused.value.decision.remaining == 1
        assert 30 < (refused.value.decision.retry_after or 0) <= 60  # its place is kept so long; a lease is 30
        assert asked_elsewhere("line", wait=0)

    def test_a_slot_that_is_handed_over_is_never_free_in_between(self) -> None:
        held = lock("line").acquire()
        with in_line("line", 1) as futures:
            held.release()
            with pytest.raises(QuotaExceeded) as refused:
                lock("line").acquire()
            assert refused.value.decision.remaining == 0
            lease = futures[0].result(60)
            assert (lease.decision.limit, lease.decision.remaining) == (1, 0)
            assert 29 < (lease.decision.reset_after or 0) <= 30
            lease.release()
        assert lock("line").holders() == []

    def test_a_caller_that_waited_in_vain_is_refused_and_leaves_the_queue(self) -> None:
        with lock("line"):
            with pytest.raises(QuotaExceeded) as refused:
                lock("line", wait=0.05).acquire()
            assert refused.value.decision.retry_after
            assert waiting("line") == []

    def test_the_timeout_of_one_call_goes_before_the_wait_of_the_slot(self) -> None:
        patient, hasty = lock("line", wait=60), lock("line")
        held = patient.acquire()
        for timeout in (0, 0.05):
            with pytest.raises(QuotaExceeded):
                patient.acquire(timeout)
        with ThreadPoolExecutor() as pool:
            future = pool.submit(hasty.acquire, timeout=60)
            until_so_many_wait("line", 1)
            held.release()
            with future.result(60) as lease:
                assert [token for token, _ in hasty.holders()] == [lease.token]
        assert hasty.holders() == []

    def test_so_it_does_for_a_task(self) -> None:
        async def wait() -> None:
            held = await lock("line").aacquire()
            with pytest.raises(QuotaExceeded):
                await lock("line", wait=60).aacquire(0)
            task = asyncio.create_task(lock("line").aacquire(timeout=60))
            await auntil_so_many_wait("line", 1)
            await held.arelease()
            async with await task:
                assert len(await lock("line").aholders()) == 1
            assert await lock("line").aholders() == []

        asyncio.run(wait())

    def test_a_task_that_waited_in_vain_leaves_the_queue(self) -> None:
        async def wait() -> None:
            async with lock("line"):
                with pytest.raises(QuotaExceeded):
                    await lock("line", wait=0.05).aacquire()
                assert waiting("line") == []

        asyncio.run(wait())

    def test_a_cancelled_task_leaves_the_queue(self) -> None:
        async def queue() -> None:
            held = await lock("line").aacquire()
            first = asyncio.create_task(lock("line", wait=60).aacquire())
            await auntil_so_many_wait("line", 1)
            second = asyncio.create_task(lock("line", wait=60).aacquire())
            await auntil_so_many_wait("line", 2)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert len(waiting("line")) == 1
            await held.arelease()
            await (await second).arelease()

        asyncio.run(queue())

    def test_a_task_that_is_cancelled_inside_gives_its_slot_back(self) -> None:
        async def hold(inside: asyncio.Event) -> None:
            async with lock("line"):
                inside.set()
                await asyncio.Event().wait()

        async def cancel() -> None:
            inside = asyncio.Event()
            task = asyncio.create_task(hold(inside))
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await lock("line").aholders() == []

        asyncio.run(cancel())

    def test_an_interrupted_caller_leaves_the_queue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(token: str, seconds: float) -> None:
            assert waiting("line") == [token]
            raise KeyboardInterrupt

        waits(monkeypatch, interrupt)
        with lock("line"):
            with pytest.raises(KeyboardInterrupt):
                lock("line", wait=60).acquire()
            assert waiting("line") == []

    def test_a_slot_whose_holder_crashed_is_taken_when_its_lease_ends(self) -> None:
        crashed = lock("line", lease=60).acquire()
        with in_line("line", 3) as futures:
            crashed.renew(0.05)  # it ends when all of them wait, however long that took
            lease = futures[0].result(60)
            with pytest.raises(LeaseLost):
                crashed.release()
            lease.release()
            futures[1].result(60).release()
            futures[2].result(60).release()

    def test_the_first_in_the_queue_waits_for_the_end_of_the_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spans: list[float] = []
        waits(monkeypatch, lambda token, seconds: spans.append(seconds))
        lock("line", lease=0.25).acquire()
        lock("line", wait=60).acquire()
        assert all(span <= 0.26 for span in spans)

    @pytest.mark.usefixtures("places_are_kept_often")
    def test_a_lost_wake_up_only_delays_a_caller(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nobody_is_told(monkeypatch)
        held = lock("line").acquire()
        with in_line("line", 2) as futures:
            held.release()
            futures[0].result(60).release()
            futures[1].result(60).release()

    @pytest.mark.usefixtures("places_are_kept_often")
    def test_a_waiter_that_the_store_forgot_enters_the_queue_again(self) -> None:
        lock("line", lease=60).acquire()
        with in_line("line", 3) as futures:
            forget("line")
            for future in as_completed(futures, timeout=60):
                future.result().release()
        assert waiting("line") == []

    @pytest.mark.usefixtures("places_are_kept_often")
    def test_a_waiter_survives_a_restart_of_the_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = current_store()
        down, has_failed = threading.Event(), threading.Event()
        failures = iter(range(4))

        def failing(verb: Callable[..., Any]) -> Callable[..., Any]:
            def fail(*asked: Any) -> Any:
                if down.is_set() and next(failures, None) is not None:
                    has_failed.set()
                    raise StoreUnavailable("it is restarting")
                return verb(*asked)

            return fail

        lock("line", lease=60).acquire()
        monkeypatch.setattr(store, "run", failing(store.run))
        with in_line("line", 1) as futures:
            down.set()
            assert has_failed.wait(60)  # a call that began before must not find the line forgotten
            forget("line")
            lease = futures[0].result(60)
        assert next(failures, None) is None
        lease.release()

    def test_a_store_that_never_answers_raises_after_the_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lock("line", lease=60).acquire()
        with ExitStack() as stack:
            waits(monkeypatch, lambda token, seconds: stack.enter_context(no_answer()))
            with pytest.raises(StoreUnavailable, match="gone"):
                lock("line", wait=0.3).acquire()

    @pytest.mark.usefixtures("only_wake_ups_count")
    def test_a_waiter_in_the_process_of_the_holder_asks_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = current_store()
        asked: list[str | None] = []
        run = store.run

        def spy(operation: Any, now: int | None = None) -> Any:
            asked.append(is_asked_for_by(operation))
            return run(operation, now)

        held = lock("line", lease=120).acquire()
        monkeypatch.setattr(store, "run", spy)
        with in_line("line", 1) as futures:
            held.release()
            lease = futures[0].result(60)
            assert (
                asked.count(lease.token) <= 3
            )  # and once in each of two rounds: as the thread begins, and as it listens
            lease.release()

    @pytest.mark.usefixtures("only_wake_ups_count")
    def test_a_task_that_waits_is_woken(self) -> None:
        async def queue() -> None:
            held = await lock("line", lease=120).aacquire()
            task = asyncio.create_task(lock("line", wait=60).aacquire())
            await auntil_so_many_wait("line", 1)
            await held.arelease()
            await (await task).arelease()

        asyncio.run(queue())

    def test_a_thousand_tasks_are_let_in_one_at_a_time_and_nobody_is_refused(self) -> None:
        async def queue() -> list[int]:
            line = lock("line", wait=600)
            inside: list[int] = []

            async def hold(number: int) -> None:
                async with line:
                    inside.append(number)
                    assert len(await line.aholders()) == 1

            await asyncio.gather(*(hold(number) for number in range(1_000)))
            assert await line.aholders() == []
            return inside

        assert sorted(asyncio.run(queue())) == list(range(1_000))
        assert waiting("line") == []

    def test_a_release_that_is_cancelled_gives_the_slot_back(self) -> None:
        async def cancel(after: int) -> None:
            lease = await lock("line").aacquire()
            task = asyncio.create_task(lease.arelease())
            for _ in range(after):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)
            if after:  # else the task has not begun
                assert await lock("line").aholders() == []
            await lease.arelease()
            assert await lock("line").aholders() == []

        for after in range(30):
            asyncio.run(cancel(after))

    def test_a_block_that_is_cancelled_while_it_ends_gives_the_slot_back(self) -> None:
        async def cancel(after: int) -> None:
            ending = asyncio.Event()

            async def hold() -> None:
                async with lock("line"):
                    ending.set()

            task = asyncio.create_task(hold())
            await ending.wait()
            for _ in range(after):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)
            assert await lock("line").aholders() == []

        for after in range(30):
            asyncio.run(cancel(after))

    @pytest.mark.parametrize("times", [1, 2])
    def test_a_release_cancelled_before_it_is_sent_releases_or_can_be_repeated(
        self, monkeypatch: pytest.MonkeyPatch, times: int
    ) -> None:
        store = current_store()
        arun = store.arun
        stalled: list[asyncio.Event] = []

        async def stall(operation: Any, now: int | None = None) -> Any:
            if is_release(operation) and len(stalled) < times:
                stalled.append(asyncio.Event())
                await stalled[-1].wait()
            return await arun(operation, now)

        async def cancel() -> None:
            lease = await lock("line").aacquire()
            monkeypatch.setattr(store, "arun", stall)
            task = asyncio.create_task(lease.arelease())
            for number in range(1, times + 1):
                await until(lambda number=number: task.done() or len(stalled) == number)  # type: ignore[misc]
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 30)
            if times == 1:
                assert await lock("line").aholders() == []
            await lease.arelease()
            assert await lock("line").aholders() == []

        asyncio.run(cancel())

    @pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
    def test_a_release_that_was_not_answered_may_be_tried_again(self, is_done: bool) -> None:
        lease = lock("line").acquire()
        with no_answer(done=is_done), pytest.raises(StoreUnavailable):
            lease.release()
        lease.release()
        assert lock("line").holders() == []
        lease.release()

    @pytest.mark.parametrize("turns", range(0, 60, 3))
    def test_a_task_may_be_cancelled_at_any_point(self, turns: int) -> None:
        """redis-py sends by `asyncio.wait_for`, which up to Python 3.11 hides a cancellation that comes as it ends."""

        async def cancel(after: int) -> None:
            async with lock("line"):
                task = asyncio.create_task(lock("line", wait=60).aacquire())
                for _ in range(after):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.wait_for(task, 30)
                assert waiting("line") == []

        for after in range(turns, turns + 3):
            asyncio.run(cancel(after))


# --- Redis ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("redis_cache", "a_place_is_kept")
class TestOnRedis:
    def test_a_renewed_lease_outlives_the_first_in_redis(self, raw: redis.Redis) -> None:
        with slot("export", 1, lease=20, subject="user:7") as lease:
            lease.renew(300)
            assert int(raw.pttl("quota:1:{user:7}:l:export")) > 290_000

    def test_the_keys_of_a_slot_expire_with_the_lease(self, raw: redis.Redis) -> None:
        with slot("export", 2, lease=20, subject="user:7"):
            assert raw.keys() == [b"quota:1:{user:7}:l:export"]
            assert 0 < int(raw.pttl("quota:1:{user:7}:l:export")) <= 20_001
        assert raw.keys() == []

    def test_a_slot_is_taken_and_given_back_in_a_command_each(self, raw: redis.Redis) -> None:
        with lock("export"):
            pass
        before = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
        with lock("export"):
            pass
        assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 2

    def test_a_waiter_is_woken(self) -> None:
        held = lock("line", lease=60).acquire()
        with in_line("line", 3) as futures:
            for future in futures:
                held.release()
                held = future.result(60)
        held.release()

    def test_waiters_use_no_connections_of_decisions(self, settings: Any, redis_server: RedisServer) -> None:
        settings.CACHES = caches(redis_server, max_connections=1)
        held = lock("line", lease=60).acquire()
        with in_line("line", 1) as futures:
            held.release()
            futures[0].result(60).release()

    def test_more_threads_wait_than_there_are_connections(self, settings: Any, redis_server: RedisServer) -> None:
        settings.CACHES = caches(redis_server, max_connections=2)
        held = lock("line", lease=60).acquire()
        with in_line("line", 5) as futures:
            for future in futures:
                held.release()
                held = future.result(60)
        held.release()

    def test_more_tasks_wait_than_there_are_connections(self, settings: Any, redis_server: RedisServer) -> None:
        settings.CACHES = caches(redis_server, max_connections=2)

        async def queue() -> None:
            held = await lock("line").aacquire()
            tasks = [asyncio.create_task(lock("line", wait=60).aacquire()) for _ in range(5)]
            while len(await asyncio.to_thread(waiting, "line")) < 5:
                pass
            for _ in tasks:
                await held.arelease()
                done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                assert len(done) == 1
                held = done.pop().result()
                tasks = list(pending)
            await held.arelease()

        asyncio.run(queue())

    def test_however_many_tasks_wait_one_connection_listens(self, raw: redis.Redis) -> None:
        async def queue() -> None:
            held = await lock("line").aacquire()
            tasks = [asyncio.create_task(lock("line", wait=600).aacquire()) for _ in range(200)]
            while len(await asyncio.to_thread(waiting, "line")) < 200 or not listening(raw):
                pass
            assert len(listening(raw)) == 1
            assert len(raw.client_list()) < 16
            calls = evalsha_calls(raw)
            while tasks:
                await held.arelease()
                (done,), _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                tasks.remove(done)
                held = done.result()
            await held.arelease()
            assert evalsha_calls(raw) - calls < 300  # a call for each hand-over; some keep the places

        asyncio.run(queue())

    def test_however_many_threads_wait_one_connection_listens(self, raw: redis.Redis) -> None:
        held = lock("line").acquire()
        with in_line("line", 20) as futures:
            wait_until(lambda: bool(listening(raw)))
            assert len(listening(raw)) == 1
            for future in futures:
                held.release()
                held = future.result(60)
        held.release()

    @pytest.mark.usefixtures("only_wake_ups_count")
    @pytest.mark.parametrize("protocol", [2, 3])
    def test_a_waiter_is_woken_by_another_process(
        self, settings: Any, redis_server: RedisServer, raw: redis.Redis, protocol: int
    ) -> None:
        settings.CACHES = caches(redis_server, protocol=protocol)
        wakes_up_from_elsewhere(lambda: bool(listening(raw)))

    def test_a_waiting_caller_of_an_earlier_version_is_ignored(self, raw: redis.Redis) -> None:
        held = lock("line").acquire()
        raw.rpush("quota:1:{global}:q:line", "0123456789abcdef")
        raw.zadd("quota:1:{global}:a:line", {"0123456789abcdef": 10**18})
        held.release()
        with pytest.raises(QuotaExceeded):
            lock("line").acquire()

    @pytest.mark.usefixtures("places_are_kept_often")
    def test_a_waiter_continues_if_its_connection_is_cut(self, raw: redis.Redis) -> None:
        assert asked_elsewhere("line", wait=0)
        with in_line("line", 1) as futures:
            wait_until(lambda: bool(listening(raw)))
            raw.client_kill_filter(_id=listening(raw)[0])
            released_elsewhere("line")
            futures[0].result(60).release()

    @pytest.mark.usefixtures("only_wake_ups_count")
    def test_a_waiter_is_woken_over_a_new_connection(self, raw: redis.Redis) -> None:
        cut: list[str] = []

        def listens_anew() -> bool:
            if not cut and listening(raw):
                cut.extend(listening(raw))
                raw.client_kill_filter(_id=cut[0])
            return bool(cut) and bool(listening(raw)) and listening(raw) != cut

        wakes_up_from_elsewhere(listens_anew)

    @pytest.mark.usefixtures("places_are_kept_often")
    def test_a_waiter_gets_its_slot_without_permission_to_subscribe(
        self, settings: Any, redis_server: RedisServer, raw: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        client: Any = raw
        client.execute_command("ACL", "SETUSER", "deaf", "reset", "on", ">secret", "~*", "+@all", "resetchannels")
        server = RedisServer(
            f"{redis_server.url}?username=deaf&password=secret", redis_server.pid, redis_server.program
        )
        settings.CACHES = caches(server)
        store = current_store()
        try:
            assert asked_elsewhere("line", wait=0)
            with in_line("line", 1) as futures:
                wait_until(lambda: "Nobody is told when a slot comes free" in caplog.text)
                released_elsewhere("line")
                futures[0].result(60).release()
            assert caplog.text.count("Nobody is told") == 1
        finally:
            store.close()
            client.execute_command("ACL", "DELUSER", "deaf")

    def test_the_thread_ends_when_nobody_has_waited_for_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_quota.stores.wait_queue.KEEP_INTERVAL", 0.02)
        monkeypatch.setattr("django_quota.stores.wait_queue.IDLE", 0.1)
        for _ in range(2):  # and another one begins where somebody waits again
            held = lock("line", lease=60).acquire()
            with in_line("line", 1) as futures:
                held.release()
                futures[0].result(60).release()
            wait_until(lambda: current_store().wait_queue._thread is None)

    def test_a_caller_that_waits_while_the_thread_ends_has_a_thread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        waiters = current_store().wait_queue
        waiters.ensure_thread()
        thread: Any = waiters._thread
        real, begun = waiters.queues, threading.Event()
        keys = keys_of("line")
        with waiters.join(keys, waiters.new_token(1, SECOND), None) as waiter, ThreadPoolExecutor(1) as threads:

            def begin() -> None:
                waiter.is_waiting = True
                waiters.ensure_thread()
                begun.set()

            def queues() -> Any:
                found = real()
                threads.submit(begin)
                begun.wait(0.2)  # in vain where it waits for the end of the other thread, as it should
                return found

            monkeypatch.setattr(waiters, "queues", queues)
            may_end = waiters.may_end(thread)
            assert begun.wait(60)
            monkeypatch.undo()
            assert waiters._thread is not None
            assert may_end is (waiters._thread is not thread)
            waiters.close()

    def test_without_redis_nobody_gets_a_slot(self, settings: Any) -> None:
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nowhere.sock"}}
        with pytest.raises(StoreUnavailable), lock("export", wait=60):
            raise AssertionError
        with pytest.raises(StoreUnavailable):
            lock("export").holders()

        async def wait() -> None:
            async with lock("export", wait=60):
                raise AssertionError

        with pytest.raises(StoreUnavailable):
            asyncio.run(wait())


def listening(raw: redis.Redis) -> list[str]:
    """Return the ids of the clients that listen for wake-ups."""
    return [client["id"] for client in raw.client_list() if client["sub"] != "0"]


def evalsha_calls(raw: redis.Redis) -> int:
    return int(raw.info("commandstats")["cmdstat_evalsha"]["calls"])


def wakes_up_from_elsewhere(is_heard: Callable[[], bool]) -> None:
    """Let another process give back what somebody here waits for."""
    assert asked_elsewhere("line", wait=0)
    with in_line("line", 1) as futures:
        wait_until(is_heard)
        released_elsewhere("line")
        futures[0].result(60).release()


@pytest.mark.usefixtures("a_place_is_kept", "only_wake_ups_count")
def test_in_a_cluster_a_waiter_is_woken_by_another_process(cluster: Cluster) -> None:
    def is_heard() -> bool:
        return any(listening(server.client) for server in cluster.servers)

    wakes_up_from_elsewhere(is_heard)


# --- what is wrong ----------------------------------------------------------------------------------------------------


NO_SECONDS = ["5", True, float("nan"), float("inf")]


@pytest.mark.parametrize(
    ("argument", "values", "use"),
    [
        ("name of a slot", ["", "  ", None, 7], lambda name: slot(name, 1)),
        ("limit=", [0, -1, 1.5, True, "10", None, 1_000_001], lambda limit: slot("export", limit)),
        ("lease=", [0, -1, None, *NO_SECONDS, 366 * 86_400 + 1], lambda seconds: slot("export", 1, lease=seconds)),
        ("wait=", [-1, *NO_SECONDS], lambda seconds: lock("export", wait=seconds)),
        ("timeout=", [-1, *NO_SECONDS], lambda seconds: lock("export").acquire(seconds)),
        ("renew=", [1], lambda renew: lock("export", renew=renew)),
        (".", [7, ""], lambda subject: lock("export", subject=subject)),
    ],
    ids=["name", "limit", "lease", "wait", "timeout", "renew", "subject"],
)
def test_a_wrong_argument_is_named(argument: str, values: list[Any], use: Callable[[Any], object]) -> None:
    for value in values:
        with pytest.raises(RuleError, match=argument):
            use(value)
