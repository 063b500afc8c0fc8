"""django_quota's own rows, and the baseline: a bare redis-py EVALSHA of the very command that it sends."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import redis

import django_quota
from django_quota import check, quota
from django_quota.clock import SECOND, freeze
from django_quota.middleware import QuotaMiddleware
from django_quota.stores import redis as redis_store
from django_quota.stores.wire import packed
from tests.benchmarks.measure import Contender, Row, Work
from tests.benchmarks.shared import (
    MANY,
    REFUSED,
    THREE,
    hits_of,
    plain_view,
    refused,
    requests_from,
    was_served,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

OURS = f"django_quota {django_quota.__version__}"
BARE = f"redis-py {redis.__version__}"

WINDOW = 60
"""Seconds: all rates whose memory is measured are by the minute."""

SLICES = 100
"""The default precision: one more slice than that is the most that a subject's sorted set holds."""


def arguments_of_evalsha(act: Callable[[], object]) -> Sequence[Any]:
    """Return the arguments of the EVALSHA that our store sends within `act`, before it packs them."""
    sent: list[Sequence[Any]] = []
    pack = packed

    def record(command: Sequence[Any]) -> bytes:
        sent.append(command)
        return pack(command)

    with mock.patch.object(redis_store, "packed", record):
        act()
    calls = [command[1:] for command in sent if command[0] == "EVALSHA"]
    # The very first is sent twice: the server did not know the script yet.
    if not calls or any(arguments != calls[0] for arguments in calls):
        raise RuntimeError(f"expected one EVALSHA, the store sent {[command[0] for command in sent]}")
    return calls[0]


def bare_work(url: str, rates: tuple[str, ...]) -> Work:
    client = redis.Redis.from_url(url)

    def inputs(ip: str, count: int) -> Sequence[Any]:
        return [arguments_of_evalsha(lambda: check(rates[0], f"ip:{ip}"))] * count

    return Work(inputs, lambda arguments: client.evalsha(*arguments), lambda reply: bool(reply[1] == 1))


def check_work(rates: tuple[str, ...]) -> Work:
    (rate,) = rates
    return Work(
        lambda ip, count: [f"ip:{ip}"] * count,
        lambda subject: check(rate, subject),
        lambda decision: bool(decision.allowed),
    )


def view_work(rates: tuple[str, ...]) -> Work:
    view: Any = plain_view
    for rate in rates:
        view = quota(rate, key="ip")(view)
    return Work(requests_from, view, was_served)


def middleware_work(rates: tuple[str, ...]) -> Work:
    return Work(requests_from, QuotaMiddleware(view_work(rates).call), was_served)


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
        Row(BARE, "evalsha() of our script and arguments", MANY, lambda rates: bare_work(url, rates)),
        Row("Django", "bare view, no limit", (), view_work),
        Row(OURS, "check()", MANY, check_work, fills=True),
        Row(OURS, "check()", ("100/m",), check_work, fills=True),
        Row(OURS, "check(), refused", REFUSED, lambda rates: refused(check_work(rates))),
        Row(OURS, "@quota view", MANY, view_work, fills=True),
        Row(OURS, "view, three @quota + QuotaMiddleware", THREE, middleware_work),
    ]


def contender() -> Contender:
    """Return ours for the races."""
    return Contender(OURS, by_ip, at, fill, fills_up_to=sys.maxsize)
