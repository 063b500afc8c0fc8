"""From the tables to Redis: some overrides, what the outbox holds, or all of them.

Publishing is: read the rows of some subjects, tell Redis, and read them again, until they have not changed meanwhile.
So whoever publishes last has told Redis what the rows say, however many do it at once; nobody waits for anybody.

When it is done by itself stands in `republishing`. It must not know how overrides are written in Redis, nor how they
are decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.models import Q, QuerySet
from django.db.models.functions import Length
from django.utils import timezone

from django_quota import overrides
from django_quota.clock import frozen_now
from django_quota.conf import current
from django_quota.exceptions import ConfigurationError, RateError
from django_quota.keys import read
from django_quota.limiter import get_limiter
from django_quota.models import OverrideOutbox, QuotaOverride
from django_quota.overrides import Override, holders, publication, run_all, standing_key
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
        last = max(notes)
        for subjects in _by_server(set(notes.values())):
            with walk.past():
                publish(subjects, using)
                published += outbox.filter(pk__in=[pk for pk in notes if notes[pk] in subjects]).delete()[0]
    return published


def _by_server(subjects: Collection[str]) -> list[set[str]]:
    """Tell subjects apart by the server that holds what is said of them."""
    store, prefix = get_limiter().store, current().prefix
    if not isinstance(store, RedisStore):
        return [set(subjects)]
    named = {standing_key(prefix, subject): subject for subject in subjects}
    return [{named[key] for key in keys} for keys in store.by_server(named).values()]


def how_many_wait(using: str, most: int | None = None) -> int:
    """Return how many changes of overrides were saved that Redis has not been told of; it counts up to `most`."""
    return OverrideOutbox.objects.using(using).order_by()[:most].count()


def has_tables(using: str) -> bool:
    """Say whether the tables of overrides are there; a site without a database has none."""
    wanted = {model._meta.db_table for model in (QuotaOverride, OverrideOutbox)}  # noqa: SLF001 — Django's public API
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
        return Republished(_publish_rows(database, report, Walk(store)), 0)
    for _ in range(MOST_LOSSES):
        walk, begun = Walk(store), ""
        with walk.past():
            begun = overrides.begin_marking(store, prefix)
            _publish_pending(database, walk)
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
