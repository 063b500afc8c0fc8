"""The sweep of a database: deletes expired states, bans that have ended, and events beyond those that are kept.

It deletes a batch of each table at a time, and pauses in between. Serving processes delete batches, too; see
`limiting.cleaning`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_quota.stores.database.log import Expired, delete_expired
from django_quota.stores.database.store import DatabaseStore
from django_quota.stores.patience import Patience

ROWS_PER_CALL = 1_000
"""Rows of each table that one round deletes."""


@dataclass(slots=True)
class RowReport:
    """What a sweep has deleted, or would delete in a dry run."""

    rows: Expired
    is_complete: bool = False
    """Whether the sweep came to the end."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {**self.rows._asdict(), "complete": self.is_complete, "seconds": self.seconds}


def sweep_rows(
    store: DatabaseStore, now: int, keep: int, stop: threading.Event, advance: Callable[[int], object], budget_ms: int
) -> RowReport:
    """Delete what has expired by `now`, until the end or until `stop` is set.

    `keep`: how many events of each log stay. `advance` gets the number of deleted rows. `budget_ms`: how much of each
    second it may use the database, 1 to 1000 milliseconds. A call that is not answered is made again, for some seconds.
    Raises `StoreUnavailable`.
    """
    report, began, patience = RowReport(Expired()), time.monotonic(), Patience(stop)
    while not stop.is_set():
        batch_began = time.monotonic()
        done = patience(partial(delete_expired, store, now, keep, ROWS_PER_CALL))
        report.rows = Expired(*map(sum, zip(report.rows, done, strict=True)))
        advance(sum(done))
        report.is_complete = max(done) < ROWS_PER_CALL
        if report.is_complete:
            break
        stop.wait((time.monotonic() - batch_began) * (1_000 - budget_ms) / budget_ms)
    report.seconds = time.monotonic() - began
    return report
