"""What is measured: ours, the baseline, and each other limiter by its own documented means on the same server."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from typing import Any
from unittest import mock

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage.redis
import limits.strategies
import pyrate_limiter
import redis
import throttled
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django_ratelimit import core as ratelimit_core
from django_ratelimit.decorators import ratelimit
from django_smart_ratelimit import rate_limit
from django_smart_ratelimit.backends import get_backend, redis_backend
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle
from rest_framework.views import APIView

import django_quota
from django_quota import Rule, acheck, check, quota
from django_quota.core.clock import SECOND
from django_quota.core.overrides import Override
from django_quota.limiting.overrides import overrides
from django_quota.testing import freeze
from tests.benchmarks.facts import Contender, Hit
from tests.benchmarks.measure import Row, Work

MANY = 1_000_000
ONE = f"{MANY}/m"
THREE = (ONE, "10000000/h", "100000000/d")
LIMITS_THREE = ("1000000 per minute", "10000000 per hour", "100000000 per day")
"""The same in the words of limits."""
FULL = "10/d"
TASKS = 100
"""Tasks of one event loop that check at once."""
MOST = 100
"""More hits than `FULL` admits."""
OURS = f"django_quota {django_quota.__version__}"
RATELIMIT = f"django-ratelimit {version('django-ratelimit')}"
DRF = f"DRF {version('djangorestframework')}"
SMART = f"smart-ratelimit {version('django-smart-ratelimit')}"
LIMITS = f"limits {version('limits')}"
THROTTLED = f"throttled-py {version('throttled-py')}"
PYRATE = f"pyrate-limiter {version('pyrate-limiter')}"

_factory = RequestFactory()


def request_from(ip: str) -> HttpRequest:
    """Return a new GET request from this address."""
    request = _factory.get("/bench/", REMOTE_ADDR=ip)
    request.user = AnonymousUser()
    return request


def plain_view(request: HttpRequest) -> HttpResponse:
    """Answer at once: what all limited views have inside."""
    return HttpResponse("ok")


def was_served(response: Any) -> bool:
    """Tell a view's own answer from a limiter's."""
    return bool(response.status_code == 200)


def view_work(view: Callable[..., Any]) -> Work:
    """Return the work of a request to a view."""
    return Work(request_from, view, was_served)


def refused(work: Work) -> Work:
    """Return the same work for subjects that have used up their limit before the clock starts."""

    def use_up(ip: str) -> None:
        for _ in range(MOST):
            if not work.admitted(work.call(work.make_input(ip))):
                return
        raise RuntimeError(f"{MOST} checks of {ip} were admitted")

    return replace(work, expected=False, before=use_up)


def filled_by(hit: Callable[[int], Hit]) -> Callable[[str], None]:
    """Return a function that makes the hits of 1000/m one by one."""

    def fill(ip: str) -> None:
        one = hit(1000)
        for number in range(1000):
            if not one(ip):
                raise RuntimeError(f"hit {number + 1} under 1000/m was refused")

    return fill


class StoppedTime:
    """Stands in for the `time` module inside a limiter's own module."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def time(self) -> float:
        """Return the moment it was stopped at."""
        return self._seconds


# --- the baseline, and ours -------------------------------------------------------------------------------------------

THREE_LINES = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return count
"""
"""The least that a limiter can do in Redis: count, and have the count expire."""


def bare_work(url: str) -> Work:
    client = redis.Redis.from_url(url)
    sha = client.script_load(THREE_LINES)
    return Work("bare:{}".format, lambda key: client.evalsha(sha, 1, key, 60_000), lambda count: count > 0)


def check_work(*rates: str | Rule) -> Work:
    """Return the work of one `check()` of one or several limits."""
    rule = rates[0] if isinstance(rates[0], Rule) else "; ".join(map(str, rates))
    return Work("ip:{}".format, lambda subject: check(rule, subject), lambda decision: bool(decision.allowed))


def acheck_work(rate: str) -> Work:
    """Return the work of `acheck()` by tasks of one loop, which runs for the whole batch."""
    return replace(check_work(rate), call=lambda subject: acheck(rate, subject), is_async=True, tasks=TASKS)


@contextmanager
def blocked() -> Iterator[None]:
    """Block the subjects of this row, as overrides do that the process has read."""
    overrides.table.put(Override(1, "ip:10.0.0.0/8", "*", "blocked"))
    yield
    overrides.table.drop(1)


def limited_view(*rates: str, **options: Any) -> Callable[..., Any]:
    """Return a view under a `@quota` for each rate."""
    view: Any = plain_view
    for rate in rates:
        view = quota(rate, key="ip", **options)(view)
    return view  # type: ignore[no-any-return]


def spread(ip: str) -> None:
    """Fill 1000/m over a whole window, so that a subject takes the most: a hit in each of 100 slices, and one more."""
    start = time.time()
    for step in range(101):
        with our_clock(start + step * 0.6):
            if not check("1000/m", f"ip:{ip}", cost=9).allowed:
                raise RuntimeError(f"hit {step + 1} under 1000/m was refused")


def our_hit(hits: int) -> Hit:
    return lambda ip: check(f"{hits}/m", f"ip:{ip}").allowed


def our_clock(seconds: float) -> AbstractContextManager[object]:
    return freeze(int(seconds * SECOND))


# --- limits, throttled-py, pyrate-limiter -----------------------------------------------------------------------------


@cache
def moving_window(url: str) -> limits.strategies.MovingWindowRateLimiter:
    return limits.strategies.MovingWindowRateLimiter(limits.storage.redis.RedisStorage(url))


def limits_work(url: str, *rates: str) -> Work:
    """Return the work of a `hit()` for each rate."""
    limiter, items = moving_window(url), [limits.parse(rate) for rate in rates]
    if len(items) == 1:
        return Work(str, partial(limiter.hit, items[0]), bool)
    return Work(str, lambda ip: all(limiter.hit(item, ip) for item in items), bool)


def limits_async_work(url: str, rate: str) -> Work:
    """Return the work of an async `hit()` by tasks of one loop."""
    storage = limits.aio.storage.RedisStorage(f"async+{url}", implementation="redispy")
    limiter, item = limits.aio.strategies.MovingWindowRateLimiter(storage), limits.parse(rate)
    return Work(str, partial(limiter.hit, item), bool, is_async=True, tasks=TASKS)


def limits_hit(url: str, hits: int) -> Hit:
    return limits_work(url, f"{hits} per minute").call


def limits_clock(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(limits.storage.redis, "time", StoppedTime(seconds))


@cache
def throttled_store(url: str) -> throttled.RedisStore:
    return throttled.RedisStore(server=url)


def throttled_work(url: str, hits: int) -> Work:
    limiter = throttled.Throttled(using="gcra", quota=throttled.per_min(hits), store=throttled_store(url))
    return Work("ip:{}".format, limiter.limit, lambda result: not result.limited)


def throttled_hit(url: str, hits: int) -> Hit:
    work = throttled_work(url, hits)
    return lambda ip: work.admitted(work.call(ip))


class BucketASubject(pyrate_limiter.BucketFactory):
    """A bucket for each subject, made when it first comes, as its documentation shows."""

    def __init__(self, client: redis.Redis, hits: int) -> None:
        self._rates = [pyrate_limiter.Rate(hits, pyrate_limiter.Duration.MINUTE)]
        self._client = client
        self._buckets: dict[str, Any] = {}

    def wrap_item(self, name: str, weight: int = 1) -> Any:
        return pyrate_limiter.RateItem(name, time.time_ns() // 1_000_000, weight=weight)

    def get(self, item: Any) -> Any:
        if item.name not in self._buckets:
            key = f"pyrate:{self._rates[0].limit}:{item.name}"
            self._buckets[item.name] = pyrate_limiter.RedisBucket.init(self._rates, self._client, key)
        return self._buckets[item.name]


def pyrate_hit(url: str, hits: int) -> Any:
    limiter = pyrate_limiter.Limiter(BucketASubject(redis.Redis.from_url(url), hits))
    return partial(limiter.try_acquire, blocking=False)


def pyrate_clock(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(time, "time_ns", return_value=int(seconds * 1e9))


# --- those for Django -------------------------------------------------------------------------------------------------


def ratelimit_work(rate: str) -> Work:
    limited = partial(ratelimit_core.is_ratelimited, group="bench", key="ip", rate=rate, increment=True)
    return Work(request_from, limited, lambda limited: not limited)


def ratelimit_view(*rates: str) -> Work:
    view: Any = plain_view
    for rate in rates:
        view = ratelimit(group=f"view {rate}", key="ip", rate=rate)(view)
    return view_work(view)


def ratelimit_hit(hits: int) -> Hit:
    work = ratelimit_work(f"{hits}/m")
    return lambda ip: not work.call(request_from(ip))


def ratelimit_clock(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(ratelimit_core, "time", StoppedTime(seconds))


def drf_throttle(rate: str, scope: str) -> Any:
    """Return a throttle class as a project would write it."""
    return type("Throttle", (AnonRateThrottle,), {"rate": rate, "scope": scope})


def drf_work(rate: str) -> Work:
    throttle = drf_throttle(rate, f"check {rate}")
    # A throttle is made anew for each request by the views, too.
    return Work(request_from, lambda request: throttle().allow_request(request, None), bool)


def drf_view(*rates: str) -> Work:
    members = {
        "authentication_classes": [],
        "permission_classes": [],
        "throttle_classes": [drf_throttle(rate, f"view {rate}") for rate in rates],
        "get": lambda self, request: Response("ok"),
    }
    view: Any = type("View", (APIView,), members)
    return view_work(view.as_view())


def drf_hit(hits: int) -> Hit:
    work = drf_work(f"{hits}/m")
    return lambda ip: bool(work.call(request_from(ip)))


def drf_clock(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(AnonRateThrottle, "timer", staticmethod(lambda: seconds))


def smart_hit(hits: int) -> Hit:
    backend = get_backend()
    return lambda ip: bool(backend.check_rate_limit(f"{hits}:ip:{ip}", hits, 60)[0])


def smart_view(*rates: str) -> Work:
    view: Any = plain_view
    for rate in rates:
        view = rate_limit(key=partial(smart_key, rate), rate=rate)(view)
    return view_work(view)


def smart_key(name: str, request: HttpRequest, *_: object) -> str:
    """Return a key of its own for each rate."""
    return f"{name}:ip:{request.META['REMOTE_ADDR']}"


def smart_clock(seconds: float) -> AbstractContextManager[object]:
    return mock.patch.object(redis_backend, "get_current_timestamp", return_value=seconds)


# --- all of them ------------------------------------------------------------------------------------------------------


def rows(url: str, *, others: bool) -> list[Row]:
    """Return the lines of the table: those that the goals compare, by their ids, and those of the other limiters."""
    cached: dict[str, Any] = {"cache_refusals": 1.0}
    ours = [
        Row("check", OURS, "check()", check_work(ONE), spread),
        Row("check3", OURS, "check(), three limits in one call", check_work(*THREE)),
        Row("acheck", OURS, f"acheck() by {TASKS} tasks", acheck_work(ONE)),
        Row("view", OURS, "view under one limit", view_work(limited_view(ONE))),
        Row("flooded", OURS, "check(), refused from memory", refused(check_work(Rule.make("flooded", FULL, **cached)))),
        Row("blocked", OURS, "check(), blocked", replace(check_work(ONE), expected=False, within=blocked)),
    ]
    by_limits, by_throttled, by_pyrate = (partial(hit, url) for hit in (limits_hit, throttled_hit, pyrate_hit))
    compared = [
        Row("bare", f"redis-py {redis.__version__}", "evalsha() of a three-line counter", bare_work(url)),
        Row("bare view", "Django", "view, no limit", view_work(plain_view)),
        *ours,
        Row("limits", LIMITS, "MovingWindow.hit()", limits_work(url, LIMITS_THREE[0]), filled_by(by_limits)),
        Row("limits3", LIMITS, "three hit()", limits_work(url, *LIMITS_THREE)),
        Row("limits async", LIMITS, f"async hit() by {TASKS} tasks", limits_async_work(url, LIMITS_THREE[0])),
    ]  # fmt: skip
    return compared if not others else [
        *compared,
        Row("throttled", THROTTLED, "GCRA limit()", throttled_work(url, MANY), filled_by(by_throttled)),
        Row("pyrate", PYRATE, "try_acquire()", Work(str, by_pyrate(MANY), bool), filled_by(by_pyrate)),
        Row("smart", SMART, "backend.check_rate_limit()", Work(str, smart_hit(MANY), bool), filled_by(smart_hit)),
        Row("smart view", SMART, "view under one limit", smart_view(ONE)),
        Row("smart view3", SMART, "view under three limits", smart_view(*THREE)),
        Row("drf", DRF, "AnonRateThrottle.allow_request()", drf_work(ONE), filled_by(drf_hit)),
        Row("drf view", DRF, "APIView, a throttle", drf_view(ONE)),
        Row("drf view3", DRF, "APIView, three throttles", drf_view(*THREE)),
        Row("ratelimit", RATELIMIT, "is_ratelimited()", ratelimit_work(ONE), filled_by(ratelimit_hit)),
        Row("ratelimit view", RATELIMIT, "view under one limit", ratelimit_view(ONE)),
        Row("ratelimit view3", RATELIMIT, "view under three limits", ratelimit_view(*THREE)),
    ]  # fmt: skip


def contenders(url: str) -> list[Contender]:
    """Return each limiter for the races."""
    return [
        Contender(OURS, our_hit, our_clock),
        Contender(LIMITS, partial(limits_hit, url), limits_clock),
        Contender(THROTTLED, partial(throttled_hit, url), None),
        Contender(PYRATE, partial(pyrate_hit, url), pyrate_clock),
        Contender(SMART, smart_hit, smart_clock),
        Contender(DRF, drf_hit, drf_clock),
        Contender(RATELIMIT, ratelimit_hit, ratelimit_clock, clock_windows=True),
    ]
