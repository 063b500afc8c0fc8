"""The admins that have only pages of our own, without a list of rows.

What such a page needs is imported with the URLs of the admin: a process starts without it, and most workers never show
a page.
"""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern

from django_quota.admin.base import ReadOnlyAdmin
from django_quota.models import Ban, Overview, Subject


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


@admin.register(Subject)
class SubjectAdmin(ReadOnlyAdmin):
    """The search form and the page of one subject; see `subject_page`."""

    def get_urls(self) -> list[URLPattern]:
        from django_quota.admin.subject_page import SubjectPages  # noqa: PLC0415 — no page is needed to start

        return SubjectPages(self.model, self.admin_site).get_urls()
