"""The roll-up: copies the counts of each day from Redis to `DailyCounter` rows, exactly.

Each batch is one transaction. It locks its rows first and reads Redis then. So of two roll-ups of one day, the second
sees the row as the first has left it, and a count that is no smaller. A row notes what was copied from which hash, and
a roll-up adds the difference. A roll-up that is killed has copied a batch completely or not at all, and the next one
comes to the same totals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from django.db import connections, router, transaction
from django.db.models import Q, QuerySet

from django_quota.conf import current
from django_quota.core.clock import SECOND
from django_quota.models import DailyCounter, begin_writing
from django_quota.services.overrides import run_all
from django_quota.services.scanning import Walk
from django_quota.services.usage import Count, DayUsage, find, finished_before, read_all
from django_quota.stores.redis.store import RedisStore

MAX_CLOCK_SKEW = 60 * SECOND
"""How far the clock of a new Redis may be behind that of the one before, in microseconds."""

BATCH_SIZE = 500
"""Hashes that one transaction copies by default."""


class RowKey(NamedTuple):
    """What a row counts: it has one row for each."""

    subject: str
    day: date
    rule: str


@dataclass(slots=True)
class RollupResult:
    """What a roll-up has done."""

    days: int = 0
    """Hashes that were looked at."""
    rows: int = 0
    """Rows that were added or changed."""
    allowed: int = 0
    refused: int = 0
    dropped: int = 0
    """Hashes of finished days that were dropped from Redis after their last check was copied."""

    def add(self, other: RollupResult) -> None:
        """Add what another batch has done."""
        self.days += other.days
        self.rows += other.rows
        self.allowed += other.allowed
        self.refused += other.refused
        self.dropped += other.dropped


def roll_up(store: RedisStore, batch: int = BATCH_SIZE, using: str | None = None) -> Iterator[RollupResult]:
    """Copy all counts of Redis, batch by batch; yield what each batch has done, after its commit.

    Finished days are dropped from Redis once they are copied. Raises `StoreUnavailable` if Redis does not answer
    (if a part of a Cluster does not, after all other servers), and Django's `DatabaseError`. Batches before the
    error stay copied.
    """
    database = using or router.db_for_write(DailyCounter)
    yesterday = finished_before(store).isoformat()
    walk = Walk(store)
    for keys in find(store, current().prefix, batch):
        done = RollupResult()
        with walk.past():
            done = copy_counts(store, keys, database)
            # A key ends with its day, and days in ISO form sort by time.
            done.dropped = _drop(store, [key for key in keys if key.rpartition(":")[2] < yesterday], database)
        yield done
    walk.end()


def copy_counts(store: RedisStore, keys: Iterable[str], using: str) -> RollupResult:
    """Copy the counts of these keys in one transaction, or in none if there is nothing new."""
    days = read_all(store, current().prefix, keys)
    done = RollupResult(days=len(days))
    known = {key_of_row(row): row for row in _rows_of(days, using)}
    moved = [day for day in days if _has_news(day, known)]
    if not moved:
        return done
    with transaction.atomic(using=using):
        begin_writing(using)
        missing = sorted(key for day in moved for key in counts_by_row(day) if key not in known)
        rows = [DailyCounter(subject=key.subject, rule=key.rule, day=key.day) for key in missing]
        DailyCounter.objects.using(using).bulk_create(rows, ignore_conflicts=True)
        locked = {key_of_row(row): row for row in _rows_of(moved, using).select_for_update().order_by("pk")}
        changed = {}
        for day in read_all(store, current().prefix, [day.key for day in moved]):
            for key, count in counts_by_row(day).items():
                row = locked.get(key)  # None: a rule that was first checked just now, which the next roll-up copies
                if row is not None and _is_new(row, day.incarnation, count):
                    added = settle(row, day.incarnation, count)
                    done.allowed += added.allowed
                    done.refused += added.refused
                    changed[key] = row
        _save(changed.values(), using)
    done.rows = len(changed)
    return done


def settle(row: DailyCounter, incarnation: int, count: Count) -> Count:
    """Add to a row what a hash of this incarnation has counted since it was last copied; return that."""
    added = uncopied(row, incarnation, count)
    row.allowed += added.allowed
    row.refused += added.refused
    row.incarnation, (row.copied_allowed, row.copied_refused) = incarnation, count
    return added


def uncopied(row: DailyCounter, incarnation: int, count: Count) -> Count:
    """Return what a hash of this incarnation has counted and the row does not have yet.

    A later incarnation was started by a Redis without memory, so all of it is new. A hash that counts less than was
    copied, or has an earlier incarnation, comes from a Redis that lost a part of its memory or was restored from an old
    snapshot: its counts were copied before, and only later ones are new. An incarnation that is earlier by seconds only
    is new too: the clock of that Redis is behind.
    """
    if incarnation == row.incarnation:
        return Count(max(0, count.allowed - row.copied_allowed), max(0, count.refused - row.copied_refused))
    return count if incarnation > row.incarnation - MAX_CLOCK_SKEW else Count()


def key_of_row(row: DailyCounter) -> RowKey:
    """Return what a row counts."""
    return RowKey(row.subject, row.day, row.rule)


def counts_by_row(day: DayUsage) -> dict[RowKey, Count]:
    """Return the counts of a day by row."""
    return {RowKey(day.subject, day.day, rule): count for rule, count in day.counts.items()}


def _is_new(row: DailyCounter, incarnation: int, count: Count) -> bool:
    return (row.incarnation, row.copied_allowed, row.copied_refused) != (incarnation, *count)


def _has_news(day: DayUsage, known: Mapping[RowKey, DailyCounter]) -> bool:
    return any(
        key not in known or _is_new(known[key], day.incarnation, count) for key, count in counts_by_row(day).items()
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
    """Save rows that exist. It is an upsert, because `bulk_update` takes ten times as long."""
    has_target = connections[using].features.supports_update_conflicts_with_target  # MySQL takes none
    DailyCounter.objects.using(using).bulk_create(
        rows,
        update_conflicts=True,
        update_fields=["allowed", "refused", "incarnation", "copied_allowed", "copied_refused"],
        unique_fields=["pk"] if has_target else None,
    )


def _drop(store: RedisStore, keys: Iterable[str], using: str) -> int:
    """Drop those of these days whose last check was copied; return how many."""
    days = read_all(store, current().prefix, keys)
    known = {key_of_row(row): row for row in _rows_of(days, using)}
    return sum(run_all(store, [day.dropping for day in days if not _has_news(day, known)], None))
