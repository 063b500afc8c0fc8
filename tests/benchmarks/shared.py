"""What our rows and the rivals' have in common: the rates, the requests and the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from tests.benchmarks.measure import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MANY = ("1000000/m",)
THREE = ("1000000/m", "10000000/h", "100000000/d")
REFUSED = ("10/d",)

_factory = RequestFactory()


def request_from(ip: str) -> HttpRequest:
    """Return a new GET request from this address."""
    request = _factory.get("/", REMOTE_ADDR=ip)
    request.user = AnonymousUser()
    return request


def requests_from(ip: str, count: int) -> Sequence[HttpRequest]:
    """Return that many new requests from one address."""
    return [request_from(ip) for _ in range(count)]


def plain_view(request: HttpRequest) -> HttpResponse:
    """Answer at once: what all decorated views have inside."""
    return HttpResponse("ok")


def was_served(response: Any) -> bool:
    """Tell a view's own answer from a limiter's."""
    return bool(response.status_code == 200)


def refused(work: Work, hits: int = 10) -> Work:
    """Return the same work for subjects that have used up their limit before the clock starts."""

    def inputs(ip: str, count: int) -> Sequence[Any]:
        work.run(ip, hits)
        return work.inputs(ip, count)

    return Work(inputs, work.call, work.admitted, expected=False)


def hits_of(rate: str) -> int:
    """Return how many hits the rate admits."""
    return int(rate.partition("/")[0])


def fill_by(check: Callable[[str], Callable[[str], bool]]) -> Callable[[str, str], None]:
    """Return a `Contender.fill` that just makes the hits, one by one."""

    def fill(rate: str, ip: str) -> None:
        hit = check(rate)
        for _ in range(hits_of(rate)):
            hit(ip)

    return fill
