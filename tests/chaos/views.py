"""The views of the workers' site, sync and async, one a policy; and a bare one beside a limited one, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_quota import quota
from tests.chaos.site import POLICIES


def bare(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def abare(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


VIEWS: dict[str, Callable[[HttpRequest], Any]] = {policy.name: quota(rule=policy.name)(bare) for policy in POLICIES}
ASYNC_VIEWS: dict[str, Callable[[HttpRequest], Any]] = {
    policy.name: quota(rule=policy.name)(abare) for policy in POLICIES
}

urlpatterns = [path("bare", bare), path("limited", quota("1000000/m", key="ip", name="limited")(bare))]
