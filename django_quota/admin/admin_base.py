"""What the admin pages share: permissions, links, a read-only admin, a strict change list, and the filter by rule."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.contrib.auth import get_permission_codename, get_user_model
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_quota.conf import current
from django_quota.services.lookup import MAX_NAMES, distinct_names
from django_quota.services.override_sync import are_pending, write_database
from django_quota.services.overrides import ALL_RULES


def may_see(request: HttpRequest, model: Any) -> bool:
    """Return whether the request's user may view or change rows of a model."""
    opts, user = model._meta, request.user
    return any(user.has_perm(f"{opts.app_label}.{get_permission_codename(verb, opts)}") for verb in ("view", "change"))


def may_see_users(request: HttpRequest) -> bool:
    """Return whether the request's user may see users. Show names of users to nobody else."""
    return may_see(request, get_user_model())


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


def warn_if_unpublished(model_admin: Any, request: HttpRequest, subjects: Collection[str]) -> None:
    """Warn that changed overrides of these subjects are not in force yet, if Redis did not take them.

    It looks once the change is committed and published, which may be after the view has returned.
    """
    using = write_database()
    transaction.on_commit(partial(_warn, model_admin, request, subjects, using), using=using)


def _warn(model_admin: Any, request: HttpRequest, subjects: Collection[str], using: str) -> None:
    if current().enabled and are_pending(subjects, using):
        words = _("The change is saved, but Redis did not take it. It applies soon after Redis is back.")
        model_admin.message_user(request, words, messages.WARNING)


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class takes no type argument
    """An admin that only shows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class StrictChangeList(ChangeList):
    """A change list that treats every malformed parameter as Django treats most: it leads back to the whole list."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the rows. Raises `IncorrectLookupParameters`."""
        values = [value for name, values in request.GET.lists() if name != SEARCH_VAR for value in values]
        if any("\0" in value for value in values):
            raise IncorrectLookupParameters("PostgreSQL takes no null character in a text")
        try:
            return super().get_queryset(request, exclude_parameters)
        except (ValueError, OverflowError) as error:  # the year 9999 has no next year
            raise IncorrectLookupParameters(error) from error


class RuleFilter(admin.SimpleListFilter):
    """Filters by rule. Offers the first hundred rules that rows have; any other works in the URL."""

    title = gettext_lazy("rule")
    parameter_name = "rule"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = distinct_names("rule", model=model_admin.model)
        chosen = self.value()
        if len(names) == MAX_NAMES and chosen and chosen not in names:
            names.append(chosen)
        return [(name, _("all rules") if name == ALL_RULES else name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(rule=chosen) if chosen else queryset
