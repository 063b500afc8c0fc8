"""`share=`: kinds of requests that may fill only a part of a limit, so that others find room."""

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse

from django_quota import Rule, check, concurrency, quota, refund, slot
from django_quota.core.algorithms import ALGORITHMS
from django_quota.exceptions import RuleError
from django_quota.testing import QuotaKit
from tests.support.calls import both_ways, get, run
from tests.support.overridden import override

KINDS = {"critical": 1.0, "default": 0.8, "batch": 0.5}


def kind_of(request: HttpRequest) -> str:
    return request.headers.get("X-Kind", "default")


def api(rate: str = "10/m", **options: Any) -> Rule:
    return Rule.make("api", rate, key="global", tier=kind_of, share=KINDS, **options)


def admitted(rule: Rule, kind: str, hits: int = 30) -> int:
    return sum(bool(check(rule, "global", tier=kind)) for _ in range(hits))


@pytest.mark.usefixtures("either_store")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_kind_fills_its_share_of_one_count(algorithm: Any, the_clock_stands: QuotaKit) -> None:
    rule = api(algorithm=algorithm)
    found = [admitted(rule, kind) for kind in ("batch", "default", "batch", "critical", "default", "critical")]
    assert found == [5, 3, 0, 2, 0, 0]
    if algorithm == "sliding_window":  # what one kind gives back another may take
        refund(rule, "global", 6, tier="critical")
        assert (admitted(rule, "batch"), admitted(rule, "critical")) == (1, 5)
        override("r 0 0 20/m", "api", "global")  # shared in the same way
        assert (admitted(rule, "batch"), admitted(rule, "critical")) == (0, 10)


@pytest.mark.parametrize(
    ("rate", "share", "capacity"),
    [
        ("9/m", 0.001, 1), ("0/m", 0.5, 0), ("9/m", 0.5, 4), ("1/m", 0.5, 1), ("100/m", 0.57, 57), ("10/m", 0.99, 9),
        ("10/m", 1, 10), ("60000000/m", 1, 60_000_000), ("3000/m", 0.001, 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_share_of_a_limit_is_rounded_down_and_never_to_nothing(
    rate: str, share: float, capacity: int, algorithm: Any
) -> None:
    limit = Rule.make("r", rate, share=share, algorithm=algorithm).limits[0]

    assert (limit.capacity, limit.parameters(0).capacity) == (capacity, capacity)


def shows_what_is_left(request: Any) -> HttpResponse:
    return HttpResponse(str(request.quota.remaining))


@pytest.mark.usefixtures("memory_store")
def test_a_refusal_that_a_process_remembers_is_that_of_one_kind(the_clock_stands: QuotaKit) -> None:
    limit = quota("10/m", name="api", key="global", tier=kind_of, share=KINDS, cache_refusals=10)
    limited = limit(shows_what_is_left)

    *_, last, refused, served = [run(limited, get(HTTP_X_KIND=kind)) for kind in ["batch"] * 7 + ["critical"]]
    assert (refused.status_code, refused.headers["RateLimit-Policy"]) == (429, '"api";q=5;w=60')
    assert refused.content == last.content
    assert (served.status_code, served.content) == (200, b"4")


@pytest.mark.usefixtures("memory_store")
def test_without_a_function_a_share_is_that_of_visitors_or_of_users(the_clock_stands: QuotaKit) -> None:
    of_users = quota("4/m", key="global", share={"anonymous": 0.5, "authenticated": 1.0})(shows_what_is_left)
    found: list[int] = []

    for somebody in [AnonymousUser()] * 3 + [User(pk=7)] * 3:
        request = get()
        request.user = somebody
        found.append(run(of_users, request).status_code)

    assert found == [200, 200, 429, 200, 200, 429]


@pytest.mark.parametrize(
    ("rates", "options", "says"),
    [
        (("9/m",), {"share": 0}, r"share=0 is not a share of the limit, from 0.001 to 1\. Use, for example, 0.5"),
        (("9/m",), {"share": {"batch": 2}, "tier": kind_of}, r"share\['batch'\]=2 is not a share"),
        (("9/m",), {"share": {"batch": 0.5}}, "There is no tier= to say who is in tier 'batch'"),
        (("9/m",), {"share": {"anonymous": 0.5}}, r"There is no share for the tier 'authenticated'\. Use 1\.0 if"),
        (("9/m",), {"tier": kind_of}, r"tier= needs rates by tier, or share= by tier"),
        (({"anonymous": "1/m", "authenticated": "2/m"},), {"share": KINDS, "tier": kind_of}, "the same for all tiers"),
        (("9/m",), {"share": 0.5, "ban": {"after": "9/m", "for": "1h"}}, "share= cannot be combined with ban="),
    ],
)
def test_wrong_shares_are_refused(rates: Any, options: Any, says: str) -> None:
    with pytest.raises(RuleError, match=says):
        Rule.make("api", *rates, **options)


BATCH, DEFAULT, CRITICAL = ["batch"], ["default"], ["critical"]


@pytest.mark.usefixtures("memory_store")
@both_ways
@pytest.mark.parametrize(
    ("kinds", "is_refused"),
    [
        (6 * BATCH, True),
        (6 * CRITICAL + BATCH, True),
        (5 * BATCH + 4 * DEFAULT, True),
        (5 * BATCH + 3 * DEFAULT + 2 * CRITICAL, False),
        (5 * BATCH + 3 * DEFAULT + 3 * CRITICAL, True),
    ],
    ids=["batch has half", "critical counts for batch", "default has 8", "critical fills the rest", "no more than all"],
)
def test_each_kind_holds_its_share_of_the_slots(kinds: list[str], is_refused: bool, is_async: bool) -> None:
    """Each view that holds a slot sends the next request, until one finds none."""
    served: list[str] = []
    first, *following = kinds
    shared = concurrency(10, share=KINDS, tier=kind_of, name="export")

    @shared
    def view(request: HttpRequest) -> Any:
        served.append(kind_of(request))
        return view(get(HTTP_X_KIND=following.pop(0))) if following else HttpResponse()

    @shared
    async def aview(request: HttpRequest) -> Any:
        served.append(kind_of(request))
        return await aview(get(HTTP_X_KIND=following.pop(0))) if following else HttpResponse()

    response = run(aview if is_async else view, get(HTTP_X_KIND=first))

    assert response.status_code == (429 if is_refused else 200)
    assert len(served) == len(kinds) - is_refused


@pytest.mark.usefixtures("memory_store")
@pytest.mark.parametrize("kind", ["batch", "other"], ids=["batch", "no known tier"])
def test_a_request_of_no_known_tier_has_the_smallest_share_of_the_slots(kind: str) -> None:
    shared = concurrency(4, share={"critical": 1.0, "batch": 0.5}, tier=kind_of, name="export")
    limited = shared(lambda request: HttpResponse())

    with slot("export", 4), slot("export", 4):
        assert run(limited, get(HTTP_X_KIND="critical")).status_code == 200
        assert run(limited, get(HTTP_X_KIND=kind)).status_code == 429
