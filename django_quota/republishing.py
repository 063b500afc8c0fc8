"""Overrides that are published by themselves: when they change, when Redis is back, and when Redis has lost them.

A change notes its subject in the outbox within its own transaction, and what the outbox holds is published once that is
committed. Where Redis does not answer, or the process ends in between, the note waits: for this process's retries, for
any process that notices that Redis is back, for the next change, or for the next `quota_rollup` or `quota_sweep`.

It must not know how overrides are published.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, transaction
from django.db.models.signals import post_delete, post_save, pre_save

from django_quota import overrides
from django_quota.background import in_background
from django_quota.conf import current
from django_quota.exceptions import QuotaError
from django_quota.forks import begins_anew_in_children
from django_quota.limiter import get_limiter
from django_quota.models import OverrideOutbox, QuotaOverride, overrides_changed
from django_quota.overrides import locked
from django_quota.publishing import BATCH, has_tables, how_many_wait, publish_pending, republish, write_database
from django_quota.signals import store_back
from django_quota.stores.redis import RedisStore

logger = logging.getLogger("django_quota")

FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""Seconds between two retries of what could not be published: twice as many each time."""

RETRIES, REPUBLISHING = "django-quota-retries", "django-quota-republishing"
"""The names of the threads."""

QUIET_AFTER_FAILURE = 30.0
"""Seconds after which a process looks again for lost overrides, where it could not publish them."""

NO_DATABASE = "unknown"
"""What Django calls the vendor of a database that `DATABASES` does not name."""

DISPATCH_UID = "django_quota.publishing"
"""By what our receivers of signals are known."""


def connect() -> None:
    """Publish what changes from now on, what waits when Redis is back, and what Redis turns out to have lost."""
    pre_save.connect(_before_save, QuotaOverride, dispatch_uid=DISPATCH_UID)
    post_save.connect(_changed, QuotaOverride, dispatch_uid=DISPATCH_UID)
    post_delete.connect(_changed, QuotaOverride, dispatch_uid=DISPATCH_UID)
    overrides_changed.connect(_many_changed, QuotaOverride, dispatch_uid=DISPATCH_UID)
    store_back.connect(publish_when_back, dispatch_uid=DISPATCH_UID)
    overrides.on_lost = republish_if_lost


# --- what changes -----------------------------------------------------------------------------------------------------


def _before_save(instance: QuotaOverride, using: str, **_: Any) -> None:
    """Note whom a row was about, if it is about somebody else now."""
    if instance.pk is not None:
        rows = QuotaOverride.objects.using(using).filter(pk=instance.pk).exclude(subject=instance.subject)
        _note(set(rows.values_list("subject", flat=True)), using)


def _changed(instance: QuotaOverride, using: str, **_: Any) -> None:
    _note({instance.subject}, using)


def _many_changed(subjects: Collection[str], using: str, **_: Any) -> None:
    _note(subjects, using)


def _note(subjects: Collection[str], using: str) -> None:
    """Note that the overrides of subjects have changed, and publish them once that is committed."""
    if subjects:
        notes = [OverrideOutbox(subject=subject) for subject in sorted(subjects)]
        OverrideOutbox.objects.using(using).bulk_create(notes, batch_size=BATCH)
        transaction.on_commit(partial(_publish_committed, using), using=using)


def _publish_committed(using: str) -> None:
    if not current().enabled:
        return
    try:
        publish_pending(using)
    except (QuotaError, DatabaseError) as error:
        logger.error(  # noqa: TRY400 — to be expected while Redis is away
            "Overrides were saved, but not published: %s. They wait in the database, and it is tried again.",
            str(error).rstrip("."),
        )
        in_background(RETRIES, partial(_retry, using, FIRST_RETRY, is_told=True))


# --- what waits -------------------------------------------------------------------------------------------------------


class _Wake:
    """Cuts the pause before a retry short: Redis is back."""

    def __init__(self) -> None:
        self.forget_parent()
        begins_anew_in_children(self)

    def forget_parent(self) -> None:
        """Go on in a forked process: who waited, or held the lock, is not in it."""
        self._event = threading.Event()

    def now(self) -> None:
        """End the pause that there is, or the next one."""
        self._event.set()

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until somebody says that it is enough."""
        self._event.wait(seconds)
        self._event.clear()


_wake = _Wake()


def publish_when_back(**_: Any) -> None:
    """Publish what waits in the outbox, in the background; return at once. It is called where an outage has ended."""
    _wake.now()
    in_background(RETRIES, partial(_retry, write_database(), 0.0))


def _retry(using: str, delay: float, *, is_told: bool = False) -> None:
    """Publish what waits until nothing does, the pauses longer and longer; log the first failure, unless it is told."""
    while True:
        _wake.pause(delay)
        try:
            if _publish_waiting(using):
                return
        except (QuotaError, DatabaseError) as error:
            if not is_told:
                logger.error("Overrides wait, and cannot be published: %s. It is tried again.", str(error).rstrip("."))  # noqa: TRY400
                is_told = True
        finally:
            connections[using].close()
        delay = min(LAST_RETRY, max(FIRST_RETRY, 2 * delay))


def _publish_waiting(using: str) -> bool:
    """Publish what waits, unless another process does; say whether nothing is left to be done."""
    if not current().enabled or not _are_migrated(using) or not how_many_wait(using):
        return True
    store, prefix = get_limiter().store, current().prefix
    if isinstance(store, RedisStore):
        with locked(store, prefix) as keep:  # all processes notice at once that Redis is back
            if keep is None:
                return False
            published = publish_pending(using)
    else:
        published = publish_pending(using)
    logger.warning("Changed overrides were published late, %d of them.", published)
    return True


# --- what is lost -----------------------------------------------------------------------------------------------------


def republish_if_lost() -> None:
    """Publish all overrides in the background, if Redis shows that it does not hold them; return at once.

    One process does it, others leave it to that one. What goes wrong is logged, and tried again when this is next
    called, but not before `QUIET_AFTER_FAILURE`.
    """
    if time.monotonic() >= _Looking.again:
        in_background(REPUBLISHING, _republish_if_lost)


def _republish_if_lost() -> None:
    store, prefix = get_limiter().store, current().prefix
    _Looking.again = time.monotonic() + QUIET_AFTER_FAILURE
    if isinstance(store, RedisStore) and not overrides.is_marked(store, prefix):
        with locked(store, prefix) as keep:
            if keep is not None and not overrides.is_marked(store, prefix):
                if not _are_migrated(write_database()):
                    return
                told = republish(report=lambda _: keep()).subjects
                if told:  # a new Redis beside a new database has lost nothing
                    logger.warning("Redis did not hold the overrides; those of %d subjects are back.", told)
    _Looking.again = 0.0


def _are_migrated(using: str) -> bool:
    """Say whether the tables are there; log it once where they are not, though there is a database."""
    is_there = has_tables(using)
    if not is_there and not _Looking.has_missed_tables and connections[using].vendor != NO_DATABASE:
        _Looking.has_missed_tables = True
        logger.warning("The tables of django_quota are not there, so no override holds: `migrate` makes them.")
    return is_there


class _Looking:
    """When this process looks for lost overrides again, by `time.monotonic`, and whether it has missed the tables."""

    again = 0.0
    has_missed_tables = False
