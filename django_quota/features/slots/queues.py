"""The callers of this process that wait for slots. They queue, and only the first in a queue asks the store.

For each slot, the threads have one queue, and the tasks of each event loop have another. So a loop that is blocked, or
was closed with tasks in it, delays no other callers.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from django_quota.core.clock import SECOND
from django_quota.core.flow import Flow, IOCall
from django_quota.core.forks import register_fork_aware
from django_quota.stores.base import Runner

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.05
"""Seconds between two calls of the first in a queue."""

SlotInStore: TypeAlias = tuple[Runner, str]
"""What callers queue for: a slot, by its key in a store."""

Loop: TypeAlias = asyncio.AbstractEventLoop | None
"""The event loop of a task; None for a thread."""


def pause_before(estimate: int) -> float:
    """Return the seconds until the next call, if a slot comes free in about `estimate` microseconds."""
    longest = min(max(estimate / SECOND, 2 * SHORTEST_PAUSE), LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1)  # noqa: S311


class Caller:
    """A caller in a queue: a thread, or a task of an event loop."""

    def __init__(self, queue: deque[Caller], loop: Loop) -> None:
        self._queue = queue
        self._loop = loop
        self._wakes_thread = threading.Event()
        self._wakes_task = asyncio.Event()

    @property
    def is_first(self) -> bool:
        """Whether the caller may ask the store."""
        return self._queue[0] is self

    def waiting(self, seconds: float) -> Flow[None]:
        """Wait until `wake` is called, or at most some seconds."""
        yield IOCall(self._wait, self._await, seconds)

    def wake(self) -> None:
        """Wake the caller, from any thread. If it is not waiting yet, its next wait ends at once."""
        if self._loop is None:
            self._wakes_thread.set()
            return
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._wakes_task.set)

    def _wait(self, seconds: float) -> None:
        self._wakes_thread.wait(seconds)
        self._wakes_thread.clear()

    async def _await(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wakes_task.wait()
        self._wakes_task.clear()


class SlotQueues:
    """All queues of this process."""

    def __init__(self) -> None:
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked process: the callers wait in the parent."""
        self._changing = threading.Lock()
        self._queues: dict[tuple[SlotInStore, Hashable], deque[Caller]] = {}

    @contextmanager
    def joined(self, slot: SlotInStore, limit: int, loop: Loop) -> Iterator[Caller]:
        """Queue for a slot in the block; yields the caller.

        Callers with a higher limit may enter earlier, so each limit has a queue of its own.
        """
        place = (slot, (limit, loop))
        with self._changing:
            queue = self._queues.setdefault(place, deque())
            caller = Caller(queue, loop)
            queue.append(caller)
        try:
            yield caller
        finally:
            with self._changing:
                queue.remove(caller)
                if not queue:
                    del self._queues[place]
            self.wake_next(slot)

    def wake_next(self, slot: SlotInStore) -> None:
        """Wake the first caller of each queue for a slot: the slot may have come free."""
        with self._changing:
            for (place, _), queue in self._queues.items():
                if place == slot:
                    queue[0].wake()


slot_queues = SlotQueues()


def running_loop() -> IOCall:
    """Return the call whose result is the event loop of a task; None for a thread."""
    return IOCall(lambda: None, _running_loop)


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
