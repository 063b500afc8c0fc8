"""Renewing a lease in the background, by a thread or by a task. It must not know what a lease is kept in.

It ends when it is told to, when the lease is lost, and when nobody holds the lease any more: one that was forgotten
ends by itself then.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress
from contextvars import copy_context
from typing import Protocol

from django_quota.exceptions import LeaseLost, StoreUnavailable


class Renewable(Protocol):
    """What can be renewed. Both raise `LeaseLost` and `StoreUnavailable`."""

    def renew(self) -> None:
        """Renew it."""
        ...

    async def arenew(self) -> None:
        """Renew it."""
        ...


class Renewal:
    """Renews a lease every so many seconds, from `start` (a thread) or `astart` (a task) on."""

    def __init__(self, lease: Renewable, every: float) -> None:
        self._lease = weakref.ref(lease)
        self._every = every
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Renew it from a thread."""
        self._thread = threading.Thread(
            target=copy_context().run,  # a time that a test has frozen holds there too
            args=(_renew_rounds, self._lease, self._every, self._stopped),
            name="django-quota-lease",
            daemon=True,
        )
        self._thread.start()

    async def astart(self) -> None:
        """Renew it from a task of the running loop."""
        self._task = asyncio.create_task(_arenew_rounds(self._lease, self._every), name="django-quota-lease")

    def stop(self) -> None:
        """End it, from whatever thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._task is not None:
            with suppress(RuntimeError):  # its loop has been closed, and the task with it
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def astop(self) -> None:
        """End it without blocking the event loop."""
        self._stopped.set()
        if self._task is not None:
            if self._task.get_loop() is not asyncio.get_running_loop():
                self.stop()
                return
            self._task.cancel()
            await asyncio.wait([self._task])


def _renew_rounds(of: weakref.ref[Renewable], every: float, stopped: threading.Event) -> None:
    while not stopped.wait(every):
        lease = of()
        if lease is None:
            return
        try:
            lease.renew()
        except LeaseLost:
            return  # who releases it is told
        except StoreUnavailable:
            pass  # the next round tries again
        del lease


async def _arenew_rounds(of: weakref.ref[Renewable], every: float) -> None:
    while True:
        await asyncio.sleep(every)
        lease = of()
        if lease is None:
            return
        try:
            await lease.arenew()
        except LeaseLost:
            return  # as above
        except StoreUnavailable:
            pass
        del lease
