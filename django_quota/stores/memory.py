"""The memory store: one process, no Redis. Runs the executable specifications in shards with a lock each.

It serves tests, single processes, and the fallback while Redis is away. A sweeper thread goes from shard to shard and
drops what has expired, so that memory follows the subjects that are active; it holds one shard's lock at a time, and
ends by itself when the store is gone.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django_quota.operations.base import DictStates, Operation
from django_quota.operations.leases import Ring

SHARDS = 16
SWEEP_EVERY = 5.0
"""Seconds between two rounds of the sweeper."""


class _Shard(DictStates):
    """A part of all keys, and the lock that guards them."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def sweep(self, now: int) -> int:
        """Drop what has expired by `now` (microseconds); return how many keys that were."""
        with self.lock:
            expired = [key for key, (_, expiry) in self.kept.items() if expiry <= now]
            for key in expired:
                del self.kept[key]
        return len(expired)


class _Joined:
    """The states of an operation, whose keys may lie in several shards."""

    __slots__ = ("_shards",)

    def __init__(self, shards: dict[str, _Shard]) -> None:
        self._shards = shards

    def get(self, key: str, now: int | None = None) -> Any:
        return self._shards[key].get(key, now)

    def put(self, key: str, value: Any, expiry: int) -> None:
        self._shards[key].put(key, value, expiry)

    def expiry(self, key: str) -> int:
        return self._shards[key].expiry(key)

    def drop(self, key: str) -> bool:
        return self._shards[key].drop(key)


class MemoryStore:
    """States in this process's memory. Its clock is the machine's."""

    is_whole = True
    """It has but itself."""

    def __init__(self, shards: int = SHARDS, sweep_every: float = SWEEP_EVERY) -> None:
        self._shards = [_Shard() for _ in range(shards)]
        self._sweep_every = sweep_every
        self._starting = threading.Lock()
        self._sweeper: threading.Thread | None = None
        self._stop = threading.Event()
        self._listeners: dict[str, Callable[[], object]] = {}
        """What wakes the one who waits at a bell."""
        _stores.add(self)

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; see `Store.run`."""
        placed = {key: self._shard(key) for key in operation.keys}
        self._ensure_sweeper()
        with _locked(list(placed.values())):
            return operation.run(_Joined(placed), self.now() if now is None else now)

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Do an operation; it takes microseconds, so that it does not leave the event loop."""
        return self.run(operation, now)

    def listen(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        rung = threading.Event()
        with self._listening(bell, rung.set):
            return self._sounds(bell) or (rung.wait(seconds) and self._sounds(bell))

    async def alisten(self, bell: str, seconds: float) -> bool:
        """Wait at a bell; see `Store.listen`."""
        rung = asyncio.Event()
        loop = asyncio.get_running_loop()
        with self._listening(bell, lambda: loop.call_soon_threadsafe(rung.set)):
            if self._sounds(bell):
                return True
            try:
                async with asyncio.timeout(seconds):
                    await rung.wait()
            except TimeoutError:
                return False
            return self._sounds(bell)

    def ring(self, bell: str) -> None:
        """Ring a bell; see `Store.ring`."""
        self.run(Ring(bell))
        wake = self._listeners.get(bell)
        if wake is not None:
            wake()

    async def aring(self, bell: str) -> None:
        """Ring a bell; see `ring`."""
        self.ring(bell)

    @contextmanager
    def _listening(self, bell: str, wake: Callable[[], object]) -> Iterator[None]:
        # Before the bell is looked at: who rings afterwards finds the listener.
        self._listeners[bell] = wake
        try:
            yield
        finally:
            del self._listeners[bell]

    def _sounds(self, bell: str) -> bool:
        """Say whether a bell has been rung, and stop its sounding."""
        shard = self._shard(bell)
        with shard.lock:
            return shard.drop(bell)

    def sweep(self, now: int | None = None) -> int:
        """Drop all that has expired by `now` (microseconds; None: the clock's); return how many keys that were."""
        moment = self.now() if now is None else now
        return sum(shard.sweep(moment) for shard in self._shards)

    def close(self) -> None:
        """Stop the sweeper thread; states stay, and the next decision starts it again."""
        with self._starting:
            sweeper, self._sweeper = self._sweeper, None
            self._stop.set()
        if sweeper is not None:
            sweeper.join()

    def __len__(self) -> int:
        return sum(len(shard.kept) for shard in self._shards)

    @staticmethod
    def now() -> int:
        """Return the machine's time in microseconds."""
        return time.time_ns() // 1_000

    def _shard(self, key: str) -> _Shard:
        return self._shards[zlib.crc32(key.encode()) % len(self._shards)]

    def _forget_parent(self) -> None:
        """Begin anew in a forked worker: a lock that another thread held at the fork would never come free."""
        self._shards = [_Shard() for _ in self._shards]
        self._starting = threading.Lock()
        self._sweeper = None
        self._listeners = {}

    def _ensure_sweeper(self) -> None:
        if self._sweeper is None:
            self._start_sweeper()

    def _start_sweeper(self) -> None:
        with self._starting:
            if self._sweeper is None:
                self._sweeper = self._new_sweeper()

    def _new_sweeper(self) -> threading.Thread:
        self._stop = threading.Event()
        sweeper = threading.Thread(
            target=_sweep_rounds,
            args=(weakref.ref(self), self._stop, self._sweep_every),
            name="django-quota-sweeper",
            daemon=True,
        )
        sweeper.start()
        return sweeper


_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store._forget_parent()  # noqa: SLF001 — of the same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _sweep_rounds(store_ref: weakref.ref[MemoryStore], stop: threading.Event, every: float) -> None:
    """Sweep until told to stop, or until nobody uses the store any more."""
    while not stop.wait(every):
        store = store_ref()
        if store is None:
            return
        store.sweep()
        del store


@contextmanager
def _locked(shards: list[_Shard]) -> Iterator[None]:
    """Hold the locks of these shards, always taken in the same order so that two plans never wait for each other."""
    if len(shards) == 1:
        with shards[0].lock:
            yield
        return
    with ExitStack() as stack:
        for shard in sorted(set(shards), key=id):
            stack.enter_context(shard.lock)
        yield
