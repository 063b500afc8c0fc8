"""Overrides that wait to be published, as the commands tell of them. It must not know which command does."""

from __future__ import annotations

from typing import NamedTuple

from django.db import DatabaseError

from django_quota.conf import current
from django_quota.exceptions import QuotaError
from django_quota.management.console import explained
from django_quota.override_sync import CaughtUp, catch_up, has_tables, how_many_wait, is_pending, write_database


class Waiting(NamedTuple):
    """What became of overrides that Redis did not hold."""

    published: int = 0
    republished: int | None = None
    """How many subjects have overrides, where Redis had lost some of those, and was told all; None: it had not."""
    left: int | None = None
    """How many wait still; None where that is not known: there is no database, or it does not answer."""
    note: str = ""
    """What is to be said of those that wait."""
    with_subject: bool = False
    """Whether that of a subject that was asked for is among them."""
    problem: QuotaError | None = None
    """Why Redis could not be told."""

    @property
    def lines(self) -> list[str]:
        """What is to be said of what was published."""
        lines = [f"Published {self.published:,} changes of overrides that had waited."] if self.published else []
        if self.republished:
            lines.append(f"Redis had lost overrides: published those of {self.republished:,} subjects again.")
        return lines

    def as_json(self) -> dict[str, int | None]:
        """Return it for machines."""
        return {"published": self.published, "republished": self.republished or 0, "waiting": self.left}


def publish_what_waits() -> Waiting:
    """Publish the overrides that Redis does not hold, and say what waits still. It raises nothing."""
    database, done, problem = write_database(), CaughtUp(), None
    try:
        if current().enabled and has_tables(database):
            done = catch_up(database)
    except QuotaError as error:
        problem = error
    except DatabaseError as error:
        return _not_known(error)
    return what_waits()._replace(published=done.changes, republished=done.subjects, problem=problem)


def what_waits(subject: str | None = None) -> Waiting:
    """Say how many changes of overrides wait to be published, and whether those of a subject do. It raises nothing."""
    database = write_database()
    try:
        if not has_tables(database):
            return Waiting()
        left = how_many_wait(database)
        with_subject = subject is not None and is_pending(subject, database)
    except DatabaseError as error:
        return _not_known(error)
    note = f"{left:,} changes of overrides wait to be published to Redis." if left else ""
    if with_subject:
        note += " Some are of this subject: what is said of it holds without them."
    return Waiting(left=left, note=note, with_subject=with_subject)


def _not_known(error: DatabaseError) -> Waiting:
    return Waiting(note=f"Whether overrides wait to be published is not known: {explained(error)}")
