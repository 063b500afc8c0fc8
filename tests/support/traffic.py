"""Threads and tasks that check one limit until they are told to stop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from django_quota import acheck, check
from tests.support.commands import wait_until

SUBJECT = "ip:192.0.2.1"


class Traffic:
    def __init__(self, rate: str, subject: str = SUBJECT, threads: int = 3, tasks: int = 4) -> None:
        self.stop = threading.Event()
        self.admitted = self.refused = self.degraded = 0
        self.decided_by = {"sync": 0, "async": 0}
        self.errors: list[BaseException] = []
        self._guard = threading.Lock()
        self._asked = (rate, subject)
        self._threads = [threading.Thread(target=self._sync) for _ in range(threads)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._async(tasks))))

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def _count(self, decision: Any, how: str) -> None:
        with self._guard:
            self.decided_by[how] += not decision.degraded
            if decision.degraded:
                self.degraded += 1
            elif decision:
                self.admitted += 1
            else:
                self.refused += 1

    def _sync(self) -> None:
        try:
            while not self.stop.is_set():
                self._count(check(*self._asked), "sync")
        except BaseException as error:  # noqa: BLE001 — whatever it is, the test tells
            self.errors.append(error)

    async def _async(self, tasks: int) -> None:
        async def go() -> None:
            while not self.stop.is_set():
                self._count(await acheck(*self._asked), "async")
                await asyncio.sleep(0)  # a call that the breaker refuses does not wait

        try:
            await asyncio.gather(*(go() for _ in range(tasks)))
        except BaseException as error:  # noqa: BLE001
            self.errors.append(error)

    @property
    def decided(self) -> int:
        return self.admitted + self.refused

    def goes_on(self, by: int = 200) -> None:
        known = dict(self.decided_by)
        wait_until(lambda: all(self.decided_by[how] > known[how] + by for how in known))
