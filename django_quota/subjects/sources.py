"""What the events of a request say of it: who sent what."""

from __future__ import annotations

from copy import copy
from typing import Any

from django.http import HttpRequest
from django.utils.functional import LazyObject

from django_quota.conf import current
from django_quota.engine.events import EventSource
from django_quota.subjects.subject import is_user, user_subject

MAX_SAID = 200
"""Characters of a method or a path that an event keeps."""

NO_SOURCE = EventSource()


def source_of(request: HttpRequest | None) -> EventSource:
    """Return what the events of a request say of it; nothing without a request, or if the settings say so.

    A refusal loads nobody from the database. So the user is missing if nothing has asked for it before.
    """
    if request is None or not current().event_requests:
        return NO_SOURCE
    user = _loaded_user(request)
    method, path = str(request.method or ""), str(request.path)
    return EventSource("" if user is None else user_subject(user), _escaped(method), _escaped(path))


def _loaded_user(request: HttpRequest) -> Any:
    user: Any = getattr(request, "user", None)
    if isinstance(user, LazyObject):
        user = copy(user)  # of a lazy user that is loaded, this is the user; of another one, it is lazy too
        if isinstance(user, LazyObject):
            return None
    return user if is_user(user) and user.pk is not None else None


def _escaped(text: str) -> str:
    """Return the beginning of a string of the client, without control characters."""
    begins = text[:MAX_SAID]
    return "".join([char if char.isprintable() else ascii(char)[1:-1] for char in begins])[:MAX_SAID]
