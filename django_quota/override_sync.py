"""Overrides on their way from the tables to Redis: when they change, and when Redis does not hold what it should.

A change notes its subject in the outbox within its own transaction, and what the outbox holds is published once that is
committed. Publishing is: read the rows of some subjects, tell Redis, and read them again, until they have not changed
meanwhile. So whoever publishes last has told Redis what the rows say, however many do it at once; nobody waits for
anybody. Behind what was published a marker in Redis is raised to the next generation, and the database notes which.

So Redis holds all overrides where the outbox is empty and the marker shows the generation that the database knows, or
a later one. While processes serve requests, one of them looks every `overrides.TURN`, in the background, and publishes
what is missing. It does not matter why it is: Redis was away, the process that saved or published it was killed, Redis
was emptied, restarted from an old snapshot, or replaced by a replica that lagged. `quota_rollup` and `quota_sweep` look
as well.

It must not know how overrides are written in Redis, nor how they are decided.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, cast

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Length
from django.db.models.signals import post_delete, post_save, pre_save
from django.utils import timezone

from django_quota import overrides
from django_quota.background import in_background
from django_quota.clock import frozen_now
from django_quota.conf import current
from django_quota.exceptions import ConfigurationError, QuotaError, RateError, StoreUnavailable
from django_quota.keys import read
from django_quota.limiter import get_limiter
from django_quota.models import OverrideGeneration, OverrideOutbox, QuotaOverride, overrides_changed
from django_quota.overrides import Marking, Override, Turn, holders, publication, run_all, standing_key
from django_quota.rates import parse_rates
from django_quota.stores.redis import RedisStore
from django_quota.stores.walking import Walk

logger = logging.getLogger("django_quota")

BATCH = 500
"""Subjects that are published in one trip to Redis."""

LONG_AGO = timedelta(hours=1)
"""How long after its end an override is no longer looked at; up to then Redis' clock says whether it has ended."""

MOST_LOSSES = 3
"""How often in a row Redis may lose its memory while all is published, before it is left alone."""

LOOKING = "django-quota-overrides"
"""The name of the thread that looks whether Redis holds all overrides."""

QUIET_AFTER_FAILURE = 10.0
"""Seconds after which somebody looks again, where what is missing could not be published twice in a row."""

QUIET_WITHOUT_TABLES = 60.0
"""Seconds after which a process looks again, where there are no tables."""

NO_DATABASE = "unknown"
"""What Django calls the vendor of a database that `DATABASES` does not name."""

DISPATCH_UID = "django_quota.override_sync"
"""By what our receivers of signals are known."""

_SHORTEST_DIGESTED = 16
"""Characters that a subject has at least where a key holds its digest: one takes up to twelve there."""

Report = Callable[[int], None]
"""Is told how many more subjects were published; 0 while those without a row are looked for."""


class Republished(NamedTuple):
    """What was published."""

    subjects: int
    """How many subjects have overrides."""
    withdrawn: int
    """Of how many Redis held overrides that no row stands for any more."""


# --- when they change -------------------------------------------------------------------------------------------------


def connect() -> None:
    """Publish what changes from now on, and look whether Redis holds all of it."""
    for model in apps.get_models():
        if issubclass(model, QuotaOverride):  # signals of a proxy model go by its own name
            pre_save.connect(_before_save, model, dispatch_uid=DISPATCH_UID)
            post_save.connect(_changed, model, dispatch_uid=DISPATCH_UID)
            post_delete.connect(_changed, model, dispatch_uid=DISPATCH_UID)
    overrides_changed.connect(_many_changed, dispatch_uid=DISPATCH_UID)
    overrides.on_due = look_soon


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
    """Note that the overrides of subjects have changed, and publish them once that is committed.

    Only the database that overrides are written to counts: rows in another one are copies, and bind nobody.
    """
    if subjects and using == write_database():
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


# --- when Redis does not hold what it should --------------------------------------------------------------------------


class _Looking:
    """What this process knows of its looks."""

    again = 0.0
    """When it may look again, by `time.monotonic`."""
    has_tables = False
    """Whether it has found the tables."""
    has_missed_tables = False
    """Whether it has said that they are not there."""
    is_failing = False
    """Whether the last look failed, and that was said."""


def look_soon() -> None:
    """Look in the background whether Redis holds all overrides; return at once.

    Processes call it when they serve requests, and nobody has looked for a while.
    """
    if time.monotonic() >= _Looking.again and not _is_in_memory(write_database()):
        in_background(LOOKING, look)


def look() -> None:
    """Publish what is missing in Redis, unless another process looks, or has looked a moment ago.

    What goes wrong is logged once, and tried again.
    """
    settings = current()
    store = get_limiter().store
    if not settings.enabled or not isinstance(store, RedisStore):
        return
    try:
        database = write_database()
        if not _are_migrated(database):
            _Looking.again = time.monotonic() + QUIET_WITHOUT_TABLES
            return
        turn = Turn(store, settings.prefix)
        if not turn.take():
            return
        try:
            try:
                catch_up(database, lambda _: turn.keep())
            except StoreUnavailable:  # a failover has cut the connection, perhaps: the next one leads elsewhere
                catch_up(database, lambda _: turn.keep())
        except Exception:
            if _Looking.is_failing:  # in the pool there may be more connections that were cut
                with suppress(StoreUnavailable):
                    turn.rest(QUIET_AFTER_FAILURE)
            raise
    except (QuotaError, DatabaseError) as error:
        takes_nothing = isinstance(error, StoreUnavailable) and error.only_writes  # whoever counts tells of that
        if not _Looking.is_failing and not takes_nothing:
            _Looking.is_failing = True
            logger.error(  # noqa: TRY400 — to be expected while a server is away
                "Overrides may be missing in Redis, and cannot be published: %s. It is tried again.",
                str(error).rstrip("."),
            )
    else:
        _Looking.is_failing = False


class CaughtUp(NamedTuple):
    """What was missing in Redis, and was published."""

    changes: int = 0
    """Changes that waited in the outbox."""
    subjects: int | None = None
    """How many subjects have overrides, where Redis had lost some of those, and was told all; None: it had not."""


def catch_up(using: str, report: Report = lambda _: None) -> CaughtUp:
    """Publish what the outbox holds, and all overrides where Redis has lost some; log what that was.

    Raises `StoreUnavailable` where Redis does not answer.
    """
    changes = publish_pending(using) if how_many_wait(using, 1) else 0
    if changes:
        # No warning: whoever saved them may be publishing them at this moment.
        logger.info("Changed overrides had waited in the database, and were published: %d of them.", changes)
    store, prefix = get_limiter().store, current().prefix
    # The database first: the marker is raised before it is noted there.
    if not isinstance(store, RedisStore) or overrides.is_marked(store, prefix, _noted_generation(using)):
        return CaughtUp(changes)
    told = _publish_all(store, prefix, using, report).subjects
    if told:  # a new Redis beside a new database has lost nothing
        logger.warning("Redis did not hold the overrides; those of %d subjects are back.", told)
    return CaughtUp(changes, told)


def _is_in_memory(using: str) -> bool:
    """Say whether a database lies in this process's memory: no other process can have written there."""
    connection: Any = connections[using]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def _are_migrated(using: str) -> bool:
    """Say whether the tables are there; log it once where they are not, though there is a database."""
    _Looking.has_tables = _Looking.has_tables or has_tables(using)
    if not _Looking.has_tables and not _Looking.has_missed_tables and connections[using].vendor != NO_DATABASE:
        _Looking.has_missed_tables = True
        logger.warning("The tables of django_quota are not there, so no override holds: `migrate` makes them.")
    return _Looking.has_tables


# --- the generation ---------------------------------------------------------------------------------------------------


def _noted_generation(using: str) -> int:
    """Return the generation that Redis was told of last; 0 where there is none."""
    return OverrideGeneration.objects.using(using).values_list("number", flat=True).first() or 0


def _note_generation(using: str, number: int) -> None:
    """Note the generation that Redis was told of, unless a later one is noted."""
    rows = OverrideGeneration.objects.using(using)
    if not rows.filter(pk=1, number__lt=number).update(number=number):
        rows.get_or_create(pk=1, defaults={"number": number})


def _raise_generation(least: int) -> int:
    """Raise the marker behind what was published; return the generation, 0 where Redis has lost something.

    It is told all of them then, by whoever looks next: to raise the marker would hide what is lost.
    """
    store = get_limiter().store
    return overrides.raise_generation(store, current().prefix, least) if isinstance(store, RedisStore) else 0


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
    """Publish what the outbox holds; return how many changes that were.

    Raises `StoreUnavailable` where Redis does not answer, of a Cluster when all others were told.
    """
    walk = Walk(get_limiter().store)
    published = _publish_pending(using, walk)
    walk.end()
    return published


def _publish_pending(using: str, walk: Walk) -> int:
    outbox = OverrideOutbox.objects.using(using).order_by("pk")
    published = last = 0
    while notes := dict(outbox.filter(pk__gt=last).values_list("pk", "subject")[:BATCH]):
        last, least, told = max(notes), _noted_generation(using), set[str]()
        for subjects in _by_server(set(notes.values())):
            with walk.past():
                publish(subjects, using)
                told.update(subjects)
        raised = 0
        with walk.past():
            raised = _raise_generation(least)
        with transaction.atomic(using=using):
            if raised:
                _note_generation(using, raised)
            published += outbox.filter(pk__in=[pk for pk in notes if notes[pk] in told]).delete()[0]
    return published


def _by_server(subjects: Collection[str]) -> list[list[str]]:
    """Tell subjects apart by the server that holds what is said of them."""
    store, prefix = get_limiter().store, current().prefix
    if not isinstance(store, RedisStore):
        return [list(subjects)]
    named = {standing_key(prefix, subject): subject for subject in subjects}
    return [[named[key] for key in keys] for keys in store.by_server(named).values()]


def how_many_wait(using: str, most: int | None = None) -> int:
    """Return how many changes of overrides were saved that Redis has not been told of; it counts up to `most`."""
    return OverrideOutbox.objects.using(using).order_by()[:most].count()


def has_tables(using: str) -> bool:
    """Say whether the tables of overrides are there; a site without a database has none."""
    wanted = {model._meta.db_table for model in (QuotaOverride, OverrideOutbox, OverrideGeneration)}  # noqa: SLF001 — Django's public API
    try:
        return wanted <= set(connections[using].introspection.table_names())
    except ImproperlyConfigured:
        return False


def is_pending(subject: str, using: str) -> bool:
    """Say whether overrides of a subject were saved that Redis has not been told of."""
    return are_pending([subject], using)


def are_pending(subjects: Collection[str], using: str) -> bool:
    """Say whether overrides of any of these subjects were saved that Redis has not been told of."""
    names = sorted(subjects)
    batches = (names[first : first + BATCH] for first in range(0, len(names), BATCH))
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
        return Republished(_publish_rows(database, report, Walk(store), None), 0)
    done = _publish_all(store, prefix, database, report)
    # Rows may have been changed by SQL, so an older Redis of the same generation may lack some.
    if raised := _raise_generation(_noted_generation(database)):
        _note_generation(database, raised)
    return done


def _publish_all(store: RedisStore, prefix: str, using: str, report: Report) -> Republished:
    for _ in range(MOST_LOSSES):
        walk, marking = Walk(store), Marking(store, prefix)
        with walk.past():
            marking.begin()
            _publish_pending(using, walk)
        subjects = _publish_rows(using, report, walk, marking)
        withdrawn = _withdraw_orphans(store, prefix, using, walk, marking, report)
        walk.end()  # what a server has not been told is not marked as published
        if generation := marking.finish(_noted_generation(using)):
            _note_generation(using, generation)
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


def _publish_rows(using: str, report: Report, walk: Walk, marking: Marking | None) -> int:
    published, prefix = 0, current().prefix
    for rows in _blocking_first(using):
        for batch in _subjects(rows):
            for subjects in _by_server(batch):
                with walk.past():
                    publish(subjects, using)
                    if marking is not None:
                        marking.told(standing_key(prefix, subjects[0]))
                    published += len(subjects)
            report(len(batch))
    return published


def _subjects(rows: QuerySet[QuotaOverride]) -> Iterator[list[str]]:
    """Find the subjects of rows, `BATCH` at a time; no cursor stays open in between."""
    names = rows.order_by("subject").values_list("subject", flat=True).distinct()
    subjects = list(names[:BATCH])
    while subjects:
        yield subjects
        subjects = list(names.filter(subject__gt=subjects[-1])[:BATCH])


def _withdraw_orphans(store: RedisStore, prefix: str, using: str, walk: Walk, marking: Marking, report: Report) -> int:
    """Withdraw the overrides that no row stands for; return of how many subjects. A digest is looked up by its key."""
    withdrawn = 0
    with walk.past():
        for keys in holders(store, prefix, BATCH):
            with walk.past():
                if found := _withdraw(store, prefix, using, keys):
                    marking.told(keys[0])
                    withdrawn += found
            report(0)
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
