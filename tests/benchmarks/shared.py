"""What our rows and the peers' have in common: the rates, the requests and the view."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from tests.benchmarks.measure import Work
from tests.benchmarks.report import hits_of

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = ("1000000/m",)
THREE = ("1000000/m", "10000000/h", "100000000/d")
REFUSED = ("10/d",)

_factory = RequestFactory()


def request_from(ip: str) -> HttpRequest:
    """Return a new GET request from this address."""
    request = _factory.get("/", REMOTE_ADDR=ip)
    request.user = AnonymousUser()
    return request


def plain_view(request: HttpRequest) -> HttpResponse:
    """Answer at once: what all decorated views have inside."""
    return HttpResponse("ok")


def was_served(response: Any) -> bool:
    """Tell a view's own answer from a limiter's."""
    return bool(response.status_code == 200)


def refused(work: Work, most: int = 100) -> Work:
    """Return the same work for subjects that have used up their limit before the clock starts."""

    def use_up(ip: str) -> None:
        for _ in range(most):
            if not work.admitted(work.call(work.make_input(ip))):
                return
        raise RuntimeError(f"{most} checks of {ip} were admitted")

    return replace(work, expected=False, before=use_up)


def fill_by(check: Callable[[str], Callable[[str], bool]]) -> Callable[[str, str], None]:
    """Return a `Contender.fill` that just makes the hits, one by one."""

    def fill(rate: str, ip: str) -> None:
        hit = check(rate)
        for _ in range(hits_of(rate)):
            hit(ip)

    return fill
