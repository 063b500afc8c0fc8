"""The links on the admin page of a user, and filters with the words of the admin pages."""

from __future__ import annotations

from typing import Any

from django import template
from django.apps import apps

register = template.Library()


@register.simple_tag(takes_context=True)
def quota_user_links(context: Any, user: Any) -> list[tuple[str, str]]:
    """Return the URL and the words of each link that the request's user may follow."""
    from django_quota.admin.users import links_of  # noqa: PLC0415 — as below

    request = context.get("request")
    return [] if request is None else links_of(request, user)


if apps.is_installed("django.contrib.admin"):  # Django imports the tags of every installed app
    from django_quota.admin import wording

    for name in (
        "algorithm",
        "ban",
        "event",
        "flood",
        "kind",
        "next",
        "raise",
        "reason",
        "second",
        "sender",
        "span",
        "subject",
        "time_left",
        "why",
    ):
        register.filter(f"quota_{name}_in_words", getattr(wording, f"{name}_in_words"))
    register.filter("quota_breakable", wording.breakable)
    register.filter("quota_local_moment", wording.local_moment)
