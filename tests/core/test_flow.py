"""A flow is written once and runs in sync and in async code; what it has begun it ends, also when it is cancelled."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from django_quota.core.flow import Flow, FlowBlock, IOCall, run_async, run_sync, run_to_the_end, sleep, to_the_end
from tests.support.cancelling import cancelled, ended


class Stop(BaseException):
    """What ends a process, such as `KeyboardInterrupt`."""


def doubled(number: int) -> IOCall:
    """Return a call that takes time, with a result that depends on its argument."""

    async def wait() -> int:
        await asyncio.sleep(0)
        return number * 2

    return IOCall(lambda _: number * 2, lambda _: wait(), number)


def failing(error: BaseException) -> IOCall:
    def fail() -> None:
        raise error

    async def wait() -> None:
        await asyncio.sleep(0)
        raise error

    return IOCall(fail, wait)


def in_async_code(flow: Flow[Any]) -> Any:
    return asyncio.run(run_async(flow))


in_either_way = pytest.mark.parametrize("run", [run_sync, in_async_code], ids=["sync", "async"])
errors = pytest.mark.parametrize("error", [ValueError("no"), Stop("now")], ids=["an error", "the end of the process"])


@in_either_way
def test_a_flow_gets_the_results_of_its_calls(run: Callable[[Flow[Any]], Any]) -> None:
    def flow() -> Flow[list[int]]:
        one = yield doubled(1)
        other = yield doubled(one)
        return [one, other]

    assert run(flow()) == [2, 4]


@in_either_way
def test_a_flow_without_calls_has_a_result(run: Callable[[Flow[Any]], Any]) -> None:
    def flow() -> Flow[int]:
        yield from ()
        return 5

    assert run(flow()) == 5


@in_either_way
@errors
def test_the_error_of_a_call_is_raised_where_the_flow_made_it(
    error: BaseException, run: Callable[[Flow[Any]], Any]
) -> None:
    def flow() -> Flow[Any]:
        try:
            yield failing(error)
        except (ValueError, Stop) as caught:
            return caught, (yield doubled(3))

    assert run(flow()) == (error, 6)


@in_either_way
@errors
def test_an_error_that_the_flow_does_not_catch_is_that_of_the_caller(
    error: BaseException, run: Callable[[Flow[Any]], Any]
) -> None:
    def flow() -> Flow[None]:
        yield failing(error)

    with pytest.raises(type(error)) as caught:
        run(flow())

    assert caught.value is error


def test_the_caller_may_say_how_a_call_is_made() -> None:
    def flow() -> Flow[Any]:
        return (yield "a call")

    assert run_sync(flow(), len) == len("a call")


def test_an_async_caller_may_say_how_a_call_is_made() -> None:
    def flow() -> Flow[Any]:
        return (yield "a call")

    async def perform(call: str) -> int:
        return len(call)

    assert asyncio.run(run_async(flow(), perform)) == len("a call")


@in_either_way
def test_a_flow_can_sleep(run: Callable[[Flow[Any]], Any]) -> None:
    def flow() -> Flow[str]:
        yield sleep(0)
        return "awake"

    assert run(flow()) == "awake"


def test_other_tasks_run_while_a_flow_sleeps() -> None:
    seen: list[str] = []

    def flow() -> Flow[None]:
        yield sleep(0)
        seen.append("awake")

    async def other() -> None:
        seen.append("other")

    async def together() -> None:
        await asyncio.gather(run_async(flow()), other())

    asyncio.run(together())

    assert seen == ["other", "awake"]


# --- to the end -------------------------------------------------------------------------------------------------------


class TwoCalls:
    """A flow of two calls, the first of which waits until the test lets it go on."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.begun, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), False

    async def first(self) -> None:
        self.begun.set()
        await self.may_end.wait()

    def flow(self) -> Flow[str]:
        yield IOCall(lambda: None, self.first)
        yield doubled(1)
        self.ended = True
        if self.error is not None:
            raise self.error
        return "the result"


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["a result", "an error"])
def test_a_flow_runs_to_its_end_however_often_its_caller_is_cancelled(error: Exception | None, times: int) -> None:
    async def cancel() -> tuple[bool, bool]:
        steps = TwoCalls(error)
        caller = asyncio.ensure_future(run_to_the_end(steps.flow()))
        await steps.begun.wait()
        await cancelled(caller, times)
        steps.may_end.set()
        return await ended(caller), steps.ended

    assert asyncio.run(cancel()) == (True, True)


def test_a_cancelled_caller_gets_the_first_of_its_cancellations() -> None:
    async def cancel() -> list[Any]:
        steps, seen = TwoCalls(), list[Any]()

        async def call() -> None:
            try:
                await run_to_the_end(steps.flow())
            except asyncio.CancelledError as error:
                seen.extend(error.args)

        caller = asyncio.ensure_future(call())
        await steps.begun.wait()
        for reason in ("first", "second"):
            caller.cancel(reason)
            await asyncio.sleep(0)
        steps.may_end.set()
        await caller
        return seen

    assert asyncio.run(cancel()) == ["first"]


@pytest.mark.thorough("slow")
def test_an_error_of_a_flow_whose_caller_was_cancelled_is_not_reported_as_forgotten() -> None:
    reported: list[Any] = []

    async def cancel() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        steps = TwoCalls(ValueError("no"))
        caller = asyncio.ensure_future(run_to_the_end(steps.flow()))
        await steps.begun.wait()
        await cancelled(caller, 1)
        steps.may_end.set()
        await ended(caller)
        del caller, steps
        gc.collect()

    asyncio.run(cancel())

    assert reported == []


@in_either_way
def test_a_caller_that_is_not_cancelled_gets_the_result(run: Callable[[Flow[Any]], Any]) -> None:
    def outer() -> Flow[Any]:
        def inner() -> Flow[Any]:
            return (yield doubled(2))

        return (yield to_the_end(inner()))

    assert run(outer()) == 4


@in_either_way
def test_a_caller_that_is_not_cancelled_gets_the_error(run: Callable[[Flow[Any]], Any]) -> None:
    def outer() -> Flow[Any]:
        def inner() -> Flow[None]:
            yield failing(ValueError("no"))

        yield to_the_end(inner())

    with pytest.raises(ValueError, match="no"):
        run(outer())


# --- blocks -----------------------------------------------------------------------------------------------------------


class Block(FlowBlock[str]):
    """A block that notes what it is left with."""

    def __init__(self) -> None:
        self.left_with: list[BaseException | None] = []

    def entering(self) -> Flow[str]:
        yield doubled(1)
        return "entered"

    def leaving(self, error: BaseException | None) -> Flow[None]:
        yield doubled(1)
        self.left_with.append(error)


def use(block: Block, error: BaseException | None = None) -> str:
    with block as entered:
        if error is not None:
            raise error
    return entered


def use_in_async_code(block: Block, error: BaseException | None = None) -> str:
    async def in_block() -> str:
        async with block as entered:
            if error is not None:
                raise error
        return entered

    return asyncio.run(in_block())


blocks = pytest.mark.parametrize("use", [use, use_in_async_code], ids=["sync", "async"])


@blocks
def test_a_block_is_entered_with_the_result_of_its_flow(use: Callable[..., str]) -> None:
    assert use(Block()) == "entered"


@blocks
def test_a_block_is_left_once(use: Callable[..., str]) -> None:
    block = Block()

    use(block)

    assert block.left_with == [None]


@blocks
@errors
def test_a_block_is_left_with_its_error_which_it_does_not_hide(error: BaseException, use: Callable[..., str]) -> None:
    block = Block()

    with pytest.raises(type(error)):
        use(block, error)

    assert block.left_with == [error]


def test_a_block_must_say_how_it_is_entered() -> None:
    with pytest.raises(NotImplementedError), FlowBlock[str]():
        pass


def test_a_block_must_say_how_it_is_left() -> None:
    class Endless(FlowBlock[str]):
        def entering(self) -> Flow[str]:
            yield from ()
            return "entered"

    with pytest.raises(NotImplementedError), Endless():
        pass


def test_a_block_is_left_to_its_end_by_a_task_that_is_cancelled_while_it_leaves() -> None:
    async def cancel() -> tuple[bool, bool]:
        steps = TwoCalls()

        class Slow(Block):
            def leaving(self, error: BaseException | None) -> Flow[None]:
                yield from steps.flow()

        async def in_block() -> None:
            async with Slow():
                pass

        task = asyncio.ensure_future(in_block())
        await steps.begun.wait()
        await cancelled(task, 1)
        steps.may_end.set()
        return await ended(task), steps.ended

    assert asyncio.run(cancel()) == (True, True)
