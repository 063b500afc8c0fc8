"""The other limiters, each by its own documented means, on the same server and the same kind of connection."""

from __future__ import annotations

import functools
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from unittest import mock

import limits
import limits.storage.redis
import limits.strategies
import pyrate_limiter
import redis
import throttled
from django_ratelimit import core as ratelimit_core
from django_ratelimit.decorators import ratelimit
from django_smart_ratelimit import rate_limit
from django_smart_ratelimit.backends import get_backend, redis_backend
from django_smart_ratelimit.backends.utils import parse_rate
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle
from rest_framework.views import APIView

from tests.benchmarks.measure import Contender, Row, Work
from tests.benchmarks.report import hits_of
from tests.benchmarks.shared import (
    MANY,
    REFUSED,
    THREE,
    fill_by,
    plain_view,
    refused,
    request_from,
    was_served,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from django.http import HttpRequest

RATELIMIT = f"django-ratelimit {version('django-ratelimit')}"
DRF = f"DRF {version('djangorestframework')}"
SMART = f"smart-ratelimit {version('django-smart-ratelimit')}"
LIMITS = f"limits {version('limits')}"

THROTTLED = f"throttled-py {version('throttled-py')}"
PYRATE = f"pyrate-limiter {version('pyrate-limiter')}"

_words = {"m": "minute", "h": "hour", "d": "day"}


def _ip(ip: str) -> str:
    return ip


class StoppedTime:
    """Stands in for the `time` module inside a limiter's own module."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        """Return the moment it was stopped at."""
        return self._seconds


# --- django-ratelimit ---------------------------------------------------------------------------------------


def ratelimit_check(rate: str, group: str = "bench") -> Callable[[HttpRequest], bool]:
    return functools.partial(ratelimit_core.is_ratelimited, group=group, key="ip", rate=rate, increment=True)


def ratelimit_work(rates: tuple[str, ...]) -> Work:
    return Work(request_from, ratelimit_check(rates[0]), lambda limited: not limited)


def ratelimit_view(rates: tuple[str, ...]) -> Work:
    view: Any = plain_view
    for rate in rates:
        view = ratelimit(group=f"view {rate}", key="ip", rate=rate)(view)
    return Work(request_from, view, was_served)


def ratelimit_by_ip(rate: str) -> Callable[[str], bool]:
    limited = ratelimit_check(rate, group="contender")
    return lambda ip: not limited(request_from(ip))


def ratelimit_at(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(ratelimit_core, "time", StoppedTime(seconds))


# --- DRF ----------------------------------------------------------------------------------------------------


def drf_throttle(rate: str, scope: str) -> Any:
    """Return a throttle class as a project would write it."""
    return type("Throttle", (AnonRateThrottle,), {"rate": rate, "scope": scope})


def drf_work(rates: tuple[str, ...]) -> Work:
    throttle = drf_throttle(rates[0], "check")
    # A throttle is made anew for each request by the views, too.
    return Work(request_from, lambda request: throttle().allow_request(request, None), bool)


def drf_view(rates: tuple[str, ...]) -> Work:
    members = {
        "authentication_classes": [],
        "permission_classes": [],
        "throttle_classes": [drf_throttle(rate, f"view {rate}") for rate in rates],
        "get": lambda self, request: Response("ok"),
    }
    view: Any = type("View", (APIView,), members)
    return Work(request_from, view.as_view(), was_served)


def drf_by_ip(rate: str) -> Callable[[str], bool]:
    throttle = drf_throttle(rate, "contender")
    return lambda ip: bool(throttle().allow_request(request_from(ip), None))


def drf_at(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(AnonRateThrottle, "timer", staticmethod(lambda: seconds))


# --- django-smart-ratelimit ---------------------------------------------------------------------------------


def smart_work(rates: tuple[str, ...]) -> Work:
    backend = get_backend()
    limit, period = parse_rate(rates[0])
    return Work(
        lambda ip: f"ip:{ip}",
        lambda key: backend.check_rate_limit(key, limit, period),
        lambda answer: bool(answer[0]),
    )


def smart_view(rates: tuple[str, ...]) -> Work:
    view: Any = plain_view
    for rate in rates:
        view = rate_limit(key=functools.partial(smart_key, rate), rate=rate)(view)
    return Work(request_from, view, was_served)


def smart_key(name: str, request: HttpRequest, *_: object) -> str:
    """Return a key of its own for each rate."""
    return f"{name}:ip:{request.META['REMOTE_ADDR']}"


def smart_by_ip(rate: str) -> Callable[[str], bool]:
    backend = get_backend()
    limit, period = parse_rate(rate)
    return lambda ip: bool(backend.check_rate_limit(f"contender:{rate}:{ip}", limit, period)[0])


def smart_at(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(redis_backend, "get_current_timestamp", return_value=seconds)


# --- limits -------------------------------------------------------------------------------------------------


@functools.cache
def limits_limiter(url: str) -> limits.strategies.MovingWindowRateLimiter:
    storage = limits.storage.redis.RedisStorage(url)
    return limits.strategies.MovingWindowRateLimiter(storage)


def limits_item(rate: str) -> limits.RateLimitItem:
    return limits.parse(f"{hits_of(rate)} per {_words[rate[-1]]}")


def limits_work(url: str, rates: tuple[str, ...]) -> Work:
    limiter, item = limits_limiter(url), limits_item(rates[0])
    return Work(_ip, lambda ip: limiter.hit(item, ip), bool)


def limits_three(url: str, rates: tuple[str, ...]) -> Work:
    limiter, items = limits_limiter(url), [limits_item(rate) for rate in rates]
    return Work(_ip, lambda ip: all(limiter.hit(item, ip, "three") for item in items), bool)


def limits_by_ip(url: str, rate: str) -> Callable[[str], bool]:
    limiter, item = limits_limiter(url), limits_item(rate)
    return lambda ip: limiter.hit(item, ip, "contender")


def limits_at(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(limits.storage.redis, "time", StoppedTime(seconds))


# --- throttled-py -------------------------------------------------------------------------------------------


@functools.cache
def throttled_store(url: str) -> throttled.RedisStore:
    return throttled.RedisStore(server=url)


def throttled_work(url: str, rates: tuple[str, ...]) -> Work:
    limiter = throttled.Throttled(using="gcra", quota=throttled_quota(rates[0]), store=throttled_store(url))
    return Work(lambda ip: f"ip:{ip}", limiter.limit, lambda result: not result.limited)


def throttled_quota(rate: str) -> throttled.Quota:
    per = {"m": throttled.per_min, "h": throttled.per_hour, "d": throttled.per_day}[rate[-1]]
    return per(hits_of(rate))


# --- pyrate-limiter -----------------------------------------------------------------------------------------


class BucketASubject(pyrate_limiter.BucketFactory):
    """A bucket for each subject, made when it first comes, as its documentation shows."""

    def __init__(self, client: redis.Redis, rate: str) -> None:
        self._rates = [pyrate_limiter.Rate(hits_of(rate), _durations[rate[-1]])]
        self._client = client
        self._buckets: dict[str, Any] = {}
        self._clock = pyrate_limiter.WallClock()

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        return pyrate_limiter.RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: Any) -> Any:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = pyrate_limiter.RedisBucket.init(self._rates, self._client, f"pyrate:{item.name}")
            self._buckets[item.name] = bucket
        return bucket


_durations = {
    "m": pyrate_limiter.Duration.MINUTE,
    "h": pyrate_limiter.Duration.HOUR,
    "d": pyrate_limiter.Duration.DAY,
}


def pyrate_work(url: str, rates: tuple[str, ...]) -> Work:
    limiter = pyrate_limiter.Limiter(BucketASubject(redis.Redis.from_url(url), rates[0]))
    return Work(_ip, lambda ip: limiter.try_acquire(ip, blocking=False), bool)


# --- all of them --------------------------------------------------------------------------------------------


def rows(url: str) -> list[Row]:
    """Return the lines of the table, the dearest part (a view under three limits) last of each."""
    hit = functools.partial(limits_work, url)
    return [
        Row(RATELIMIT, "is_ratelimited()", MANY, ratelimit_work, fills=True),
        Row(RATELIMIT, "is_ratelimited(), refused", REFUSED, lambda rates: refused(ratelimit_work(rates))),
        Row(RATELIMIT, "@ratelimit view", MANY, ratelimit_view, fills=True),
        Row(RATELIMIT, "view, three @ratelimit", THREE, ratelimit_view),
        Row(DRF, "AnonRateThrottle.allow_request()", MANY, drf_work, fills=True),
        Row(DRF, "allow_request(), refused", REFUSED, lambda rates: refused(drf_work(rates))),
        Row(DRF, "bare APIView, no limit", (), drf_view),
        Row(DRF, "APIView, a throttle", MANY, drf_view, fills=True),
        Row(DRF, "APIView, three throttles", THREE, drf_view),
        Row(SMART, "backend.check_rate_limit()", MANY, smart_work, fills=True),
        Row(SMART, "check_rate_limit(), refused", REFUSED, lambda rates: refused(smart_work(rates))),
        Row(SMART, "@rate_limit view", MANY, smart_view, fills=True),
        Row(SMART, "view, three @rate_limit", THREE, smart_view),
        Row(LIMITS, "MovingWindow.hit()", MANY, hit, fills=True),
        Row(LIMITS, "hit(), refused", REFUSED, lambda rates: refused(hit(rates))),
        Row(LIMITS, "three hit()", THREE, functools.partial(limits_three, url)),
        Row(THROTTLED, "GCRA limit()", MANY, functools.partial(throttled_work, url), fills=True),
        Row(PYRATE, "try_acquire()", MANY, functools.partial(pyrate_work, url), fills=True),
    ]


def contenders(url: str) -> list[Contender]:
    """Return each of them for the races."""
    by_ip = functools.partial(limits_by_ip, url)
    return [
        Contender(RATELIMIT, ratelimit_by_ip, ratelimit_at, fill_by(ratelimit_by_ip), clock_windows=True),
        Contender(DRF, drf_by_ip, drf_at, fill_by(drf_by_ip)),
        Contender(SMART, smart_by_ip, smart_at, fill_by(smart_by_ip)),
        Contender(LIMITS, by_ip, limits_at, fill_by(by_ip)),
    ]
