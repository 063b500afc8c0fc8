"""What the admin pages share: permissions, links, a read-only admin, a strict change list, and the filter by rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.contrib.auth import get_permission_codename, get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.conf import limits_logins
from django_quota.core.overrides import ALL_RULES
from django_quota.models import QuotaOverride
from django_quota.operating.lookup import login_names_among, parts_of, user_names


def may_see(request: HttpRequest, model: Any) -> bool:
    """Return whether the request's user may view or change rows of a model."""
    opts, user = model._meta, request.user
    return any(user.has_perm(f"{opts.app_label}.{get_permission_codename(verb, opts)}") for verb in ("view", "change"))


def may_see_users(request: HttpRequest) -> bool:
    """Return whether the request's user may see users. Show names of users to nobody else."""
    return may_see(request, get_user_model())


def names_among(request: HttpRequest, subjects: Iterable[str | None]) -> dict[str, str]:
    """Return the names of the users in subjects, and those behind digests of failed logins, by part of a subject.

    It is empty for those who may not see users.
    """
    if not may_see_users(request):
        return {}
    parts = {part for subject in subjects if subject for part in parts_of(subject)}
    return user_names(parts) | (login_names_among(parts, ()) if limits_logins() else {})


def admin_url(site: str | None, page: str, *args: Any, **query: str) -> str:
    """Return the URL of one of our admin pages, such as `dailycounter_usage`; "" if the site does not have it."""
    return reverse_admin(site, f"django_quota_{page}", *args, **query)


def reverse_admin(site: str | None, name: str, *args: Any, **query: str) -> str:
    """Return the URL of any page of an admin site, such as `auth_user_change`; "" if the site does not have it."""
    try:
        url = reverse(f"admin:{name}", args=args, current_app=site)
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(query, errors='replace')}" if query else url


def subject_url(request: HttpRequest, site: str, **query: str) -> str:
    """Return the URL of the subject page; "" for users who may not see it."""
    user: Any = request.user
    return admin_url(site, "subject_changelist", **query) if user.has_perm("django_quota.view_subject") else ""


def rule_url(request: HttpRequest, site: str, **query: str) -> str:
    """Return the URL of the page of rules; "" for users who may not see overrides."""
    return admin_url(site, "quotaoverride_rule", **query) if may_see(request, QuotaOverride) else ""


def labelled(field: str, label: Any) -> Callable[[Any], SafeString]:
    """Return a column of a list: a field with its label, which only a phone shows, and numbers with separators."""

    @admin.display(description=label, ordering=field)
    def column(row: Any) -> SafeString:
        value = getattr(row, field)
        shown = number_format(value, force_grouping=True) if isinstance(value, int) else value or "-"
        return format_html('<span class="quota-label">{}</span> {}', label, shown)

    column.__name__ = field
    return column


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class takes no type argument
    """An admin that only shows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class StrictChangeList(ChangeList):
    """A change list that redirects to the whole list for any malformed parameter, as Django does for most."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the rows. Raises `IncorrectLookupParameters`."""
        values = [value for name, values in request.GET.lists() if name != SEARCH_VAR for value in values]
        if any("\0" in value for value in values):
            raise IncorrectLookupParameters("PostgreSQL takes no null character in a text")
        try:
            return super().get_queryset(request, exclude_parameters)
        except (ValueError, OverflowError) as error:  # the year 9999 has no next year
            raise IncorrectLookupParameters(error) from error


MAX_NAMES = 100
"""Names that a filter offers."""


class RuleFilter(admin.SimpleListFilter):
    """Filters by rule. Offers the first hundred rules that rows have; any other works in the URL."""

    title = gettext_lazy("rule")
    parameter_name = field = "rule"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = self.names(model_admin.model)
        chosen = self.value()
        if chosen and chosen not in names:
            names.append(chosen)
        return [(name, _("all rules") if name == ALL_RULES else name) for name in names]

    def names(self, model: Any) -> list[str]:
        """Return the names to offer: those that rows have. It reads all rows."""
        rows = model.objects.exclude(**{self.field: ""}).order_by(self.field)
        return list(rows.values_list(self.field, flat=True).distinct()[:MAX_NAMES])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(**{self.field: chosen}) if chosen else queryset


class LabelFilter(RuleFilter):
    """Filters overrides by label: the list that they belong to."""

    title = gettext_lazy("label")
    parameter_name = field = "label"
