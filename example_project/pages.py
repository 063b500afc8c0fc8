"""The pages around the scenes: the front page, the refusal to look at, signing in and out, starting over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import cache

from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.templatetags.static import static
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from django_quota import check
from example_project import start
from example_project.client import Reply
from example_project.highlight import highlighted
from example_project.people import DEMO
from example_project.scenes import SCENES, Scene
from example_project.sending import at_once

_TOLD = ("Content-Type", "RateLimit", "RateLimit-Policy", "Retry-After")


def front(request: HttpRequest) -> HttpResponse:
    """Show every scene, each with the code of its view and a button."""
    return render(request, "example/front.html", {"scenes": _coloured()})


@cache
def _coloured() -> list[tuple[Scene, SafeString]]:
    return [(scene, highlighted(scene.source)) for scene in SCENES]


def icon(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 — a view takes a request
    """Lead to the icon."""
    return redirect(static("example/icon.svg"))


def refused(request: HttpRequest) -> HttpResponse:
    """Show what a refused visitor's browser shows: of two hits under `1/m`, the second is never let in."""
    for _ in range(2):
        check("1/m", request, name="refused").raise_if_refused()  # QuotaMiddleware answers QuotaExceeded
    return redirect("front")


@require_POST
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in as one of the site's people, by default the demo user; never as one of the staff."""
    login(request, get_object_or_404(User, username=request.POST.get("who", DEMO), is_staff=False))
    return redirect("front")


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """Be a guest again."""
    logout(request)
    return redirect("front")


@require_POST
def start_over(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 — a view takes a request
    """Forget what everybody has used, fill the stock, give Ann her credits."""
    start.start_over()
    return redirect("front")


@require_POST
async def crowd(request: HttpRequest, slug: str) -> StreamingHttpResponse:
    """Send a scene's requests from here, for a browser keeps no more than six waiting; stream the replies as lines."""
    scene = next((scene for scene in SCENES if scene.slug == slug and scene.from_server), None)
    if scene is None:
        raise Http404
    replies = at_once(scene, int(request.META["SERVER_PORT"]))

    async def lines() -> AsyncIterator[str]:
        while (reply := await asyncio.to_thread(next, replies, None)) is not None:
            yield json.dumps(_told(reply)) + "\n"

    return StreamingHttpResponse(lines(), content_type="application/x-ndjson")


def _told(reply: Reply) -> dict[str, object]:
    headers = {name: reply.headers[name] for name in _TOLD if name in reply.headers}
    return {"status": reply.status, "headers": headers, "body": reply.body}
