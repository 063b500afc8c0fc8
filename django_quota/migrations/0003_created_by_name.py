"""The name of who saved an override takes the place of a foreign key: users may be in another database."""

# ruff: noqa: RUF012 — as makemigrations writes it

from typing import Any

from django.contrib.auth import get_user_model
from django.db import migrations, models


def keep_names(apps: Any, editor: Any) -> None:
    """Write the names of the users. Where their table cannot be read, none was ever written."""
    rows = apps.get_model("django_quota", "QuotaOverride").objects.using(editor.connection.alias)
    known = {pk for pk in rows.order_by().values_list("created_by_id", flat=True).distinct() if pk is not None}
    users = get_user_model()._base_manager.filter(pk__in=known) if known else ()  # noqa: SLF001 — deleted ones are in it
    for user in users:
        rows.filter(created_by_id=user.pk).update(created_by_name=user.get_username()[:255])


class Migration(migrations.Migration):
    dependencies = [
        ("django_quota", "0002_override_change"),
    ]

    operations = [
        migrations.AddField(
            model_name="quotaoverride",
            name="created_by_name",
            field=models.CharField(blank=True, default="", editable=False, max_length=255, verbose_name="set by"),
        ),
        migrations.RunPython(keep_names, migrations.RunPython.noop, elidable=True),
        migrations.RemoveField(model_name="quotaoverride", name="created_by"),
        migrations.RenameField(model_name="quotaoverride", old_name="created_by_name", new_name="created_by"),
    ]
