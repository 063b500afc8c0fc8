"""The tables: overrides, their outbox, and daily counters."""

# ruff: noqa: D101, RUF012 — as makemigrations writes it

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="OverrideOutbox",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("subject", models.CharField(max_length=500)),
                ("noted", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "verbose_name": "unpublished override",
                "verbose_name_plural": "unpublished overrides",
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="DailyCounter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "subject",
                    models.CharField(
                        help_text="Whom it is about, such as user:42; ~ and a digest where the name is too long.",
                        max_length=255,
                        verbose_name="subject",
                    ),
                ),
                ("rule", models.CharField(max_length=255, verbose_name="rule")),
                ("day", models.DateField(verbose_name="day")),
                ("allowed", models.PositiveBigIntegerField(default=0, verbose_name="allowed")),
                ("refused", models.PositiveBigIntegerField(default=0, verbose_name="refused")),
                (
                    "incarnation",
                    models.PositiveBigIntegerField(
                        default=0,
                        editable=False,
                        help_text="Which hash in Redis was carried last: its beginning, in microseconds since 1970.",
                    ),
                ),
                ("carried_allowed", models.PositiveBigIntegerField(default=0, editable=False)),
                ("carried_refused", models.PositiveBigIntegerField(default=0, editable=False)),
            ],
            options={
                "verbose_name": "daily counter",
                "verbose_name_plural": "daily counters",
                "ordering": ("-day", "subject", "rule"),
                "indexes": [models.Index(fields=["day", "rule"], name="django_quota_daily_day_rule")],
                "constraints": [
                    models.UniqueConstraint(fields=("subject", "day", "rule"), name="django_quota_daily_unique")
                ],
            },
        ),
        migrations.CreateModel(
            name="QuotaOverride",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "subject",
                    models.CharField(
                        help_text="Whom it is about, such as user:42 or ip:203.0.113.9.",
                        max_length=500,
                        verbose_name="subject",
                    ),
                ),
                (
                    "rule",
                    models.CharField(
                        default="*",
                        help_text="The name of the rule; * for all. An override for one rule goes before one for all.",
                        max_length=200,
                        verbose_name="rule",
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[("rate", "another rate"), ("exempt", "exempt"), ("blocked", "blocked")],
                        default="rate",
                        max_length=7,
                        verbose_name="mode",
                    ),
                ),
                (
                    "rate",
                    models.CharField(
                        blank=True,
                        help_text="Such as 100/m, or 10/s; 500/h. Only where the mode is another rate.",
                        max_length=200,
                        verbose_name="rate",
                    ),
                ),
                ("reason", models.CharField(blank=True, max_length=500, verbose_name="reason")),
                (
                    "starts",
                    models.DateTimeField(blank=True, help_text="Empty: at once.", null=True, verbose_name="starts"),
                ),
                (
                    "expires",
                    models.DateTimeField(blank=True, help_text="Empty: never.", null=True, verbose_name="expires"),
                ),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated", models.DateTimeField(auto_now=True, verbose_name="updated")),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="created by",
                    ),
                ),
            ],
            options={
                "verbose_name": "override",
                "verbose_name_plural": "overrides",
                "ordering": ("subject", "rule"),
                "indexes": [
                    models.Index(fields=["rule"], name="django_quota_override_rule"),
                    models.Index(fields=["expires"], name="django_quota_override_ends"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("subject", "rule"), name="django_quota_override_unique"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("mode", "rate"), models.Q(("rate", ""), _negated=True)),
                            models.Q(("mode__in", ["exempt", "blocked"]), ("rate", "")),
                            _connector="OR",
                        ),
                        name="django_quota_override_rate",
                        violation_error_message="A rate belongs to the mode “another rate”, and to no other.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("starts__isnull", True),
                            ("expires__isnull", True),
                            ("expires__gt", models.F("starts")),
                            _connector="OR",
                        ),
                        name="django_quota_override_span",
                        violation_error_message="It must expire after it starts.",
                    ),
                ],
            },
        ),
    ]
