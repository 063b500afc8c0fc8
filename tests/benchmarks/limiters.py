"""What is measured: ours, the baseline, and each other limiter by its own documented means on the same server."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace
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
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path
from django_ratelimit import core as ratelimit_core
from django_ratelimit.decorators import ratelimit
from django_smart_ratelimit import rate_limit
from django_smart_ratelimit.backends import get_backend, redis_backend
from django_smart_ratelimit.key_functions import get_ip_key
from rest_framework.response import Response
from rest_framework.throttling import AnonRateThrottle, BaseThrottle
from rest_framework.views import APIView

import django_quota
from django_quota import Rule, acheck, check, quota
from django_quota.contrib.rest_framework import QuotaThrottle
from django_quota.core.clock import SECOND
from django_quota.core.overrides import Override, OverrideTable
from django_quota.limiting.overrides import MAX_OVERRIDES, overrides
from django_quota.testing import freeze
from tests.benchmarks.facts import Contender, WorkOf
from tests.benchmarks.measure import Counted, Row, Work

MANY = 1_000_000
ONE = f"{MANY}/m"
THREE = (ONE, "10000000/h", "100000000/d")
LIMITS_THREE = ("1000000 per minute", "10000000 per hour", "100000000 per day")
"""The same in the words of limits."""
TASKS = 100
"""Tasks of one event loop that check at once."""
OURS = f"django_quota {django_quota.__version__}"
RATELIMIT = f"django-ratelimit {version('django-ratelimit')}"
DRF = f"DRF {version('djangorestframework')}"
SMART = f"smart-ratelimit {version('django-smart-ratelimit')}"
REDIS = f"redis-py {redis.__version__}"
LIMITS = f"limits {version('limits')}"
THROTTLED = f"throttled-py {version('throttled-py')}"
PYRATE = f"pyrate-limiter {version('pyrate-limiter')}"

Clock = AbstractContextManager[object]

_factory = RequestFactory()


def request_from(ip: str) -> HttpRequest:
    request = _factory.get("/bench/", REMOTE_ADDR=ip)
    request.user = AnonymousUser()
    return request


def plain_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def view_work(view: Callable[..., Any]) -> Work:
    return Work(request_from, view, lambda response: bool(response.status_code == 200))


urlpatterns = [path("bench/", plain_view)]
"""The site of the bench: `handler_work` sends requests to it."""


def handler_work(*middleware: str) -> Work:
    """Return requests that Django's handler answers, with this middleware alone."""
    handler = BaseHandler()
    with override_settings(MIDDLEWARE=middleware):
        handler.load_middleware()
    return view_work(handler.get_response)


def stacked(limit: Callable[..., Any]) -> Callable[..., Any]:
    """Return what puts a view under limits by address, the outermost first, by a decorator for each rate."""

    def under(view: Any, *rates: str, **options: Any) -> Any:
        for rate in reversed(rates):
            view = limit(rate, **options)(view)
        return view

    return under


def refused(work: Work) -> Work:
    """Return the same work for subjects that have used up their limit before the clock starts."""

    def use_up(ip: str) -> None:
        while work.admits(ip):
            pass

    return replace(work, expected=False, before=use_up)


def filled_by(work_of: WorkOf) -> Callable[[str], None]:
    """Return a function that makes the hits of 1000/m one by one."""

    def fill(ip: str) -> None:
        work = work_of(1000)
        if not all(work.admits(ip) for _ in range(1000)):
            raise RuntimeError("a hit under 1000/m was refused")

    return fill


# --- the baseline, and ours -------------------------------------------------------------------------------------------

THREE_LINES = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return count
"""
"""The least that a limiter can do in Redis: count, and have the count expire."""
BARE = "evalsha() of a three-line counter"


def bare_work(url: str) -> Work:
    client = redis.Redis.from_url(url)
    sha = client.script_load(THREE_LINES)
    return Work("bare:{}".format, lambda key: client.evalsha(sha, 1, key, 60_000), lambda count: count > 0)


def check_work(*rates: str | Rule) -> Work:
    rule = rates[0] if isinstance(rates[0], Rule) else "; ".join(map(str, rates))
    return Work("ip:{}".format, lambda subject: check(rule, subject), lambda decision: bool(decision.allowed))


def acheck_work(rate: str) -> Work:
    """Return the work of `acheck()` by tasks of one loop, which runs for the whole batch."""
    return replace(check_work(rate), call=lambda subject: acheck(rate, subject), is_async=True, tasks=TASKS)


def ahead_work(subject: str) -> Work:
    """Return the work of one subject that asks all the time, of whose limit the process takes units ahead."""
    hot = Rule.make("hot", f"{MANY * 1_000}/d", prefetch=True)
    return replace(check_work(hot), make_input=lambda _: subject)


@contextmanager
def blocked() -> Iterator[None]:
    """Block the subjects of this row, as overrides do that the process has read."""
    overrides.table.put(Override(1, "ip:10.0.0.0/8", "*", "blocked"))
    yield
    overrides.table.drop(1)


def block(ip: str) -> None:
    """Block an address, as a ban does that the process has read."""
    overrides.table.put(Override(len(overrides.table) + 1, f"ip:{ip}", "*", "blocked"))


@cache
def others_blocked() -> OverrideTable:
    return OverrideTable(Override(pk, f"user:{pk}", "*", "blocked") for pk in range(MAX_OVERRIDES))


@contextmanager
def full_table() -> Iterator[None]:
    """Have the process hold as many overrides as it can with ease, of other subjects."""
    overrides.table, before = others_blocked(), overrides.table
    yield
    overrides.table = before


def verify_overrides() -> None:
    """Raise if the overrides could not be read: each check would try again, and cost more than at a site."""
    if overrides.problem:
        raise RuntimeError(f"the overrides cannot be read: {overrides.problem}")


def our_clock(now: float) -> Clock:
    return freeze(int(now * SECOND))


def spread(ip: str) -> None:
    """Fill 1000/m over a whole window, so that a subject takes the most: a hit in each of 100 slices, and one more."""
    start = time.time()
    for step in range(101):
        with our_clock(start + step * 0.6):
            if not check("1000/m", f"ip:{ip}", cost=9).allowed:
                raise RuntimeError(f"hit {step + 1} under 1000/m was refused")


# --- limits, throttled-py, pyrate-limiter -----------------------------------------------------------------------------


@cache
def moving_window(url: str) -> limits.strategies.MovingWindowRateLimiter:
    return limits.strategies.MovingWindowRateLimiter(limits.storage.redis.RedisStorage(url))


def limits_work(url: str, *rates: str) -> Work:
    limiter, items = moving_window(url), [limits.parse(rate) for rate in rates]
    if len(items) == 1:
        return Work(str, partial(limiter.hit, items[0]), bool)
    return Work(str, lambda ip: all(limiter.hit(item, ip) for item in items), bool)


def limits_async_work(url: str, rate: str) -> Work:
    storage = limits.aio.storage.RedisStorage(f"async+{url}", implementation="redispy")
    limiter, item = limits.aio.strategies.MovingWindowRateLimiter(storage), limits.parse(rate)
    return Work(str, partial(limiter.hit, item), bool, is_async=True, tasks=TASKS)


@cache
def throttled_store(url: str) -> throttled.RedisStore:
    return throttled.RedisStore(server=url)


def throttled_work(url: str, hits: int) -> Work:
    limiter = throttled.Throttled(using="gcra", quota=throttled.per_min(hits), store=throttled_store(url))
    return Work("ip:{}".format, limiter.limit, lambda result: not result.limited)


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


def pyrate_work(url: str, hits: int) -> Work:
    limiter = pyrate_limiter.Limiter(BucketASubject(redis.Redis.from_url(url), hits))
    return Work(str, partial(limiter.try_acquire, blocking=False), bool)


# --- those for Django -------------------------------------------------------------------------------------------------


def ratelimit_work(hits: int) -> Work:
    limited = partial(ratelimit_core.is_ratelimited, group="bench", key="ip", rate=f"{hits}/m", increment=True)
    return Work(request_from, limited, lambda limited: not limited)


def drf_throttle(rate: str, scope: str) -> Any:
    return type("Throttle", (AnonRateThrottle,), {"rate": rate, "scope": f"{scope} {rate}"})


def drf_work(hits: int) -> Work:
    throttle = drf_throttle(f"{hits}/m", "check")
    # A throttle is made anew for each request by the views, too.
    return Work(request_from, lambda request: throttle().allow_request(request, None), bool)


def drf_view(_: Any, *rates: str) -> Any:
    return api_view([drf_throttle(rate, "view") for rate in rates])


def api_view(throttles: Sequence[type[BaseThrottle]], **members: Any) -> Any:
    members |= {
        "authentication_classes": [],
        "permission_classes": [],
        "throttle_classes": throttles,
        "get": lambda self, request: Response("ok"),
    }
    view: Any = type("View", (APIView,), members)
    return view.as_view()


def our_api_view(rate: str) -> Any:
    return api_view([QuotaThrottle], quota_rules=[Rule.make("api", rate, key="ip")])


def smart_work(hits: int) -> Work:
    backend = get_backend()
    return Work(str, lambda ip: backend.check_rate_limit(f"{hits}:ip:{ip}", hits, 60)[0], bool)


def smart_key(rate: str, request: HttpRequest, *_: object, **__: object) -> str:
    return f"{rate}:{get_ip_key(request)}"


# --- all of them ------------------------------------------------------------------------------------------------------

VIEWS = {
    "django-quota": stacked(partial(quota, key="ip")),
    "django-ratelimit": stacked(lambda rate: ratelimit(key="ip", rate=rate)),
    "django-smart-ratelimit": stacked(lambda rate: rate_limit(key=partial(smart_key, rate), rate=rate)),
    "djangorestframework": drf_view,
}

CLOCKS: dict[str, Callable[[float], Clock]] = {
    "django-quota": our_clock,
    "limits": lambda now: mock.patch.object(limits.storage.redis, "time", SimpleNamespace(time=lambda: now)),
    "pyrate-limiter": lambda now: mock.patch.object(time, "time_ns", return_value=int(now * 1e9)),
    "django-ratelimit": lambda now: mock.patch.object(ratelimit_core, "time", SimpleNamespace(time=lambda: now)),
    "django-smart-ratelimit": lambda now: mock.patch.object(redis_backend, "get_current_timestamp", return_value=now),
    "djangorestframework": lambda now: mock.patch.object(AnonRateThrottle, "timer", staticmethod(lambda: now)),
}
"""Each sets the clock of a package; that of throttled-py is Redis' own."""


def rows(url: str, *, others: bool) -> list[Row]:
    """Return the lines of the table: those that the goals compare, by their ids, and those of the other limiters."""

    def view(package: str, *rates: str) -> Work:
        return view_work(VIEWS[package](plain_view, *rates))

    flooded = refused(check_work(Rule.make("flooded", "10/d", cache_refusals=1.0)))
    compared = [
        Row("bare", REDIS, BARE, bare_work(url)),
        Row("bare view", "Django", "view, no limit", view_work(plain_view)),
        Row("check", OURS, "check()", check_work(ONE), spread),
        Row("check3", OURS, "check(), three limits in one call", check_work(*THREE)),
        Row("acheck", OURS, f"acheck() by {TASKS} tasks", acheck_work(ONE)),
        Row("view", OURS, "view under one limit", view("django-quota", ONE)),
        Row("flooded", OURS, "check(), refused from memory", flooded),
        Row("blocked", OURS, "check(), blocked", replace(check_work(ONE), expected=False, within=blocked)),
        Row("limits", LIMITS, "MovingWindow.hit()", limits_work(url, LIMITS_THREE[0]), filled_by(
            lambda hits: limits_work(url, f"{hits} per minute"))),
        Row("limits3", LIMITS, "three hit()", limits_work(url, *LIMITS_THREE)),
        Row("limits async", LIMITS, f"async hit() by {TASKS} tasks", limits_async_work(url, LIMITS_THREE[0])),
        Row("ahead", OURS, "check(), spent of what was taken ahead", ahead_work("ip:203.0.113.9")),
    ]  # fmt: skip
    if not others:
        return compared
    by_throttled, by_pyrate = partial(throttled_work, url), partial(pyrate_work, url)
    return [
        *compared,
        Row("throttled", THROTTLED, "GCRA limit()", by_throttled(MANY), filled_by(by_throttled)),
        Row("pyrate", PYRATE, "try_acquire()", by_pyrate(MANY), filled_by(by_pyrate)),
        Row("smart", SMART, "backend.check_rate_limit()", smart_work(MANY), filled_by(smart_work)),
        Row("smart view", SMART, "view under one limit", view("django-smart-ratelimit", ONE)),
        Row("smart view3", SMART, "view under three limits", view("django-smart-ratelimit", *THREE)),
        Row("drf", DRF, "AnonRateThrottle.allow_request()", drf_work(MANY), filled_by(drf_work)),
        Row("drf view", DRF, "APIView, a throttle", view("djangorestframework", ONE)),
        Row("drf view3", DRF, "APIView, three throttles", view("djangorestframework", *THREE)),
        Row("ratelimit", RATELIMIT, "is_ratelimited()", ratelimit_work(MANY), filled_by(ratelimit_work)),
        Row("ratelimit view", RATELIMIT, "view under one limit", view("django-ratelimit", ONE)),
        Row("ratelimit view3", RATELIMIT, "view under three limits", view("django-ratelimit", *THREE)),
    ]


def counted_rows(url: str) -> list[Counted]:
    """Return the lines of the table of instructions: what ours are compared with, and ours with our goals."""
    check_one, bare_api = check_work(ONE), view_work(api_view([]))
    remaining = replace(check_one, call=lambda subject: check(ONE, subject).remaining, admitted=lambda left: left > 0)
    remembered = refused(check_work(Rule.make("remembered", "10/d", cache_refusals=60.0)))
    middleware = handler_work("django_quota.middleware.QuotaMiddleware")
    return [
        Counted("limits", LIMITS, "MovingWindow.hit()", limits_work(url, LIMITS_THREE[0])),
        Counted("limits3", LIMITS, "three hit()", limits_work(url, *LIMITS_THREE)),
        Counted("bare", REDIS, BARE, bare_work(url)),
        Counted("bare view", "Django", "view, no limit", view_work(plain_view)),
        Counted("bare handler", "Django", "handler, no limit", handler_work()),
        Counted("bare api", DRF, "APIView, no throttle", bare_api),
        Counted("check", OURS, "check()", check_one, ["limits"], 0.65),
        Counted("check3", OURS, "check(), three limits in one call", check_work(*THREE), ["limits3"], 0.25),
        Counted("remaining", OURS, "check() and .remaining", remaining, ["check"], 1.1),
        Counted("view", OURS, "view under @quota", view_work(VIEWS["django-quota"](plain_view, ONE)),
                ["bare view", "bare"], 1.4),
        Counted("middleware", OURS, "handler with the middleware", middleware, ["bare handler", "bare"], 1.5),
        Counted("api", OURS, "APIView, QuotaThrottle", view_work(our_api_view(ONE)), ["bare api", "bare"], 1.4),
        Counted("remembered", OURS, "check(), refused from memory", remembered, ["limits"], 0.2),
        Counted("overrides", OURS, f"check() with {MAX_OVERRIDES:,} overrides", replace(check_one, within=full_table),
                ["check"], 1.1),
        Counted("new", OURS, "check(), a new subject each", check_one, ["check"], 1.1, is_new=True),
        Counted("network", OURS, "check(), network blocked", replace(check_one, expected=False, within=blocked),
                ["limits"], 0.25),
        # From here on, a check also looks for units that were taken ahead.
        Counted("ahead", OURS, "check(), spent of what was taken ahead", ahead_work("ip:203.0.113.9"), ["limits"], 0.1),
        Counted("ahead by day", OURS, "the same for a user, counted by day", ahead_work("user:7"), ["limits"], 0.1),
        # The last one, since its overrides stay.
        Counted("blocked", OURS, "check(), address blocked", replace(check_one, expected=False, before=block),
                ["limits"], 0.25),
    ]  # fmt: skip


def contenders(url: str) -> list[Contender]:
    return [
        Contender(OURS, lambda hits: check_work(f"{hits}/m"), our_clock),
        Contender(LIMITS, lambda hits: limits_work(url, f"{hits} per minute"), CLOCKS["limits"]),
        Contender(THROTTLED, partial(throttled_work, url), None),
        Contender(PYRATE, partial(pyrate_work, url), CLOCKS["pyrate-limiter"]),
        Contender(SMART, smart_work, CLOCKS["django-smart-ratelimit"]),
        Contender(DRF, drf_work, CLOCKS["djangorestframework"]),
        Contender(RATELIMIT, ratelimit_work, CLOCKS["django-ratelimit"], clock_windows=True),
    ]
