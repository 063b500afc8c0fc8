"""The tables: overrides and the log of their changes, the daily usage, and the state of the database store.

Each process keeps a copy of the overrides; see `limiting.overrides`. `quota_rollup` moves usage here from the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import unquote

from django.core.exceptions import ValidationError
from django.db import models, router, transaction
from django.db.models import F, Q
from django.dispatch import Signal
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_quota.conf import current
from django_quota.core import clock
from django_quota.core.errors import RateError, RuleError
from django_quota.core.overrides import ALL_RULES, EVERYBODY
from django_quota.core.rates import parse_override_rates
from django_quota.error_texts import error_in_words
from django_quota.subjects.subject import override_subject, user_subject

overrides_changed: Signal = Signal()
"""Overrides were saved or deleted. It is sent within the transaction.

It carries `using`, the alias of the database; `rows`, a query for the saved ones; and `removed`, the primary keys of
deleted ones, if there are any.
"""


class QuotaOverrideQuerySet(models.QuerySet["QuotaOverride"]):
    """Overrides. Changes by these methods take effect immediately in this process, and within two seconds in others.

    Rows that `_raw_delete` or your own SQL adds, changes or deletes take effect within a minute.
    """

    def active(self, now: datetime | None = None) -> QuotaOverrideQuerySet:
        """Return the overrides that apply at a moment, by default now."""
        moment = now or timezone.now()
        return self.filter(
            Q(starts__isnull=True) | Q(starts__lte=moment), Q(expires__isnull=True) | Q(expires__gt=moment)
        )

    def update(self, **values: Any) -> int:
        if isinstance(values.get("subject"), str):
            values["subject"] = override_subject(values["subject"])
        self._for_write = True  # a replica may lag
        with transaction.atomic(using=self.db):
            values["change"] = next_change(self.db)
            changed = super().update(**values)
            self._announce(values["change"])
        return changed

    def delete(self) -> tuple[int, dict[str, int]]:
        self._for_write = True
        with transaction.atomic(using=self.db):
            change = next_change(self.db)  # first: SQLite refuses a transaction that reads before it writes
            removed = list(self.values_list("pk", flat=True))
            deleted = super().delete()
            OverrideChange.objects.using(self.db).filter(pk=change).update(removed=_joined(removed))
            self._announce(change, removed)
        return deleted

    delete.queryset_only = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[QuotaOverride], *args: Any, **kwargs: Any) -> list[QuotaOverride]:
        rows = list(objs)
        self._for_write = True
        with transaction.atomic(using=self.db):
            change = next_change(self.db)
            for row in rows:
                row.normalize()
                row.change = change
            if kwargs.get("update_fields"):
                kwargs["update_fields"] = [*kwargs["update_fields"], "change"]
            added = super().bulk_create(rows, *args, **kwargs)
            self._announce(change)
        return added

    def bulk_update(self, objs: Iterable[QuotaOverride], fields: Iterable[str], batch_size: int | None = None) -> int:
        rows = list(objs)
        for row in rows:
            row.normalize()
        return super().bulk_update(rows, fields, batch_size)  # calls `update`

    def _announce(self, change: int, removed: Collection[int] = ()) -> None:
        rows = self.model.objects.using(self.db).filter(change=change)
        overrides_changed.send(self.model, using=self.db, rows=rows, removed=removed)


class QuotaOverrideManager(models.Manager["QuotaOverride"]):
    """All overrides. Its methods are those of `QuotaOverrideQuerySet`; one is written out for type checkers."""

    def get_queryset(self) -> QuotaOverrideQuerySet:
        return QuotaOverrideQuerySet(self.model, using=self._db)

    def active(self, now: datetime | None = None) -> QuotaOverrideQuerySet:
        """Return the overrides that apply at a moment, by default now."""
        return self.get_queryset().active(now)


class SubjectField(models.CharField):  # type: ignore[type-arg]  # Django's class takes no type argument
    """The subject of an override. Queries find it however it is written: `get(subject="user:ann+shop@example.org")`."""

    def get_prep_value(self, value: Any) -> Any:
        """Return a subject in its canonical form. A string that is not a subject stays as it is, and is not found."""
        value = super().get_prep_value(value)
        with suppress(RuleError):
            return override_subject(value) if value else value
        return value

    def deconstruct(self) -> Any:
        """Name Django's class, so that migrations do not depend on this one."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.CharField", args, kwargs


class QuotaOverride(models.Model):
    """An override: another rate for a subject, no limit, a block, or only reports, until a moment."""

    class Mode(models.TextChoices):
        """What applies instead of the rule."""

        RATE = "rate", _("another rate")
        EXEMPT = "exempt", _("exempt")
        BLOCKED = "blocked", _("blocked")
        SHADOW = "shadow", _("reports only")

    subject = SubjectField(
        _("subject"),
        max_length=500,
        help_text=_("Who this applies to, such as user:42 or ip:203.0.113.9."),
    )
    rule = models.CharField(
        _("rule"),
        max_length=200,
        default=ALL_RULES,
        help_text=_("A rule's name; * for all rules. An override for a single rule takes precedence."),
    )
    mode = models.CharField(_("mode"), max_length=7, choices=Mode.choices, default=Mode.RATE)
    rate = models.CharField(
        _("rate"),
        max_length=200,
        blank=True,
        help_text=_("100/m, or 10/s; 500/h; +500 adds units, x2 doubles. Only for the mode another rate."),
    )
    reason = models.CharField(_("reason"), max_length=500, blank=True)
    created_by = models.CharField(_("set by"), max_length=255, blank=True, default="", editable=False)
    """Who set it last: a user's name, or what a command or a call was given; empty if that said nothing. So it belongs
    to the reason. It is not a key, because users may be in another database."""
    starts = models.DateTimeField(_("starts"), null=True, blank=True, help_text=_("Empty: at once."))
    expires = models.DateTimeField(_("expires"), null=True, blank=True, help_text=_("Empty: never."))
    label = models.CharField(
        _("label"), max_length=100, blank=True, help_text=_("The list that it belongs to, such as crawlers.")
    )
    created = models.DateTimeField(_("created"), auto_now_add=True)
    updated = models.DateTimeField(_("updated"), auto_now=True)
    change = models.PositiveBigIntegerField(default=0, editable=False, db_index=True)
    """The number of its last change; see `next_change`."""

    objects: ClassVar[QuotaOverrideManager] = QuotaOverrideManager()

    class Meta:
        """Each subject and rule has at most one override."""

        verbose_name = _("override")
        verbose_name_plural = _("overrides")
        ordering = ("subject", "rule")
        constraints = (
            models.UniqueConstraint(fields=["subject", "rule"], name="django_quota_override_unique"),
            models.CheckConstraint(
                condition=Q(mode="rate") & ~Q(rate="") | Q(mode__in=["exempt", "blocked", "shadow"], rate=""),
                name="django_quota_override_rate",
                violation_error_message=_('A rate belongs to the mode "another rate", and to no other.'),
            ),
            models.CheckConstraint(
                condition=Q(starts__isnull=True) | Q(expires__isnull=True) | Q(expires__gt=F("starts")),
                name="django_quota_override_span",
                violation_error_message=_("It must expire after it starts."),
            ),
        )
        indexes = (
            models.Index(fields=["rule"], name="django_quota_override_rule"),
            models.Index(fields=["expires"], name="django_quota_override_ends"),
            models.Index(fields=["label"], name="django_quota_override_label"),
        )

    def __str__(self) -> str:
        return f"{self.subject_in_words}, {self.rule_in_words}: {self.effect}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the override with its subject in the canonical form. Raises `RuleError` for a wrong subject or rate."""
        self.normalize()
        if self.mode == self.Mode.RATE:
            parse_override_rates(self.rate)
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):
            self.change = next_change(using)
            if kwargs.get("update_fields") is not None:
                kwargs["update_fields"] = {*kwargs["update_fields"], "change"}
            super().save(*args, **kwargs)
            rows = QuotaOverride.objects.using(using).filter(pk=self.pk)
            overrides_changed.send(type(self), using=using, rows=rows)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):
            removed = [self.pk]
            next_change(using, removed)
            deleted = super().delete(*args, **kwargs)
            rows = QuotaOverride.objects.using(using).none()
            overrides_changed.send(type(self), using=using, rows=rows, removed=removed)
        return deleted

    @property
    def subject_in_words(self) -> str:
        """Who the override applies to; `*` is everybody."""
        return gettext("everybody") if self.subject == EVERYBODY else self.subject

    @property
    def rule_in_words(self) -> str:
        """The name of its rule, or that it holds for all rules."""
        return gettext("all rules") if self.rule == ALL_RULES else self.rule

    @property
    def effect(self) -> str:
        """What it sets: its rate, or its mode in words. A rule that exempts everybody is switched off."""
        if self.mode == self.Mode.EXEMPT and self.subject == EVERYBODY:
            return gettext("off for everybody")
        return self.rate if self.mode == self.Mode.RATE else self.get_mode_display()

    def clean(self) -> None:
        """Check that the subject is valid, and that the rate fits its rule."""
        problems = dict(self._problems())
        if problems:
            raise ValidationError(problems)

    def normalize(self) -> None:
        """Put the subject into its canonical form. Raises `RuleError` for a wrong subject."""
        self.subject = override_subject(self.subject)

    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.subject:
            try:
                self.normalize()
            except RuleError as error:
                yield "subject", error_in_words(error)
        if self.starts and self.expires and self.expires <= self.starts:
            yield "expires", gettext("It must expire after it starts.")
        if self.mode != self.Mode.RATE and self.rate:
            yield "rate", gettext('A rate belongs to the mode "another rate", and to no other.')
        elif self.mode == self.Mode.RATE:
            yield from self._rate_problems()

    def _rate_problems(self) -> Iterator[tuple[str, str]]:
        if not self.rate.strip():
            yield "rate", gettext("This mode needs a rate, such as 100/m.")
            return
        try:
            parse_override_rates(self.rate)
            known = current()  # a decorator may have other rules
            for name in known.rules:
                if self.rule in (ALL_RULES, name):
                    known.rule(name).under(self.rate)
        except RateError as error:
            yield "rate", error_in_words(error)
        except RuleError as error:
            yield "rate", gettext("It does not fit its rule: %s") % error_in_words(error)


class Subject(QuotaOverride):
    """A subject in the admin: a page and permissions, without a table."""

    class Meta:
        """Blocks, exemptions and other rates are overrides, and use their permissions."""

        proxy = True
        verbose_name = _("subject")
        verbose_name_plural = _("subjects")
        default_permissions = ("view",)
        permissions = (
            ("reset_subject", _("Can reset what a subject has used")),
            ("lift_ban", _("Can lift the ban of a subject")),
        )


class Overview(QuotaOverride):
    """The overview in the admin: a page and a permission, without a table."""

    class Meta:
        """It can only be viewed."""

        proxy = True
        verbose_name = _("overview")
        # Django's admin sorts models by this name, and a browser drops the space: the list of the app begins with it.
        verbose_name_plural = format_lazy(" {}", _("Overview"))
        default_permissions = ("view",)


class Ban(QuotaOverride):
    """The bans in the admin: a page and a permission, without a table."""

    class Meta:
        """It can only be viewed. The permission to lift a ban belongs to `Subject`."""

        proxy = True
        verbose_name = _("ban")
        verbose_name_plural = _("bans")
        default_permissions = ("view",)


class KnownRule(QuotaOverride):
    """The rules in the admin: a page, without a table and without a permission of its own."""

    class Meta:
        """Who may view overrides may view it."""

        proxy = True
        verbose_name = _("rule")
        verbose_name_plural = _("rules")
        default_permissions = ()


class OverrideChange(models.Model):
    """A change of overrides, or a note that the database is full. Kept for an hour, for processes to read what is new.

    Transactions may end in a different order than the numbers of their changes, so that none has to wait for another.
    Readers ask again for numbers that were missing; see `limiting.overrides`.
    """

    id = models.BigAutoField(primary_key=True)
    """The number of the change."""
    at = models.BigIntegerField()
    """Microseconds since 1970."""
    removed = models.TextField(default="")
    """The primary keys of the overrides that it deleted, separated by spaces. Those that it saved have its number.

    It is not a JSONField: on SQLite the system checks of that field ask the database, which may not exist yet.
    """
    full = models.BooleanField(default=False)
    """Whether it is only a note that the database had no free connection."""

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.pk)


KEEP_CHANGES = 3600 * clock.SECOND
"""Microseconds for which changes stay in the log. A process that has not read it since reads all overrides."""


def _joined(pks: Collection[int]) -> str:
    return " ".join(map(str, pks))


def next_change(using: str, removed: Collection[int] = (), *, full: bool = False) -> int:
    """Log a change of overrides in its transaction; return its number. It waits for no other transaction.

    `removed`: the primary keys of the overrides that the change deletes. `full`: only note that the database is full.
    """
    # A function, and no `partial`: Django logs the `__qualname__` of a hook that fails.
    transaction.on_commit(lambda: _forget_changes(using), using=using, robust=True)
    return OverrideChange.objects.using(using).create(at=clock.machine_now(), removed=_joined(removed), full=full).pk


def _forget_changes(using: str) -> None:
    """Delete old changes except the newest of them, so that the log is never empty."""
    changes = OverrideChange.objects.using(using)
    newest = changes.filter(at__lt=clock.machine_now() - KEEP_CHANGES).aggregate(pk=models.Max("pk"))["pk"]
    if newest is not None:
        changes.filter(pk__lt=newest).delete()


class DailyCounterQuerySet(models.QuerySet["DailyCounter"]):
    """Usage by subject, rule and day."""

    def of_user(self, user: Any) -> DailyCounterQuerySet:
        """Return the rows of a user. Raises `RuleError` for one without a primary key."""
        return self.filter(subject=user_subject(user))


class DailyCounterManager(models.Manager["DailyCounter"]):
    """All daily counters. Its methods are those of `DailyCounterQuerySet`; one is written out for type checkers."""

    def get_queryset(self) -> DailyCounterQuerySet:
        return DailyCounterQuerySet(self.model, using=self._db)

    def of_user(self, user: Any) -> DailyCounterQuerySet:
        """Return the rows of a user. Raises `RuleError` for one without a primary key."""
        return self.get_queryset().of_user(user)


class DailyCounter(models.Model):
    """What a rule allowed and refused a subject on a day, as far as `quota_rollup` has moved it from the store.

    `units` is what the allowed checks cost. A reservation counts with its settled cost; a cancelled one does not count.
    """

    subject = models.CharField(
        _("subject"),
        max_length=255,
        help_text=_("Who this applies to, such as user:42; ~ and a digest where the name is too long."),
    )
    rule = models.CharField(_("rule"), max_length=255)
    day = models.DateField(_("day"))
    allowed = models.PositiveBigIntegerField(_("allowed"), default=0)
    refused = models.PositiveBigIntegerField(_("refused"), default=0)
    units = models.PositiveBigIntegerField(_("units"), default=0, help_text=_("What the allowed checks cost."))
    tier = models.CharField(
        _("tier"),
        max_length=100,
        blank=True,
        default="",
        help_text=_("The tier of the last check, where the rule has a function for it."),
    )
    # The token of the counts that were added last: smaller ones were added before.
    token = models.PositiveBigIntegerField(default=0, editable=False)

    objects: ClassVar[DailyCounterManager] = DailyCounterManager()

    class Meta:
        """Each subject, day and rule has one row.

        The unique index finds a subject, the others the newest rows. Each has the order of the admin's list, so a page
        reads only its own rows.
        """

        verbose_name = _("daily counter")
        verbose_name_plural = _("daily counters")
        ordering = ("-day", "subject", "rule")
        constraints = (models.UniqueConstraint(fields=["subject", "day", "rule"], name="django_quota_daily_unique"),)
        indexes = (
            models.Index(fields=["-day", "subject", "rule"], name="django_quota_daily_newest"),
            models.Index(fields=["rule", "-day", "subject"], name="django_quota_daily_rule"),
        )

    def __str__(self) -> str:
        counts = f"{self.allowed} allowed, {self.refused} refused, {self.units} units"
        return f"{self.subject}, {self.rule}, {self.day}: {counts}"

    @property
    def user_pk(self) -> str | None:
        """The primary key of the user, as a string; None for a subject that is not a user."""
        kind, _colon, name = self.subject.partition(":")
        return unquote(name) if kind == "user" and name and "+" not in name else None


class QuotaState(models.Model):
    """A state of the database store on PostgreSQL: the value of a key, and when it expires.

    Only `stores.database` reads and writes it. SQLite has the same table in a file of its own.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    """128 bits of the digest of the key: keys are long, and an index of them would be larger than the table."""
    key = models.TextField()
    value = models.TextField()
    expires = models.BigIntegerField()
    """Microseconds since 1970. It has no index, so that PostgreSQL can change the row in place."""
    hour = models.IntegerField(db_index=True)
    """The hour since 1970 from which a sweep may delete the row."""

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.key


class QuotaEvent(models.Model):
    """An event of the database store on PostgreSQL: a refusal, a ban, or a limit that is near."""

    log = models.TextField()
    """The key of the log: sites with different prefixes may share the table."""
    batch = models.BigIntegerField()
    """The number of its transaction. Transactions do not end in the order of the ids."""
    at = models.BigIntegerField()
    """Microseconds since 1970."""
    data = models.TextField()
    """A JSON array; see `engine.events.EventRecord`."""

    class Meta:
        default_permissions = ()
        indexes = (
            models.Index(fields=["batch", "id"], name="django_quota_event_order"),
            models.Index(fields=["at"], name="django_quota_event_at"),
        )

    def __str__(self) -> str:
        return self.data


class QuotaBan(models.Model):
    """A ban of the database store on PostgreSQL, for the list of all bans. Decisions read bans from the states."""

    id = models.UUIDField(primary_key=True, editable=False)
    """The digest of the log, the subject and the rule."""
    log = models.TextField()
    subject = models.TextField()
    rule = models.TextField()
    until = models.BigIntegerField(db_index=True)
    """Microseconds since 1970."""

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.subject}, {self.rule}"
