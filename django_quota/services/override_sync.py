"""Publishes overrides from the database to Redis: when they change, and when Redis has lost some.

A change notes its subject in the outbox, in its own transaction. After the commit, the overrides of the subjects in the
outbox are published: read the rows, send them to Redis, and read the rows again until they have not changed meanwhile.
So the last publisher has sent what the rows say, however many publish at the same time, and nobody waits for a lock.
Then a marker in Redis is raised to the next generation, and the database notes that generation.

Redis holds all overrides if the outbox is empty and the marker shows the generation in the database, or a later one.
While processes serve requests, the flusher of one of them checks this every `overrides.LOCK_TTL` seconds and publishes
what is missing. The reason does not matter: Redis was away, the process that saved or published was killed, Redis was
emptied, restored from an old snapshot, or replaced by a replica that lagged. `quota_rollup` and `quota_sweep` check it
too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Length
from django.db.models.signals import post_delete, post_save, pre_save
from django.utils import timezone

from django_quota.conf import current
from django_quota.core.clock import frozen_now, microseconds_of
from django_quota.core.errors import (
    QuotaError,
    RateError,
    StorePermissionDenied,
    StoreRefusesWrites,
    StoreUnavailable,
)
from django_quota.core.keys import pattern, read
from django_quota.core.rates import parse_rates
from django_quota.models import OverrideGeneration, OverrideOutbox, QuotaOverride, begin_writing, overrides_changed
from django_quota.services import overrides
from django_quota.services.flusher import flusher
from django_quota.services.overrides import (
    Marking,
    Override,
    publication,
    run_all,
    status_key,
    take_lock,
    with_overrides,
)
from django_quota.services.registry import get_limiter
from django_quota.services.scanning import Walk, find_hashes
from django_quota.stores.redis.store import RedisStore

logger = logging.getLogger("django_quota")

BATCH_SIZE = 500
"""Subjects that one round trip publishes."""

END_TOLERANCE = timedelta(hours=1)
"""How long after its end an override is still published, because Redis' clock decides whether it has ended."""

ATTEMPTS = 2
"""How often one check tries to reach Redis."""

NO_DATABASE = "unknown"
"""The vendor of a database that `DATABASES` does not name, as Django calls it."""

DISPATCH_UID = "django_quota.services.override_sync"
"""The id of our signal receivers."""

_SHORTEST_DIGESTED = 16
"""The least length of a subject whose key holds a digest: escaping makes a character up to twelve long."""

Report = Callable[[int], object]
"""Called with the number of subjects just published; 0 during the search for subjects without rows."""


class Republished(NamedTuple):
    """What was published."""

    subjects: int
    """How many subjects have overrides."""
    withdrawn: int
    """How many subjects had overrides in Redis that have no row any more."""


# --- saving one -------------------------------------------------------------------------------------------------------


def set_override(subject: str, rule: str, values: Mapping[str, Any], *, may_replace: bool = True) -> QuotaOverride:
    """Save the override of a subject and a rule, in place of the one that they have.

    `may_replace`: if False, an override that is there already stays, and `IntegrityError` is raised. Raises
    `ValidationError` for a wrong value.
    """
    database = write_database()
    row = QuotaOverride(subject=subject, rule=rule, **values)
    row.full_clean(validate_unique=False, validate_constraints=False)  # `clean` checks the values
    with transaction.atomic(using=database):
        begin_writing(database)
        if may_replace:
            row, _ = QuotaOverride.objects.using(database).update_or_create(
                subject=row.subject, rule=rule, defaults=values
            )
        else:
            row.save(using=database, force_insert=True)
    return row


# --- when they change -------------------------------------------------------------------------------------------------


def connect() -> None:
    """Publish all changes from now on, and have the flusher check that Redis holds all overrides."""
    for model in apps.get_models():
        if issubclass(model, QuotaOverride):  # a proxy model sends signals of its own
            pre_save.connect(_before_save, model, dispatch_uid=DISPATCH_UID)
            post_save.connect(_changed, model, dispatch_uid=DISPATCH_UID)
            post_delete.connect(_changed, model, dispatch_uid=DISPATCH_UID)
    overrides_changed.connect(_note, dispatch_uid=DISPATCH_UID)
    flusher.add(watch)


def _before_save(instance: QuotaOverride, using: str, **_: Any) -> None:
    """Note the previous subject of a row whose subject changes."""
    if instance.pk is not None:
        rows = QuotaOverride.objects.using(using).filter(pk=instance.pk).exclude(subject=instance.subject)
        _note(set(rows.values_list("subject", flat=True)), using)


def _changed(instance: QuotaOverride, using: str, **_: Any) -> None:
    _note({instance.subject}, using)


def _note(subjects: Collection[str], using: str, **_: Any) -> None:
    """Note that the overrides of subjects have changed, and publish them after the commit.

    Only rows of the database that overrides are written to count: other databases hold copies.
    """
    if subjects and using == write_database():
        notes = [OverrideOutbox(subject=subject) for subject in sorted(subjects)]
        OverrideOutbox.objects.using(using).bulk_create(notes, batch_size=BATCH_SIZE)
        transaction.on_commit(partial(_publish_committed, using), using=using)


def _publish_committed(using: str) -> None:
    if not current().enabled:
        return
    try:
        publish_pending(using)
    except (QuotaError, DatabaseError) as error:
        logger.error(  # noqa: TRY400 — to be expected while Redis is away
            "Overrides were saved, but not published: %s. They wait in the database until the next try.",
            str(error).rstrip("."),
        )


# --- when Redis has lost some -----------------------------------------------------------------------------------------


class OverrideWatch:
    """Checks that Redis holds all overrides, and publishes what is missing. A job of the flusher."""

    purpose = "check that Redis holds the overrides"
    at_exit = False

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._has_tables = False
        self._has_missed_tables = False
        self._is_failing = False
        """Whether the last check failed, which is logged once."""

    def flush(self) -> None:
        """Start a check in a thread of its own, because it may take long.

        A problem is logged once, and the next check tries again.
        """
        if self._thread is not None and self._thread.is_alive():
            flusher.wake()
            return
        store, settings = get_limiter().store, current()
        if not settings.enabled or not isinstance(store, RedisStore) or _is_in_memory(write_database()):
            return  # there is nothing to check
        try:
            if not take_lock(store, settings.prefix):
                # The process with the lock may have checked before Redis lost something: check again in the next round.
                flusher.wake()
                return
        except StorePermissionDenied:
            raise
        except StoreUnavailable:
            return  # an outage, which is reported elsewhere
        keep_lock = partial(take_lock, store, settings.prefix, again=True)
        self._thread = threading.Thread(target=self._run, args=(keep_lock,), name="django-quota-overrides", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has finished its check."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, keep_lock: Callable[[], object]) -> None:
        try:
            self._check(keep_lock)
        finally:
            connections.close_all()

    def _check(self, keep_lock: Callable[[], object]) -> None:
        problem: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                database = write_database()
                if self._are_migrated(database):
                    catch_up(database, lambda _: keep_lock())
            except StoreUnavailable as error:  # a failover may have cut this connection: try the next one
                problem = error
            except (QuotaError, DatabaseError) as error:
                problem = error
                break
            else:
                self._is_failing = False
                return
        if not self._is_failing and not isinstance(problem, StoreRefusesWrites):  # which is reported elsewhere
            self._is_failing = True
            logger.error(
                "Overrides may be missing in Redis, and cannot be published: %s. The next check tries again.",
                str(problem).rstrip("."),
            )

    def _are_migrated(self, database: str) -> bool:
        """Return whether the tables are there; log it once if they are not, though there is a database."""
        self._has_tables = self._has_tables or has_tables(database)
        if not self._has_tables and not self._has_missed_tables and connections[database].vendor != NO_DATABASE:
            self._has_missed_tables = True
            logger.warning("No override applies: the tables of django_quota are missing. Run `migrate` to create them.")
        return self._has_tables


watch = OverrideWatch()
"""The watch of this process."""


class CaughtUp(NamedTuple):
    """What was missing in Redis and was published."""

    changes: int = 0
    """Changes that waited in the outbox."""
    subjects: int | None = None
    """How many subjects have overrides, if Redis had lost some and got all of them again; else None."""


def catch_up(using: str, report: Report = lambda _: None) -> CaughtUp:
    """Publish what the outbox holds, and all overrides if Redis has lost some; log what was published.

    Raises `StoreUnavailable` if Redis does not answer.
    """
    changes = publish_pending(using) if count_pending(using, 1) else 0
    if changes:
        # No warning: the process that saved them may be publishing them right now.
        logger.info("Changed overrides had waited in the database, and are published now: %d of them.", changes)
    store, prefix = get_limiter().store, current().prefix
    # Read the database first, because the marker is raised before the database notes it.
    if not isinstance(store, RedisStore) or overrides.is_marked(store, prefix, _noted_generation(using)):
        return CaughtUp(changes)
    subjects = republish(using, report).subjects
    if subjects:  # with a new database, a new Redis has lost nothing
        what = "subject" if subjects == 1 else "subjects"
        logger.warning("Redis did not hold the overrides; those of %d %s are published again.", subjects, what)
    return CaughtUp(changes, subjects)


def _is_in_memory(using: str) -> bool:
    """Return whether a database is in this process's memory, where no other process can have written."""
    connection: Any = connections[using]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


# --- the generation ---------------------------------------------------------------------------------------------------


def _noted_generation(using: str) -> int:
    """Return the generation that was published last; 0 if there is none."""
    return OverrideGeneration.objects.using(using).values_list("number", flat=True).first() or 0


def _note_generation(using: str, number: int) -> None:
    """Note the generation that was published, unless a later one is noted."""
    rows = OverrideGeneration.objects.using(using)
    if not rows.filter(pk=1, number__lt=number).update(number=number):
        rows.get_or_create(pk=1, defaults={"number": number})


def _raise_generation(least: int) -> int:
    """Raise the marker after a publication; return the generation, or 0 if Redis has lost overrides.

    Then the marker stays as it is, so that the next check notices the loss and publishes all overrides.
    """
    store = get_limiter().store
    return overrides.raise_generation(store, current().prefix, least) if isinstance(store, RedisStore) else 0


# --- some subjects ----------------------------------------------------------------------------------------------------


def publish(subjects: Collection[str], using: str) -> None:
    """Make Redis hold what the rows of these subjects say, at most `BATCH_SIZE` of them.

    Raises `StoreUnavailable` if Redis does not answer.
    """
    limiter, prefix = get_limiter(), current().prefix
    wanted = _overrides_of(subjects, using)
    while wanted:
        operations = [publication(status_key(prefix, name), rules) for name, rules in wanted.items()]
        try:
            run_all(limiter.store, operations, frozen_now())
        finally:
            limiter.refusals.forget(wanted)
        found = _overrides_of(wanted, using)
        wanted = {subject: found[subject] for subject, rules in wanted.items() if found[subject] != rules}


def publish_pending(using: str) -> int:
    """Publish what the outbox holds; return how many changes that were.

    Raises `StoreUnavailable` if Redis does not answer; if a part of a Cluster does not, after all other servers.
    """
    walk, outbox = Walk(get_limiter().store), OverrideOutbox.objects.using(using).order_by("pk")
    published = last = 0
    while notes := dict(outbox.filter(pk__gt=last).values_list("pk", "subject")[:BATCH_SIZE]):
        last, least, done = max(notes), _noted_generation(using), set[str]()
        for subjects in _by_server(set(notes.values())):
            with walk.past():
                publish(subjects, using)
                done.update(subjects)
        raised = 0
        with walk.past():
            raised = _raise_generation(least)
        with transaction.atomic(using=using):
            if raised:
                _note_generation(using, raised)
            published += outbox.filter(pk__in=[pk for pk in notes if notes[pk] in done]).delete()[0]
    walk.end()
    return published


def _by_server(subjects: Collection[str]) -> list[list[str]]:
    """Group subjects by the server that holds their overrides."""
    store, prefix = get_limiter().store, current().prefix
    if not isinstance(store, RedisStore):
        return [list(subjects)]
    named = {status_key(prefix, subject): subject for subject in subjects}
    return [[named[key] for key in keys] for keys in store.by_server(named).values()]


def count_pending(using: str, most: int | None = None) -> int:
    """Return how many saved changes are not published yet; it counts up to `most`."""
    return OverrideOutbox.objects.using(using).order_by()[:most].count()


class PendingOverrides(NamedTuple):
    """How far Redis lags behind the saved overrides."""

    changes: int
    """How many changes are saved and not yet in Redis."""
    lag: float
    """For how many seconds the oldest of them has waited."""


def pending_overrides() -> PendingOverrides | None:
    """Return how far Redis lags behind the saved overrides; None without a database. Raises `DatabaseError`."""
    database = write_database()
    if not has_tables(database):
        return None
    oldest = OverrideOutbox.objects.using(database).order_by("noted").values_list("noted", flat=True).first()
    lag = 0.0 if oldest is None else max(0.0, (datetime.now(UTC) - oldest).total_seconds())
    return PendingOverrides(count_pending(database), lag)


def has_tables(using: str) -> bool:
    """Return whether the tables of overrides are there; a site without a database has none."""
    wanted = {model._meta.db_table for model in (QuotaOverride, OverrideOutbox, OverrideGeneration)}  # noqa: SLF001 — Django's public API
    try:
        return wanted <= set(connections[using].introspection.table_names())
    except ImproperlyConfigured:
        return False


def are_pending(subjects: Collection[str], using: str) -> bool:
    """Return whether saved overrides of any of these subjects are not published yet."""
    names = sorted(subjects)
    batches = (names[first : first + BATCH_SIZE] for first in range(0, len(names), BATCH_SIZE))
    return any(OverrideOutbox.objects.using(using).filter(subject__in=some).exists() for some in batches)


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
    return rows.filter(Q(expires__isnull=True) | Q(expires__gt=timezone.now() - END_TOLERANCE))


def as_published(row: QuotaOverride) -> Override | None:
    """Return an override as it is published; None for a wrong rate, which was saved without the model."""
    rates = ""
    if row.mode == QuotaOverride.Mode.RATE:
        try:
            rates = "; ".join(map(str, parse_rates(row.rate)))
        except RateError:
            logger.exception("The override %r cannot be published.", str(row))
            return None
    # 0 means that there is no such time.
    begins = 0 if row.starts is None else max(0, _microseconds(row.starts))
    ends = 0 if row.expires is None else max(1, _microseconds(row.expires))
    return Override(cast("overrides.Mode", row.mode), begins, ends, rates)


def _microseconds(moment: datetime) -> int:
    aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return microseconds_of(aware)


# --- all of them ------------------------------------------------------------------------------------------------------


def republish(using: str, report: Report = lambda _: None) -> Republished:
    """Publish all overrides, blocks first, withdraw those without a row, and mark Redis as complete.

    You may repeat it at any time, also in several processes at once. Raises `StoreUnavailable` if Redis does not
    answer; if a part of a Cluster does not, after all other servers.
    """
    prefix, store = current().prefix, cast("RedisStore", get_limiter().store)
    walk, marking = Walk(store), Marking(store, prefix)
    with walk.past():
        marking.begin()
    subjects = _publish_rows(using, report, walk, marking)
    withdrawn = _withdraw_orphans(store, prefix, using, walk, marking, report)
    walk.end()  # a server that did not answer is not marked as complete
    # A new generation, because SQL may have changed rows: an older Redis of the same one would lack them.
    generation = marking.finish(_noted_generation(using))
    raised = generation and _raise_generation(generation)
    if not raised:
        raise StoreUnavailable("it lost its memory while overrides were published. Try again")
    _note_generation(using, raised)
    publish_pending(using)
    return Republished(subjects, withdrawn)


def write_database() -> str:
    """Return the database that overrides are written to. It is read from too, because a replica may lag."""
    return router.db_for_write(QuotaOverride)


def count_subjects(using: str) -> int:
    """Return how many subjects `republish` will report."""
    return _not_ended(using).values("subject").distinct().count()


def _publish_rows(using: str, report: Report, walk: Walk, marking: Marking) -> int:
    published, prefix, rows = 0, current().prefix, _not_ended(using)
    blocking = rows.filter(mode=QuotaOverride.Mode.BLOCKED)
    for batch in chain(_subjects(blocking), _subjects(rows.exclude(subject__in=blocking.values("subject")))):
        for subjects in _by_server(batch):
            with walk.past():
                publish(subjects, using)
                marking.count(status_key(prefix, subjects[0]))
                published += len(subjects)
        report(len(batch))
    return published


def _subjects(rows: QuerySet[QuotaOverride]) -> Iterator[list[str]]:
    """Yield the subjects of rows, `BATCH_SIZE` at a time, without an open cursor in between."""
    names = rows.order_by("subject").values_list("subject", flat=True).distinct()
    subjects = list(names[:BATCH_SIZE])
    while subjects:
        yield subjects
        subjects = list(names.filter(subject__gt=subjects[-1])[:BATCH_SIZE])


def _withdraw_orphans(store: RedisStore, prefix: str, using: str, walk: Walk, marking: Marking, report: Report) -> int:
    """Withdraw overrides without a row; return of how many subjects."""
    withdrawn = 0
    with walk.past():
        for keys in find_hashes(store, f"{pattern(prefix)}}}:s", BATCH_SIZE):
            with walk.past():
                if found := _withdraw(store, prefix, using, with_overrides(store, keys)):
                    marking.count(keys[0])
                    withdrawn += found
            report(0)
    return withdrawn


def _withdraw(store: RedisStore, prefix: str, using: str, keys: Collection[str]) -> int:
    ours = {key: parts.subject for key in keys if (parts := read(prefix, key)) is not None}
    named = set(filter(None, ours.values()))
    orphans = named - set(_not_ended(using).filter(subject__in=named).values_list("subject", flat=True))
    publish(orphans, using)
    digested = {key for key, subject in ours.items() if subject is None}  # of a subject that is too long for a key
    gone = digested - (_digested_keys(prefix, using).keys() if digested else set())
    if gone:
        run_all(store, [publication(key, {}) for key in gone], frozen_now())
        get_limiter().refusals.forget()
        # Some may have been saved while they were withdrawn.
        publish([subject for key, subject in _digested_keys(prefix, using).items() if key in gone], using)
    return len(orphans) + len(gone)


def _digested_keys(prefix: str, using: str) -> dict[str, str]:
    rows = _not_ended(using).alias(length=Length("subject")).filter(length__gte=_SHORTEST_DIGESTED)
    return {status_key(prefix, name): name for name in rows.values_list("subject", flat=True)}
