"""Events are found by their time, since a log keeps them for so many days."""

# ruff: noqa: RUF012 — as makemigrations writes it

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("django_quota", "0004_compare_by_bytes_on_mysql")]

    operations = [
        migrations.AddIndex("quotaevent", models.Index(fields=["at"], name="django_quota_event_at")),
    ]
