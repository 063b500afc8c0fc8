"""The roll-up: what Redis has counted on each day is carried to the rows of `DailyCounter`, exactly.

A batch is one transaction. It locks its rows, and only then reads what Redis has counted: so of two that carry the same
day the second one sees the row as the first has left it, and a count that is no smaller. The row notes what was carried
of which hash; what a roll-up adds is the difference. Killed at any instant, it has either carried a batch or nothing of
it, and the next one comes to the same totals.

It must not know how the command shows itself, nor how Redis counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from django.db import connections, router, transaction
from django.db.models import Q, QuerySet

from django_quota.clock import SECOND
from django_quota.conf import current
from django_quota.models import DailyCounter, begin_writing
from django_quota.overrides import run_all
from django_quota.stores.redis import RedisStore
from django_quota.stores.walking import Walk
from django_quota.usage import Count, DayUsage, find, finished_before, read_all

CLOCKS_APART = 60 * SECOND
"""How far (microseconds) the clock of a Redis that begins anew may be behind that of the one before."""

BATCH = 500
"""Hashes that are carried in one transaction, unless told otherwise."""


class Place(NamedTuple):
    """What a row counts."""

    subject: str
    day: date
    rule: str


@dataclass(slots=True)
class Carried:
    """What a roll-up has done."""

    days: int = 0
    """Hashes that were looked at."""
    rows: int = 0
    """Rows that were added or changed."""
    allowed: int = 0
    refused: int = 0
    dropped: int = 0
    """Hashes of finished days that were dropped from Redis, carried to the last check."""

    def add(self, other: Carried) -> None:
        """Count what another one has done too."""
        self.days += other.days
        self.rows += other.rows
        self.allowed += other.allowed
        self.refused += other.refused
        self.dropped += other.dropped


def roll_up(store: RedisStore, batch: int = BATCH, using: str | None = None) -> Iterator[Carried]:
    """Carry all that Redis holds, batch by batch; yields what each has done, when it is committed.

    Finished days are dropped from Redis once they are carried. Raises `StoreUnavailable` where Redis does not answer
    (where it is a part of a Cluster, after all the rest), and Django's `DatabaseError`; what was carried before stays
    carried.
    """
    database = using or router.db_for_write(DailyCounter)
    yesterday = finished_before(store).isoformat()
    walk = Walk(store)
    for keys in find(store, current().prefix, batch):
        done = Carried()
        with walk.past():
            done = carry(store, keys, database)
            # A key ends with its day, and days in ISO form sort as they follow each other.
            done.dropped = _drop(store, [key for key in keys if key.rpartition(":")[2] < yesterday], database)
        yield done
    walk.end()


def carry(store: RedisStore, keys: Iterable[str], using: str) -> Carried:
    """Carry the counts under these keys, in one transaction, or in none where nothing has been counted since."""
    days = read_all(store, current().prefix, keys)
    done = Carried(days=len(days))
    known = {place_of(row): row for row in _rows_of(days, using)}
    moved = [day for day in days if _to_carry(day, known)]
    if not moved:
        return done
    with transaction.atomic(using=using):
        begin_writing(using)
        missing = sorted(place for day in moved for place in places_of(day) if place not in known)
        rows = [DailyCounter(subject=place.subject, rule=place.rule, day=place.day) for place in missing]
        DailyCounter.objects.using(using).bulk_create(rows, ignore_conflicts=True)
        locked = {place_of(row): row for row in _rows_of(moved, using).select_for_update().order_by("pk")}
        changed = {}
        for day in read_all(store, current().prefix, [day.key for day in moved]):
            for place, count in places_of(day).items():
                row = locked.get(place)  # a rule that was first checked just now waits for the next roll-up
                if row is not None and _is_to_carry(row, day.incarnation, count):
                    added = settle(row, day.incarnation, count)
                    done.allowed += added.allowed
                    done.refused += added.refused
                    changed[place] = row
        _save(changed.values(), using)
    done.rows = len(changed)
    return done


def settle(row: DailyCounter, incarnation: int, count: Count) -> Count:
    """Add to a row what a hash of this incarnation has counted since it was carried last; return that."""
    added = uncarried(row, incarnation, count)
    row.allowed += added.allowed
    row.refused += added.refused
    row.incarnation, (row.carried_allowed, row.carried_refused) = incarnation, count
    return added


def uncarried(row: DailyCounter, incarnation: int, count: Count) -> Count:
    """Return what a hash of this incarnation has counted that the row does not have yet.

    A hash that the row does not know was begun by a Redis without memory: all of it is new. One that counts less than
    was carried, or is older than the one carried last, comes from a Redis that has lost a part of its memory, or got an
    old one back: what it holds has been carried before, and only what it counts from here on is new. One that is older
    by seconds only is new: the clock by which it was begun is behind the one before.
    """
    if incarnation == row.incarnation:
        return Count(max(0, count.allowed - row.carried_allowed), max(0, count.refused - row.carried_refused))
    return count if incarnation > row.incarnation - CLOCKS_APART else Count()


def place_of(row: DailyCounter) -> Place:
    """Return what a row counts."""
    return Place(row.subject, row.day, row.rule)


def places_of(day: DayUsage) -> dict[Place, Count]:
    """Return the counts of a day by the rows that they belong to."""
    return {Place(day.subject, day.day, rule): count for rule, count in day.counts.items()}


def _is_to_carry(row: DailyCounter, incarnation: int, count: Count) -> bool:
    return (row.incarnation, row.carried_allowed, row.carried_refused) != (incarnation, *count)


def _to_carry(day: DayUsage, known: Mapping[Place, DailyCounter]) -> bool:
    return any(
        place not in known or _is_to_carry(known[place], day.incarnation, count)
        for place, count in places_of(day).items()
    )


def _rows_of(days: Iterable[DayUsage], using: str) -> QuerySet[DailyCounter]:
    subjects: dict[date, list[str]] = defaultdict(list)
    for day in days:
        subjects[day.day].append(day.subject)
    wanted = Q(pk__in=[])
    for when, names in subjects.items():
        wanted |= Q(day=when, subject__in=names)
    return DailyCounter.objects.using(using).filter(wanted)


def _save(rows: Collection[DailyCounter], using: str) -> None:
    """Save rows that exist. As an upsert: `bulk_update` takes ten times as long."""
    has_target = connections[using].features.supports_update_conflicts_with_target  # MySQL takes none
    DailyCounter.objects.using(using).bulk_create(
        rows,
        update_conflicts=True,
        update_fields=["allowed", "refused", "incarnation", "carried_allowed", "carried_refused"],
        unique_fields=["pk"] if has_target else None,
    )


def _drop(store: RedisStore, keys: Iterable[str], using: str) -> int:
    """Drop those of these days that are carried to the last check; return how many that were."""
    days = read_all(store, current().prefix, keys)
    known = {place_of(row): row for row in _rows_of(days, using)}
    return sum(run_all(store, [day.dropping for day in days if not _to_carry(day, known)], None))
