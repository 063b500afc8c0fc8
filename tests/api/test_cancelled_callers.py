"""Tasks that are cancelled, once or on and on, wherever they are: they keep no slot, and hold up nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import AsyncClient
from django.urls import path

from django_quota import areserve, concurrency, lock, peek
from django_quota.types import Lease, Slot
from tests.support.calls import get
from tests.support.cancelling import Barrier, Steps, Where, barrier, cancelled, ended
from tests.support.event_loops import until
from tests.support.slots import asked_elsewhere, calls, is_asked_for_by, is_release, released_elsewhere, waiting

pytestmark = pytest.mark.usefixtures("memory_store")

places = pytest.mark.parametrize("where", ["queued", "sent", "answered"])
often = pytest.mark.parametrize("times", [1, 20])


def is_asked_for(operation: Any) -> bool:
    return is_asked_for_by(operation) is not None


async def nobody_has(name: str) -> bool:
    return await lock(name).aholders() == [] and waiting(name) == 0


async def left_while(task: asyncio.Task[Any], stop: Barrier, times: int) -> None:
    """Cancel a task while a call of the store has stopped; the call goes on meanwhile."""
    await until(lambda: stop.met)
    await cancelled(task, times)
    stop.open()
    assert await ended(task)


@places
@often
@pytest.mark.parametrize(
    "is_stopped",
    [is_asked_for, lambda each: is_asked_for(each) or is_release(each)],
    ids=["the call stops", "the release stops too"],
)
def test_a_caller_that_leaves_while_the_store_is_asked_keeps_no_slot(is_stopped: Any, where: Where, times: int) -> None:
    async def leave() -> None:
        with barrier(is_stopped, where) as stop:
            task = asyncio.create_task(lock("line", wait=60).aacquire())
            await left_while(task, stop, times)
        assert await nobody_has("line")

    asyncio.run(leave())


@often
def test_a_caller_that_is_cancelled_again_as_it_leaves_keeps_no_slot(times: int) -> None:
    async def leave() -> None:
        with barrier(is_release, "queued") as leaving, barrier(is_asked_for, "queued") as asking:
            task = asyncio.create_task(lock("line").aacquire())
            await until(lambda: asking.met)
            task.cancel()
            asking.open()
            await left_while(task, leaving, times)
        assert await nobody_has("line")

    asyncio.run(leave())


async def in_line(number: int) -> list[asyncio.Task[Lease]]:
    """Let tasks come for a lock that somebody else holds, one after the other."""
    assert asked_elsewhere("line")
    tasks: list[asyncio.Task[Lease]] = []
    while len(tasks) < number:
        tasks.append(asyncio.create_task(lock("line", wait=600).aacquire()))
        await until(lambda: waiting("line") == len(tasks))
    return tasks


@often
@pytest.mark.usefixtures("unpolled")
class TestTheQueue:
    @pytest.mark.parametrize("place", [0, 1], ids=["the first", "another one"])
    def test_a_caller_that_leaves_it_releases_nothing(self, place: int, times: int) -> None:
        async def leave() -> None:
            asked: list[Any] = []
            tasks = await in_line(2)
            with calls(before=asked.append):
                await cancelled(tasks[place], times)
                assert await ended(tasks[place])
            assert not any(map(is_release, asked))
            tasks[1 - place].cancel()

        asyncio.run(leave())

    def test_the_next_one_is_let_in_after_the_first_has_left(self, times: int) -> None:
        async def leave() -> None:
            first, next_one = await in_line(2)
            released_elsewhere("line")  # which nobody here knows, until the next one asks
            await cancelled(first, times)
            assert await ended(first)
            await (await asyncio.wait_for(next_one, 60)).arelease()
            assert await nobody_has("line")

        asyncio.run(leave())

    def test_the_next_one_is_let_in_after_others_have_left(self, times: int) -> None:
        async def leave() -> None:
            first, *others, last = await in_line(5)
            left = []
            for task in others:
                await cancelled(task, times)
                left.append(await ended(task))
            released_elsewhere("line")
            first.cancel()
            await (await asyncio.wait_for(last, 60)).arelease()
            assert left == [True] * 3
            assert await nobody_has("line")

        asyncio.run(leave())


async def release(line: Slot) -> None:
    lease = await line.aacquire()
    await lease.arelease()


async def block(line: Slot) -> None:
    async with line:
        pass


async def view(line: Slot) -> None:
    @concurrency(1, name=line.name, renew=line.renew)
    async def limited(request: Any) -> HttpResponse:
        return HttpResponse()

    await limited(get())


each_end = pytest.mark.parametrize("hold", [release, block, view], ids=lambda hold: hold.__name__)
renewed_or_not = pytest.mark.parametrize("renews", [False, True], ids=["not renewed", "renewed"])


@each_end
@renewed_or_not
@places
@often
def test_a_caller_that_is_cancelled_while_it_gives_its_slot_back_keeps_none(
    hold: Callable[[Slot], Awaitable[None]], renews: bool, where: Where, times: int
) -> None:
    async def leave() -> None:
        with barrier(is_release, where) as stop:
            task = asyncio.ensure_future(hold(lock("line", renew=renews)))
            await left_while(task, stop, times)
        assert await nobody_has("line")
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(leave())


@pytest.mark.parametrize("decorated", [False, True], ids=["of the settings", "of its view"])
def test_a_request_that_is_cancelled_in_its_view_keeps_no_slot(decorated: bool, settings: Any) -> None:
    async def page(request: Any) -> HttpResponse:
        entered.set()
        await asyncio.Event().wait()
        return HttpResponse()

    async def leave() -> None:
        task = asyncio.create_task(AsyncClient().get("/"))
        await entered.wait()
        held = await lock("export").aholders()
        await cancelled(task, 1)
        assert await ended(task)
        assert len(held) == 1
        assert await nobody_has("export")

    entered = asyncio.Event()
    rules = {} if decorated else {"export": {"at_once": 1, "match": "/"}}
    settings.QUOTA = {"STORE": "memory", "RULES": rules}
    settings.ROOT_URLCONF = (path("", concurrency(1, name="export")(page) if decorated else page),)
    asyncio.run(leave())


@places
def test_a_request_that_is_cancelled_while_it_gives_one_slot_back_keeps_none(where: Where, settings: Any) -> None:
    async def page(request: Any) -> HttpResponse:
        assert [len(await lock(name).aholders()) for name in ("first", "second")] == [1, 1]
        return HttpResponse()

    def is_the_first(operation: Any) -> bool:
        released.extend([operation] * is_release(operation))
        return released[:1] == [operation]

    async def leave() -> None:
        with barrier(is_the_first, where) as stop:
            await left_while(asyncio.create_task(AsyncClient().get("/")), stop, 1)
        assert [await nobody_has(name) for name in ("first", "second")] == [True, True]

    released: list[Any] = []
    settings.QUOTA = {"STORE": "memory", "RULES": {name: {"at_once": 1, "match": "/"} for name in ("first", "second")}}
    settings.ROOT_URLCONF = (path("", page),)
    asyncio.run(leave())


@each_end
@renewed_or_not
def test_a_caller_may_be_cancelled_from_any_await_on(hold: Callable[[Slot], Awaitable[None]], renews: bool) -> None:
    async def leave() -> int:
        for step in range(200):
            steps = Steps(hold(lock("line", wait=60, renew=renews)), step, on_and_on=True)
            task = asyncio.ensure_future(steps.run())
            found = (await ended(task), await nobody_has("line"), len(asyncio.all_tasks()))
            assert found == (steps.was_cut, True, 1), f"cancelled at await {step}"  # the next one would wait for it
            if not steps.was_cut:
                return step
        raise AssertionError

    assert asyncio.run(leave()) >= 2


@places
@often
@pytest.mark.parametrize("ends", ["settled", "failed", "left"])
def test_a_reservation_that_is_cancelled_while_it_is_settled_is_settled(where: Where, times: int, ends: str) -> None:
    async def leave() -> None:
        reservation = await areserve("1000/h", "user:7", 600)

        async def work() -> None:
            async with reservation:
                if ends == "failed":
                    raise ZeroDivisionError
                if ends == "settled":
                    await reservation.asettle(0)
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        if ends == "left":
            await asyncio.sleep(0)
            task.cancel()
        with barrier(bool, where) as stop:
            await left_while(task, stop, times)
        assert peek("1000/h", "user:7").remaining == 1_000

    asyncio.run(leave())


@places
@pytest.mark.parametrize("count_refused", [False, True], ids=["a plain rule", "a rule that counts refused hits"])
def test_a_reservation_that_is_cancelled_while_it_is_made_spends_nothing(where: Where, count_refused: bool) -> None:
    async def work() -> None:
        async with areserve("1000/h", "user:7", 600, count_refused=count_refused):
            raise AssertionError

    async def leave() -> None:
        with barrier(bool, where) as stop:
            task = asyncio.ensure_future(work())
            await left_while(task, stop, 1)
        assert peek("1000/h", "user:7").remaining == 1_000

    asyncio.run(leave())
