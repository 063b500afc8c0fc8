"""A page of the rules in the admin, which begins with the overview. No table changes."""

# ruff: noqa: RUF012 — as makemigrations writes it

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("django_quota", "0005_event_at")]

    operations = [
        migrations.CreateModel(
            name="KnownRule",
            fields=[],
            options={
                "verbose_name": "rule",
                "verbose_name_plural": "rules",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("django_quota.quotaoverride",),
        ),
        migrations.AlterModelOptions(
            name="overview",
            options={
                "default_permissions": ("view",),
                "verbose_name": "overview",
                "verbose_name_plural": " Overview",
            },
        ),
        migrations.AlterModelOptions(
            name="quotaoverride",
            options={
                "ordering": ("subject", "rule"),
                "verbose_name": "override",
                "verbose_name_plural": "overrides",
            },
        ),
    ]
