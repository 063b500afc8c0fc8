"""One piece of logic for sync and async code: a flow, and the two drivers that run it.

A flow is a generator. If it needs a call that takes time, it yields the call and gets the result back. The sync driver
blocks for the call, the async driver awaits it. So the flow is written once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

Flow: TypeAlias = Generator[Any, Any, T]
"""A generator for `run_sync` and `run_async`. `Flow[int]` returns a number as its result.

It yields an `IOCall`, or whatever the `perform` of its driver takes. An error of the call is raised at the `yield`.
"""


class IOCall:
    """A call that takes time, in two forms: `sync(*args)` blocks, `async_(*args)` is awaited."""

    __slots__ = ("args", "async_", "sync")

    def __init__(self, sync: Callable[..., Any], async_: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self.sync: Callable[..., Any] = sync
        self.async_: Callable[..., Awaitable[Any]] = async_
        self.args: tuple[Any, ...] = args

    def run_sync(self) -> Any:
        """Make the call; blocks until it is done."""
        return self.sync(*self.args)

    def run_async(self) -> Awaitable[Any]:
        """Return the call, to be awaited."""
        return self.async_(*self.args)


def sleep(seconds: float) -> IOCall:
    """Return the call that sleeps: it blocks the thread, or lets other tasks run."""
    return IOCall(time.sleep, asyncio.sleep, seconds)


def run_sync(flow: Flow[T], perform: Callable[[Any], Any] = IOCall.run_sync) -> T:
    """Run a flow in sync code and return its result. `perform` makes the calls that the flow yields."""
    results: list[Any] = []  # empty while the flow runs: error reports show locals, and a result may be secret
    try:
        call = next(flow)
        while True:
            try:
                results.append(perform(call))
            except BaseException as error:  # noqa: BLE001 — the flow decides what it catches
                call = flow.throw(error)
            else:
                call = flow.send(results.pop())
    except StopIteration as done:
        result: T = done.value
        return result


async def run_async(flow: Flow[T], perform: Callable[[Any], Awaitable[Any]] = IOCall.run_async) -> T:
    """Run a flow in async code and return its result; see `run_sync`."""
    results: list[Any] = []
    try:
        call = next(flow)
        while True:
            try:
                results.append(await perform(call))
            except BaseException as error:  # noqa: BLE001 — the flow decides what it catches
                call = flow.throw(error)
            else:
                call = flow.send(results.pop())
    except StopIteration as done:
        result: T = done.value
        return result


def to_the_end(flow: Flow[Any]) -> IOCall:
    """Return the call that runs a flow to its end, however often its task is cancelled meanwhile."""
    return IOCall(run_sync, run_to_the_end, flow)


async def run_to_the_end(flow: Flow[T]) -> T:
    """Run a flow in a task of its own, and wait for its end even if the caller is cancelled, however often.

    A cancelled caller gets its `CancelledError` then, not the result or the error of the flow.
    """
    work, cancelled = asyncio.ensure_future(run_async(flow)), None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is None:
        return work.result()
    if not work.cancelled():
        work.exception()  # read it: asyncio logs errors that are never read
    raise cancelled


class FlowBlock(Generic[T]):
    """A sync and async context manager whose beginning and end are written once, each as a flow.

    The end of an `async with` block runs to its end, however often its task is cancelled meanwhile.
    """

    def entering(self) -> Flow[T]:
        """Enter the block; the flow's result is what `as` gets."""
        raise NotImplementedError

    def leaving(self, error: BaseException | None) -> Flow[None]:
        """Leave the block; `error`: what the block raised."""
        raise NotImplementedError

    def __enter__(self) -> T:
        return run_sync(self.entering())

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        run_sync(self.leaving(error))

    async def __aenter__(self) -> T:
        return await run_async(self.entering())

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        await run_to_the_end(self.leaving(error))
