"""Accounts of a cluster, and threads and tasks that move amounts among them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django_quota import counter
from django_quota.engine.transfer_operations import OVERDUE
from django_quota.exceptions import StoreUnavailable
from django_quota.services.sweep import Report, Sweeper
from django_quota.testing import freeze
from tests.support.steps import SECOND
from tests.support.stores import current_store

COINS = counter("coins")

ACCOUNTS = [f"user:{number}" for number in range(20)]

EACH = 100


def total_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:c:coins"


def now() -> int:
    return time.time_ns() // 1_000


def swept(**options: Any) -> Report:
    """Sweep when all that was left on the route is overdue."""
    store: Any = current_store()
    with freeze(now() + OVERDUE + SECOND):
        return Sweeper(store, "quota", budget_ms=1_000, **options).sweep(threading.Event(), lambda count: None)


def totals() -> list[int]:
    return [COINS.get(name) for name in ACCOUNTS]


def filled() -> None:
    for name in ACCOUNTS:
        COINS.set(name, EACH)


def any_of(chance: random.Random) -> tuple[str, str, int]:
    """Return a source, a destination and an amount."""
    return chance.choice(ACCOUNTS), chance.choice(ACCOUNTS), chance.randint(1, 60)


class Movers:
    """Threads and tasks that move amounts among all accounts."""

    def __init__(self, threads: int = 4, tasks: int = 4) -> None:
        self.moved = self.refused = self.failed = 0
        self.errors: list[BaseException] = []
        self._threads, self._tasks = threads, tasks

    def run(self, goes_on: Callable[[int], bool]) -> None:
        """Go on for as long as `goes_on`, asked with how often one has moved, says so."""
        with ThreadPoolExecutor(self._threads + 1) as pool:
            running = [pool.submit(self._sync, random.Random(seed), goes_on) for seed in range(self._threads)]
            running.append(pool.submit(asyncio.run, self._all(goes_on)))
            for each in running:
                each.result()

    def _sync(self, chance: random.Random, goes_on: Callable[[int], bool]) -> None:
        done = 0
        while goes_on(done):
            done += 1
            try:
                self._note(COINS.transfer(*any_of(chance)))
            except StoreUnavailable:
                self.failed += 1

    async def _all(self, goes_on: Callable[[int], bool]) -> None:
        await asyncio.gather(*(self._async(random.Random(-seed), goes_on) for seed in range(self._tasks)))

    async def _async(self, chance: random.Random, goes_on: Callable[[int], bool]) -> None:
        done = 0
        while goes_on(done):
            done += 1
            try:
                self._note(await COINS.atransfer(*any_of(chance)))
            except StoreUnavailable:
                self.failed += 1

    def _note(self, moved: bool) -> None:
        self.moved += moved
        self.refused += not moved
