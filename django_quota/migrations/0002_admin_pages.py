"""The pages of the admin that have no table of their own: subjects and the overview, each with its permissions."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations


class Migration(migrations.Migration):
    """Two proxies, for who may see and do what."""

    dependencies: ClassVar = [("django_quota", "0001_initial")]

    operations: ClassVar = [
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
    ]
