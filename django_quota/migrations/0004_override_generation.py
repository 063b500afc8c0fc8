"""The generation of the overrides that was published: it shows whether Redis has lost a part of them."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """One table more."""

    dependencies: ClassVar = [("django_quota", "0003_daily_counter_order")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="OverrideGeneration",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveBigIntegerField()),
            ],
            options={"default_permissions": ()},
        ),
    ]
