"""The Django app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Tags, register
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _


class QuotaConfig(AppConfig):
    """Registers the system checks, lets decisions use the overrides in the database, and users name their backend."""

    name = "django_quota"
    verbose_name = _("Quotas")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect all signals, register the checks, and let `login()` not count our backend."""
        # Apps must be loaded before these are imported.
        from django_quota.conf import limits_logins  # noqa: PLC0415
        from django_quota.features.request_end import hearing  # noqa: PLC0415
        from django_quota.limiting import override_rows  # noqa: PLC0415
        from django_quota.runtime import runtime  # noqa: PLC0415
        from django_quota.web import finders  # noqa: F401, PLC0415 — it registers them

        register(_check_settings, "django_quota")
        register(_check_tables, Tags.database)
        register(_check_live_site, "django_quota", deploy=True)
        runtime.note_site()
        hearing.get()
        override_rows.connect()
        if apps.is_installed("django.contrib.auth") and limits_logins():
            from django.contrib.auth import get_user_model  # noqa: PLC0415

            import_string("django_quota.contrib.auth.name_backend")(get_user_model())


# The checks import much, and a server that has started never runs them.


def _check_settings(**given: Any) -> Sequence[CheckMessage]:
    from django_quota.web.checks import check_settings  # noqa: PLC0415

    return check_settings(**given)


def _check_tables(**given: Any) -> Sequence[CheckMessage]:
    from django_quota.web.checks import check_tables  # noqa: PLC0415

    return check_tables(**given)


def _check_live_site(**given: Any) -> Sequence[CheckMessage]:
    from django_quota.web.checks import check_live_site  # noqa: PLC0415

    return check_live_site(**given)
