"""Plainer names for the counts that the last roll-up copied; no permissions for the outbox, which nobody edits."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """`carried_*` become `copied_*`. The database renames the columns in place."""

    dependencies: ClassVar = [("django_quota", "0004_override_generation")]

    operations: ClassVar = [
        migrations.RenameField("dailycounter", "carried_allowed", "copied_allowed"),
        migrations.RenameField("dailycounter", "carried_refused", "copied_refused"),
        migrations.AlterModelOptions("overrideoutbox", {"default_permissions": (), "ordering": ("pk",)}),
        migrations.AlterField("dailycounter", "incarnation", models.PositiveBigIntegerField(default=0, editable=False)),
    ]
