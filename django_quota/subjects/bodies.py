"""The body of a request, read once: what the keys `post:` and `json:` need."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest, RequestDataTooBig
from django.http import HttpRequest, QueryDict, RawPostDataException

from django_quota.core.errors import ConfigurationError


class BodyNotes:
    """What is known of the body of a request."""

    parse: Callable[[], Any] | None = None
    """Returns the fields of the body, if a framework parses it."""
    found: dict[str, Any] | None = None
    """The object in the body, once that has been read as JSON; an empty dict if there is none."""


NOTES = "_django_quota_body"
"""The attribute of a request with its notes."""


def body_notes(request: HttpRequest) -> BodyNotes:
    """Return what is known of the body of a request."""
    found: BodyNotes | None = getattr(request, NOTES, None)
    if found is None:
        found = BodyNotes()
        setattr(request, NOTES, found)
    return found


def has_unread_body(request: HttpRequest, kind: str) -> bool:
    """Return whether a key of this kind (`"post"` or `"json"`) has to read the body: a long body takes long."""
    notes = body_notes(request)
    if kind == "post" and notes.parse is None:
        return request.method == "POST" and request.content_type in _FORMS and not hasattr(request, "_post")
    if notes.found is not None:
        return False
    return notes.parse is not None or (not hasattr(request, "_body") and _may_have_body(request))


def is_readable(request: HttpRequest) -> bool:
    """Return whether the body can still be read, or is in memory: nobody can read a stream again."""
    return not getattr(request, "_read_started", False) or hasattr(request, "_body")


_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
"""The types of body that `request.POST` parses."""


def form_of(request: HttpRequest) -> QueryDict:
    """Return the fields of a form, parsed by Django."""
    return request.POST


MAX_JSON = 2_621_440
"""Bytes: the longest body that is parsed as JSON, if `DATA_UPLOAD_MAX_MEMORY_SIZE` sets no other limit."""


def json_object_of(request: HttpRequest) -> dict[str, Any]:
    """Return the object in the JSON body of a request, or what the framework has parsed.

    A view may parse the body whatever its Content-Type says, so this tries it, too. If the Content-Type says JSON,
    raises `BadRequest` for a body that is not, `RequestDataTooBig` for a long one, and `ConfigurationError` if other
    code has read it as a stream.
    """
    notes = body_notes(request)
    found: Any = {}
    if notes.parse is not None:
        found = notes.parse()
        notes.found = found if isinstance(found, dict) else {}
        return notes.found
    content_type = request.content_type or ""
    says_json = content_type == "application/json" or content_type.endswith("+json")
    try:
        body = _body_of(request)
        found = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        if says_json:
            raise BadRequest("The body is not JSON.") from error
    except RequestDataTooBig:
        if says_json:
            raise
    except RawPostDataException as error:
        if says_json:
            raise ConfigurationError(
                "A key of the kind 'json:' cannot read the body: other code has read it as a stream before.",
                "Let that code use request.body, or run after the limit.",
            ) from error
    notes.found = found if isinstance(found, dict) else {}
    return notes.found


def _body_of(request: HttpRequest) -> bytes:
    """Return the body of a request. Raises `RequestDataTooBig`, before it is read if its length is known."""
    allowed: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    most = MAX_JSON if allowed is None else allowed
    if not _may_have_body(request):
        return b""
    if int(request.META.get("CONTENT_LENGTH") or 0) <= most and len(request.body) <= most:
        return request.body
    raise RequestDataTooBig("The body is longer than DATA_UPLOAD_MAX_MEMORY_SIZE.")


def _may_have_body(request: HttpRequest) -> bool:
    """Return whether a request may have a body. With ASGI, a body of unknown length has no Content-Length."""
    meta = request.META
    if meta.get("CONTENT_LENGTH") not in (None, "", "0") or hasattr(request, "_body"):
        return True
    return hasattr(request, "scope") and (request.method not in _BODILESS or "HTTP_TRANSFER_ENCODING" in meta)


_BODILESS = ("GET", "HEAD", "OPTIONS")
