"""The links on the admin page of a user, and the names of users beside subjects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import template

register = template.Library()


@register.simple_tag(takes_context=True)
def quota_user_links(context: Any, user: Any) -> list[tuple[str, str]]:
    """Return the URL and the words of each link that the request's user may follow."""
    # Django imports the tags of every installed app, also on a site without the admin.
    from django_quota.admin.users import links_of  # noqa: PLC0415

    request = context.get("request")
    return [] if request is None else links_of(request, user)


@register.filter
def quota_subject_words(subject: str, names: Mapping[str, str]) -> str:
    """Return a subject with the names of its users; `names` are by part of a subject."""
    from django_quota.admin.admin_wording import subject_in_words  # noqa: PLC0415 — as above

    return subject_in_words(subject, names)
