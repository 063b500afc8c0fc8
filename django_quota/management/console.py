"""What the commands share: the store that they need, how they are told to stop, what may be written to a terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError

from django_quota import status
from django_quota.conf import current
from django_quota.exceptions import ConfigurationError, QuotaError
from django_quota.hints import rule_hint, subject_hint
from django_quota.publishing import has_tables, how_many_wait, is_pending, publish_pending, write_database
from django_quota.stores.redis import RedisStore


def redis_store() -> RedisStore:
    """Return the limiter's store. Raises `CommandError` where it is not Redis."""
    try:
        return status.redis_store()
    except ConfigurationError as error:
        raise CommandError(error.problem) from error


def explained(error: Exception) -> str:
    """Return what went wrong, and what would do where our tables are missing."""
    words = str(error).strip()
    is_missing = isinstance(error, DatabaseError) and "django_quota_" in words and "column" not in words
    return f"{words}: `manage.py migrate` makes the tables." if is_missing else words


def printable(text: str) -> str:
    """Return a text with what cannot be printed as Python would write it: names may be what a client chose."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def subject_note(subject: str) -> str:
    """Return a hint about a subject that no request has, or nothing; users are looked up where there is a database."""
    try:
        words = subject_hint(subject)
    except (DatabaseError, ImproperlyConfigured):  # no table of users, or no such model: the hint does without
        words = subject_hint(subject, with_users=False)
    return f"Note: {printable(words)}" if words else ""


def rule_notes(rules: Iterable[str]) -> list[str]:
    """Return a note for each name that no known rule has."""
    return [f"Note: {printable(words)}" for words in map(rule_hint, rules) if words]


class Waiting(NamedTuple):
    """What became of changes of overrides that waited to be published."""

    published: int = 0
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
        """What is to be said of those that were published."""
        return [f"Published {self.published:,} changes of overrides that had waited."] if self.published else []

    def as_json(self) -> dict[str, int | None]:
        """Return it for machines."""
        return {"published": self.published, "waiting": self.left}


def publish_what_waits() -> Waiting:
    """Publish the overrides that were saved while Redis was away, and say what waits still. It raises nothing."""
    database, published, problem = write_database(), 0, None
    try:
        if current().enabled and has_tables(database):
            published = publish_pending(database)
    except QuotaError as error:
        problem = error
    except DatabaseError as error:
        return _not_known(error)
    return what_waits()._replace(published=published, problem=problem)


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
    return Waiting(0, left, note, with_subject)


def _not_known(error: DatabaseError) -> Waiting:
    return Waiting(note=f"Whether overrides wait to be published is not known: {explained(error)}")


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield what SIGINT or SIGTERM sets, so that a command ends after what it is doing; a second ends it at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # who else runs the command keeps the signals
        yield stop
        return

    def ask(_: int, __: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
