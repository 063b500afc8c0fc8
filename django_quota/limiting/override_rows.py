"""The overrides in the database: how a process reads and saves them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from typing import Any, cast

from django.apps import apps
from django.conf import settings
from django.core.signals import got_request_exception
from django.db import DatabaseError, Error, IntegrityError, OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q, QuerySet
from django.db.models.signals import post_migrate, post_save
from django.utils import timezone

from django_quota.core import clock
from django_quota.core.clock import microseconds_of, moment_of
from django_quota.core.forks import register_fork_aware
from django_quota.core.overrides import Override, OverrideMode
from django_quota.limiting.overrides import Change, NoConnectionError, overrides
from django_quota.models import KEEP_CHANGES, OverrideChange, QuotaOverride, next_change, overrides_changed
from django_quota.runtime import runtime

OVERRIDES_A_QUERY = 5_000
"""How many rows one query reads."""

NO_DATABASE = "unknown"
"""Django's name for the vendor of a database that `DATABASES` does not name."""


def write_database() -> str:
    """Return the database that overrides are written to, and read from: a replica may lag."""
    return router.db_for_write(QuotaOverride)


def set_override(rule: str, subject: str, values: Mapping[str, Any]) -> QuotaOverride:
    """Save the override of a subject and a rule; it replaces an earlier one. Raises `ValidationError`."""
    database = write_database()
    row = QuotaOverride(subject=subject, rule=rule, **values)
    row.full_clean(validate_constraints=False)  # `clean` checks the values
    rows = QuotaOverride.objects.using(database)
    with transaction.atomic(using=database):
        next_change(database)  # first: SQLite refuses a transaction that reads, and writes after others have written
        return rows.update_or_create(subject=row.subject, rule=rule, defaults=values)[0]


TRIES = 3
"""How many times a change is tried if others add the override at the same time."""


def change_override(
    rule: str, subject: str, values: Callable[[QuotaOverride | None], Mapping[str, Any]]
) -> QuotaOverride:
    """Save the override of a subject and a rule, with values that depend on the present one; return it.

    `values`: called with the present row, or None. No change that is made at the same time is lost. Raises
    `ValidationError`.
    """
    database, tries = write_database(), 0
    rows = QuotaOverride.objects.using(database)
    while True:
        tries += 1
        try:
            with transaction.atomic(using=database):
                next_change(database)  # first, as above
                row = rows.select_for_update().filter(subject=subject, rule=rule).first()
                changed = row or QuotaOverride(subject=subject, rule=rule)
                for name, value in values(row).items():
                    setattr(changed, name, value)
                changed.full_clean(validate_constraints=False)
                changed.save(using=database)
                return changed
        except IntegrityError:  # another process has just added it
            if tries == TRIES:
                raise


# --- what a process reads ---------------------------------------------------------------------------------------------

_COLUMNS = ("pk", "subject", "rule", "mode", "rate", "starts", "expires")


def missing_tables(using: str) -> set[str]:
    """Return the tables of overrides that a database lacks."""
    ours = {model._meta.db_table for model in (QuotaOverride, OverrideChange)}  # noqa: SLF001 — Django's public API
    return ours - set(connections[using].introspection.table_names())


def count_overrides() -> int:
    """Return how many overrides a process holds: all that have not ended."""
    return _not_ended(_rows()).count()


_PATIENCE: dict[str, dict[str, int]] = {
    "postgresql": {"connect_timeout": 2, "tcp_user_timeout": 10_000},
    "mysql": {"connect_timeout": 2, "read_timeout": 10},
}
"""OPTIONS of the reader's connection by vendor, unless the site sets them: the connection ends if the server is gone.
In seconds; `tcp_user_timeout` in milliseconds."""


class ReaderConnection:
    """The connection of the thread that reads overrides. Only this thread uses it."""

    def __init__(self) -> None:
        self._kept: BaseDatabaseWrapper | None = None
        self._inherited: list[BaseDatabaseWrapper] = []
        """In a forked process, the parent's. They are kept open: closing one would end the parent's session."""
        self._settings: Any = None
        """The settings of the database when the connection was made. A test runner changes its name."""
        register_fork_aware(self)

    def after_fork(self) -> None:
        """Start without a connection in a forked process."""
        if self._kept is not None:
            self._inherited.append(self._kept)
            self._kept = None

    def use(self, alias: str) -> bool:
        """Make this thread use the connection; return whether it was open before. Raises `NoConnectionError`."""
        kept, settings = self._kept, connections.settings[alias]
        if kept is not None and kept.alias == alias and kept.connection is not None and self._settings == settings:
            return True
        self.close()
        wrapper = connections.create_connection(alias).copy()
        self._settings = deepcopy(settings)
        own: Any = wrapper.settings_dict
        own["AUTOCOMMIT"] = True
        own["OPTIONS"].pop("pool", None)  # the site's threads need the connections in it
        if own["ENGINE"].startswith("django."):
            own["OPTIONS"] = _PATIENCE.get(wrapper.vendor, {}) | own["OPTIONS"]
        connections[alias] = self._kept = wrapper
        try:
            wrapper.ensure_connection()
        except Error as error:
            raise NoConnectionError(str(error)) from error
        return False

    def close(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            with suppress(Exception):  # it may be broken; nothing is lost with it
                self._kept.close()


class DatabaseRows:
    """The overrides in the database, as `limiting.overrides` reads them."""

    def __init__(self) -> None:
        self._connection = ReaderConnection()

    @property
    def is_private(self) -> bool:
        """Whether only this process can change them: there is no database, or it is in memory."""
        connection: Any = connections[write_database()]
        return not has_database() or (connection.vendor == "sqlite" and bool(connection.is_in_memory_db()))

    @property
    def is_in_transaction(self) -> bool:
        """Whether the calling thread is in a transaction, which may not see what was committed after it began."""
        return connections[write_database()].in_atomic_block

    def read(self, work: Callable[[], None]) -> None:
        """Do work that reads, in the reader's thread, on its persistent connection. Raises `NoConnectionError`."""
        alias = write_database()
        try:
            was_open = self._connection.use(alias)
            try:
                work()
            except Error:
                self._connection.close()
                if not was_open:
                    raise
                self._connection.use(alias)  # the server, or a firewall, had forgotten the old one
                work()
        finally:
            if not runtime.is_of_site(alias):
                self._connection.close()

    def read_here(self, work: Callable[[], None]) -> None:
        """Do work that reads, on the connection of the calling thread, unless that is in a transaction that failed."""
        connection = connections[write_database()]
        if not connection.in_atomic_block:
            try:
                work()
            except Error:
                connection.close_if_unusable_or_obsolete()
                raise
        elif not connection.needs_rollback:
            with transaction.atomic(using=connection.alias):  # a query that fails must not end the site's transaction
                work()

    def close(self) -> None:
        """Close the connection of the reader, in its thread."""
        self._connection.close()

    def changes(self, known: int | None, others: Collection[int]) -> Mapping[int, Change]:
        """Return the logged changes from the number `known` on, and `others`, by their numbers; None: all."""
        if not has_database():
            return {}
        using = write_database()
        try:
            if known and not others and _newest_change(using) == known:
                return {known: Change((), full=False)}
            rows = OverrideChange.objects.using(using)
            if known is not None:
                rows = rows.filter(Q(pk__gte=known) | Q(pk__in=list(others)))
            hour_ago = clock.machine_now() - KEEP_CHANGES
            found = rows.values_list("pk", "removed", "full", "at")
            return {
                number: Change([*map(int, removed.split())], full and at > hour_ago)
                for number, removed, full, at in found
            }
        except DatabaseError as error:
            if not missing_tables(using):
                raise
            raise DatabaseError("the tables of django_quota are missing; run `migrate` to create them") from error

    def say_full(self) -> None:
        """Report to the readers of all processes that the database had no connection left."""
        using = write_database()
        with transaction.atomic(using=using):
            next_change(using, full=True)

    def all(self) -> Iterator[Override]:
        """Yield all overrides that have not ended."""
        return self._read(_not_ended(_rows())) if has_database() else iter(())

    def saved_by(self, changes: Collection[int]) -> Iterator[Override]:
        """Yield the overrides whose last change is one of these, even those that have ended."""
        return self._read(_rows().filter(change__in=changes))

    def _read(self, rows: QuerySet[QuotaOverride]) -> Iterator[Override]:
        """Yield overrides. No cursor is open while the caller works."""
        ordered = rows.order_by("pk").values_list(*_COLUMNS)
        batch = list(ordered[:OVERRIDES_A_QUERY])
        while batch:
            yield from map(_override_of, batch)
            batch = list(ordered.filter(pk__gt=batch[-1][0])[:OVERRIDES_A_QUERY])


def _newest_change(using: str) -> int | None:
    """Return the number of the newest change. Each process asks often, and a QuerySet takes twice as long."""
    connection = connections[using]
    table = connection.ops.quote_name(OverrideChange._meta.db_table)  # noqa: SLF001 — Django's public API
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT MAX(id) FROM {table}")  # noqa: S608 — the table's name is not input
        (number,) = cursor.fetchone()
    return cast("int | None", number)


def override_of(row: QuotaOverride) -> Override:
    """Return the override of a row, which need not be saved."""
    return _override_of([getattr(row, column) for column in _COLUMNS])


def _override_of(row: Sequence[Any]) -> Override:
    pk, subject, rule, mode, rate, starts, expires = row
    # 0: there is no such time. Strings are interned, since many overrides share a rule and a rate.
    begins = 0 if starts is None else max(0, microseconds_of_row(starts))
    ends = 0 if expires is None else max(1, microseconds_of_row(expires))
    known = cast("OverrideMode", sys.intern(mode))
    return Override(pk, subject, sys.intern(rule), known, sys.intern(rate), begins, ends)


def microseconds_of_row(moment: datetime) -> int:
    """Return a moment of a row, naive or aware, in microseconds since 1970."""
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
            post_save.connect(_loaded, model)
    overrides_changed.connect(_changed)
    post_migrate.connect(_migrated)
    got_request_exception.connect(_request_failed)
    overrides.rows = DatabaseRows()


def _changed(using: str, rows: QuerySet[QuotaOverride], removed: Collection[int] = (), **_: Any) -> None:
    """Use what was saved at once, if it is in the database that overrides are read from."""
    if using == write_database():
        overrides.change(using, [_override_of(row) for row in rows.values_list(*_COLUMNS)], removed)


def _request_failed(**_: Any) -> None:
    """See whether a request of the site failed because the database had no connection left."""
    if isinstance(sys.exc_info()[1], OperationalError) and connections[write_database()].connection is None:
        overrides.note_refusal()


def _loaded(instance: QuotaOverride, using: str, *, raw: bool, **_: Any) -> None:
    """Give a row of a fixture the number of a change: fixtures do not call `save`."""
    if raw:
        QuotaOverride.objects.using(using).filter(pk=instance.pk).update()


def _migrated(**_: Any) -> None:
    """Forget all overrides: the tables are new, or a test has emptied them."""
    overrides.clear()
