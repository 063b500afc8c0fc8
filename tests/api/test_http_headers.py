"""The headers of every edge, read by an independent parser of RFC 9651, agree with the Decision and are true.

The edges: `@quota`, `@concurrency`, a configured rule in the middleware, and a `QuotaExceeded` raised by hand;
sync and async, through all of Django.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction
from itertools import count
from typing import Any, cast

import http_sf
import pytest
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from hypothesis import given, reject
from hypothesis import strategies as st

from django_quota import Decision, Rule, acheck, check, concurrency, quota
from django_quota.adapters import write_headers
from django_quota.exceptions import RuleError
from django_quota.testing import freeze
from tests.support.calls import always
from tests.support.inputs import inputs

NOW = 1_790_000_000_123_457
SECOND = 1_000_000
INTEGERS = range(1_000_000_000_000_000)
"""What an integer may be in RFC 9651, from 0 up."""

pytestmark = pytest.mark.usefixtures("memory_store")

ASKED: dict[str, Any] = {}
"""What the views here are limited by at the moment."""


def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def free_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def by_hand(request: HttpRequest) -> HttpResponse:
    check(ASKED["rates"], request, **ASKED["options"]).raise_if_refused()
    return free(request)


async def by_hand_async(request: HttpRequest) -> HttpResponse:
    (await acheck(ASKED["rates"], request, **ASKED["options"])).raise_if_refused()
    return free(request)


def behind(decorator: Callable[[], Any], view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view whose limit is made anew for each request."""

    def now(request: HttpRequest) -> Any:
        return decorator()(view)(request)

    async def later(request: HttpRequest) -> Any:
        return await decorator()(view)(request)

    return later if iscoroutinefunction(view) else now


def limit() -> Any:
    return quota(ASKED["rates"], **ASKED["options"])


def gate() -> Any:
    return concurrency(7, name=ASKED["slot"])


VIEWS: dict[str, Callable[..., Any]] = {
    "by-hand": by_hand, "by-hand-async": by_hand_async,
    "decorated": behind(limit, free), "decorated-async": behind(limit, free_async),
    "in-a-slot": behind(gate, by_hand), "in-a-slot-async": behind(gate, by_hand_async),
    "middleware": free, "middleware-async": free_async,
}  # fmt: skip
urlpatterns = [path(f"{name}/", view) for name, view in VIEWS.items()]


def ask(name: str, now: int) -> HttpResponseBase:
    """Ask a view at a moment, through all of Django, and hold the headers to the decision that lies on the request."""
    with freeze(now):
        is_async = name.endswith("-async")
        response: Any = asyncio.run(AsyncClient().get(f"/{name}/")) if is_async else Client().get(f"/{name}/")
    request = response.asgi_request if is_async else response.wsgi_request
    decision = getattr(request, "quota", None)
    assert response.status_code == (200 if decision is None or decision.allowed else 429)
    if decision is not None:
        agree(response, decision)
    else:  # what is asked by hand shows where it is raised
        assert name.startswith("by-hand")
        assert "RateLimit" not in response.headers
    return cast("HttpResponseBase", response)


@contextmanager
def limited(name: str, rule: str, rates: list[str], options: dict[str, Any]) -> Iterator[None]:
    """Limit a view so, with nothing used yet."""
    subject = f"number-{next(NUMBERS)}"
    options = {**options, "key": always(subject)}
    ASKED.update(rates="; ".join(rates), options={**options, "name": rule}, slot=subject)
    rules = {rule: {"rate": rates, "match": "/", **options}} if name.startswith("middleware") else {}
    with override_settings(ROOT_URLCONF=__name__, QUOTA={"STORE": "memory", "RULES": rules}):
        yield


NUMBERS = count()


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
        assert p["q"] == outcome.limit
        assert p.get("w") == outcome.window
        more = {} if outcome.next_after is None else {"t": math.ceil(outcome.next_after)}
        assert s == {"r": max(outcome.remaining, 0), **more}
        assert ("t" in s) == (outcome.remaining < outcome.limit)
        assert outcome.allowed or outcome.retry_after is None or s["t"] <= max(1, math.ceil(outcome.retry_after))
        assert all(type(number) is int and number in INTEGERS for number in (*s.values(), p["q"], p.get("w", 0)))
        assert s["r"] <= p["q"]
    assert ("Retry-After" in response.headers) == (not decision.allowed and decision.retry_after is not None)
    if not decision.allowed and decision.retry_after is not None:
        wait = response.headers["Retry-After"]
        assert wait.isascii()
        assert wait.isdecimal()
        assert int(wait) == max(1, math.ceil(decision.retry_after))


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
NAMES = st.text(min_size=1, max_size=12)


@inputs(120)
@given(
    name=st.sampled_from(sorted(VIEWS)),
    rule=NAMES,
    rates=st.lists(RATES, min_size=1, max_size=3),
    options=OPTIONS,
    cost=st.sampled_from([1, 2, 5, 10**12]),
    steps=st.lists(st.integers(0, 90 * SECOND), min_size=1, max_size=5),
)
def test_headers_parse_agree_with_the_decision_and_tell_the_truth(
    name: str, rule: str, rates: list[str], options: dict[str, Any], cost: int, steps: list[int]
) -> None:
    options = {**options, "cost": cost}
    try:
        Rule.make(rule, *rates, **options)
    except RuleError:
        reject()
    now = NOW
    with limited(name, rule, rates, options):
        for step in steps:
            response = ask(name, now)
            if "Retry-After" in response.headers:
                now += int(response.headers["Retry-After"]) * SECOND
                assert ask(name, now).status_code == 200, "a client that waits that long is admitted"
            now += step


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
