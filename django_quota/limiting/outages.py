"""Outages of the store: each is reported by one log line and one signal when it begins, and when it ends.

An outage begins with a failure. It ends with the first answer after `SETTLE_TIME` seconds without a failure; after a
command that Redis denied, after `PERMISSION_SETTLE_TIME` seconds.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from django_quota.core.errors import (
    StoreBusy,
    StoreCommandDenied,
    StoreConnectionLost,
    StoreDataError,
    StoreFull,
    StoreOutOfMemory,
    StoreRefusesWrites,
    StoreUnavailable,
)
from django_quota.core.forks import register_fork_aware
from django_quota.engine.operations import Operation
from django_quota.signals import Announcement, asend, send, store_back, store_lost
from django_quota.stores.base import Runner

logger = logging.getLogger("django_quota.store")

SETTLE_TIME = 1.0
"""Seconds without a failure before an answer ends an outage. So a store that fails again and again is reported once."""

PERMISSION_SETTLE_TIME = 60.0
"""The same if the user of Redis lacks a command that only some decisions need: other calls still get answers."""

BUSY_PAUSE = 60.0
"""Seconds between two log lines that this process is too busy."""

_LOST = "%s. Rules decide by on_unavailable until it answers again."
_BUSY = (
    "This process has more requests than it can ask the quota store about: %s. Those that got no answer are counted "
    'in its memory, except for rules with on_unavailable="deny". Run more processes.'
)
_LOST_OUT_OF_MEMORY = (
    "%s. Redis is full: until it accepts changes again, each process counts by itself for rules that do not say "
    'on_unavailable, unless ON_UNAVAILABLE says "deny".'
)


class Outages:
    """The outages of one store, as this process sees them.

    `clock`: returns seconds and never goes back. `all_nodes_healthy`: returns whether all servers of the store answer;
    one may be down while others answer. `count`: called when an outage begins.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        all_nodes_healthy: Callable[[], bool] = lambda: True,
        count: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock = clock
        self._all_nodes_healthy = all_nodes_healthy
        self._count = count
        self._began = 0.0
        self._failed = 0.0
        """When the store last failed, by `clock`."""
        self._cut = -math.inf
        """When a connection was last lost."""
        self._busy_logged = -math.inf
        """When it was last logged that this process is too busy."""
        self._settle_time = SETTLE_TIME
        self._refuses_writes = False
        """Whether the store has refused writes in this outage. Then only an answer to a write ends it."""
        self.is_on = False
        """Whether there is an outage now."""
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked process: another thread may have held it at the fork."""
        self._lock = threading.Lock()

    def failed(
        self, error: StoreUnavailable, subjects: Sequence[str], *, is_decision: bool = True
    ) -> list[Announcement]:
        """Record a failure for these subjects, or keys. Log it if it is new, and return the signals to send.

        `is_decision`: whether the operation decided rules. Others may need a command that decisions do not.
        """
        if isinstance(error, StoreBusy):
            self._log_busy(error)
            return []
        if isinstance(error, StoreDataError):
            _log_foreign_data(tuple(dict.fromkeys(subjects)), error.reason)
            return []
        lacks_command = isinstance(error, StoreCommandDenied)
        if lacks_command and not is_decision:
            _log_denied_command(error.reason)
            return []
        with self._lock:
            if isinstance(error, StoreConnectionLost) and not self.is_on and self._is_first_cut():
                return []
            self._failed = self._clock()
            self._refuses_writes = self._refuses_writes or isinstance(error, StoreRefusesWrites)
            self._settle_time = max(self._settle_time, PERMISSION_SETTLE_TIME if lacks_command else SETTLE_TIME)
            if self.is_on:
                return []
            self._began = self._failed
            self.is_on = True
        self._count()
        is_full = isinstance(error, StoreOutOfMemory)
        logger.error(_LOST_OUT_OF_MEMORY if is_full else _LOST, str(error).rstrip("."))
        return [(store_lost, {"reason": error.reason})]

    def _is_first_cut(self) -> bool:
        """Record a lost connection; return whether it is the only one within `SETTLE_TIME`: that is not an outage."""
        before, self._cut = self._cut, self._clock()
        return self._cut - before > SETTLE_TIME

    def _log_busy(self, error: StoreBusy) -> None:
        """Log that this process is too busy, at most once in `BUSY_PAUSE` seconds."""
        with self._lock:
            now = self._clock()
            if now - self._busy_logged < BUSY_PAUSE:
                return
            self._busy_logged = now
        logger.warning(_BUSY, error.reason.rstrip("."))

    def answered(self, *, wrote: bool = True) -> list[Announcement]:
        """Record an answer. Log the end of an outage, and return the signals to send.

        `wrote`: whether the answer shows that the store accepts writes.
        """
        with self._lock:
            now = self._clock()
            if not self.is_on or (self._refuses_writes and not wrote) or now < self._failed + self._settle_time:
                return []
            if not self._all_nodes_healthy():
                return []
            self.is_on = self._refuses_writes = False
            self._settle_time = SETTLE_TIME
            seconds = now - self._began
        logger.warning("The quota store answers again, after %.1f s.", seconds)
        return [(store_back, {"seconds": seconds})]


@lru_cache(maxsize=256)
def _log_foreign_data(subjects: tuple[str, ...], reason: str) -> None:
    """Log once that keys of these subjects hold data of another program."""
    logger.error(
        "Unexpected data in the store for %s: %s. Rules decide by on_unavailable until it is deleted.",
        " and ".join(map(repr, subjects)),
        reason.rstrip("."),
    )


@lru_cache(maxsize=256)
def _log_denied_command(reason: str) -> None:
    """Log once that the user of Redis lacks a command."""
    logger.error(
        "Redis does not permit a command: %s. Calls that need it fail, or are decided by "
        "on_unavailable; everything else works.",
        reason.rstrip("."),
    )


class OutageReportingStore:
    """A layer around a store, for features that raise `StoreUnavailable`: it reports each failure and raises it again.

    Decisions report their failures themselves, because they go on without the store.
    """

    def __init__(self, store: Runner, outages: Outages) -> None:
        self._store = store
        self._outages = outages

    def run(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `Runner.run`."""
        try:
            reply = self._store.run(operation, now)
        except StoreUnavailable as error:
            send(self._failed(error, operation))
            raise
        if self._outages.is_on:
            send(self._answered(reply, operation))
        return reply

    async def arun(self, operation: Operation, now: int | None = None) -> Any:
        """Run an operation; see `run`."""
        try:
            reply = await self._store.arun(operation, now)
        except StoreUnavailable as error:
            await asend(self._failed(error, operation))
            raise
        if self._outages.is_on:
            await asend(self._answered(reply, operation))
        return reply

    def try_all(self, operations: Sequence[Operation], now: int | None) -> list[Any]:
        """Run operations; see `Runner.try_all`. Failures are in the replies, and are not reported."""
        return self._store.try_all(operations, now)

    def _failed(self, error: StoreUnavailable, operation: Operation) -> list[Announcement]:
        if isinstance(error, StoreFull):  # the memory store logs this itself
            return []
        return self._outages.failed(error, operation.keys[:3], is_decision=False)

    def _answered(self, reply: Any, operation: Operation) -> list[Announcement]:
        return self._outages.answered(wrote=operation.has_written(reply))
