"""The headers, read by an independent parser of RFC 9651, agree with the Decision and are true, at every edge."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import count
from typing import Any

import http_sf
import pytest
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from hypothesis import given, reject
from hypothesis import strategies as st

from django_quota import Decision, Rule, acheck, check, concurrency, quota
from django_quota.adapters import refusal, write_headers
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import always, get
from tests.support.inputs import inputs

NOW = 1_790_000_000_123_457
SECOND = 1_000_000
INTEGERS = range(1_000_000_000_000_000)
"""What an integer may be in RFC 9651, from 0 up."""

NUMBERS = count()

pytestmark = pytest.mark.usefixtures("memory_store")


def parsed(response: HttpResponseBase, name: str) -> list[tuple[str, dict[str, Any]]]:
    found = http_sf.parse(response.headers[name].encode("ascii"), tltype="list")
    assert isinstance(found, list)
    return found  # type: ignore[return-value]


def agree(response: HttpResponseBase, decision: Decision) -> None:
    """Hold the headers of a reply to the decision that it was made for."""
    policy, state = parsed(response, "RateLimit-Policy"), parsed(response, "RateLimit")
    names = [name for name, _ in policy]
    assert names == [name for name, _ in state]
    assert len(set(names)) == len(names) == len(decision.outcomes)
    for (name, p), (_, s), outcome in zip(policy, state, decision.outcomes, strict=True):
        assert type(name) is str
        assert (p["q"], p.get("w")) == (outcome.limit, outcome.window)
        more = {} if outcome.next_after is None else {"t": math.ceil(outcome.next_after)}
        assert s == {"r": max(outcome.remaining, 0), **more}
        assert ("t" in s) == (outcome.remaining < outcome.limit)
        assert outcome.allowed or outcome.retry_after is None or s["t"] <= max(1, math.ceil(outcome.retry_after))
        assert all(type(number) is int and number in INTEGERS for number in (*s.values(), p["q"], p.get("w", 0)))
        assert s["r"] <= p["q"]
    wait = None if decision.allowed or decision.retry_after is None else max(1, math.ceil(decision.retry_after))
    assert response.headers.get("Retry-After") == (None if wait is None else str(wait))


RATES = st.builds(
    lambda count, multiple, unit: f"{count}/{multiple}{unit}",
    st.sampled_from([1, 2, 3, 7, 100, 5_000, 10**12]),
    st.sampled_from([1, 5, 30]),
    st.sampled_from("smhd"),
)
OPTIONS = st.sampled_from(
    [
        {}, {"precision": 2}, {"count_refused": True}, {"algorithm": "fixed_window"}, {"algorithm": "token_bucket"},
        {"algorithm": "token_bucket", "burst": 4}, {"algorithm": "leaky_bucket"},
    ]
)  # fmt: skip


@inputs(120)
@given(
    name=st.text(min_size=1, max_size=12),
    rates=st.lists(RATES, min_size=1, max_size=3),
    options=OPTIONS,
    cost=st.sampled_from([1, 2, 5, 10**12]),
    steps=st.lists(st.integers(0, 90 * SECOND), min_size=1, max_size=5),
)
def test_headers_parse_agree_with_the_decision_and_tell_the_truth(
    name: str, rates: list[str], options: dict[str, Any], cost: int, steps: list[int]
) -> None:
    subject = f"number-{next(NUMBERS)}"
    try:
        rule = Rule.make(name, *rates, **options, cost=cost)
    except RuleError:
        reject()

    def ask(now: int) -> HttpResponseBase:
        with freeze(now):
            decision = check(rule, subject)
            response = write_headers(HttpResponse(), decision) if decision.allowed else refusal(get(), decision)
        agree(response, decision)
        return response

    now = NOW
    for step in steps:
        response = ask(now)
        if "Retry-After" in response.headers:
            now += int(response.headers["Retry-After"]) * SECOND
            assert ask(now).status_code == 200, "a client that waits that long is admitted"
        now += step


# --- every edge -------------------------------------------------------------------------------------------------------

ASKED = {"rate": "5/m; 9/h", "key": always("ann"), "cost": 2}
CALL: dict[str, Any] = {"name": "r", "key": always("ann"), "cost": 2}


def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def free_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def by_hand(request: HttpRequest) -> HttpResponse:
    check("5/m; 9/h", request, **CALL).raise_if_refused()
    return free(request)


async def by_hand_async(request: HttpRequest) -> HttpResponse:
    (await acheck("5/m; 9/h", request, **CALL)).raise_if_refused()
    return free(request)


VIEWS: dict[str, Callable[..., Any]] = {
    "by-hand": by_hand, "by-hand-async": by_hand_async,
    "decorated": quota("5/m; 9/h", **CALL)(free), "decorated-async": quota("5/m; 9/h", **CALL)(free_async),
    "in-a-slot": concurrency(7, name="s")(by_hand), "in-a-slot-async": concurrency(7, name="s")(by_hand_async),
    "middleware": free, "middleware-async": free_async,
}  # fmt: skip
urlpatterns = [path(f"{name}/", view) for name, view in VIEWS.items()]


@pytest.mark.parametrize("name", VIEWS)
def test_every_edge_says_the_same(name: str, settings: Any) -> None:
    def ask() -> Any:
        with freeze(NOW):
            return asyncio.run(AsyncClient().get(f"/{name}/")) if "async" in name else Client().get(f"/{name}/")

    rules = {"r": {**ASKED, "match": "/"}} if name.startswith("middleware") else {}
    with override_settings(ROOT_URLCONF=__name__, QUOTA={**settings.QUOTA, "RULES": rules}):
        replies = [ask() for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    policy, state = (
        [limit for limit in parsed(replies[-1], header) if limit[0] != "s"]
        for header in ("RateLimit-Policy", "RateLimit")
    )
    assert policy == [("r-m", {"q": 5, "w": 60}), ("r-h", {"q": 9, "w": 3_600})]
    assert state == [("r-m", {"r": 1, "t": 60}), ("r-h", {"r": 5, "t": 3_600})]
    assert replies[-1].headers["Retry-After"] == "60"


@pytest.mark.parametrize(
    ("found", "parameters"),
    [
        ({"remaining": -5}, {"r": 0, "t": 60}),
        ({"remaining": 10**16}, {"r": 999_999_999_999_999, "t": 60}),
        ({"next_after": 1e30}, {"r": 0, "t": 999_999_999_999_999}),
    ],
)
def test_a_number_out_of_bounds_is_an_integer_of_a_structured_field(
    found: dict[str, Any], parameters: dict[str, int]
) -> None:
    outcome = check("1/m", f"number-{next(NUMBERS)}").outcomes[0]._replace(**found)
    with freeze(NOW):
        response = write_headers(HttpResponse(), Decision.of((outcome,)))
    assert parsed(response, "RateLimit") == [("1/m", parameters)]
