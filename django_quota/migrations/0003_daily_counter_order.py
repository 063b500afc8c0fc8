"""Daily counters in the order of the admin's list: what it shows of a million rows is read from an index.

The old index of days and rules is a part of each of the new ones. PostgreSQL compares names byte by byte from here on,
whatever the language of the database: so the beginning of a name is a range of an index, as it is in SQLite.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

NAMES = ("subject", "rule")


def _collate(editor: Any, model: Any, collation: str) -> None:
    if editor.connection.vendor != "postgresql":
        return
    table = editor.quote_name(model._meta.db_table)  # noqa: SLF001 — where Django keeps it
    for name in NAMES:
        column = editor.quote_name(name)
        editor.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE varchar(255) COLLATE {collation}")


def byte_by_byte(apps: Any, editor: Any) -> None:
    """Compare names by their bytes."""
    _collate(editor, apps.get_model("django_quota", "DailyCounter"), '"C"')


def by_language(apps: Any, editor: Any) -> None:
    """Compare names as the database does by default."""
    _collate(editor, apps.get_model("django_quota", "DailyCounter"), '"default"')


class Migration(migrations.Migration):
    """Two indexes for one."""

    dependencies: ClassVar = [("django_quota", "0002_admin_pages")]

    operations: ClassVar = [
        migrations.RemoveIndex(model_name="dailycounter", name="django_quota_daily_day_rule"),
        migrations.RunPython(byte_by_byte, by_language),
        migrations.AddIndex(
            model_name="dailycounter",
            index=models.Index(fields=["-day", "subject", "rule"], name="django_quota_daily_newest"),
        ),
        migrations.AddIndex(
            model_name="dailycounter",
            index=models.Index(fields=["rule", "-day", "subject"], name="django_quota_daily_rule"),
        ),
    ]
