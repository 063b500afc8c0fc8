"""The limited views, each as you would write it in a project of your own. The front page shows their source."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from django_quota import quota

if TYPE_CHECKING:
    from django_quota.edge import QuotaRequest


@quota("10/m", key="ip")
def hello(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"left": request.quota.remaining})


@quota("5/30m", key="ip")
def download(request: QuotaRequest) -> HttpResponse:
    return HttpResponse(f"{request.quota.remaining} left")


@require_POST
@quota("1/m", "5/d", key="post:phone")
def sms_code(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"to": request.POST.get("phone")})


@quota(
    lambda request: "100/m" if request.user.is_authenticated else "10/m",
    key="user",
)
def members(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"of": request.quota.limit})


@quota("10/m", key="header:X-Api-Key")
def crowd(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"left": request.quota.remaining})


@quota("30/m", key="ip", algorithm="token_bucket", burst=5)
async def bursts(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"left": request.quota.remaining})


@quota("2/s", key="ip", algorithm="leaky_bucket", burst=5)
async def queue(request: QuotaRequest) -> JsonResponse:
    await asyncio.sleep(request.quota.delay)
    return JsonResponse({"waited": request.quota.delay})


@quota("3/10s", key="ip")
@quota("8/m", key="ip")
@quota("100/d", key="global")
def stacked(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"left": request.quota.remaining})
