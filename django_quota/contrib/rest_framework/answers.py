"""One format for all refusals of an API: those of the middleware, and those of the throttles."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse

from django_quota import Decision
from django_quota.adapters import refusal_response
from django_quota.contrib.rest_framework.throttles import QuotaThrottled


def detail_response(request: HttpRequest, decision: Decision) -> HttpResponse | None:
    """Answer as the throttles do, `{"detail": "The limit is ..."}`: for `QUOTA["RESPONSE"]`.

    Returns None for a request that prefers HTML: it gets the page.
    """
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        return None
    refused = QuotaThrottled(decision, decision.retry_after)
    return JsonResponse({"detail": refused.detail}, status=refused.status_code)


def problem_details(error: Exception, context: dict[str, Any]) -> Any:
    """Answer a refusal of a throttle as the middleware does: for `REST_FRAMEWORK["EXCEPTION_HANDLER"]`.

    All other errors go to the framework's own handler.
    """
    from rest_framework.views import exception_handler  # noqa: PLC0415 — it imports the throttles of the settings

    if not isinstance(error, QuotaThrottled):
        return exception_handler(error, context)
    return refusal_response(context["request"], error.decision)
