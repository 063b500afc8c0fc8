"""Each process regularly deletes expired rows of the database store, so a site needs no cron job."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.clock import DAY
from django_quota.limiting.flusher import flusher
from django_quota.stores.base import Tables
from django_quota.stores.database.log import KeptEvents, delete_expired

CLEANING_INTERVAL = 30.0
"""Seconds, on average, between two batches of a process. After a full batch, the next follows in the next round."""

BATCH = 1_000
"""The most rows that a batch deletes."""


class Cleaning:
    """Deletes a batch of expired rows when one is due: one a second while there are more."""

    purpose = "delete expired rows"
    at_exit = False

    def __init__(self, store: Tables, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._next = clock() + self._pause()
        flusher.add(self)

    def flush(self) -> None:
        """Delete a batch if one is due. Raises `StoreUnavailable`; the next round tries again."""
        if self._clock() < self._next:
            return
        settings = current()
        done = delete_expired(self._store, clock.now(), KeptEvents(settings.events, settings.event_days * DAY), BATCH)
        is_full = max(done) >= BATCH
        self._next = self._clock() + (0.0 if is_full else self._pause())

    @staticmethod
    def _pause() -> float:
        return CLEANING_INTERVAL * random.uniform(0.5, 1.5)  # noqa: S311 — so that not all processes clean at once
