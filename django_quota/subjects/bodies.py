"""The body of a request, read once: what the keys `post:` and `json:` need."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest, RequestDataTooBig
from django.http import HttpRequest, QueryDict, RawPostDataException

from django_quota.core.caching import kept_on
from django_quota.core.errors import ConfigurationError


class BodyNotes:
    """What this package knows about the body of a request."""

    parse: Callable[[], Any] | None = None
    """Returns the fields of the body, if a framework parses it."""
    found: dict[str, Any] | None = None
    """The object in the JSON body, or the parsed fields; None until they are read, an empty dict if there are none."""


NOTES = "_django_quota_body"
"""The attribute of a request that holds its `BodyNotes`."""


def body_notes(request: HttpRequest) -> BodyNotes:
    """Return the notes on the body of a request; made at the first call."""
    return kept_on(request, NOTES, BodyNotes)


def has_unread_body(request: HttpRequest, kind: str) -> bool:
    """Return whether a key of this kind (`"post"` or `"json"`) still has to read the body, which may take long."""
    notes = body_notes(request)
    if kind == "post" and notes.parse is None:
        return request.method == "POST" and request.content_type in _FORMS and not hasattr(request, "_post")
    if notes.found is not None:
        return False
    return notes.parse is not None or (not hasattr(request, "_body") and _may_have_body(request))


def is_readable(request: HttpRequest) -> bool:
    """Return whether the body is in memory or can still be read: a stream can be read once only."""
    return not getattr(request, "_read_started", False) or hasattr(request, "_body")


_FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
"""The types of body that `request.POST` parses."""


def form_of(request: HttpRequest) -> QueryDict:
    """Return the fields of a form. Blocks while Django parses the body."""
    return request.POST


MAX_JSON = 2_621_440
"""The longest body that is parsed as JSON, in bytes, if `DATA_UPLOAD_MAX_MEMORY_SIZE` is None."""


def json_object_of(request: HttpRequest) -> dict[str, Any]:
    """Return the object in the JSON body of a request, or what the framework has parsed.

    A view may parse the body whatever its Content-Type says, so this parses any body. If the Content-Type says JSON,
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
                "A key of the kind 'json:' cannot read the body: other code has already read it as a stream.",
                "Let that code use request.body, or run after the limit.",
            ) from error
    notes.found = found if isinstance(found, dict) else {}
    return notes.found


def _body_of(request: HttpRequest) -> bytes:
    """Return the body of a request. Raises `RequestDataTooBig`; if the length is known, before the body is read."""
    allowed: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    most = MAX_JSON if allowed is None else allowed
    if not _may_have_body(request):
        return b""
    if int(request.META.get("CONTENT_LENGTH") or 0) <= most and len(request.body) <= most:
        return request.body
    raise RequestDataTooBig("The body is longer than DATA_UPLOAD_MAX_MEMORY_SIZE.")


def _may_have_body(request: HttpRequest) -> bool:
    """Return whether a request may have a body. Under ASGI, a body of unknown length has no Content-Length."""
    meta = request.META
    if meta.get("CONTENT_LENGTH") not in (None, "", "0") or hasattr(request, "_body"):
        return True
    return hasattr(request, "scope") and (request.method not in _BODILESS or "HTTP_TRANSFER_ENCODING" in meta)


_BODILESS = ("GET", "HEAD", "OPTIONS")
