"""The pages around the scenes: the front page, the refusal to look at, signing in and out, starting over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from django.contrib.auth import get_user_model, login, logout
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from django_quota import check
from example_project import start
from example_project.client import Reply
from example_project.highlight import highlighted
from example_project.scenes import SCENES
from example_project.sending import at_once

DEMO_USER = "demo"
_TOLD = ("Content-Type", "RateLimit", "RateLimit-Policy", "Retry-After")


def front(request: HttpRequest) -> HttpResponse:
    """Show every scene, each with the code of its view and a button."""
    scenes = [(scene, highlighted(scene.source)) for scene in SCENES]
    return render(request, "example/front.html", {"scenes": scenes})


def refused(request: HttpRequest) -> HttpResponse:
    """Show what a refused visitor's browser shows: of two hits under `1/m`, the second is never let in."""
    for _ in range(2):
        check("1/m", request, name="refused").raise_if_refused()  # QuotaMiddleware answers QuotaExceeded
    return redirect("front")


@require_POST
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in as the demo user, who is made when first needed."""
    user, _ = get_user_model().objects.get_or_create(username=DEMO_USER)
    login(request, user)
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
