"""The callers of this process that wait for a slot of one store.

One thread serves them all: threads, and tasks of any event loop. It keeps their places in the queues with one call a
second for each queue, and waits for wake-ups over one connection. So a thousand callers cost hardly more than one. The
thread starts when a caller waits, and ends when nobody has waited for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from redis.exceptions import RedisError, ResponseError

from django_quota.core.clock import SECOND
from django_quota.core.errors import QuotaError
from django_quota.core.forks import register_fork_aware
from django_quota.engine.lease_operations import KeepPlaces, SlotKeys, make_token
from django_quota.engine.operations import Operation, text
from django_quota.stores.redis.errors import translate_error
from django_quota.stores.redis.wake_up import WakeUpChannel

logger = logging.getLogger("django_quota")

PLACE_TTL = 3 * SECOND
"""Microseconds that a place in a queue lasts. The queue skips the places of a process that is gone."""

KEEP_INTERVAL = 1.0
"""Seconds between two calls that keep the places. A caller whose wake-up got lost is late by this at most."""

BATCH_SIZE = 500
"""Places kept in one call."""

MAX_ASKING_TASKS = 4
"""Tasks of an event loop that ask for the same slot at the same time."""

RETRY = 0.2
"""Seconds until the thread opens its channel again, if the store does not answer."""

IDLE = 10.0
"""Seconds that the thread goes on while nobody waits."""


class Waiter:
    """A caller that may have to wait: its token in the queue of a slot, and how to wake it."""

    def __init__(self, queue: WaitQueue, keys: SlotKeys, token: str, now: int | None) -> None:
        self.keys = keys
        self.token = token
        self.now = now
        """The time that a test has frozen, in microseconds; None for the store's own clock."""
        self.is_waiting = False
        self.granted: tuple[int, int, int] | None = None
        """If it got its slot while it waited: how many are free, when one more is, and when all leases end."""
        self._queue = queue
        self._notified = threading.Event()
        self._notify_task: Callable[[], object] | None = None

    def notify(self) -> None:
        """Wake it, from any thread. If it does not wait yet, it will not wait."""
        self._notified.set()
        notify_task = self._notify_task
        if notify_task is not None:
            with suppress(RuntimeError):  # its event loop has been closed
                notify_task()

    def wait(self, seconds: float) -> None:
        """Wait until it should ask again, for some seconds at most. Its place is kept."""
        with self._waiting():
            self._notified.wait(seconds)

    async def await_(self, seconds: float) -> None:
        """Wait until it should ask again; see `wait`."""
        loop, notified = asyncio.get_running_loop(), asyncio.Event()
        self._notify_task = partial(loop.call_soon_threadsafe, notified.set)
        with self._waiting(), suppress(TimeoutError):
            if not self._notified.is_set():  # from here on, `notify` finds the task
                async with asyncio.timeout(seconds):
                    await notified.wait()

    async def in_order(self, ask: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """Ask for the slot after the tasks that came earlier, or after some seconds.

        So a thousand tasks that come at once leave connections to others, above all to those that release a slot.
        """
        semaphore = self._queue.semaphore(self.keys)
        try:
            async with asyncio.timeout(seconds):
                await semaphore.acquire()
        except TimeoutError:
            return await ask()
        try:
            return await ask()
        finally:
            semaphore.release()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.is_waiting = True
        self._queue.ensure_thread()
        try:
            yield
        finally:
            self.is_waiting = False
            self._notify_task = None
            self._notified.clear()


class WaitQueue:
    """All waiting callers of a process, and the thread that serves them.

    `run`: runs an operation. `open_channel`: opens the wake-up channel of a process, by its name; None: the store calls
    `notify` itself.
    """

    def __init__(
        self, run: Callable[[Operation, int | None], Any], open_channel: Callable[[str], WakeUpChannel] | None
    ) -> None:
        self._run = run
        self._open_channel = open_channel
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked process: the callers wait in the parent."""
        self._process = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._waiters: dict[str, Waiter] = {}
        self._semaphores: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, SlotKeys], asyncio.Semaphore] = (
            WeakValueDictionary()
        )
        self._starting = threading.Lock()
        self._thread: _Thread | None = None

    def new_token(self, limit: int, span: int) -> str:
        """Return a unique token for a slot of this limit, and a lease of `span` microseconds."""
        return make_token(self._process, next(self._numbers), limit, span)

    @contextmanager
    def join(self, keys: SlotKeys, token: str, now: int | None) -> Iterator[Waiter]:
        """Yield the waiter of a token. Join before you ask for the slot, so that you miss no wake-up."""
        waiter = self._waiters[token] = Waiter(self, keys, token, now)
        try:
            yield waiter
        finally:
            del self._waiters[token]

    def notify(self, token: str) -> None:
        """Wake a caller."""
        waiter = self._waiters.get(token)
        if waiter is not None:
            waiter.notify()

    def grant(self, token: str, free: int, wait: int, reset: int) -> None:
        """Tell a caller that it has its slot.

        `free`: slots that are free now. `wait`, `reset`: microseconds until one more is free, and until all leases end.
        """
        waiter = self._waiters.get(token)
        if waiter is not None:  # else it releases its slot, or will ask
            waiter.granted = (free, wait, reset)
            waiter.notify()

    def queues(self) -> dict[tuple[SlotKeys, int | None], list[str]]:
        """Return the waiting tokens, by slot and by the time that a test has frozen."""
        found: dict[tuple[SlotKeys, int | None], list[str]] = {}
        for waiter in list(self._waiters.values()):
            if waiter.is_waiting:
                found.setdefault((waiter.keys, waiter.now), []).append(waiter.token)
        return found

    def close(self) -> None:
        """End the thread. Callers that still wait ask again, and start another thread."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
        for waiter in list(self._waiters.values()):
            waiter.notify()

    def semaphore(self, keys: SlotKeys) -> asyncio.Semaphore:
        """Return the semaphore that lets a few tasks of the running event loop ask for a slot at a time, in order."""
        key = asyncio.get_running_loop(), keys
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = asyncio.Semaphore(MAX_ASKING_TASKS)
        return semaphore

    def ensure_thread(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                open_channel = self._open_channel and partial(self._open_channel, self._process)
                self._thread = _Thread(self, self._run, open_channel)
                self._thread.start()

    def may_end(self, thread: _Thread) -> bool:
        """Say whether a thread may end, because nobody waits; then forget it."""
        with self._starting:
            if self._thread is not thread:
                return True
            self._thread = None  # first: a caller that starts to wait now is seen here, or starts another thread
            if self.queues():
                self._thread = thread
        return self._thread is not thread


class _Thread(threading.Thread):
    """Keeps places, and passes wake-ups on."""

    def __init__(
        self,
        queue: WaitQueue,
        run: Callable[[Operation, int | None], Any],
        open_channel: Callable[[], WakeUpChannel] | None,
    ) -> None:
        super().__init__(name="django-quota-waiters", daemon=True)
        self._queue = queue
        self._run_operation = run
        self._open_channel = open_channel
        self._channel: WakeUpChannel | None = None
        self._stopped = threading.Event()
        self._due = 0.0
        self._busy_at = time.monotonic()
        self._batches: list[tuple[KeepPlaces, int | None]] = []
        self._is_logged = False

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._close_channel()  # else it would wait for a while

    def run(self) -> None:
        """Go on until nobody has waited for a while."""
        try:
            while not self._stopped.is_set():
                if not self._batches and time.monotonic() >= self._due and not self._start_round():
                    return
                if self._batches:
                    self._keep(*self._batches.pop())
                self._wait(0.0 if self._batches else max(0.0, self._due - time.monotonic()))
        finally:
            self._close_channel()

    def _start_round(self) -> bool:
        """Collect the places to keep; say whether to go on."""
        now = time.monotonic()
        self._due = now + KEEP_INTERVAL
        for (keys, frozen), tokens in self._queue.queues().items():
            self._busy_at = now
            for begin in range(0, len(tokens), BATCH_SIZE):
                self._batches.append((KeepPlaces(keys, tokens[begin : begin + BATCH_SIZE], PLACE_TTL), frozen))
        return now - self._busy_at < IDLE or not self._queue.may_end(self)

    def _keep(self, operation: KeepPlaces, now: int | None) -> None:
        try:
            for token in self._run_operation(operation, now):
                self._queue.notify(text(token))
        except QuotaError:  # the waiting callers get it when they ask
            self._batches.clear()
        except Exception:
            logger.exception("Places in the queue of a slot were not kept")

    def _wait(self, seconds: float) -> None:
        if self._open_channel is None:
            self._stopped.wait(seconds)
            return
        try:
            if self._channel is None:
                self._channel = self._open_channel()
                self._is_logged = False
                self._due = 0.0  # wake-ups from before are lost
                return
            for token in self._channel.wait(seconds):
                self._queue.notify(token)
        except Exception as error:  # noqa: BLE001 — redis-py raises whatever it runs into
            if not self._stopped.is_set():
                self._close_channel()
                self._log(error)
                self._stopped.wait(RETRY)

    def _log(self, error: Exception) -> None:
        """Log once what somebody has to mend. A store that does not answer is reported by others."""
        is_lasting = not isinstance(error, (RedisError, OSError)) or isinstance(error, ResponseError)
        if is_lasting and not self._is_logged:
            self._is_logged = True
            words = "Nobody is told when a slot comes free: callers that wait for one look once a second. %s"
            logger.error(words, translate_error(error))

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            with suppress(RedisError, OSError):
                channel.close()
