"""`{% quota_user_links %}`: the links from a user's page in the admin. `admin.users` says which ones there are."""

from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.simple_tag(takes_context=True)
def quota_user_links(context: Any, user: Any) -> list[tuple[str, str]]:
    """Return the URLs and words of the links that whoever asks may follow."""
    # Django imports the tags of every installed app, also on a site without the admin.
    from django_quota.admin.users import links_of  # noqa: PLC0415

    request = context.get("request")
    return [] if request is None else links_of(request, user)
