"""The app `django_quota.contrib.opentelemetry`."""

from __future__ import annotations

import logging

from django.apps import AppConfig

from django_quota.contrib.opentelemetry import instrument

logger = logging.getLogger("django_quota.metrics")


class QuotaOpenTelemetryConfig(AppConfig):
    """Records the decisions of each process that sets Django up."""

    name = "django_quota.contrib.opentelemetry"
    label = "quota_opentelemetry"
    verbose_name = "django_quota for OpenTelemetry"

    def ready(self) -> None:
        """Start. A meter provider that fails must not stop the site."""
        try:
            instrument()
        except Exception:
            logger.exception("The decisions are not recorded for OpenTelemetry: its meter provider failed")
