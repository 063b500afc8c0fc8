"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class QuotaConfig(AppConfig):
    """Registers the system checks, and publishes overrides when they change or when Redis has lost them."""

    name = "django_quota"
    verbose_name = _("Quotas")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks and connect the signals that publish overrides."""
        # Apps must be loaded before these are imported.
        from django_quota.services import known_rules, override_sync  # noqa: PLC0415
        from django_quota.web import checks, view_lookup  # noqa: F401, PLC0415

        known_rules.register_views(rules=view_lookup.rules_of_views, slots=view_lookup.slots_of_views)
        override_sync.connect()
