"""Slots, which a limited number of callers hold at a time, and locks, which are slots of one.

Slots and locks guard work that must not run twice at once. So they ignore the setting `ENABLED`, and raise
`StoreUnavailable` if the store does not answer, rather than let anybody in.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, cast

from django_quota.conf import current
from django_quota.core.algorithms.concurrency import Concurrency
from django_quota.core.clock import SECOND, frozen_now
from django_quota.core.decisions import Decision, Outcome, QuotaExceeded
from django_quota.core.errors import LeaseLost, QuotaError, RuleError, StoreUnavailable
from django_quota.core.flow import Flow, IOCall, run_async, run_sync, sleep
from django_quota.core.keys import key_of, subject_base
from django_quota.core.rates import parse_seconds
from django_quota.core.rules import is_valid_name
from django_quota.engine.lease_operations import Acquire, Holders, Release, Renew, SlotKeys
from django_quota.engine.operations import Operation, text
from django_quota.services.observers import notify, receivers
from django_quota.services.registry import get_limiter, store_call
from django_quota.services.subjects import GLOBAL, subject_of
from django_quota.stores.base import Store
from django_quota.stores.wait_queue import PLACE_TTL, RETRY

MAX_SLOTS = 1_000_000
"""The highest limit of a slot."""


class Lease:
    """A slot that you hold, until you release it or its lease ends. `Slot.acquire` returns one."""

    decision: Decision
    """The Decision when you took the slot: its `limit`, and how many slots were left (`remaining`)."""

    def __init__(self, slot: Slot, subject: str, store: Store) -> None:
        self.token: str = store.wait_queue.new_token(slot.limit, slot.span)
        """The name of the holder in the store."""
        self._slot = slot
        self._subject = subject
        self._store = store
        self._keys = _keys_of(slot, subject)
        self._refresher: LeaseRefresher | None = None
        self._is_released = False
        self._was_tried = False
        """Whether a release was sent before. The store may have done it, and only the answer was lost."""

    def __repr__(self) -> str:
        return f"<Lease {self.token} of slot {self._slot.name!r} for {self._subject}>"

    def renew(self, lease: float | None = None) -> None:
        """Start the lease again from now.

        `lease`: seconds, above 0 and up to 366 days; None: as long as the slot's leases are. Raises `LeaseLost` if the
        lease has ended or was released, `RuleError` for a wrong number of seconds, and `StoreUnavailable`.
        """
        run_sync(self.renewing(lease))

    async def arenew(self, lease: float | None = None) -> None:
        """Start the lease again from now; see `renew`."""
        await run_async(self.renewing(lease))

    def release(self) -> None:
        """Give the slot back. A second call does nothing.

        Raises `LeaseLost` if the lease had ended before, so another caller may have held the slot too. Raises
        `StoreUnavailable` if the store does not answer. Then try again, or let the lease end by itself.
        """
        run_sync(self._releasing())

    async def arelease(self) -> None:
        """Give the slot back, even if the task is cancelled meanwhile; see `release`."""
        await run_async(self._releasing())

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        with suppress(*_HIDDEN if error else ()):
            self.release()

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        with suppress(*_HIDDEN if error else ()):
            await self.arelease()

    def taking(self, timeout: float) -> Flow[Lease]:
        """Wait for the slot; the flow's result is the lease, which now holds it. Raises `QuotaExceeded`."""
        try:
            self.decision = yield from self._waiting(timeout)
            if self._slot.renews:
                self._refresher = LeaseRefresher(self.renewing, self._slot.lease / 3)
                yield IOCall(self._refresher.start, self._refresher.astart)
        except (QuotaExceeded, StoreUnavailable, GeneratorExit):
            raise  # it has left the queue, or the queue drops it by itself
        except BaseException:  # interrupted or cancelled
            yield from self._abandoning()
            raise
        return self

    def renewing(self, lease: float | None = None) -> Flow[None]:
        """Start the lease again from now; see `renew`."""
        span = self._slot.span if lease is None else parse_seconds("lease", lease, 30)
        if self._is_released or not (yield self._call(Renew(self._keys, self.token, span))):
            raise self._lost()

    def _waiting(self, timeout: float) -> Flow[Decision]:
        """Wait for the slot; the flow's result is the decision."""
        slot, queue, metrics = self._slot, self._store.wait_queue, get_limiter().metrics
        if metrics is not None:
            metrics.count_slot(self._subject, slot.name, slot.limit, slot.span)
        deadline = time.monotonic() + timeout
        is_queued = False
        with queue.join(self._keys, self.token, frozen_now()) as waiter:
            while True:
                left = deadline - time.monotonic()
                ask = self._call(Acquire(self._keys, self.token, PLACE_TTL if left > 0 else 0))
                if left > 0 and not is_queued:
                    ask = IOCall(ask.run_sync, partial(waiter.in_order, ask.run_async, left))
                try:
                    granted, free, wait, reset, first = yield ask
                except StoreUnavailable:
                    if not is_queued or left <= 0:
                        raise
                    yield sleep(min(RETRY, left))  # Redis may be restarting, and there is time
                    continue
                if granted:
                    return self._decided(True, free, wait, reset)
                if left <= 0:
                    raise QuotaExceeded(self._decided(False, free, wait, reset))
                is_queued = True
                # Only the first in the queue gets the slot whose lease ends next: the others wait to be woken.
                seconds = min(left, wait / SECOND + 0.001) if first else left
                yield IOCall(waiter.wait, waiter.await_, seconds)
                if waiter.granted is not None:
                    return self._decided(True, *waiter.granted)

    def _decided(self, granted: bool, free: int, wait: int, reset: int) -> Decision:
        limit, next_after = Concurrency(self._slot.name, self._slot.limit), wait / SECOND
        retry_after = 0.0 if granted else next_after
        decision = Decision.of(
            (Outcome(limit, self._subject, 1, granted, free, retry_after, reset / SECOND, next_after),)
        )
        if receivers:
            notify(decision)
        return decision

    def _releasing(self) -> Flow[None]:
        if self._is_released:
            return
        was_tried, self._was_tried = self._was_tried, True
        try:
            if self._refresher is not None:
                yield IOCall(self._refresher.stop, self._refresher.astop)
            held = yield from self._leaving()
        except (StoreUnavailable, GeneratorExit):
            raise
        except BaseException:  # interrupted or cancelled, perhaps before it was sent
            yield from self._abandoning()
            raise
        if not held and not was_tried:  # else the earlier try may have released it
            raise self._lost()

    def _abandoning(self) -> Flow[None]:
        """Leave the slot if the store answers. If not, the place in the queue and the lease end by themselves."""
        with suppress(StoreUnavailable):
            yield from self._leaving()

    def _leaving(self) -> Flow[bool]:
        """Leave the slot or its queue, and wake the next holder; the flow's result is whether it held the slot."""
        held, next_holder, *granted = yield self._call(Release(self._keys, self.token))
        self._is_released = True
        if next_holder:
            self._store.wait_queue.grant(text(next_holder), *granted)
        return bool(held)

    def _call(self, operation: Operation) -> IOCall:
        return IOCall(self._store.run, self._store.arun, operation, frozen_now())

    def _lost(self) -> LeaseLost:
        return LeaseLost(self._slot.name, self._subject)


_HIDDEN = (QuotaError,)
"""Errors of a release that must not replace the error of the block."""


class Slot:
    """A slot that a limited number of callers hold at a time, each until its lease ends. `slot` makes it.

    It is a sync and async context manager that any number of threads and tasks may share. A block may end in another
    thread or task than it began in. If the block raises, that error is raised even if the lease was lost.
    """

    def __init__(
        self, name: str, limit: int, lease: float = 30, wait: float | None = None, *, renew: bool = False
    ) -> None:
        if not is_valid_name(name) or not name.strip():
            raise RuleError(f"{name!r} is not the name of a slot. Use, for example, 'export'.")
        is_whole = isinstance(cast("object", limit), int) and not isinstance(limit, bool)
        if not is_whole or not 1 <= limit <= MAX_SLOTS:
            raise RuleError(f"limit={limit!r} of slot {name!r} is not a whole number from 1 to {MAX_SLOTS}.")
        if not isinstance(cast("object", renew), bool):
            raise RuleError(f"renew={renew!r} of slot {name!r} is not True or False.")
        self.name = name
        """Its name in keys and errors."""
        self.limit = limit
        """How many may hold it at a time."""
        self.span: int = parse_seconds("lease", lease, 30)
        """The same as `lease`, in microseconds."""
        self.timeout: float = 0.0 if wait is None else _waiting_time("wait", wait)
        """How long to wait for a free slot, in seconds."""
        self.renews = renew
        """Whether leases are renewed in the background."""
        self.subject = GLOBAL
        """The subject that the slot belongs to."""
        self._held: dict[Lease, object] = {}
        """The leases of open `with` blocks, each with the task or thread that opened it."""

    @property
    def lease(self) -> float:
        """How long a lease lasts, in seconds."""
        return self.span / SECOND

    def acquire(self, timeout: float | None = None) -> Lease:
        """Take a slot and return its lease, which you release; the lease is a context manager, too.

        `timeout`: seconds to wait if all slots are held, first come, first served; 0: do not wait; None: the slot's own
        `wait`. Raises `QuotaExceeded` if no slot came free, `RuleError` for a wrong number of
        seconds, and `StoreUnavailable`.
        """
        return run_sync(self._acquiring(timeout))

    async def aacquire(self, timeout: float | None = None) -> Lease:  # noqa: ASYNC109 — as long as a place in the queue
        """Take a slot; see `acquire`. A task that is cancelled while it waits leaves the queue."""
        return await run_async(self._acquiring(timeout))

    def _acquiring(self, timeout: float | None) -> Flow[Lease]:
        seconds = self.timeout if timeout is None else _waiting_time("timeout", timeout)
        return Lease(self, self.subject, get_limiter().reporting_store).taking(seconds)

    def holders(self) -> list[tuple[str, float]]:
        """Return who holds the slot: each token, and the seconds until its lease ends, the first to end first.

        Raises `StoreUnavailable`.
        """
        return run_sync(self._holders())

    async def aholders(self) -> list[tuple[str, float]]:
        """Return the holders; see `holders`."""
        return await run_async(self._holders())

    def _holders(self) -> Flow[list[tuple[str, float]]]:
        reply = yield store_call(Holders(_keys_of(self, self.subject)))
        return [(text(token), ends / SECOND) for token, ends in zip(reply[::2], reply[1::2], strict=True)]

    def __enter__(self) -> Lease:
        return self._entered(self.acquire())

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        self._left().__exit__(kind, error, tb)

    async def __aenter__(self) -> Lease:
        return self._entered(await self.aacquire())

    async def __aexit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        await self._left().__aexit__(kind, error, tb)

    def _entered(self, lease: Lease) -> Lease:
        self._held[lease] = _here()
        return lease

    def _left(self) -> Lease:
        """Return the last lease of this task or thread, or else the last lease of any other."""
        here = _here()
        while True:
            held = list(self._held.items())
            if not held:
                raise RuntimeError(f"Slot {self.name!r} was exited more often than it was entered.")
            lease = next((lease for lease, owner in reversed(held) if owner == here), held[-1][0])
            if self._held.pop(lease, None) is not None:  # else another thread has just taken it
                return lease


def _keys_of(slot: Slot, subject: str) -> SlotKeys:
    base = subject_base(current().prefix, subject)
    return SlotKeys(*(key_of(base, kind, slot.name) for kind in "lqa"))


def _waiting_time(option: str, seconds: float) -> float:
    return parse_seconds(option, seconds, 5, may_be_zero=True) / SECOND


def _here() -> object:
    """Return the running task, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.get_ident()


def slot(
    name: str,
    limit: int,
    lease: float = 30,
    wait: float | None = None,
    subject: Any = None,
    *,
    renew: bool = False,
) -> Slot:
    """Return a slot that a limited number of callers hold at a time.

    `with slot("export", 10, lease=30, wait=5) as lease: ...`, or `async with`.

    `limit`: how many, 1 to 1,000,000. `lease`: seconds, above 0 and up to 366 days. After them the slot comes free by
    itself, so a caller that crashed does not keep it. `wait`: seconds to wait for a slot if all are held, first
    come, first served; None or 0: do not wait. `subject`: whose slot it is, a text (`"user:42"`) or a user; None: one
    slot for everybody. `renew`: renew the lease in the background, by a thread or a task, for work that may take
    longer.

    Raises `RuleError` for a wrong argument. Entering the slot raises `QuotaExceeded` if no slot came free, and
    `StoreUnavailable`. Leaving it raises `LeaseLost` where the lease ended before the block did.
    """
    made = Slot(name, limit, lease, wait, renew=renew)
    if subject is not None:
        made.subject = subject_of(subject, "a slot")
    return made


def lock(name: str, lease: float = 30, wait: float | None = None, subject: Any = None, *, renew: bool = False) -> Slot:
    """Return a lock, which is a slot of one; see `slot`."""
    return slot(name, 1, lease, wait, subject, renew=renew)


# --- renewing in the background ---------------------------------------------------------------------------------------


class LeaseRefresher:
    """Renews a lease, or the reservation of a stream, at an interval: from a thread (`start`) or a task (`astart`).

    `renew` is its method that makes the flow for that. It ends when it is stopped, when the lease is lost, and when
    nobody has a reference to the object of the method any more.
    """

    def __init__(self, renew: Callable[[], Flow[Any]], interval: float) -> None:
        self._stopped = threading.Event()
        self._flow = _refresh(self._stopped, weakref.WeakMethod(renew), interval)
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Renew the lease from a thread."""
        self._thread = threading.Thread(
            target=copy_context().run,  # `freeze` sets a context variable
            args=(run_sync, self._flow),
            name="django-quota-lease",
            daemon=True,
        )
        self._thread.start()

    async def astart(self) -> None:
        """Renew the lease from a task of the running loop."""
        self._task = asyncio.create_task(run_async(self._flow), name="django-quota-lease")

    def stop(self) -> None:
        """End it, from any thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._task is not None:
            with suppress(RuntimeError):  # its loop is closed, and the task ended with it
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def astop(self) -> None:
        """End it without blocking the event loop."""
        self._stopped.set()
        if self._task is None:
            return
        if self._task.get_loop() is not asyncio.get_running_loop():
            self.stop()
            return
        self._task.cancel()
        await asyncio.wait([self._task])


def _refresh(
    stopped: threading.Event, method: weakref.WeakMethod[Callable[[], Flow[Any]]], interval: float
) -> Flow[None]:
    while not (yield IOCall(stopped.wait, asyncio.sleep, interval)):  # a task is cancelled instead
        renew = method()
        if renew is None:
            return
        try:
            yield from renew()
        except LeaseLost:
            return  # `release` raises it
        except StoreUnavailable:
            pass  # the next round tries again
        del renew
