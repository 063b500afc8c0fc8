"""MySQL and MariaDB compare names by their bytes, as the other databases do, whatever the collation of the database.

Two subjects that differ in case were one row there, and stopped `quota_rollup`.
"""

# ruff: noqa: RUF012 — as makemigrations writes it

from typing import Any

from django.db import migrations

NAMES = {"DailyCounter": ("subject", "rule"), "QuotaOverride": ("subject", "rule")}


def compare_by_bytes(apps: Any, editor: Any) -> None:
    """Give the columns of names a binary collation."""
    if editor.connection.vendor != "mysql":
        return
    for model_name, columns in NAMES.items():
        model = apps.get_model("django_quota", model_name)
        table = editor.quote_name(model._meta.db_table)  # noqa: SLF001 — where Django keeps it
        for name in columns:
            size = model._meta.get_field(name).max_length  # noqa: SLF001
            kind = f"varchar({size}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
            editor.execute(f"ALTER TABLE {table} MODIFY {editor.quote_name(name)} {kind}")


class Migration(migrations.Migration):
    atomic = False  # MySQL changes tables outside of transactions

    dependencies = [
        ("django_quota", "0003_created_by_name"),
    ]

    operations = [
        migrations.RunPython(compare_by_bytes, migrations.RunPython.noop, atomic=False, elidable=True),
    ]
