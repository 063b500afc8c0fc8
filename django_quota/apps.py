"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class QuotaConfig(AppConfig):
    """Registers the system checks, and has overrides published when they change, or Redis does not hold them."""

    name = "django_quota"
    verbose_name = _("Quotas")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, which importing does, and connect the publishing."""
        from django_quota import checks, override_sync  # noqa: F401, PLC0415 — apps must be loaded first

        override_sync.connect()
