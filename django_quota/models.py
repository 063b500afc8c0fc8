"""The tables: overrides, the outbox of overrides that wait to be published, their generation, and the daily usage.

The tables are the record, and Redis decides. `override_sync` publishes overrides to Redis, and `rollup` copies usage
from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import connections, models, router, transaction
from django.db.models import F, Q
from django.dispatch import Signal
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_quota.conf import current
from django_quota.core.errors import RateError, RuleError
from django_quota.core.rates import parse_rates
from django_quota.services.overrides import ALL_RULES
from django_quota.services.subjects import named_subject, user_subject

overrides_changed: Signal = Signal()
"""Many overrides were changed by one statement, which sends no signal for each row. Sent within its transaction.

It carries `subjects`, whose overrides have changed, and `using`, the database.
"""


class QuotaOverrideQuerySet(models.QuerySet["QuotaOverride"]):
    """Overrides. Its methods publish what they change. After `_raw_delete` or SQL of your own, run `quota_sync`."""

    def active(self, now: datetime | None = None) -> QuotaOverrideQuerySet:
        """Return the overrides that apply at a moment, by default now."""
        moment = now or timezone.now()
        return self.filter(
            Q(starts__isnull=True) | Q(starts__lte=moment), Q(expires__isnull=True) | Q(expires__gt=moment)
        )

    def update(self, **values: Any) -> int:
        """Change rows, and publish their subjects before and after."""
        if isinstance(values.get("subject"), str):
            values["subject"] = named_subject(values["subject"])
        self._for_write = True  # a replica may lag
        with transaction.atomic(using=self.db):
            begin_writing(self.db)
            before = dict(self.values_list("pk", "subject"))
            changed = super().update(**values)
            subjects = set(before.values())
            if "subject" in values:
                subjects.update(
                    self.model.objects.using(self.db).filter(pk__in=before).values_list("subject", flat=True)
                )
            self._tell(subjects)
        return changed

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(self, objs: Iterable[QuotaOverride], *args: Any, **kwargs: Any) -> list[QuotaOverride]:
        """Add rows, and publish their subjects."""
        rows = list(objs)
        for row in rows:
            row.normalize()
        self._for_write = True
        with transaction.atomic(using=self.db):
            added = super().bulk_create(rows, *args, **kwargs)
            self._tell({row.subject for row in rows})
        return added

    def bulk_update(self, objs: Iterable[QuotaOverride], fields: Iterable[str], batch_size: int | None = None) -> int:
        """Change rows, and publish their subjects before and after."""
        rows = list(objs)
        for row in rows:
            row.normalize()
        return super().bulk_update(rows, fields, batch_size)  # by `update`

    def _tell(self, subjects: Collection[str]) -> None:
        overrides_changed.send(self.model, subjects=subjects, using=self.db)


class QuotaOverride(models.Model):
    """An override: another rate for a subject, no limit at all, or a block, until a moment."""

    class Mode(models.TextChoices):
        """What applies instead of the rule."""

        RATE = "rate", _("another rate")
        EXEMPT = "exempt", _("exempt")
        BLOCKED = "blocked", _("blocked")

    subject = models.CharField(
        _("subject"),
        max_length=500,
        help_text=_("Whom it is about, such as user:42 or ip:203.0.113.9."),
    )
    rule = models.CharField(
        _("rule"),
        max_length=200,
        default=ALL_RULES,
        help_text=_("The name of the rule; * for all. An override for one rule goes before one for all."),
    )
    mode = models.CharField(_("mode"), max_length=7, choices=Mode.choices, default=Mode.RATE)
    rate = models.CharField(
        _("rate"),
        max_length=200,
        blank=True,
        help_text=_("Such as 100/m, or 10/s; 500/h. Only where the mode is another rate."),
    )
    reason = models.CharField(_("reason"), max_length=500, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("created by"),
        null=True,
        blank=True,
        editable=False,
        on_delete=models.SET_NULL,
        related_name="+",
    )
    starts = models.DateTimeField(_("starts"), null=True, blank=True, help_text=_("Empty: at once."))
    expires = models.DateTimeField(_("expires"), null=True, blank=True, help_text=_("Empty: never."))
    created = models.DateTimeField(_("created"), auto_now_add=True)
    updated = models.DateTimeField(_("updated"), auto_now=True)

    objects = QuotaOverrideQuerySet.as_manager()

    class Meta:
        """Each subject and rule has at most one override."""

        verbose_name = _("override")
        verbose_name_plural = _("overrides")
        ordering = ("subject", "rule")
        constraints = (
            models.UniqueConstraint(fields=["subject", "rule"], name="django_quota_override_unique"),
            models.CheckConstraint(
                condition=Q(mode="rate") & ~Q(rate="") | Q(mode__in=["exempt", "blocked"], rate=""),
                name="django_quota_override_rate",
                violation_error_message=_("A rate belongs to the mode “another rate”, and to no other."),
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
        )

    def __str__(self) -> str:
        return f"{self.subject}, {self.rule_in_words}: {self.effect}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save it with its subject in the canonical form. Raises `RuleError` for a wrong subject or rate."""
        self.normalize()
        if self.mode == self.Mode.RATE:
            parse_rates(self.rate)
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using):  # `override_sync` writes the outbox in it
            begin_writing(using)
            super().save(*args, **kwargs)

    @property
    def rule_in_words(self) -> str:
        """The name of its rule, or that it holds for all rules."""
        return gettext("all rules") if self.rule == ALL_RULES else self.rule

    @property
    def effect(self) -> str:
        """What it sets: its rate, or its mode in words."""
        return self.rate if self.mode == self.Mode.RATE else self.get_mode_display()

    def clean(self) -> None:
        """Check that the subject is valid, and that the rate fits its rule."""
        problems = dict(self._problems())
        if problems:
            raise ValidationError(problems)

    def normalize(self) -> None:
        """Bring the subject into its canonical form. Raises `RuleError` for a wrong subject."""
        self.subject = named_subject(self.subject)

    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.subject:
            try:
                self.normalize()
            except RuleError as error:
                yield "subject", str(error)
        if self.starts and self.expires and self.expires <= self.starts:
            yield "expires", gettext("It must expire after it starts.")
        if self.mode != self.Mode.RATE and self.rate:
            yield "rate", gettext("A rate belongs to the mode “another rate”, and to no other.")
        elif self.mode == self.Mode.RATE:
            yield from self._rate_problems()

    def _rate_problems(self) -> Iterator[tuple[str, str]]:
        if not self.rate.strip():
            yield "rate", gettext("This mode needs a rate, such as 100/m.")
            return
        try:
            parse_rates(self.rate)
            known = current()  # a decorator may have other rules
            for name in known.rules:
                if self.rule in (ALL_RULES, name):
                    known.rule(name).with_rates(self.rate)
        except RateError as error:
            yield "rate", str(error)
        except RuleError as error:
            yield "rate", gettext("It does not fit its rule: %s") % error


class Subject(QuotaOverride):
    """A subject in the admin. It has no table, only a page and permissions."""

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
    """The overview in the admin. It has no table, only a page and a permission."""

    class Meta:
        """It can only be viewed."""

        proxy = True
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
        default_permissions = ("view",)


class OverrideOutbox(models.Model):
    """A subject whose overrides have changed: written with the change, deleted after its publication.

    A row that stays was saved while Redis was away, or by a process that ended too soon. `override_sync` publishes it.
    """

    subject = models.CharField(max_length=500)
    noted = models.DateTimeField(auto_now_add=True)

    class Meta:
        """Rows are not unique: each stands for one change."""

        ordering = ("pk",)
        default_permissions = ()  # nobody edits it

    def __str__(self) -> str:
        return self.subject


class OverrideGeneration(models.Model):
    """The generation of the overrides that was published last: one row, none before the first.

    A Redis with an earlier one has lost a part of its memory; see `override_sync`.
    """

    number = models.PositiveBigIntegerField()

    class Meta:
        """Nobody edits it."""

        default_permissions = ()

    def __str__(self) -> str:
        return str(self.number)


def begin_writing(using: str) -> None:
    """Take the write lock of a database that locks no rows (SQLite), before you read what you will change."""
    if not connections[using].features.has_select_for_update:
        OverrideOutbox.objects.using(using).filter(pk=0).update(subject="")


class DailyCounterQuerySet(models.QuerySet["DailyCounter"]):
    """Usage by subject, rule and day."""

    def of_user(self, user: Any) -> DailyCounterQuerySet:
        """Return the rows of a user. Raises `RuleError` for one without a primary key."""
        return self.filter(subject=user_subject(user))


class DailyCounter(models.Model):
    """How many checks of a rule a subject made on a day, as far as `quota_rollup` has copied them from Redis.

    The row notes what was copied last. So a roll-up that runs again, or beside another one, adds nothing twice, and the
    counts of a Redis that has lost its memory are added to the earlier ones.
    """

    subject = models.CharField(
        _("subject"),
        max_length=255,
        help_text=_("Whom it is about, such as user:42; ~ and a digest where the name is too long."),
    )
    rule = models.CharField(_("rule"), max_length=255)
    day = models.DateField(_("day"))
    allowed = models.PositiveBigIntegerField(_("allowed"), default=0)
    refused = models.PositiveBigIntegerField(_("refused"), default=0)
    # What was copied last, and from which hash: the time of its first count, in microseconds since 1970.
    incarnation = models.PositiveBigIntegerField(default=0, editable=False)
    copied_allowed = models.PositiveBigIntegerField(default=0, editable=False)
    copied_refused = models.PositiveBigIntegerField(default=0, editable=False)

    objects = DailyCounterQuerySet.as_manager()

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
        return f"{self.subject}, {self.rule}, {self.day}: {self.allowed} allowed, {self.refused} refused"

    @property
    def user_pk(self) -> str | None:
        """The primary key of the user, as text; None for a subject that is not a user."""
        kind, _colon, name = self.subject.partition(":")
        return unquote(name) if kind == "user" and name and "+" not in name else None
