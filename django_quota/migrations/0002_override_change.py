"""A log of the changes of overrides takes the place of the number of the last one, which each change had to lock."""

# ruff: noqa: RUF012 — as makemigrations writes it

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("django_quota", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="OverrideChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.BigIntegerField()),
                ("removed", models.TextField(default="")),
                ("full", models.BooleanField(default=False)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        # Processes that have not been restarted yet read the table of numbers: without it they would forget blocks.
        migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel(name="OverrideChanges")]),
    ]
