"""Leases that are renewed in the background, all by one thread of the process."""

from __future__ import annotations

import logging
import threading
import weakref
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from django_quota.core.clock import elapsed
from django_quota.core.errors import StoreUnavailable
from django_quota.core.flow import run_sync
from django_quota.core.forks import register_fork_aware

if TYPE_CHECKING:
    from django_quota.features.leases import Lease


logger = logging.getLogger("django_quota")


class Renewer:
    """Renews each lease at an interval, until it is removed or nothing refers to it any more."""

    def __init__(self) -> None:
        self.after_fork()
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start over in a forked process: the parent renews the leases."""
        self._changed = threading.Condition()
        self._due: weakref.WeakKeyDictionary[Lease, tuple[float, float, Context]] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease, interval: float) -> None:
        """Renew a lease every `interval` seconds from now on."""
        with self._changed:
            self._due[lease] = (elapsed() + interval, interval, copy_context())  # `freeze` sets a context variable
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="django-quota-leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, lease: Lease) -> None:
        """Stop renewing a lease. A renewal that is under way goes on."""
        with self._changed:
            self._due.pop(lease, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                lease, (due, interval, context) = min(self._due.items(), key=lambda item: item[1][0])
                wait = due - elapsed()
                if wait > 0:
                    del lease
                    self._changed.wait(wait)
                    continue
                self._due[lease] = (elapsed() + interval, interval, context)
            try:
                context.run(run_sync, lease.keeping())
            except StoreUnavailable:  # the next round tries again
                pass
            except Exception:  # the thread renews the other leases, too
                logger.exception("A lease could not be renewed; the next round tries again.")
            del lease


renewer = Renewer()
