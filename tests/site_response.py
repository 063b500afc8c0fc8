"""Answers to who is refused, as a site would write them: for the setting RESPONSE."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse

from django_quota import Decision


def teapot(request: HttpRequest, decision: Decision) -> HttpResponse:
    return JsonResponse({"rule": decision.rule, "path": request.path}, status=418)


async def in_vain(request: HttpRequest, decision: Decision) -> HttpResponse:
    return HttpResponse("never")


NOT_A_FUNCTION = "text"
