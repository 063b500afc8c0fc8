"""The overrides in the database: what a process reads of them, and how it saves one."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from django.apps import apps
from django.conf import settings
from django.db import DatabaseError, connections, router, transaction
from django.db.models import Q, QuerySet
from django.db.models.signals import post_migrate, post_save
from django.utils import timezone

from django_quota.core import clock
from django_quota.core.clock import microseconds_of, moment_of
from django_quota.core.overrides import Mode, Override
from django_quota.limiting.overrides import overrides
from django_quota.models import OverrideChanges, QuotaOverride, next_change, overrides_changed

BATCH_SIZE = 5_000
"""Rows that one query reads."""

NO_DATABASE = "unknown"
"""Django's name for the vendor of a database that `DATABASES` does not name."""

DISPATCH_UID = "django_quota.limiting.overrides"
"""The id of our signal receivers."""


def write_database() -> str:
    """Return the database that overrides are written to, and read from: a replica may lag."""
    return router.db_for_write(QuotaOverride)


def set_override(subject: str, rule: str, values: Mapping[str, Any]) -> QuotaOverride:
    """Save the override of a subject and a rule; it replaces an earlier one. Raises `ValidationError`."""
    database = write_database()
    row = QuotaOverride(subject=subject, rule=rule, **values)
    row.full_clean(validate_unique=False, validate_constraints=False)  # `clean` checks the values
    rows = QuotaOverride.objects.using(database)
    with transaction.atomic(using=database):
        next_change(database)  # first: SQLite refuses a transaction that reads, and writes after others have written
        return rows.update_or_create(subject=row.subject, rule=rule, defaults=values)[0]


# --- what a process reads ---------------------------------------------------------------------------------------------

_COLUMNS = ("pk", "subject", "rule", "mode", "rate", "starts", "expires")


def missing_tables(using: str) -> set[str]:
    """Return the tables of overrides that a database lacks."""
    ours = {model._meta.db_table for model in (QuotaOverride, OverrideChanges)}  # noqa: SLF001 — Django's public API
    return ours - set(connections[using].introspection.table_names())


def count_overrides() -> int:
    """Return how many overrides a process holds: all that have not ended."""
    return _not_ended(_rows()).count()


class DatabaseRows:
    """The overrides in the database, as `limiting.overrides` reads them."""

    @property
    def is_private(self) -> bool:
        """Whether only this process can change them: there is no database, or it is in memory."""
        connection: Any = connections[write_database()]
        return not has_database() or (connection.vendor == "sqlite" and bool(connection.is_in_memory_db()))

    def latest(self) -> tuple[int, int]:
        """Return the numbers of the latest change, and of the latest one that deleted rows."""
        using = write_database()
        if not has_database():
            return 0, 0
        try:
            return OverrideChanges.objects.using(using).values_list("number", "removed").first() or (0, 0)
        except DatabaseError as error:
            if not missing_tables(using):
                raise
            raise DatabaseError("the tables of django_quota are missing; run `migrate` to create them") from error

    def all(self) -> Iterator[Override]:
        """Yield all overrides that have not ended."""
        return self._read(_not_ended(_rows())) if has_database() else iter(())

    def since(self, number: int) -> Iterator[Override]:
        """Yield the overrides that were saved after the change with this number, even those that have ended."""
        return self._read(_rows().filter(change__gt=number))

    def pks(self) -> Collection[int]:
        """Return the primary keys of `all`."""
        return set(_not_ended(_rows()).values_list("pk", flat=True))

    def _read(self, rows: QuerySet[QuotaOverride]) -> Iterator[Override]:
        """Yield overrides, without an open cursor meanwhile."""
        ordered = rows.order_by("pk").values_list(*_COLUMNS)
        batch = list(ordered[:BATCH_SIZE])
        while batch:
            yield from map(_override_of, batch)
            batch = list(ordered.filter(pk__gt=batch[-1][0])[:BATCH_SIZE])


def override_of(row: QuotaOverride) -> Override:
    """Return the override that a row would be."""
    return _override_of([getattr(row, column) for column in _COLUMNS])


def _override_of(row: Sequence[Any]) -> Override:
    pk, subject, rule, mode, rate, starts, expires = row
    # 0 means that there is no such time. Many overrides share a rule and a rate.
    begins = 0 if starts is None else max(0, microseconds_of_row(starts))
    ends = 0 if expires is None else max(1, microseconds_of_row(expires))
    return Override(pk, subject, sys.intern(rule), cast("Mode", sys.intern(mode)), sys.intern(rate), begins, ends)


def microseconds_of_row(moment: datetime) -> int:
    """Return a moment of a row in microseconds since 1970."""
    # With USE_TZ = False, moments are in TIME_ZONE, whatever time zone a request has activated.
    zone = timezone.get_default_timezone()
    return microseconds_of(timezone.make_aware(moment, zone) if timezone.is_naive(moment) else moment)


def moment_of_row(microseconds: int) -> datetime:
    """Return microseconds since 1970 as a moment for a row."""
    moment = moment_of(microseconds)
    return moment if settings.USE_TZ else timezone.make_naive(moment, timezone.get_default_timezone())


def has_database() -> bool:
    """Return whether `DATABASES` names the database of overrides."""
    return connections[write_database()].vendor != NO_DATABASE


def _rows() -> QuerySet[QuotaOverride]:
    return QuotaOverride.objects.using(write_database())


def _not_ended(rows: QuerySet[QuotaOverride]) -> QuerySet[QuotaOverride]:
    return rows.filter(Q(expires__isnull=True) | Q(expires__gt=moment_of_row(clock.now())))


# --- what it saves ----------------------------------------------------------------------------------------------------


def connect() -> None:
    """Decide by the overrides of the database from now on, and use at once what this process saves."""
    for model in apps.get_models():
        if issubclass(model, QuotaOverride):  # a proxy model sends signals of its own
            post_save.connect(_loaded, model, dispatch_uid=DISPATCH_UID)
    overrides_changed.connect(_changed, dispatch_uid=DISPATCH_UID)
    post_migrate.connect(_migrated, dispatch_uid=DISPATCH_UID)
    overrides.rows = DatabaseRows()


def _changed(using: str, change: int, rows: QuerySet[QuotaOverride], removed: Collection[int] = (), **_: Any) -> None:
    """Use what was saved in the database that overrides are written to. Other databases hold copies."""
    if using == write_database():
        overrides.change(using, change, [_override_of(row) for row in rows.values_list(*_COLUMNS)], removed)


def _loaded(instance: QuotaOverride, using: str, *, raw: bool, **_: Any) -> None:
    """Give a row of a fixture the number of a change: fixtures do not call `save`."""
    if raw:
        QuotaOverride.objects.using(using).filter(pk=instance.pk).update()


def _migrated(**_: Any) -> None:
    """Forget all that was read: the tables are new, or a test has emptied them."""
    overrides.clear()
