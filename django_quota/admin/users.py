"""From a user's page in the admin to how it stands and what it has used. `UsageLinks` is for a user model of your own.

Django's own `auth.User` gets the links by a template; it must not be registered anew for them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from django_quota.subjects import user_subject


class UsageLinks:
    """A mixin for the ModelAdmin of a user model: it puts the links beside "History".

    It sets `change_form_template`; one of your own includes `admin/django_quota/user_links.html` in its block
    `object-tools-items` instead.
    """

    change_form_template: Any = "admin/django_quota/user_change_form.html"


def links_of(request: HttpRequest, user: Any) -> list[tuple[str, str]]:
    """Return the links, each with its words, that whoever asks may follow."""
    if user is None or user.pk is None:
        return []
    asker: Any = request.user
    wanted = (
        ("django_quota.view_subject", "django_quota_subject_changelist", _("Quota")),
        ("django_quota.view_dailycounter", "django_quota_dailycounter_usage", _("Usage")),
    )
    links = []
    for permission, name, words in wanted:
        if asker.has_perm(permission):
            try:
                url = reverse(f"admin:{name}", current_app=getattr(request, "current_app", None))
            except NoReverseMatch:  # not every admin has every page
                continue
            links.append((f"{url}?{urlencode({'subject': user_subject(user)})}", words))
    return links
