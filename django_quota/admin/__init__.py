"""The admin: overrides, daily counters, subjects, bans and the overview, in Django's own look.

Importing this package registers its admins. The four below have only pages of our own, without a list of rows. What
such a page needs is imported with the URLs of the admin: a process starts without it, and most workers never show a
page.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import URLPattern, path

from django_quota.admin import daily_counters, overrides
from django_quota.admin.base import ReadOnlyAdmin
from django_quota.models import Ban, KnownRule, Overview, Subject

__all__ = ["daily_counters", "overrides"]  # importing them registers their admins


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """The overview; see `overview`."""

    def get_urls(self) -> list[URLPattern]:
        from django_quota.admin.overview import OverviewPages  # noqa: PLC0415 — no page is needed to start

        return OverviewPages(self.model, self.admin_site).get_urls()


@admin.register(Ban)
class BanAdmin(ReadOnlyAdmin):
    """The list of bans; see `bans`."""

    def get_urls(self) -> list[URLPattern]:
        from django_quota.admin.bans import BanPages  # noqa: PLC0415 — no page is needed to start

        return BanPages(self.model, self.admin_site).get_urls()


@admin.register(KnownRule)
class KnownRuleAdmin(ReadOnlyAdmin):
    """The list of rules; see `rule_page`."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the request's user may view overrides, whose pages show the rules."""
        user = request.user
        return any(user.has_perm(f"django_quota.{verb}_quotaoverride") for verb in ("view", "change"))

    def get_urls(self) -> list[URLPattern]:
        from django_quota.admin.rule_page import rules_view  # noqa: PLC0415 — no page is needed to start

        view = self.admin_site.admin_view(partial(rules_view, self))
        return [path("", view, name="django_quota_knownrule_changelist")]


@admin.register(Subject)
class SubjectAdmin(ReadOnlyAdmin):
    """The search form and the page of one subject; see `subject_page`."""

    def get_urls(self) -> list[URLPattern]:
        from django_quota.admin.subject_page import SubjectPages  # noqa: PLC0415 — no page is needed to start

        return SubjectPages(self.model, self.admin_site).get_urls()
