"""Live events for the overview: as a stream under ASGI, by asking again and again elsewhere.

Both send the same: lines of HTML, the oldest first, and the id of the last event, behind which to go on. A line is
rendered once for all who see the same of it.
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
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from django_quota.admin.wording import KIND_NAMES, moment_of
from django_quota.conf import current
from django_quota.events import BEGINNING, Entry, Event, EventStream
from django_quota.exceptions import QuotaError
from django_quota.feeds import SHOWN, feed_of, is_entry_id
from django_quota.limiter import get_limiter
from django_quota.stores.redis import RedisStore

LASTS = 120.0
"""Seconds until a stream ends, and its viewer comes again: so that a server that is to stop is not kept for longer."""

HEARTBEAT = 15.0
"""Seconds without events after which a stream says that it is alive: so a viewer that has gone is noticed."""

PACE = 0.5
"""Seconds between two messages: what comes in meanwhile goes together, so that a flood costs no more than a rain."""

RETRY = 2_000
"""Milliseconds after which a viewer whose stream has ended comes again."""

MAX_VIEWERS = 100
"""Viewers that an event loop streams to; who comes after them is told so, and tries again later."""

MAX_LINES = 1_000
"""Rendered lines that a process keeps: the last 50 events in a few languages and time zones."""

Render = Callable[[Sequence[Event]], str]


class Line(NamedTuple):
    """An event as it is shown."""

    kind: str
    what: str
    """Its kind in words."""
    event: Event
    at: datetime
    until: datetime | None


def lines(found: Sequence[Event]) -> list[Line]:
    """Return events as they are shown."""
    return [
        Line(
            event.kind,
            str(KIND_NAMES[event.kind]),
            event,
            moment_of(event.at),
            moment_of(event.until) if event.until else None,
        )
        for event in found
    ]


def newest(after: str) -> list[Entry]:
    """Return the last entries behind an id, the oldest first; none where the store keeps no events."""
    store = get_limiter().store
    return EventStream(store, current().prefix).newest(SHOWN, after) if isinstance(store, RedisStore) else []


def events(request: HttpRequest, subject_url: str) -> HttpResponse:
    """Answer with what came in behind the event of `?after=`, in JSON; 503 where the store does not answer."""
    given = request.GET.get("after", BEGINNING)
    if not is_entry_id(given):
        return JsonResponse({"problem": _("That is no id of an event.")}, status=400)
    try:
        entries = newest(given)
    except QuotaError as error:
        return JsonResponse({"problem": str(error)}, status=503)
    found = [entry.event for entry in entries if entry.event is not None]
    return JsonResponse({"last": entries[-1].id if entries else given, "html": _rendering(subject_url)(found)})


def stream(request: HttpRequest, subject_url: str) -> HttpResponseBase:
    """Answer with events as they come, as server-sent events; 406 where the server or the store cannot."""
    store = get_limiter().store
    if not isinstance(request, ASGIRequest) or not isinstance(store, RedisStore):
        return HttpResponse(_("This server sends no streams."), status=406, content_type="text/plain")
    given = request.headers.get("Last-Event-ID") or request.GET.get("after") or ""
    after = given if is_entry_id(given) else None
    too_many = _("Not live: %(most)d others are watching already. Trying again every minute.") % {"most": MAX_VIEWERS}
    messages = _messages(store, current().prefix, after, _rendering(subject_url), too_many)
    return StreamingHttpResponse(
        messages,
        content_type="text/event-stream; charset=utf-8",
        headers={
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",  # nginx would hold it back
            "Content-Encoding": "identity",  # and so would GZipMiddleware, which leaves alone what has one
        },
    )


async def _messages(
    store: RedisStore, prefix: str, after: str | None, render: Render, too_many: str
) -> AsyncIterator[bytes]:
    """Yield a stream's messages; `too_many`: what a viewer above the cap is told, on one line."""
    ends = asyncio.get_running_loop().time() + LASTS
    feed = feed_of(store, prefix)
    if feed.streams >= MAX_VIEWERS:
        yield f"event: full\ndata: {too_many}\n\n".encode()
        return
    feed.streams += 1
    try:
        yield b"retry: %d\n\n" % RETRY
        async with aclosing(feed.follow(after, HEARTBEAT)) as news:
            async for last, found in news:
                if found:
                    body = json.dumps({"last": last, "html": render(found)})
                    yield f"id: {last}\ndata: {body}\n\n".encode()
                    await asyncio.sleep(PACE)
                else:
                    yield b": still here\n\n"
                if asyncio.get_running_loop().time() > ends:
                    return
    except QuotaError:
        yield b": the store does not answer\n\n"  # the viewer comes again, and the figures say so
    finally:
        feed.streams -= 1


def _rendering(subject_url: str) -> Render:
    """Return what makes lines of events in the language and the time zone of this request, in whatever task."""
    language, zone = translation.get_language(), timezone.get_current_timezone()
    return lambda found: "".join([_line(event, language, zone, subject_url) for event in found])


@lru_cache(maxsize=MAX_LINES)
def _line(event: Event, language: str | None, zone: tzinfo, subject_url: str) -> str:
    with translation.override(language), timezone.override(zone):
        return render_to_string(
            "admin/django_quota/overview_events.html", {"lines": lines([event]), "subject_url": subject_url}
        )


def _forget(**_: object) -> None:
    _line.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_quota.admin.live")
