"""The tables: overrides and their changes, daily counters, the database store; and admin pages without a table."""

# ruff: noqa: RUF012 — as makemigrations writes it

from typing import Any

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def compare_by_bytes(apps: Any, editor: Any) -> None:
    """Let PostgreSQL compare the names of daily counters by their bytes, whatever the language of the database.

    So all names with the same beginning are one range of an index, as they are in SQLite.
    """
    if editor.connection.vendor != "postgresql":
        return
    model = apps.get_model("django_quota", "DailyCounter")
    table = editor.quote_name(model._meta.db_table)  # noqa: SLF001 — where Django keeps it
    for name in ("subject", "rule"):
        column = editor.quote_name(name)
        editor.execute(f'ALTER TABLE {table} ALTER COLUMN {column} TYPE varchar(255) COLLATE "C"')


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="OverrideChanges",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveBigIntegerField(default=0)),
                ("removed", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="DailyCounter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "subject",
                    models.CharField(
                        help_text="Who this applies to, such as user:42; ~ and a digest where the name is too long.",
                        max_length=255,
                        verbose_name="subject",
                    ),
                ),
                ("rule", models.CharField(max_length=255, verbose_name="rule")),
                ("day", models.DateField(verbose_name="day")),
                ("allowed", models.PositiveBigIntegerField(default=0, verbose_name="allowed")),
                ("refused", models.PositiveBigIntegerField(default=0, verbose_name="refused")),
                (
                    "units",
                    models.PositiveBigIntegerField(
                        default=0, help_text="What the allowed checks cost.", verbose_name="units"
                    ),
                ),
                (
                    "tier",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The tier of the last check, where the rule has a function for it.",
                        max_length=100,
                        verbose_name="tier",
                    ),
                ),
                ("token", models.PositiveBigIntegerField(default=0, editable=False)),
            ],
            options={
                "verbose_name": "daily counter",
                "verbose_name_plural": "daily counters",
                "ordering": ("-day", "subject", "rule"),
                "indexes": [
                    models.Index(fields=["-day", "subject", "rule"], name="django_quota_daily_newest"),
                    models.Index(fields=["rule", "-day", "subject"], name="django_quota_daily_rule"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("subject", "day", "rule"), name="django_quota_daily_unique")
                ],
            },
        ),
        migrations.RunPython(compare_by_bytes, migrations.RunPython.noop),
        migrations.CreateModel(
            name="QuotaOverride",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "subject",
                    models.CharField(
                        help_text="Who this applies to, such as user:42 or ip:203.0.113.9.",
                        max_length=500,
                        verbose_name="subject",
                    ),
                ),
                (
                    "rule",
                    models.CharField(
                        default="*",
                        help_text="A rule's name; * for all rules. An override for a single rule takes precedence.",
                        max_length=200,
                        verbose_name="rule",
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("rate", "another rate"),
                            ("exempt", "exempt"),
                            ("blocked", "blocked"),
                            ("shadow", "reports only"),
                        ],
                        default="rate",
                        max_length=7,
                        verbose_name="mode",
                    ),
                ),
                (
                    "rate",
                    models.CharField(
                        blank=True,
                        help_text="100/m, or 10/s; 500/h; +500 adds units, x2 doubles. Only for the mode another rate.",
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
                (
                    "label",
                    models.CharField(
                        blank=True,
                        help_text="The list that it belongs to, such as crawlers.",
                        max_length=100,
                        verbose_name="label",
                    ),
                ),
                ("created", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                ("updated", models.DateTimeField(auto_now=True, verbose_name="updated")),
                ("change", models.PositiveBigIntegerField(db_index=True, default=0, editable=False)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,  # users may be in another database; migration 0003 keeps their names
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
                "verbose_name_plural": "overrides and rules",
                "ordering": ("subject", "rule"),
                "indexes": [
                    models.Index(fields=["rule"], name="django_quota_override_rule"),
                    models.Index(fields=["expires"], name="django_quota_override_ends"),
                    models.Index(fields=["label"], name="django_quota_override_label"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("subject", "rule"), name="django_quota_override_unique"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("mode", "rate"), models.Q(("rate", ""), _negated=True)),
                            models.Q(("mode__in", ["exempt", "blocked", "shadow"]), ("rate", "")),
                            _connector="OR",
                        ),
                        name="django_quota_override_rate",
                        violation_error_message='A rate belongs to the mode "another rate", and to no other.',
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
        migrations.CreateModel(
            name="Overview",
            fields=[],
            options={
                "verbose_name": "overview",
                "verbose_name_plural": "overview",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("django_quota.quotaoverride",),
        ),
        migrations.CreateModel(
            name="Ban",
            fields=[],
            options={
                "verbose_name": "ban",
                "verbose_name_plural": "bans",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("django_quota.quotaoverride",),
        ),
        migrations.CreateModel(
            name="Subject",
            fields=[],
            options={
                "verbose_name": "subject",
                "verbose_name_plural": "subjects",
                "permissions": (
                    ("reset_subject", "Can reset what a subject has used"),
                    ("lift_ban", "Can lift the ban of a subject"),
                ),
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("django_quota.quotaoverride",),
        ),
        migrations.CreateModel(
            name="QuotaState",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("key", models.TextField()),
                ("value", models.TextField()),
                ("expires", models.BigIntegerField()),
                ("hour", models.IntegerField(db_index=True)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="QuotaEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("log", models.TextField()),
                ("batch", models.BigIntegerField()),
                ("at", models.BigIntegerField()),
                ("data", models.TextField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["batch", "id"], name="django_quota_event_order")],
            },
        ),
        migrations.CreateModel(
            name="QuotaBan",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("log", models.TextField()),
                ("subject", models.TextField()),
                ("rule", models.TextField()),
                ("until", models.BigIntegerField(db_index=True)),
            ],
            options={
                "default_permissions": (),
            },
        ),
    ]
