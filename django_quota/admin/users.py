"""Links from the admin page of a user to the limits and the usage of that user.

Django's own `auth.User` gets the links from a template. `UsageLinks` adds them to the admin of your own user model.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_quota.admin.base import admin_url
from django_quota.subjects.subject import user_subject


class UsageLinks:
    """A mixin for the ModelAdmin of a user model. It puts the links beside "History".

    It sets `change_form_template`. If you have a template of your own, include `admin/django_quota/user_links.html` in
    its block `object-tools-items` instead.
    """

    change_form_template: Any = "admin/django_quota/user_change_form.html"


def links_of(request: HttpRequest, user: Any) -> list[tuple[str, str]]:
    """Return the links that the request's user may follow: the URL and the words of each."""
    if user is None or user.pk is None:
        return []
    asker: Any = request.user
    pages = (
        ("view_subject", "subject_changelist", _("Quota")),
        ("view_dailycounter", "dailycounter_usage", _("Usage")),
    )
    site, subject = getattr(request, "current_app", None), user_subject(user)
    links = [
        (admin_url(site, f"django_quota_{page}", subject=subject), words)
        for permission, page, words in pages
        if asker.has_perm(f"django_quota.{permission}")
    ]
    return [(url, words) for url, words in links if url]
