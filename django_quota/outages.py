"""An outage of the store: it begins with a failure, and ends with an answer once none has failed for a while.

Each is told once each way, by a log line and a signal. It must not know who asks, nor what is decided meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from django_quota.exceptions import StoreUnavailable
from django_quota.forks import begins_anew_in_children
from django_quota.signals import Announcement, store_back, store_lost

logger = logging.getLogger("django_quota")

SETTLED = 1.0
"""Seconds without a failure after which an answer ends an outage: a store that comes and goes is told of once."""

PERMITTED_AGAIN = 60.0
"""The same where its user lacks a command that only some decisions need: the others are answered all the while."""


_WITHOUT_STORE = "%s. Rules decide by on_unavailable until it answers again."
_WITHOUT_MEMORY = (
    "%s. Redis is full: until it takes changes again, each process counts by itself for rules that do not say "
    'on_unavailable, unless ON_UNAVAILABLE says "deny".'
)


class Outages:
    """The outages of one store, as a process sees them. `clock`: returns seconds that never go back.

    `is_whole`: says whether all of its servers answer, as far as is known: while others do, one may still be gone.
    """

    __slots__ = (
        "__weakref__",
        "_began",
        "_changing",
        "_clock",
        "_failed",
        "_is_whole",
        "_only_writes",
        "_settled",
        "is_on",
    )

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, is_whole: Callable[[], bool] = lambda: True
    ) -> None:
        self._clock = clock
        self._is_whole = is_whole
        self.forget_parent()
        begins_anew_in_children(self)
        self._began = 0.0
        self._failed = 0.0
        """When it failed last."""
        self._settled = SETTLED
        """Seconds without a failure after which this outage may end."""
        self._only_writes = False
        """Whether it answered what changes nothing even then: only a change shows that it is back."""
        self.is_on = False
        """Whether there is one now."""

    def forget_parent(self) -> None:
        """Go on in a forked process: a lock that another thread held at the fork would never come free."""
        self._changing = threading.Lock()

    def failed(
        self, error: StoreUnavailable, subjects: Sequence[str], *, is_decision: bool = True
    ) -> list[Announcement]:
        """Note a failure for these subjects; log what is new of it, and return what is to be announced.

        `is_decision`: whether a rule was to be decided. A command that all else may not use says nothing of those.
        """
        if error.only_here and not error.not_permitted:
            _complain(tuple(dict.fromkeys(subjects)), error.reason)
            return []
        if error.only_here and not is_decision:
            _complain_of_permission(error.reason)
            return []
        with self._changing:
            self._failed = self._clock()
            self._only_writes = self._only_writes or error.only_writes
            self._settled = max(self._settled, PERMITTED_AGAIN if error.only_here else SETTLED)
            if self.is_on:
                return []
            self._began = self._failed
            self.is_on = True
            ongoing.add(self)
        logger.error(_WITHOUT_MEMORY if error.out_of_memory else _WITHOUT_STORE, str(error).rstrip("."))
        return [(store_lost, {"reason": error.reason})]

    def answered(self, *, wrote: bool = True) -> list[Announcement]:
        """Note an answer; log the end of an outage, and return what is to be announced.

        `wrote`: whether the answer shows that the store can change what it keeps.
        """
        with self._changing:
            now = self._clock()
            if not self.is_on or (self._only_writes and not wrote) or now < self._failed + self._settled:
                return []
            if not self._is_whole():
                return []
            self.is_on = self._only_writes = False
            self._settled = SETTLED
            ongoing.discard(self)
            seconds = now - self._began
        logger.warning("The quota store answers again, after %.1f s.", seconds)
        return [(store_back, {"seconds": seconds})]


ongoing: set[Outages] = set()
"""The outages that there are now."""


@lru_cache(maxsize=256)
def _complain(subjects: tuple[str, ...], reason: str) -> None:
    """Say once that what lies in Redis for these subjects is not ours, or spoilt."""
    logger.error(
        "What Redis holds for %s is not what we keep there: %s. Rules decide by on_unavailable until it is deleted.",
        " and ".join(map(repr, subjects)),
        reason.rstrip("."),
    )


@lru_cache(maxsize=256)
def _complain_of_permission(reason: str) -> None:
    """Say once that the user of Redis lacks a command."""
    logger.error(
        "Redis does not permit all that is asked of it: %s. What needs that fails, or goes by on_unavailable; "
        "all else is decided as ever.",
        reason.rstrip("."),
    )
