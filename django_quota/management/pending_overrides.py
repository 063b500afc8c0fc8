"""Overrides that are saved and not yet published to Redis, as commands publish and report them."""

from __future__ import annotations

from typing import NamedTuple

from django.db import DatabaseError

from django_quota.conf import current
from django_quota.core.errors import QuotaError
from django_quota.management.console import counted, explain
from django_quota.services.override_sync import (
    CaughtUp,
    are_pending,
    catch_up,
    count_pending,
    has_tables,
    write_database,
)


class PendingReport(NamedTuple):
    """What was published, and what is still pending."""

    published: int = 0
    """How many changes of overrides."""
    republished: int | None = None
    """How many subjects were published again because Redis had lost overrides; None if it had lost nothing."""
    left: int | None = None
    """How many changes are still pending; None if there is no database or it does not answer."""
    note: str = ""
    """What to tell about the pending ones."""
    problem: QuotaError | None = None
    """Why publishing failed."""

    @property
    def lines(self) -> list[str]:
        """What to tell about the published ones."""
        changes = counted(self.published, "change")
        lines = [f"Published {changes} of overrides that had waited."] if self.published else []
        if self.republished:
            lines.append(f"Redis had lost overrides: published those of {counted(self.republished, 'subject')} again.")
        return lines

    def as_json(self) -> dict[str, int | None]:
        """Return it for `--json`."""
        return {"published": self.published, "republished": self.republished or 0, "waiting": self.left}


def publish_pending_overrides() -> PendingReport:
    """Publish the overrides that Redis lacks, and report it. Errors are reported too, not raised."""
    database, done, problem = write_database(), CaughtUp(), None
    try:
        if current().enabled and has_tables(database):
            done = catch_up(database)
    except QuotaError as error:
        problem = error
    except DatabaseError as error:
        return _unknown(error)
    return report_pending_overrides()._replace(published=done.changes, republished=done.subjects, problem=problem)


def report_pending_overrides(subject: str | None = None) -> PendingReport:
    """Report how many changes of overrides are pending, and whether some are of a subject. Errors are not raised."""
    database = write_database()
    try:
        if not has_tables(database):
            return PendingReport()
        left = count_pending(database)
        waiting = "1 change of overrides waits" if left == 1 else f"{left:,} changes of overrides wait"
        note = f"{waiting} to be published to Redis." if left else ""
        if subject is not None and are_pending([subject], database):
            note += " Some are of this subject, and what is shown here does not include them."
    except DatabaseError as error:
        return _unknown(error)
    return PendingReport(left=left, note=note)


def _unknown(error: DatabaseError) -> PendingReport:
    return PendingReport(note=f"It is unknown whether overrides wait to be published: {explain(error)}")
