"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class QuotaConfig(AppConfig):
    """Registers the system checks."""

    name = "django_quota"
    verbose_name = _("Quotas")

    def ready(self) -> None:
        """Register the checks; importing is all it takes."""
        from django_quota import checks  # noqa: F401, PLC0415 — apps must be loaded first
