"""What the admin pages share: pages of our own, permissions, links, a strict change list, and a warning.

The warning is for whoever is about to block themselves.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.contrib.auth import get_permission_codename, get_user_model
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_quota.conf import limits_logins
from django_quota.core.errors import ConfigurationError, RuleError
from django_quota.core.overrides import ALL_RULES, EVERYBODY, Override, OverrideTable
from django_quota.error_texts import error_in_words
from django_quota.operating.lookup import find_subjects, is_group, login_names_among, user_names
from django_quota.subjects.addresses import ip_subject
from django_quota.subjects.subject import is_bare, is_user, parts_of, user_subject


def may_see_users(request: HttpRequest) -> bool:
    """Return whether the request's user may see users. Users without this permission see no user names."""
    opts, user = get_user_model()._meta, request.user
    return any(user.has_perm(f"{opts.app_label}.{get_permission_codename(verb, opts)}") for verb in ("view", "change"))


def hidden_names_hint(subject: str, *, sees_users: bool) -> str:
    """Return that nobody was looked up by name, if what was typed may be one and the request's user may see none."""
    may_be_name = is_bare(subject) and not is_group(subject)
    return "" if sees_users or not may_be_name else _("You may not see users, so no name is looked up.")


def names_among(request: HttpRequest, subjects: Iterable[str | None]) -> dict[str, str]:
    """Return the names of users in these subjects, and those that digests of failed logins stand for.

    The keys are parts of subjects. The dict is empty if the request's user may not see users.
    """
    if not may_see_users(request):
        return {}
    parts = {part for subject in subjects if subject for part in parts_of(subject)}
    return user_names(parts) | (login_names_among(parts, ()) if limits_logins() else {})


def admin_url(site: str | None, page: str, /, *args: Any, **query: str) -> str:
    """Return the URL of a page of an admin site, such as `auth_user_change`; "" if the site does not have it."""
    try:
        url = reverse(f"admin:{page}", args=args, current_app=site)
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(query, errors='replace')}" if query else url


def labelled(field: str, label: Any) -> Callable[[Any], SafeString]:
    """Return a column of a list: the field with thousand separators, and with its label, which only phones show."""

    @admin.display(description=label, ordering=field)
    def column(row: Any) -> SafeString:
        value = getattr(row, field)
        value = str(value.get_username()) if is_user(value) else value  # the name may be a number
        shown = number_format(value, force_grouping=True) if isinstance(value, int) else value or "-"
        return format_html('<span class="quota-label">{}</span> {}', label, shown)

    column.__name__ = field
    return column


class PageAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's class takes no type argument
    """An admin with pages of our own."""

    def check_view(self, request: HttpRequest) -> None:
        """Raise `PermissionDenied` if the request's user may not view the model."""
        request.current_app = self.admin_site.name
        if not self.has_view_permission(request):
            raise PermissionDenied

    def url(self, page: str, /, *args: Any, **query: str) -> str:
        """Return the URL of a page of this model, such as `changelist`."""
        return admin_url(self.admin_site.name, f"django_quota_{self.opts.model_name}_{page}", *args, **query)

    def show(self, request: HttpRequest, template: str, title: Any, /, **context: Any) -> TemplateResponse:
        """Return a page in the admin's look."""
        request.current_app = self.admin_site.name
        given = {**self.admin_site.each_context(request), "opts": self.opts, "title": title}
        return TemplateResponse(request, f"admin/django_quota/{template}.html", given | context)

    def find(self, request: HttpRequest, page: str) -> HttpResponse:
        """Answer a search: redirect to this page of the subject, list several to choose from, or say what is wrong.

        The search is a POST, so a plain value never becomes part of a URL.
        """
        try:
            found = find_subjects(request.POST.get("find", ""), with_users=may_see_users(request))
        except RuleError as error:  # the input may hold a plain value, so it is not shown again
            return self.show(
                request, "subject/find", _("Find a subject"), trouble=error_in_words(error), find_url=self.url(page)
            )
        if len(found) > 1:
            return self.show(request, "subject/choice", _("Who do you mean?"), found=found, find_url=self.url(page))
        return HttpResponseRedirect(self.url(page, subject=found[0].subject))


class ReadOnlyAdmin(PageAdmin):
    """An admin that shows, and changes nothing."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class StrictChangeList(ChangeList):
    """A change list that redirects to the whole list for any malformed parameter, as Django does for most."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return the rows. Raises `IncorrectLookupParameters` for a malformed parameter."""
        values = [value for name, values in request.GET.lists() if name != SEARCH_VAR for value in values]
        if any("\0" in value for value in values):
            raise IncorrectLookupParameters("PostgreSQL does not accept a null character in a string")
        try:
            return super().get_queryset(request, exclude_parameters)
        except (ValueError, OverflowError) as error:  # the year 9999 has no next year
            raise IncorrectLookupParameters(error) from error


# --- locking oneself out ----------------------------------------------------------------------------------------------


LOCKOUT = "_locks_me_out"
"""The name of the tick with which somebody blocks themselves."""


def lockout_of(request: HttpRequest, blocks: Iterable[tuple[str, str]]) -> str:
    """Return that these blocks, each of a rule and a subject, are about the request's user, and what lifts the first.

    Empty if none is.
    """
    own = list(_own_subjects(request))
    for rule, subject in blocks:
        alone = OverrideTable([Override(0, subject, rule or ALL_RULES, "blocked")])
        mine = next((each for each in own if alone.of_subject(each)), None)
        if subject == EVERYBODY:
            said = _("This blocks everybody, and so you.")
        elif mine is not None:
            said = _("This blocks you: your own requests count for %s.") % mine
        else:
            continue
        words = ["manage.py", "quota_override", "clear", subject]
        words += [] if rule in ("", ALL_RULES) else ["--rule", rule]
        return f"{said} {_('If you lock yourself out, this command lifts it: %s') % shlex.join(words)}"
    return ""


def _own_subjects(request: HttpRequest) -> Iterator[str]:
    with suppress(ConfigurationError):  # the request has no address
        yield ip_subject(request)
    yield user_subject(request.user)  # whoever sees the admin is a user
