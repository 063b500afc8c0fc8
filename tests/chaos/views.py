"""The views of the workers' site, sync and async; and a bare one beside a limited one, to be timed."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_quota import quota
from tests.chaos.site import BESIDE, PAIR, POLICIES


def bare(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def abare(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def _limited(name: str, view: Any) -> Any:
    limited: Any = quota(rule=name)(view)
    return quota(rule=BESIDE.name)(limited) if name == PAIR.name else limited  # the outer one comes first in the plan


VIEWS, ASYNC_VIEWS = ({policy.name: _limited(policy.name, view) for policy in POLICIES} for view in (bare, abare))

urlpatterns = [
    path("bare", bare),
    path("limited", quota("1000000/m", key="ip", name="limited")(bare)),
    path("bare-too", bare),  # Django tries the paths in order: the bare ones together are as far up as the limited one
]
