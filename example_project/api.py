"""The API: plain views. What limits them are configured rules, which say by `match` where they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest, JsonResponse
from django.urls import path

from django_quota import quota

if TYPE_CHECKING:
    from django_quota.types import QuotaRequest

ITEMS = ("anchor", "bell", "compass", "lantern", "rope", "sail", "sextant", "tiller")


def items(request: HttpRequest) -> JsonResponse:  # noqa: ARG001 — a view takes a request
    return JsonResponse({"items": ITEMS})


def search(request: HttpRequest) -> JsonResponse:
    wanted = request.GET.get("q", "")
    return JsonResponse({"found": [item for item in ITEMS if wanted in item]})


@quota("4/10s", key="user", name="export-burst")
def export(request: QuotaRequest) -> JsonResponse:  # noqa: ARG001 — a view takes a request
    return JsonResponse({"items": ITEMS})


def status(request: HttpRequest) -> JsonResponse:  # noqa: ARG001 — a view takes a request
    return JsonResponse({"status": "up"})


app_name = "api"
urlpatterns = [
    path("items/", items, name="items"),
    path("search/", search, name="search"),
    path("export/", export, name="export"),
    path("status/", status, name="status"),
]
