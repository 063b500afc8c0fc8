"""django_quota's own rows, and the baseline: a bare redis-py EVALSHA of a three-line counter."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import redis

import django_quota
from django_quota import acheck, check, quota
from django_quota.core.clock import SECOND, freeze
from django_quota.middleware import QuotaMiddleware
from tests.benchmarks.measure import Contender, Row, Work
from tests.benchmarks.report import hits_of
from tests.benchmarks.shared import (
    MANY,
    REFUSED,
    THREE,
    plain_view,
    refused,
    request_from,
    was_served,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

OURS = f"django_quota {django_quota.__version__}"
BARE = f"redis-py {redis.__version__}"

WINDOW = 60
"""Seconds: all rates whose memory is measured are by the minute."""

SLICES = 100
"""The default precision: one more slice than that is the most that a subject's sorted set holds."""


THREE_LINES = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return count
"""
"""The least that a limiter can do in Redis: count, and have the count expire."""


def bare_work(url: str, _: tuple[str, ...]) -> Work:
    client = redis.Redis.from_url(url)
    sha = client.script_load(THREE_LINES)
    return Work(lambda ip: f"bare:{ip}", lambda key: client.evalsha(sha, 1, key, 60_000), lambda count: count > 0)


def check_work(rates: tuple[str, ...]) -> Work:
    (rate,) = rates
    return Work(
        lambda ip: f"ip:{ip}",
        lambda subject: check(rate, subject),
        lambda decision: bool(decision.allowed),
    )


def acheck_work(rates: tuple[str, ...]) -> Work:
    (rate,) = rates
    return Work(
        lambda ip: f"ip:{ip}",
        lambda subject: acheck(rate, subject),
        lambda decision: bool(decision.allowed),
        is_async=True,
    )


def three_work(rates: tuple[str, ...]) -> Work:
    return Work(
        lambda ip: f"ip:{ip}",
        lambda subject: check("; ".join(rates), subject),
        lambda decision: bool(decision.allowed),
    )


def view_work(rates: tuple[str, ...]) -> Work:
    view: Any = plain_view
    for rate in rates:
        view = quota(rate, key="ip")(view)
    return Work(request_from, view, was_served)


def middleware_work(rates: tuple[str, ...]) -> Work:
    return Work(request_from, QuotaMiddleware(view_work(rates).call), was_served)


def by_ip(rate: str) -> Callable[[str], bool]:
    return lambda ip: check(rate, f"ip:{ip}").allowed


def at(seconds: float) -> AbstractContextManager[object]:
    return freeze(int(seconds * SECOND))


def fill(rate: str, ip: str) -> None:
    """Spread the hits over a whole window, so that every slice holds some: the most that a subject takes."""
    hits, start = hits_of(rate), time.time()
    steps = min(hits, SLICES + 1)
    for step in range(steps):
        with at(start + step * WINDOW / SLICES):
            if not check(rate, f"ip:{ip}", cost=hits // steps).allowed:
                raise RuntimeError(f"hit {step + 1} of {steps} under {rate} was refused")


def rows(url: str) -> list[Row]:
    """Return the baseline, then the bare view, then ours."""
    return [
        Row(BARE, "evalsha() of a three-line counter", (), lambda rates: bare_work(url, rates)),
        Row("Django", "bare view, no limit", (), view_work),
        Row(OURS, "check()", MANY, check_work, fills=True),
        Row(OURS, "check()", ("100/m",), check_work, fills=True),
        Row(OURS, "acheck()", MANY, acheck_work),
        Row(OURS, "check(), three limits in one call", THREE, three_work),
        Row(OURS, "check(), refused", REFUSED, lambda rates: refused(check_work(rates))),
        Row(OURS, "@quota view", MANY, view_work, fills=True),
        Row(OURS, "view, three @quota + QuotaMiddleware", THREE, middleware_work),
    ]


def contender() -> Contender:
    """Return ours for the races."""
    return Contender(OURS, by_ip, at, fill, fills_up_to=sys.maxsize)
