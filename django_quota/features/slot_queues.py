"""The callers of this process that wait for slots. They queue, and only the first of a queue asks the store.

The threads have one queue for each slot, and the tasks of each event loop have one of their own. So a loop that is
blocked, or was closed with tasks in it, holds up nobody else.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

from django_quota.core.clock import SECOND
from django_quota.core.flow import Flow, IOCall
from django_quota.core.forks import register_fork_aware
from django_quota.stores.base import Runner

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.05
"""Seconds between two calls of the first in a queue."""

Place: TypeAlias = tuple[Runner, str]
"""What callers queue for: a slot, by its key in a store."""


class SlotQueue:
    """Callers that wait for the same slot, in the order in which they came."""

    def __init__(self) -> None:
        self.callers: deque[Caller] = deque()
        self.answers = 0
        """How often the store has answered one of them."""
        self.is_failing = False
        """Whether the store has not answered the last call."""


class Caller:
    """A caller in a queue."""

    def __init__(self, queue: SlotQueue) -> None:
        self._queue = queue
        self._answers_before = queue.answers
        self._woken = threading.Event()
        self._wake_task: Callable[[], object] | None = None

    @property
    def may_ask(self) -> bool:
        """Whether it may ask the store: the first may, and in an outage all that joined since the last answer."""
        return self._queue.callers[0] is self or (self._queue.is_failing and not self.has_waited)

    @property
    def has_waited(self) -> bool:
        """Whether the store has answered since the caller joined: then it goes on waiting when the store fails."""
        return self._queue.answers > self._answers_before

    def note(self, *, answered: bool) -> None:
        """Note whether the store has answered a call. If not, all that joined since the last answer ask, too."""
        self._queue.is_failing = not answered
        if answered:
            self._queue.answers += 1
            return
        for caller in reversed(self._queue.callers.copy()):
            if caller.has_waited:
                break
            caller.wake()

    def pausing(self, estimate: int, left: float) -> Flow[None]:
        """Wait until the next call: for about the time after which a slot comes free (microseconds).

        `left`: seconds until the caller's time is up.
        """
        pause = min(max(estimate / SECOND, 2 * SHORTEST_PAUSE), LONGEST_PAUSE) * random.uniform(0.5, 1)  # noqa: S311
        yield from self.waiting(min(pause, left))

    def waiting(self, seconds: float) -> Flow[None]:
        """Wait until it is woken, or for some seconds."""
        yield IOCall(self._wait, self._await, seconds)

    def wake(self) -> None:
        """Wake it, from any thread. If it does not wait yet, it will not wait."""
        self._woken.set()
        wake_task = self._wake_task
        if wake_task is not None:
            with suppress(RuntimeError):  # its event loop has been closed
                wake_task()

    def _wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    async def _await(self, seconds: float) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake_task = partial(loop.call_soon_threadsafe, woken.set)
        try:
            if not self._woken.is_set():  # from here on, `wake` finds the task
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await woken.wait()
        finally:
            self._wake_task = None
            self._woken.clear()


class SlotQueues:
    """All queues of this process."""

    def __init__(self) -> None:
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked process: the callers wait in the parent."""
        self._changing = threading.Lock()
        self._queues: dict[Place, dict[Hashable, SlotQueue]] = {}

    @contextmanager
    def joined(self, slot: Place, group: Hashable) -> Iterator[Caller]:
        """Queue for a slot in the block; yields the caller. Each group has a queue of its own."""
        with self._changing:
            queue = self._queues.setdefault(slot, {}).setdefault(group, SlotQueue())
            caller = Caller(queue)
            queue.callers.append(caller)
        try:
            yield caller
        finally:
            with self._changing:
                queue.callers.remove(caller)
                if not queue.callers:
                    groups = self._queues.get(slot, {})
                    groups.pop(group, None)
                    if not groups:
                        self._queues.pop(slot, None)
            self._wake(queue)

    def wake_next(self, slot: Place) -> None:
        """Have the first of each queue for a slot ask now: the slot may have come free."""
        with self._changing:
            queues = list(self._queues.get(slot, {}).values())
        for queue in queues:
            self._wake(queue)

    @staticmethod
    def _wake(queue: SlotQueue) -> None:
        with suppress(IndexError):  # all have left
            queue.callers[0].wake()


slot_queues = SlotQueues()


def running_loop() -> IOCall:
    """Return the call that finds the event loop of a task; None for a thread."""
    return IOCall(lambda: None, _running_loop)


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
