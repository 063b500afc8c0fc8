"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class QuotaConfig(AppConfig):
    """Registers the system checks, and lets decisions use the overrides in the database."""

    name = "django_quota"
    verbose_name = _("Quotas")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and connect the overrides."""
        # Apps must be loaded before these are imported.
        from django_quota.limiting import override_rows  # noqa: PLC0415
        from django_quota.web import checks  # noqa: F401, PLC0415

        override_rows.connect()
