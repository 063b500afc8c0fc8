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
def quota_name_among(subject: str | None, names: Mapping[str | None, str]) -> str:
    """Return the name of a subject among `names`, a dict; "" if it has none."""
    return names.get(subject, "")
