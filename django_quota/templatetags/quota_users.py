"""`{% quota_user_links %}`: the links on the admin page of a user; see `admin.users`."""

from __future__ import annotations

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
