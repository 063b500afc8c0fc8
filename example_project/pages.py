"""The other pages: the front page, a refusal to look at, signing in and out, starting over."""

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
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_POST
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from django_quota import check
from example_project import initial_state
from example_project.client import Reply
from example_project.people import DEMO
from example_project.scenarios import SCENARIOS, Scenario
from example_project.sending import at_once

_SHOWN_HEADERS = ("Content-Type", "RateLimit", "RateLimit-Policy", "Retry-After")


def front(request: HttpRequest) -> HttpResponse:
    """Show every scenario with the code of its view and a button."""
    return render(request, "example/front.html", {"scenarios": _scenarios()})


@cache
def _scenarios() -> list[tuple[Scenario, SafeString]]:
    return [(scenario, _coloured(scenario.source)) for scenario in SCENARIOS]


def _coloured(source: str) -> SafeString:
    """Return Python source as HTML, with a span for each line."""
    lines = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True)).splitlines()
    return mark_safe("".join(f'<span class="line">{line}</span>' for line in lines))


def icon(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 — a view takes a request
    return redirect(static("example/icon.svg"))


def refused(request: HttpRequest) -> HttpResponse:
    """Show the page of a refused visitor: the second of two hits under `1/m` is always refused."""
    for _ in range(2):
        check("1/m", request, name="refused-page").raise_if_refused()  # QuotaMiddleware answers QuotaExceeded
    return redirect("front")


@require_POST
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in as one of the users, by default the demo user; never as staff."""
    who = get_object_or_404(User, username=request.POST.get("who", DEMO), is_staff=False)
    login(request, who, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("front")


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("front")


@require_POST
def start_over(request: HttpRequest) -> HttpResponse:  # noqa: ARG001 — a view takes a request
    """Delete all counts, fill the stock, give Ann her credits."""
    initial_state.start_over()
    return redirect("front")


@require_POST
async def crowd(request: HttpRequest, slug: str) -> StreamingHttpResponse:
    """Send the requests from the server and stream the replies: a browser sends six at once at most."""
    scenario = next((scenario for scenario in SCENARIOS if scenario.slug == slug and scenario.from_server), None)
    if scenario is None:
        raise Http404
    replies = at_once(scenario, int(request.META["SERVER_PORT"]))

    async def lines() -> AsyncIterator[str]:
        while (reply := await asyncio.to_thread(next, replies, None)) is not None:
            yield json.dumps(_as_json(reply)) + "\n"

    return StreamingHttpResponse(lines(), content_type="application/x-ndjson")


def _as_json(reply: Reply) -> dict[str, object]:
    headers = {name: reply.headers[name] for name in _SHOWN_HEADERS if name in reply.headers}
    return {"status": reply.status, "headers": headers, "body": reply.body}
