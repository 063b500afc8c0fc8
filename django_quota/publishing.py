"""From the tables to Redis: overrides are published when they change, and again when Redis has lost them.

A change notes its subject in the outbox within its own transaction, and publishes what the outbox holds once it is
committed. Where Redis does not answer, or the process ends in between, the note is left, and this process's retries,
the next change or the next `quota_sync` publish it.

Publishing is: read the rows of some subjects, tell Redis, and read them again, until they have not changed meanwhile.
So whoever publishes last has told Redis what the rows say, however many do it at once; nobody waits for anybody.

It must not know how overrides are written in Redis, nor how they are decided.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, cast

from django.db import DatabaseError, connections, router, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Length
from django.db.models.signals import post_delete, post_save, pre_save
from django.utils import timezone

from django_quota import overrides
from django_quota.background import in_background
from django_quota.clock import frozen_now
from django_quota.conf import current
from django_quota.exceptions import ConfigurationError, QuotaError, RateError
from django_quota.keys import read
from django_quota.limiter import get_limiter
from django_quota.models import OverrideOutbox, QuotaOverride, overrides_changed
from django_quota.overrides import Override, holders, locked, publication, run_all, standing_key
from django_quota.rates import parse_rates
from django_quota.stores.redis import RedisStore
from django_quota.stores.walking import Walk

logger = logging.getLogger("django_quota")

BATCH = 500
"""Subjects that are published in one trip to Redis."""

LONG_AGO = timedelta(hours=1)
"""How long after its end an override is no longer looked at; up to then Redis' clock says whether it has ended."""

FIRST_RETRY, LAST_RETRY = 1.0, 60.0
"""Seconds between two retries of what could not be published: twice as many each time."""

RETRIES, REPUBLISHING = "django-quota-retries", "django-quota-republishing"
"""The names of the threads."""

QUIET_AFTER_FAILURE = 30.0
"""Seconds after which a process looks again for lost overrides, where it could not publish them."""

MOST_LOSSES = 3
"""How often in a row Redis may lose its memory while all is published, before it is left alone."""

_SHORTEST_DIGESTED = 16
"""Characters that a subject has at least where a key holds its digest: one takes up to twelve there."""

Report = Callable[[int], None]
"""Is told how many more subjects were published."""


class Republished(NamedTuple):
    """What was published."""

    subjects: int
    """How many subjects have overrides."""
    withdrawn: int
    """Of how many Redis held overrides that no row stands for any more."""


# --- some subjects ----------------------------------------------------------------------------------------------------


def publish(subjects: Collection[str], using: str) -> None:
    """Make Redis hold what the rows of these subjects say, `BATCH` of them at most.

    Raises `StoreUnavailable` where Redis does not answer.
    """
    store, prefix = get_limiter().store, current().prefix
    wanted = _overrides_of(subjects, using)
    while wanted:
        told = [publication(standing_key(prefix, subject), rules) for subject, rules in wanted.items()]
        run_all(store, told, frozen_now())
        found = _overrides_of(wanted, using)
        wanted = {subject: found[subject] for subject, rules in wanted.items() if found[subject] != rules}


def publish_pending(using: str) -> int:
    """Publish what the outbox holds; return how many changes that were. Raises `StoreUnavailable`."""
    outbox = OverrideOutbox.objects.using(using)
    published = 0
    while notes := dict(outbox.order_by("pk").values_list("pk", "subject")[:BATCH]):
        publish(set(notes.values()), using)
        outbox.filter(pk__in=notes).delete()
        published += len(notes)
    return published


def is_pending(subject: str, using: str) -> bool:
    """Say whether overrides of a subject were saved that Redis has not been told of."""
    return OverrideOutbox.objects.using(using).filter(subject=subject).exists()


def _overrides_of(subjects: Collection[str], using: str) -> dict[str, dict[str, Override]]:
    """Return the overrides of each of these subjects, by rule."""
    found: dict[str, dict[str, Override]] = {subject: {} for subject in subjects}
    for row in _not_ended(using).filter(subject__in=subjects):
        override = as_published(row)
        if override is not None:
            found[row.subject][row.rule] = override
    return found


def _not_ended(using: str) -> QuerySet[QuotaOverride]:
    rows = QuotaOverride.objects.using(using)
    return rows.filter(Q(expires__isnull=True) | Q(expires__gt=timezone.now() - LONG_AGO))


def as_published(row: QuotaOverride) -> Override | None:
    """Return an override as it is published; None where its rate, saved behind the model's back, is none."""
    rates = ""
    if row.mode == QuotaOverride.Mode.RATE:
        try:
            rates = "; ".join(map(str, parse_rates(row.rate)))
        except RateError:
            logger.exception("The override %r cannot be published.", str(row))
            return None
    # 0 would say that there is none.
    begins = 0 if row.starts is None else max(0, _microseconds(row.starts))
    ends = 0 if row.expires is None else max(1, _microseconds(row.expires))
    return Override(cast("overrides.Mode", row.mode), begins, ends, rates)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(moment: datetime) -> int:
    aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return (aware - _EPOCH) // timedelta(microseconds=1)


# --- all of them ------------------------------------------------------------------------------------------------------


def republish(using: str | None = None, report: Report = lambda _: None) -> Republished:
    """Publish all overrides, the blocking ones first, withdraw those without a row, and note that Redis has them all.

    Raises `StoreUnavailable` where Redis does not answer, of a Cluster when all others were told; it can be done again
    at any time, and beside others.
    """
    database = using or write_database()
    store, prefix = get_limiter().store, current().prefix
    if not isinstance(store, RedisStore):
        publish_pending(database)
        return Republished(_publish_rows(database, report, Walk(store)), 0)
    for _ in range(MOST_LOSSES):
        walk, begun = Walk(store), ""
        with walk.past():
            begun = overrides.begin_marking(store, prefix)
            publish_pending(database)
        subjects = _publish_rows(database, report, walk)
        withdrawn = _withdraw_orphans(store, prefix, database, walk)
        walk.end()  # what a server has not been told is not marked as published
        if overrides.finish_marking(store, prefix, begun):
            return Republished(subjects, withdrawn)
    raise ConfigurationError(
        f"Redis lost its memory {MOST_LOSSES} times while overrides were published.",
        "Look whether something empties it.",
    )


def write_database() -> str:
    """Return the alias of the database that overrides are written to; it is read too: a replica may lag behind."""
    return router.db_for_write(QuotaOverride)


def count_subjects(using: str) -> int:
    """Return how many subjects `republish` will report."""
    return sum(rows.values("subject").distinct().count() for rows in _blocking_first(using))


def _blocking_first(using: str) -> tuple[QuerySet[QuotaOverride], QuerySet[QuotaOverride]]:
    rows = _not_ended(using)
    blocking = rows.filter(mode=QuotaOverride.Mode.BLOCKED)
    return blocking, rows.exclude(subject__in=blocking.values("subject"))


def _publish_rows(using: str, report: Report, walk: Walk) -> int:
    published = 0
    for rows in _blocking_first(using):
        for subjects in _subjects(rows):
            with walk.past():
                publish(subjects, using)
                published += len(subjects)
            report(len(subjects))
    return published


def _subjects(rows: QuerySet[QuotaOverride]) -> Iterator[list[str]]:
    """Find the subjects of rows, `BATCH` at a time; no cursor stays open in between."""
    names = rows.order_by("subject").values_list("subject", flat=True).distinct()
    subjects = list(names[:BATCH])
    while subjects:
        yield subjects
        subjects = list(names.filter(subject__gt=subjects[-1])[:BATCH])


def _withdraw_orphans(store: RedisStore, prefix: str, using: str, walk: Walk) -> int:
    """Withdraw the overrides that no row stands for; return of how many subjects. A digest is looked up by its key."""
    withdrawn = 0
    with walk.past():
        for keys in holders(store, prefix, BATCH):
            with walk.past():
                withdrawn += _withdraw(store, prefix, using, keys)
    return withdrawn


def _withdraw(store: RedisStore, prefix: str, using: str, keys: Collection[str]) -> int:
    named, digested = _told_apart(prefix, keys)
    orphans = named - set(_not_ended(using).filter(subject__in=named).values_list("subject", flat=True))
    publish(orphans, using)
    gone = digested - (_digested_keys(prefix, using).keys() if digested else set())
    run_all(store, [publication(key, {}) for key in gone], frozen_now())
    back = _digested_keys(prefix, using) if gone else {}  # saved while it was withdrawn
    publish([back[key] for key in gone if key in back], using)
    return len(orphans) + len(gone)


def _told_apart(prefix: str, keys: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the subjects of keys, and the keys of those subjects of which there is but a digest."""
    named, digested = set(), set()
    for key in keys:
        parts = read(prefix, key)
        if parts is not None and parts.subject is not None:
            named.add(parts.subject)
        elif parts is not None:
            digested.add(key)
    return named, digested


def _digested_keys(prefix: str, using: str) -> dict[str, str]:
    rows = _not_ended(using).alias(length=Length("subject")).filter(length__gte=_SHORTEST_DIGESTED)
    return {standing_key(prefix, name): name for name in rows.values_list("subject", flat=True)}


# --- by itself --------------------------------------------------------------------------------------------------------


def connect() -> None:
    """Publish what changes from now on, and what Redis turns out to have lost."""
    pre_save.connect(_before_save, QuotaOverride, dispatch_uid="django_quota.publishing")
    post_save.connect(_changed, QuotaOverride, dispatch_uid="django_quota.publishing")
    post_delete.connect(_changed, QuotaOverride, dispatch_uid="django_quota.publishing")
    overrides_changed.connect(_many_changed, QuotaOverride, dispatch_uid="django_quota.publishing")
    overrides.on_lost = republish_if_lost


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
        logger.error("Overrides were saved, but not published: %s. It is tried again.", str(error).rstrip("."))  # noqa: TRY400
        in_background(RETRIES, partial(_retry, using))


def _retry(using: str) -> None:
    delay = FIRST_RETRY
    while True:
        time.sleep(delay)
        try:
            published = publish_pending(using)
        except (QuotaError, DatabaseError):
            delay = min(LAST_RETRY, 2 * delay)
        else:
            logger.warning("Changed overrides were published late, %d of them.", published)
            return
        finally:
            connections[using].close()


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
                if not _are_migrated():
                    return
                told = republish(report=lambda _: keep()).subjects
                if told:  # a new Redis beside a new database has lost nothing
                    logger.warning("Redis did not hold the overrides; those of %d subjects are back.", told)
    _Looking.again = 0.0


def _are_migrated() -> bool:
    """Say whether the tables are there; log it once where they are not."""
    wanted = {model._meta.db_table for model in (QuotaOverride, OverrideOutbox)}  # noqa: SLF001 — Django's public API
    is_there = wanted <= set(connections[write_database()].introspection.table_names())
    if not is_there and not _Looking.has_missed_tables:
        _Looking.has_missed_tables = True
        logger.warning("The tables of django_quota are not there, so no override holds: `migrate` makes them.")
    return is_there


class _Looking:
    """When this process looks for lost overrides again, by `time.monotonic`, and whether it has missed the tables."""

    again = 0.0
    has_missed_tables = False
