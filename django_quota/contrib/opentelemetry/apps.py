"""The app `django_quota.contrib.opentelemetry`."""

from __future__ import annotations

from django.apps import AppConfig

from django_quota.contrib.opentelemetry import instrument


class QuotaOpenTelemetryConfig(AppConfig):
    """Records the decisions of each process that sets Django up."""

    name = "django_quota.contrib.opentelemetry"
    label = "quota_opentelemetry"
    verbose_name = "django_quota for OpenTelemetry"

    def ready(self) -> None:
        """Start."""
        instrument()
