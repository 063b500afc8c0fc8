"""The app `django_quota.contrib.prometheus`, for the command `quota_metrics`."""

from __future__ import annotations

from django.apps import AppConfig


class QuotaPrometheusConfig(AppConfig):
    """Its label does not clash with other apps for Prometheus."""

    name = "django_quota.contrib.prometheus"
    label = "quota_prometheus"
    verbose_name = "django_quota for Prometheus"
