"""Live events for the overview: server-sent events under ASGI, polling elsewhere.

Both send HTML lines, the oldest first, and the id of the last event, after which the next message continues. A line is
rendered once for all viewers who see the same text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime, tzinfo
from functools import lru_cache
from typing import NamedTuple

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from django_quota.admin.admin_wording import KIND_NAMES, moment_of
from django_quota.conf import current
from django_quota.core.errors import QuotaError
from django_quota.services.broadcast import SHOWN, broadcaster_of, is_entry_id
from django_quota.services.event_stream import BEGINNING, Event, EventStream, StreamEntry
from django_quota.services.registry import get_limiter
from django_quota.stores.redis.store import RedisStore

STREAM_LIFETIME = 120.0
"""Seconds until a stream ends and its viewer reconnects, so that streams do not delay a server that shuts down."""

HEARTBEAT = 15.0
"""Seconds without events after which a stream sends a comment, to notice a viewer that has gone."""

MESSAGE_INTERVAL = 0.5
"""Seconds between two messages. Events in between share one message, so a flood of them costs little."""

RETRY_MS = 2_000
"""Milliseconds until a viewer reconnects after a stream has ended."""

MAX_VIEWERS = 100
"""Viewers that one process streams to. Further ones are told to try again later."""

MAX_CACHED_LINES = 1_000
"""Rendered lines in the cache of a process: the last 50 events in a few languages and time zones."""

Render = Callable[[Sequence[Event]], str]


class Line(NamedTuple):
    """An event on the page."""

    event: Event
    what: str
    """Its kind in words."""
    at: datetime
    until: datetime | None


def lines(found: Sequence[Event]) -> list[Line]:
    """Return events as the page shows them."""
    return [
        Line(event, str(KIND_NAMES[event.kind]), moment_of(event.at), moment_of(event.until) if event.until else None)
        for event in found
    ]


def newest(after: str) -> list[StreamEntry]:
    """Return the last entries after an id, the oldest first; none where the store keeps no events."""
    store = get_limiter().store
    return EventStream(store, current().prefix).newest(SHOWN, after) if isinstance(store, RedisStore) else []


def events(request: HttpRequest, subject_url: str) -> HttpResponse:
    """Return the events after the one in `?after=`, in JSON; 503 if the store does not answer."""
    given = request.GET.get("after", BEGINNING)
    if not is_entry_id(given):
        return JsonResponse({"problem": _("This is not the id of an event.")}, status=400)
    try:
        entries = newest(given)
    except QuotaError as error:
        return JsonResponse({"problem": str(error)}, status=503)
    found = [entry.event for entry in entries if entry.event is not None]
    return JsonResponse({"last": entries[-1].id if entries else given, "html": _rendering(subject_url)(found)})


def stream(request: HttpRequest, subject_url: str) -> HttpResponseBase:
    """Return server-sent events; 406 where the server runs under WSGI or the store keeps no events."""
    store = get_limiter().store
    if not isinstance(request, ASGIRequest) or not isinstance(store, RedisStore):
        return HttpResponse(_("This server does not stream events."), status=406, content_type="text/plain")
    given = request.headers.get("Last-Event-ID") or request.GET.get("after") or ""
    after = given if is_entry_id(given) else None
    too_many = _("Not live: %(count)d others are watching. Trying again every minute.") % {"count": MAX_VIEWERS}
    messages = _messages(store, current().prefix, after, _rendering(subject_url), too_many)
    return StreamingHttpResponse(
        messages,
        content_type="text/event-stream; charset=utf-8",
        headers={
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",  # nginx would buffer the stream
            "Content-Encoding": "identity",  # GZipMiddleware would too; it skips encoded responses
        },
    )


async def _messages(
    store: RedisStore, prefix: str, after: str | None, render: Render, too_many: str
) -> AsyncIterator[bytes]:
    """Yield the messages of a stream; `too_many`: one line for a viewer beyond `MAX_VIEWERS`."""
    ends = asyncio.get_running_loop().time() + STREAM_LIFETIME
    broadcaster = broadcaster_of(store, prefix)
    if broadcaster.streams >= MAX_VIEWERS:
        yield f"event: full\ndata: {too_many}\n\n".encode()
        return
    broadcaster.streams += 1
    try:
        yield b"retry: %d\n\n" % RETRY_MS
        async with aclosing(broadcaster.follow(after, HEARTBEAT)) as news:
            async for last, found in news:
                if found:
                    body = json.dumps({"last": last, "html": render(found)})
                    yield f"id: {last}\ndata: {body}\n\n".encode()
                    await asyncio.sleep(MESSAGE_INTERVAL)
                else:
                    yield b": alive\n\n"
                if asyncio.get_running_loop().time() > ends:
                    return
    except QuotaError:
        yield b": the store does not answer\n\n"  # the viewer reconnects; the metrics show the problem
    finally:
        broadcaster.streams -= 1


def _rendering(subject_url: str) -> Render:
    """Return a function that renders events in the language and time zone of this request, in any task."""
    language, zone = translation.get_language(), timezone.get_current_timezone()
    return lambda found: "".join([_line(event, language, zone, subject_url) for event in found])


@lru_cache(maxsize=MAX_CACHED_LINES)
def _line(event: Event, language: str | None, zone: tzinfo, subject_url: str) -> str:
    with translation.override(language), timezone.override(zone):
        return render_to_string(
            "admin/django_quota/overview_events.html", {"lines": lines([event]), "subject_url": subject_url}
        )
