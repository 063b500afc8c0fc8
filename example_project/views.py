"""The limited views, each as you would write it in a project of your own. The front page shows their source."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from django_quota import concurrency, counter, quota, reserve, reset

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_quota.types import QuotaRequest


@quota("10/m", key="ip")
def hello(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"left": request.quota.remaining})


@quota("5/30m", key="ip")
def download(request: QuotaRequest) -> HttpResponse:
    return HttpResponse(f"{request.quota.remaining} left")


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


@quota("10/m", key="header:X-Api-Key")
def crowd(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"left": request.quota.remaining})


@concurrency(10, key="global", lease=30)
async def report(request: HttpRequest) -> JsonResponse:  # noqa: ARG001 — a view takes a request
    await asyncio.sleep(1)  # the expensive part
    return JsonResponse({"detail": "Here is your report."})


@require_POST
@quota("1/d", key="post:buyer")
def flash_sale(request: QuotaRequest) -> JsonResponse:
    if not counter("stock").take("sku:1"):
        return JsonResponse({"detail": "Sold out."}, status=409)
    buyer = request.POST["buyer"]
    return JsonResponse({"detail": f"Sold to {buyer}.", "buyer": buyer})


@require_POST
def send_credits(request: HttpRequest) -> JsonResponse:  # noqa: ARG001 — a view takes a request
    account = counter("credits")
    if not account.transfer("user:ann", "user:bob", 30):
        ann, bob = account.get("user:ann"), account.get("user:bob")
        return JsonResponse({"detail": f"Ann has {ann}, Bob has {bob}."}, status=409)
    return JsonResponse({"detail": "Sent."})


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


@require_POST
@quota(rule="login")
@quota(rule="login-account")
def log_in(request: QuotaRequest) -> JsonResponse:
    if request.POST.get("password") != "correct horse":
        return JsonResponse({"detail": "Wrong password."}, status=403)
    reset("login", request)
    reset("login-account", request)
    return JsonResponse({"detail": "Welcome."})


@quota(
    "3/30d",
    key="header:X-Account",
    distinct="header:X-Device",
)
def devices(request: QuotaRequest) -> JsonResponse:
    return JsonResponse({"left": request.quota.remaining})


def ask_model(request: HttpRequest) -> JsonResponse:
    with reserve("tokens", request, 4000) as reservation:
        # ask the model here: its answer says that it took 1500
        left = reservation.settle(1500).remaining
    return JsonResponse({"detail": f"{left} tokens left.", "left": left})
