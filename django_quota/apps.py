"""The Django app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Tags, register
from django.utils.translation import gettext_lazy as _


class QuotaConfig(AppConfig):
    """Registers the system checks, and connects the overrides in the database and the ends of requests."""

    name = "django_quota"
    verbose_name = _("Quotas")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and connect signals."""
        # Apps must be loaded before these are imported.
        from django_quota.features.request_end import hearing  # noqa: PLC0415
        from django_quota.limiting import override_rows  # noqa: PLC0415
        from django_quota.runtime import runtime  # noqa: PLC0415

        register(_check_settings, "django_quota")
        register(_check_tables, Tags.database)
        register(_check_live_site, "django_quota", deploy=True)
        runtime.note_site()
        hearing.get()
        override_rows.connect()


# The checks import many modules, and a server does not run them after its start.


def _check_settings(**given: Any) -> Sequence[CheckMessage]:
    from django_quota.http.checks import check_settings  # noqa: PLC0415

    return check_settings(**given)


def _check_tables(**given: Any) -> Sequence[CheckMessage]:
    from django_quota.http.checks import check_tables  # noqa: PLC0415

    return check_tables(**given)


def _check_live_site(**given: Any) -> Sequence[CheckMessage]:
    from django_quota.http.checks import check_live_site  # noqa: PLC0415

    return check_live_site(**given)
