"""Renews leases in the background, in the thread of the flusher."""

from __future__ import annotations

import logging
import threading
import weakref
from contextvars import Context
from typing import Protocol

from django_quota.core import clock
from django_quota.core.errors import StoreUnavailable
from django_quota.core.flow import Flow, run_sync
from django_quota.core.forks import register_fork_aware
from django_quota.limiting.flusher import flusher

logger = logging.getLogger("django_quota.slots")

RETRY = 1.0
"""Seconds until a renewal is tried again if the store did not answer: until then, another caller may take the slot."""


class Renewable(Protocol):
    """A lease that can be renewed."""

    def keeping(self) -> Flow[None]:
        """Start the lease again."""
        ...


class Renewer:
    """Renews each lease at an interval, until it is removed or nothing refers to it any more."""

    def __init__(self) -> None:
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked process: the parent renews the leases."""
        self._changing = threading.RLock()
        self._due: weakref.WeakKeyDictionary[Renewable, tuple[float, float, Context]] = weakref.WeakKeyDictionary()
        self._next = float("inf")
        """When the flusher renews next."""

    def __len__(self) -> int:
        return len(self._due)

    def add(self, lease: Renewable, interval: float, *, first: float | None = None) -> None:
        """Renew a lease every `interval` seconds from now on. `first`: seconds until the first time, if fewer."""
        due = clock.elapsed() + min(interval, interval if first is None else first)
        with self._changing:
            self._due[lease] = (due, interval, clock.time_alone())  # the request may end before
            if due < self._next or self._next <= clock.elapsed():  # the second: that round runs now, or was lost
                self._plan(due)

    def remove(self, lease: Renewable) -> None:
        """Stop renewing a lease. A renewal that has started is finished."""
        with self._changing:
            self._due.pop(lease, None)

    def _plan(self, moment: float) -> None:
        self._next = moment
        flusher.call_at(moment, self._renew_due)

    def _renew_due(self) -> None:
        """Renew the leases that are due. One that hangs delays the others by the timeout of the store."""
        now = clock.elapsed()
        with self._changing:
            due = [(lease, interval, context) for lease, (at, interval, context) in self._due.items() if at <= now]
            for lease, interval, context in due:
                self._due[lease] = (now + interval, interval, context)
        try:
            while due:
                lease, interval, context = due.pop()
                try:
                    context.run(run_sync, lease.keeping())
                except StoreUnavailable:
                    with self._changing:
                        if lease in self._due:  # else it has been released
                            self._due[lease] = (clock.elapsed() + min(interval, RETRY), interval, context)
                except Exception:  # the thread renews the other leases, too
                    logger.exception("A lease could not be renewed; the next round tries again.")
        finally:  # whatever happens, there is a next round
            with self._changing:
                self._next = float("inf")
                moments = [at for at, _, _ in self._due.values()]  # leases may be collected at any time
                if moments:
                    self._plan(min(moments))


renewer = Renewer()
