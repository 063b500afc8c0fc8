"""Threads and tasks that check one limit until they are stopped."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django_quota import acheck, check
from tests.support.commands import wait_until

SUBJECT = "ip:192.0.2.1"


class Traffic:
    """Three threads, and one with an event loop of four tasks; `errors` has what they raised."""

    def __init__(self, rate: str) -> None:
        self.admitted = self.refused = self.degraded = 0
        self.decided_by = {"sync": 0, "async": 0}
        self._rate, self._stop, self._guard = rate, threading.Event(), threading.Lock()

    def __enter__(self) -> Traffic:
        self._pool = ThreadPoolExecutor(4)
        self._running: list[Future[None]] = [self._pool.submit(self._sync) for _ in range(3)]
        self._running.append(self._pool.submit(lambda: asyncio.run(self._async())))
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    @property
    def errors(self) -> list[BaseException]:
        return [error for each in self._running if each.done() and (error := each.exception())]

    def _count(self, decision: Any, how: str) -> None:
        with self._guard:
            self.decided_by[how] += not decision.degraded
            self.degraded += decision.degraded
            self.admitted += not decision.degraded and decision.allowed
            self.refused += not decision.degraded and not decision.allowed

    def _sync(self) -> None:
        while not self._stop.is_set():
            self._count(check(self._rate, SUBJECT), "sync")

    async def _async(self) -> None:
        async def go() -> None:
            while not self._stop.is_set():
                self._count(await acheck(self._rate, SUBJECT), "async")
                await asyncio.sleep(0)  # a call that the breaker refuses does not wait

        await asyncio.gather(*(go() for _ in range(4)))

    def goes_on(self, by: int = 200) -> None:
        known = dict(self.decided_by)
        wait_until(lambda: all(self.decided_by[how] > known[how] + by for how in known))
