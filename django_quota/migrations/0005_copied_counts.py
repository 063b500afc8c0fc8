"""The counts that the last roll-up copied: `copied_allowed` and `copied_refused` were `carried_allowed` and so on."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Plainer names. The database renames the columns in place."""

    dependencies: ClassVar = [("django_quota", "0004_override_generation")]

    operations: ClassVar = [
        migrations.RenameField("dailycounter", "carried_allowed", "copied_allowed"),
        migrations.RenameField("dailycounter", "carried_refused", "copied_refused"),
        migrations.AlterField("dailycounter", "incarnation", models.PositiveBigIntegerField(default=0, editable=False)),
    ]
