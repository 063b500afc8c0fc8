"""Tasks that are cancelled where a test wants it: at one await, at that and all later ones, or during a store call."""

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import pytest

from tests.support.stores import current_store


class Steps:
    """Awaits a coroutine, and cancels the running task at one of its awaits; `on_and_on`: at all later ones, too."""

    def __init__(self, work: Any, at: int, *, on_and_on: bool = False) -> None:
        self._work = work
        self._left = at
        self._on_and_on = on_and_on
        self.was_cut = False

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        sent: BaseException | None = None
        while True:
            try:
                waits_for = next(steps) if sent is None else steps.throw(sent)
            except StopIteration as done:
                return done.value
            if self._left == 0 or (self._left < 0 and self._on_and_on):
                self.was_cut = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self._left -= 1
            sent = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 — it is the coroutine's
                sent = error


Where = Literal["queued", "sent", "answered"]
"""Where a call of the store is stopped: before it has a connection, on its way, or as its answer comes back."""


class Barrier:
    """Stops the calls of the store for some operations, until it opens."""

    def __init__(self, is_stopped: Callable[[Any], bool], where: Where) -> None:
        self.met = 0
        """How many calls it has stopped."""
        self._is_stopped = is_stopped
        self._where = where
        self._opened = asyncio.Event()
        self._store = current_store()
        self._arun = self._store.arun
        self._late: list[Any] = []

    async def arun(self, operation: Any, now: int | None = None) -> Any:
        """Run an operation, as the store does."""
        if self._where != "answered":
            await self._stop(operation)
        reply = await self._arun(operation, now)
        if self._where == "answered":
            await self._stop(operation)
        return reply

    async def _stop(self, operation: Any) -> None:
        if not self._is_stopped(operation):
            return
        self.met += 1
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            if self._where == "sent":
                self._late.append(operation)
            raise

    def open(self) -> None:
        self._opened.set()
        while self._late:
            self._store.run(self._late.pop())


@contextmanager
def barrier(is_stopped: Callable[[Any], bool], where: Where) -> Iterator[Barrier]:
    stop = Barrier(is_stopped, where)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(current_store(), "arun", stop.arun)
        yield stop


async def cancelled(task: asyncio.Task[Any], times: int) -> None:
    """Cancel a task this often, and let it run on after each time."""
    for _ in range(times):
        task.cancel()
        for _ in range(3):
            await asyncio.sleep(0)


async def ended(task: asyncio.Task[Any]) -> bool:
    """Wait until a task has ended; return whether it was cancelled, and did not end by another error."""
    with suppress(asyncio.CancelledError):
        await asyncio.wait([task])
    return task.cancelled()
