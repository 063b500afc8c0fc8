"""A small site as its owner writes it, with types. Type checkers accept it without a plugin of ours.

`make lint` checks it here; tests/e2e/test_distributions.py checks it against the installed wheel. Each ignore comment
is a mistake that mypy must find: it reports the comment if it does not.
"""

from datetime import date, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from django_quota import (
    Decision,
    Entry,
    Rule,
    acheck,
    acquire,
    areserve,
    check,
    check_all,
    concurrency,
    counter,
    lock,
    peek,
    peek_all,
    quota,
    reserve,
    slot,
)
from django_quota.adapters import refusal_response
from django_quota.exceptions import QuotaExceeded, StoreUnavailable
from django_quota.metrics import observe
from django_quota.middleware import QuotaMiddleware
from django_quota.models import DailyCounter, QuotaOverride
from django_quota.signals import refused
from django_quota.testing import QuotaKit, freeze
from django_quota.types import QuotaRequest, Reservation

QUOTA: dict[str, Any] = {"RULES": {"search": {"rate": "10/s; 500/h", "key": "user"}, "login": "5/m"}}


@quota("10/m", "500/h", key="ip", algorithm="sliding_window")
def front_page(request: QuotaRequest) -> HttpResponse:
    decision: Decision = request.quota
    return HttpResponse(f"{decision.remaining} left")


@quota({"anonymous": "10/m", "authenticated": "100/m"}, key="user", cost=lambda request: len(request.GET))
async def search(request: HttpRequest) -> HttpResponse:
    (await acheck("search", request, name="again")).raise_if_refused()
    return HttpResponse()


@quota("100/h", key="user", methods=["POST", "PUT"], costs={"PUT": 5})
class Orders(View):
    @method_decorator(quota(rule="login"))
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("ordered")


@concurrency(10, key="user", lease=60)
def export(request: HttpRequest) -> StreamingHttpResponse:
    with lock("nightly", wait=1), slot("exports", limit=3, leese=5):  # type: ignore[call-arg]
        return StreamingHttpResponse(iter([b"a"]))


def chat(request: HttpRequest) -> HttpResponse:
    with reserve("90000/m", "user:42", 500) as reservation:
        left: int | None = reservation.settle(480).remaining
    return HttpResponse(str(left))


async def achat() -> Decision:
    async with areserve("90000/m", "user:42", 500) as reservation:
        kept: Reservation = reservation
        return await kept.asettle(480)


def sold(user: str) -> bool:
    stock = counter("stock", ttl=timedelta(days=30))
    days: dict[date, int] = stock.series(user, date(2026, 1, 1), date(2026, 1, 31))
    return stock.take("global") and sum(days.values()) < 10


def codes() -> list[int | None]:
    both = check_all([("5/m", "ip:203.0.113.9"), (Rule.make("sms", "1/m"), "user:1", 2)])
    left = peek_all([("60/m", "user:7"), Entry("500000/m", "org:7", 900, tier="pro")])
    peek_all([("60/m", "user:7", 1, "pro")])  # type: ignore[list-item]
    decisions = [check("5/m", "user:1", 2, force=True), both, left, peek("5/m", "user:1")]
    try:
        check("5/m", "user:1", burst="many")  # type: ignore[arg-type]
    except (QuotaExceeded, StoreUnavailable) as error:
        print(error)
    return [decision.limit for decision in [*decisions, acquire("5/m", "user:1", timeout=1)]]


def twice(request: QuotaRequest) -> bytes:
    front_page("no request")  # type: ignore[arg-type]
    return front_page(request).content  # a decorated view keeps its types


def test_ten(quota: QuotaKit) -> None:
    with freeze(1_800_000_000_000_000):
        quota.exhaust("search", "user:1")


def listen(sender: object, rule: Rule, subject: str, decision: Decision, **more: object) -> None: ...


refused.connect(listen)
observe(lambda decision: None)


def block(user: str) -> QuotaOverride:
    return QuotaOverride.objects.create(subject=user, mode=QuotaOverride.Mode.BLOCKED, reason="spam")


def of(user: object) -> list[str]:
    blocked = [override.subject for override in QuotaOverride.objects.active().filter(mode="blocked")]
    return blocked + [counter.rule for counter in DailyCounter.objects.of_user(user)]


class Quieter(QuotaMiddleware):
    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        return refusal_response(request, exception.decision) if isinstance(exception, QuotaExceeded) else None
