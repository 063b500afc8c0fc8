"""Those of this process who wait for a slot, of one store. It must not know what a slot is for.

One thread serves them all, threads and tasks of any event loop. It keeps their places in the queues, with one call a
second for each queue, and hears over one connection whose turn has come. So a thousand cost hardly more than one. The
thread begins when somebody waits, and ends when nobody has waited for a while.
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
from typing import Any, Protocol
from weakref import WeakValueDictionary

from redis.exceptions import RedisError, ResponseError

from django_quota.clock import SECOND
from django_quota.exceptions import QuotaError
from django_quota.forks import begins_anew_in_children
from django_quota.operations.base import Operation, text
from django_quota.operations.leases import KeepPlaces, SlotKeys, make_token
from django_quota.stores.errors import ours

logger = logging.getLogger("django_quota")

PLACE_TTL = 3 * SECOND
"""Microseconds for which a place in a queue is kept: whose process is gone is passed over then."""

KEEP_EVERY = 1.0
"""Seconds after which places are kept anew. Also the longest time by which somebody whose wake-up got lost is late."""

BATCH_SIZE = 500
"""Places that are kept in one call, at most."""

ASKING_AT_ONCE = 4
"""Tasks of an event loop that ask for the same slot at the same time, at most."""

RETRY = 0.2
"""Seconds until the thread listens again where the store did not answer."""

IDLE = 10.0
"""Seconds for which the thread goes on though nobody waits."""


class Subscription(Protocol):
    """What hears the wake-ups of a process. They raise redis-py's errors."""

    def hear(self, seconds: float) -> list[str]:
        """Wait up to so many seconds for wake-ups; return the tokens that are woken."""
        ...

    def close(self) -> None:
        """Hear no more."""
        ...


class Turn:
    """One who may have to wait: a token in the queue of a slot, and what wakes it."""

    def __init__(self, waiters: Waiters, keys: SlotKeys, token: str, now: int | None) -> None:
        self.keys = keys
        self.token = token
        self.now = now
        """The time that a test has frozen, in microseconds; None for the store's own clock."""
        self.is_waiting = False
        self.granted: tuple[int, int, int] | None = None
        """Where it was given its slot while it waited: how many are free, when one more is, and when all leases end."""
        self._waiters = waiters
        self._woken = threading.Event()
        self._wake_task: Callable[[], object] | None = None

    def wake(self) -> None:
        """Wake it, from whatever thread; where it does not wait, it does not begin to."""
        self._woken.set()
        wake_task = self._wake_task
        if wake_task is not None:
            with suppress(RuntimeError):  # its event loop has been closed
                wake_task()

    def wait(self, seconds: float) -> None:
        """Wait until it should ask again, up to so many seconds; its place is kept meanwhile."""
        with self._waiting():
            self._woken.wait(seconds)

    async def await_(self, seconds: float) -> None:
        """Wait until it should ask again; see `wait`."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake_task = partial(_set_from_anywhere, woken, loop)
        with self._waiting(), suppress(TimeoutError):
            if not self._woken.is_set():  # who wakes it from here on finds the task
                async with asyncio.timeout(seconds):
                    await woken.wait()

    async def in_order(self, ask: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """Ask for the slot once the tasks that came earlier have asked; after so many seconds do not wait for them.

        So a thousand tasks that come at once leave connections to others, first of all to who gives a slot back.
        """
        gate = self._waiters.gate(self.keys)
        try:
            async with asyncio.timeout(seconds):
                await gate.acquire()
        except TimeoutError:
            return await ask()
        try:
            return await ask()
        finally:
            gate.release()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.is_waiting = True
        self._waiters.ensure_thread()
        try:
            yield
        finally:
            self.is_waiting = False
            self._wake_task = None
            self._woken.clear()


def _set_from_anywhere(event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    """Set an event of an event loop, from that loop or from any other thread."""
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_here = False
    if is_here:
        event.set()
    else:
        loop.call_soon_threadsafe(event.set)


class Waiters:
    """All who wait, and the thread that serves them.

    `run`: does an operation. `subscribe`: listens for the wake-ups of a process, by its name; None: the store calls
    `wake` itself.
    """

    def __init__(
        self, run: Callable[[Operation, int | None], Any], subscribe: Callable[[str], Subscription] | None
    ) -> None:
        self._run = run
        self._subscribe = subscribe
        self._begin()
        begins_anew_in_children(self)

    def _begin(self) -> None:
        self._process = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._turns: dict[str, Turn] = {}
        self._gates: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, SlotKeys], asyncio.Semaphore] = (
            WeakValueDictionary()
        )
        self._starting = threading.Lock()
        self._thread: _Thread | None = None

    def forget_parent(self) -> None:
        """Begin anew in a forked process: those who wait there wait in the parent."""
        self._begin()

    def new_token(self, limit: int, span: int) -> str:
        """Return a token that nobody else has, for one of so many slots and a lease of so many microseconds."""
        return make_token(self._process, next(self._numbers), limit, span)

    @contextmanager
    def turn(self, keys: SlotKeys, token: str, now: int | None) -> Iterator[Turn]:
        """Yield the turn of a token: from before it first asks for a slot, so that no wake-up is missed."""
        turn = self._turns[token] = Turn(self, keys, token, now)
        try:
            yield turn
        finally:
            del self._turns[token]

    def wake(self, token: str) -> None:
        """Wake one who waits."""
        turn = self._turns.get(token)
        if turn is not None:
            turn.wake()

    def grant(self, token: str, free: int, wait: int, reset: int) -> None:
        """Tell one who waits that it has its slot.

        So many are free now; one more is free, and all leases end, in so many microseconds.
        """
        turn = self._turns.get(token)
        if turn is not None:  # else it gives its slot back, or will ask what became of it
            turn.granted = (free, wait, reset)
            turn.wake()

    def queues(self) -> dict[tuple[SlotKeys, int | None], list[str]]:
        """Return the tokens that wait now, by queue and by the time that a test has frozen."""
        found: dict[tuple[SlotKeys, int | None], list[str]] = {}
        for turn in list(self._turns.values()):
            if turn.is_waiting:
                found.setdefault((turn.keys, turn.now), []).append(turn.token)
        return found

    def close(self) -> None:
        """End the thread. Whoever still waits asks again, and begins another one."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()
        for turn in list(self._turns.values()):
            turn.wake()

    def gate(self, keys: SlotKeys) -> asyncio.Semaphore:
        """Return what lets a few tasks of the running event loop at a time ask for a slot, in the order they came."""
        of = asyncio.get_running_loop(), keys
        gate = self._gates.get(of)
        if gate is None:
            gate = self._gates[of] = asyncio.Semaphore(ASKING_AT_ONCE)
        return gate

    def ensure_thread(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = _Thread(
                    self, self._run, partial(self._subscribe, self._process) if self._subscribe else None
                )
                self._thread.start()

    def lets_go(self, thread: _Thread) -> bool:
        """Let a thread end where nobody waits; say whether it may."""
        with self._starting:
            if self._thread is not thread:
                return True
            self._thread = None  # first: whoever begins to wait now is seen here, or starts another thread
            if self.queues():
                self._thread = thread
        return self._thread is not thread


class _Thread(threading.Thread):
    """Keeps places, and passes wake-ups on."""

    def __init__(
        self,
        waiters: Waiters,
        run: Callable[[Operation, int | None], Any],
        subscribe: Callable[[], Subscription] | None,
    ) -> None:
        super().__init__(name="django-quota-waiters", daemon=True)
        self._waiters = waiters
        self._do = run
        self._subscribe = subscribe
        self._subscription: Subscription | None = None
        self._stopped = threading.Event()
        self._due = 0.0
        self._busy_at = time.monotonic()
        self._batches: list[tuple[KeepPlaces, int | None]] = []
        self._is_told = False

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        self._hang_up()  # else it would go on listening for a while

    def run(self) -> None:
        """Go on until nobody has waited for a while."""
        try:
            while not self._stopped.is_set():
                if not self._batches and time.monotonic() >= self._due and not self._begin_round():
                    return
                if self._batches:
                    self._keep(*self._batches.pop())
                self._hear(0.0 if self._batches else max(0.0, self._due - time.monotonic()))
        finally:
            self._hang_up()

    def _begin_round(self) -> bool:
        """Collect the places to keep; say whether to go on."""
        now = time.monotonic()
        self._due = now + KEEP_EVERY
        for (keys, frozen), tokens in self._waiters.queues().items():
            self._busy_at = now
            for begin in range(0, len(tokens), BATCH_SIZE):
                self._batches.append((KeepPlaces(keys, tokens[begin : begin + BATCH_SIZE], PLACE_TTL), frozen))
        return now - self._busy_at < IDLE or not self._waiters.lets_go(self)

    def _keep(self, operation: KeepPlaces, now: int | None) -> None:
        try:
            for token in self._do(operation, now):
                self._waiters.wake(text(token))
        except QuotaError:  # whoever asks itself is told
            self._batches.clear()
        except Exception:
            logger.exception("Places in the queue of a slot were not kept")

    def _hear(self, seconds: float) -> None:
        if self._subscribe is None:
            self._stopped.wait(seconds)
            return
        try:
            if self._subscription is None:
                self._subscription = self._subscribe()
                self._is_told = False
                self._due = 0.0  # what was told before it listened is lost
                return
            for token in self._subscription.hear(seconds):
                self._waiters.wake(token)
        except Exception as error:  # noqa: BLE001 — redis-py raises whatever it stumbles over
            if not self._stopped.is_set():
                self._hang_up()
                self._tell(error)
                self._stopped.wait(RETRY)

    def _tell(self, error: Exception) -> None:
        """Log what stays wrong until somebody mends it. Of a store that does not answer, others tell."""
        is_lasting = not isinstance(error, (RedisError, OSError)) or isinstance(error, ResponseError)
        if is_lasting and not self._is_told:
            self._is_told = True
            words = "Nobody is told when a slot comes free: who waits for one looks once a second. %s"
            logger.error(words, ours(error))

    def _hang_up(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(RedisError, OSError):
                subscription.close()
