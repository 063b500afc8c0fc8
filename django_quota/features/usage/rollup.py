"""The roll-up: moves the counts of each day from the store to rows of `DailyCounter`, each exactly once.

A move sets the counts of a day aside under a token, adds them to their rows in one transaction, and deletes them. A row
keeps the token of the counts that were added last, and each token is larger than the one before. So the next move
finishes one that was killed: if the token of counts that were set aside is larger than the row's, it adds and deletes
them; if not, it only deletes them. Of two moves at the same time, the second waits for the rows that the first has
locked.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import Any

from django.db import DatabaseError, connections, router, transaction

from django_quota.conf import current
from django_quota.core.clock import frozen_now
from django_quota.core.errors import StoreDataError
from django_quota.features.usage.days import (
    ASIDE,
    Count,
    DayCounts,
    DropAside,
    ReadDays,
    RowKey,
    SetAside,
    SubjectDay,
    add_unmoved,
    find_days,
    total,
)
from django_quota.models import DailyCounter
from django_quota.stores.base import AskedAgain, Runner, Store, all_well, asked_once
from django_quota.stores.scanning import Patience, Walk

DAYS_AT_ONCE = 500
"""Hashes that one transaction moves by default."""


@dataclass(slots=True)
class RollupResult:
    """What a roll-up has done."""

    days: int = 0
    """Hashes that were moved."""
    rows: int = 0
    """Rows that were added or changed."""
    allowed: int = 0
    refused: int = 0
    units: int = 0
    foreign: list[str] = field(default_factory=list)
    """The keys of days that were left: they, or what is aside of them, hold data that we did not write."""

    def add(self, other: RollupResult) -> None:
        """Add what another batch has done."""
        for name in ("days", "rows", "allowed", "refused", "units"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.foreign = list(dict.fromkeys(self.foreign + other.foreign))  # a page of keys may have a day again


def roll_up(
    store: Store,
    batch: int = DAYS_AT_ONCE,
    using: str | None = None,
    stop: threading.Event | None = None,
    prefix: str | None = None,
) -> Iterator[RollupResult]:
    """Move all counts of the store, batch by batch; yield what each batch has done. `prefix`: that of its keys.

    A day with data of another program is left, and named. A call without an answer is repeated, for some seconds or
    until `stop` is set. Without an answer then, it raises `StoreUnavailable`; in a Cluster, after it has moved the
    counts of the servers that answer. It also raises Django's `DatabaseError`. Batches before the error stay moved.
    """
    walk, patience = Walk(store), Patience(stop)
    for days in find_days(store, prefix or current().prefix, batch, patience):
        done = RollupResult()
        with walk.part():
            done = move(store, days, using, patience)
        yield done
    walk.end()


def preview(
    store: Store,
    batch: int = DAYS_AT_ONCE,
    using: str | None = None,
    stop: threading.Event | None = None,
    prefix: str | None = None,
) -> Iterator[RollupResult]:
    """Yield what each batch of a roll-up would move, and change nothing. Raises what `roll_up` raises."""
    walk, patience = Walk(store), Patience(stop)
    database = using or router.db_for_write(DailyCounter)
    for days in find_days(store, prefix or current().prefix, batch, patience):
        done = RollupResult()
        with walk.part():
            done = patience(partial(_counted_now, store, days, database))
        yield done
    walk.end()


def _counted_now(store: Runner, days: Collection[SubjectDay], using: str) -> RollupResult:
    """Return what moving these days would add."""
    replies = store.try_all([ReadDays([day.key + ASIDE, day.key]) for day in days], frozen_now())
    wanted = {"subject__in": {day.subject for day in days}, "day__in": {day.day for day in days}}
    tokens = {RowKey.of(row): row.token for row in DailyCounter.objects.using(using).filter(**wanted)}
    done = RollupResult()
    for day, hashes in _readable(days, replies, done):
        new: dict[RowKey, Count] = {}
        add_unmoved(new, [DayCounts.read(day, flat) for flat in hashes], tokens)
        if new:
            done.add(RollupResult(1, len(new), *total(new.values())))
    return done


def move(
    store: Runner, days: Collection[SubjectDay], using: str | None = None, asked: AskedAgain = asked_once
) -> RollupResult:
    """Move the counts of these days to their rows; return what was added. Raises what `roll_up` raises.

    In a transaction of the caller, the counts are deleted from the store after the commit.
    """
    database = using or router.db_for_write(DailyCounter)
    done, made = RollupResult(), list[RowKey]()
    while days:
        missing, more = asked(partial(_move, store, days, database, done, asked))
        if missing and missing == made:
            raise DatabaseError(
                f"The database confuses the row of {missing[0].subject!r} and {missing[0].rule!r} with another one. "
                "Give the columns subject and rule a collation that compares bytes, such as utf8mb4_bin."
            )
        if missing:  # they are added while nothing is locked, so that two moves never wait for each other
            rows = [DailyCounter(subject=place.subject, rule=place.rule, day=place.day) for place in missing]
            DailyCounter.objects.using(database).bulk_create(rows, ignore_conflicts=True)
        else:  # a day has more if the counts that a killed move had set aside were moved first
            days = [] if connections[database].in_atomic_block else more
        made = missing
    return done


def _move(
    store: Runner, days: Collection[SubjectDay], using: str, done: RollupResult, asked: AskedAgain
) -> tuple[list[RowKey], list[SubjectDay]]:
    """Move the counts that are aside, or else the current ones.

    Return the rows that are missing (if any are, nothing was added), and the days that have more counts.
    """
    with transaction.atomic(using=using):
        if not connections[using].features.has_select_for_update:  # SQLite: lock before reading what will change
            DailyCounter.objects.using(using).filter(pk=0).update(allowed=0)
        rows = _locked_rows(days, using)
        known: dict[tuple[str, date], int] = defaultdict(int)
        for place, row in rows.items():
            known[place.subject, place.day] = max(known[place.subject, place.day], row.token)
        operations = [SetAside(day.key, day.key + ASIDE, known[day.subject, day.day]) for day in days]
        replies = _readable(days, store.try_all(operations, frozen_now()), done)
        found = [DayCounts.read(day, flat) for day, (_, flat) in replies if flat]
        missing = sorted(place for each in found for place in each.counts if place not in rows)
        if not missing:
            _add(found, rows, using, done)
            drops = [DropAside(each.of.key + ASIDE, each.token) for each in found]
            transaction.on_commit(partial(asked, partial(_drop, store, drops)), using=using)
        return missing, [day for day, (has_more, _) in replies if has_more]


def _readable(days: Iterable[SubjectDay], replies: Iterable[Any], done: RollupResult) -> list[tuple[SubjectDay, Any]]:
    """Return the days with their replies, without those that hold data of another program: `done` names them.

    Raises any other error among the replies.
    """
    found = []
    for day, reply in zip(days, replies, strict=True):
        if isinstance(reply, StoreDataError):
            if day.key not in done.foreign:  # a move may read a day twice
                done.foreign.append(day.key)
        elif isinstance(reply, Exception):
            raise reply
        else:
            found.append((day, reply))
    return found


def _locked_rows(days: Collection[SubjectDay], using: str) -> dict[RowKey, DailyCounter]:
    """Return the rows of these days, locked."""
    wanted = {"subject__in": {day.subject for day in days}, "day__in": {day.day for day in days}}
    rows = DailyCounter.objects.using(using).filter(**wanted)
    return {RowKey.of(row): row for row in rows.select_for_update().order_by("pk")}


def _add(found: Iterable[DayCounts], rows: Mapping[RowKey, DailyCounter], using: str, done: RollupResult) -> None:
    """Add counts that were set aside to their rows, unless the rows have them.

    No number falls below zero, even if a refund is moved whose hit was lost with the store's data.
    """
    changed = []
    for each in found:
        new = {place: count for place, count in each.counts.items() if each.token > rows[place].token}
        for place, count in new.items():
            row = rows[place]
            for name, number in count._asdict().items():
                setattr(row, name, max(0, getattr(row, name) + number))
            row.token = each.token
            row.tier = each.tiers.get(place, row.tier)
            changed.append(row)
        done.add(RollupResult(1, len(new), *total(new.values())))
    _save(changed, using)


def _save(rows: Collection[DailyCounter], using: str) -> None:
    """Save rows that exist, by an upsert: `bulk_update` takes ten times as long."""
    has_target = connections[using].features.supports_update_conflicts_with_target  # MySQL does not accept one
    DailyCounter.objects.using(using).bulk_create(
        rows,
        update_conflicts=True,
        update_fields=[*Count._fields, "tier", "token"],
        unique_fields=["pk"] if has_target else None,
    )


def _drop(store: Runner, drops: Sequence[DropAside]) -> None:
    """Delete the counts that the database has."""
    all_well(store.try_all(drops, frozen_now()))
