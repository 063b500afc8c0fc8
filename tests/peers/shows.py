"""Small sites under each limiter, written as its documentation says, and what their visitors meet."""

import asyncio
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

from django.conf import settings

import django_quota
from tests.benchmarks.facts import MILLISECOND
from tests.benchmarks.processes import configure, redis_over_tcp

LIMIT, TRIES = 10, 20
MINUTE, DAY = 60, 86_400
PACKAGES = {
    "django-quota": "django_quota",
    "django-ratelimit": "django_ratelimit",
    "django-smart-ratelimit": "django_smart_ratelimit",
    "djangorestframework": "rest_framework",
    "Flask-Limiter": "flask_limiter",
    "django-axes": "axes",
    "limits": "limits",
    "pyrate-limiter": "pyrate_limiter",
    "throttled-py": "throttled",
}
"""The packages, and the names that they are imported by."""

OF_DJANGO = ("django-quota", "django-ratelimit", "django-smart-ratelimit", "djangorestframework")
"""Those with views of Django."""
WITH_VIEWS = (*OF_DJANGO, "Flask-Limiter")

Get = Callable[..., Any]
"""Sends a GET from an address, with headers; returns the response."""


def set_up(url: str) -> None:
    """Set Django up as a project does: with sessions, users, and the middleware of django_quota."""
    configure(url)
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django_quota.middleware.QuotaMiddleware",
    ]
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore", RuntimeWarning)  # a view that nobody awaits


# --- the sites --------------------------------------------------------------------------------------------------------


def site(name: str, url: str, *rates: str, is_async: bool = False, is_tolerant: bool = False) -> Get:
    """Return a site with one view under limits by address, the outermost first; `is_tolerant`: see `outage`."""
    if name == "Flask-Limiter":
        return _flask(url, rates, swallow_errors=is_tolerant)
    from django.http import HttpResponse
    from django.test import AsyncClient, Client
    from django.urls import path

    from tests.benchmarks.limiters import VIEWS, plain_view

    async def of_a_loop(request: Any) -> HttpResponse:
        return HttpResponse("ok")

    options = {"on_unavailable": "deny"} if is_tolerant and name == "django-quota" else {}
    view = VIEWS[name](of_a_loop if is_async else plain_view, *rates, **options)
    urls = type("URLs", (), {"urlpatterns": [path("", view)]})

    def get(address: str, **headers: str) -> Any:
        settings.ROOT_URLCONF = urls
        if is_async:
            return asyncio.run(AsyncClient(raise_request_exception=False).get("/"))
        return Client(raise_request_exception=False).get("/", REMOTE_ADDR=address, headers=headers)

    return get


def _flask(url: str, rates: Sequence[str], **options: Any) -> Get:
    import flask
    import flask_limiter
    from flask_limiter.util import get_remote_address

    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(get_remote_address, app=app, storage_uri=url, **options)
    limit: Any = limiter.limit("; ".join(rates).replace("/m", " per minute").replace("/d", " per day"))
    app.add_url_rule("/", "view", limit(lambda: "ok"))

    def get(address: str, **headers: str) -> Any:
        return app.test_client().get("/", environ_base={"REMOTE_ADDR": address}, headers=headers)

    return get


def get_at(name: str, seconds: float, get: Get, address: str) -> Any:
    """Send a GET so many seconds after the noon of today, by the clock of a limiter."""
    from tests.benchmarks.limiters import CLOCKS

    moment = (time.time() // DAY) * DAY + DAY / 2 + seconds
    # django-smart-ratelimit reads the clock of the process for its headers.
    headers = mock.patch("time.time", return_value=moment) if "smart" in name else nullcontext()
    with CLOCKS[name](moment), headers:
        return get(address)


# --- what visitors meet -----------------------------------------------------------------------------------------------


def visitors(url: str) -> dict[str, dict[str, Any]]:
    set_up(url)
    found: dict[str, dict[str, Any]] = {}
    for name in WITH_VIEWS:
        get = site(name, url, "10/m")
        refused = [get("192.0.2.1") for _ in range(LIMIT + 1)][-1]
        names = {key.lower() for key in refused.headers.keys()}  # noqa: SIM118 — those of Flask iterate over pairs
        found[name] = {
            "status": refused.status_code,
            "retry_after": "retry-after" in names,
            "draft_headers": "ratelimit-policy" in names,
            "legacy_headers": "x-ratelimit-limit" in names,
            "of_one_network": admitted(site(name, url, "10/m"), [f"2001:db8::{n:x}" for n in range(1, TRIES + 1)]),
            "forging": admitted(site(name, url, "10/m"), ["192.0.2.2"] * TRIES, is_forging=True),
        }
    for name in OF_DJANGO:
        found[name]["left"] = left_of_the_day(name, url)
        found[name]["wait"] = told_to_wait(name, url)
    for name in OF_DJANGO[:3]:
        get = site(name, url, "10/m", is_async=True)
        found[name]["async"] = [get("").status_code for _ in range(LIMIT + 1)]
    return found


def admitted(get: Get, addresses: Sequence[str], *, is_forging: bool = False) -> int:
    """Return how many requests are answered, one from each address. A forger sends other X-Forwarded-For each time."""
    headers = [{"X-Forwarded-For": f"198.51.100.{n}"} if is_forging else {} for n in range(len(addresses))]
    return sum(get(address, **each).status_code == 200 for address, each in zip(addresses, headers, strict=True))


def left_of_the_day(name: str, url: str) -> int:
    """Return what is left of 10 a day when a view under 3/m and 10/d refused five of eight requests within a minute.

    It is 7 if the five took nothing.
    """
    get = site(name, url, "10/d", "3/m")

    def answered(moments: Sequence[float]) -> int:
        return sum(get_at(name, moment, get, "192.0.2.3").status_code == 200 for moment in moments)

    if answered([number * MILLISECOND for number in range(8)]) != 3:
        raise RuntimeError("not three requests were answered under 3/m")
    return answered([minute * MINUTE for minute in range(2, 14)])


def told_to_wait(name: str, url: str) -> dict[str, Any] | None:
    """Return the Retry-After of a refusal 10 s after the first of ten hits, and whether the client comes in then.

    It is refused until 60 s after the first, so 50 is right. The minute of the clock ends 20 s after the refusal.
    """
    get, began = site(name, url, "10/m"), MINUTE / 2
    *_, refused = [get_at(name, began + second, get, "192.0.2.4") for second in range(LIMIT + 1)]
    told = refused.headers.get("Retry-After")
    if told is None:
        return None
    then = get_at(name, began + LIMIT + int(told) + MILLISECOND, get, "192.0.2.4")
    return {"told": int(told), "then": then.status_code == 200}


def outage(program: str, is_tolerant: bool) -> dict[str, int]:
    """Return the status of a limited view once its Redis has died.

    `is_tolerant`: with the option that each has for that: `on_unavailable="deny"` of django_quota,
    `RATELIMIT_FAIL_OPEN` of django-ratelimit and django-smart-ratelimit, `swallow_errors` of Flask-Limiter.
    """
    with redis_over_tcp(Path(program)) as url:
        set_up(url)
        settings.RATELIMIT_FAIL_OPEN = is_tolerant
        gets = {name: site(name, url, "10/m", is_tolerant=is_tolerant) for name in WITH_VIEWS}
        if not all(get("192.0.2.1").status_code == 200 for get in gets.values()):
            raise RuntimeError("a site does not answer")
    return {name: get("192.0.2.1").status_code for name, get in gets.items()}


# --- what needs no server ---------------------------------------------------------------------------------------------


def without_server() -> dict[str, Any]:
    set_up("redis://127.0.0.1:1/0")
    of_us = {"django-quota": django_quota.__version__}
    return {
        "versions": of_us | {name: version(name) for name in PACKAGES if name not in of_us},
        "lines": {name: lines(module) for name, module in PACKAGES.items()},
        "month": ten_a_month(),
    }


def lines(module: str) -> int:
    """Return how many lines of Python and Lua a package has, without tests."""
    root = Path(str(import_module(module).__file__)).parent
    files = [path for path in root.rglob("*") if path.suffix in (".py", ".lua") and "tests" not in path.parts]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.name != "tests.py")


def ten_a_month() -> dict[str, str]:
    """Return what each parser makes of "10/month"."""
    import limits
    from django_ratelimit.core import _split_rate
    from django_smart_ratelimit.utils import parse_rate
    from rest_framework.throttling import SimpleRateThrottle

    from django_quota import Rule

    text = "10/month"
    throttle = type("Throttle", (SimpleRateThrottle,), {"rate": text})()
    item = limits.parse(text)
    parsers: dict[str, Callable[[], Any]] = {
        "django-quota": lambda: Rule.make("x", text),
        "django-ratelimit": lambda: _split_rate(text),
        "django-smart-ratelimit": lambda: parse_rate(text),
        "djangorestframework": lambda: throttle.parse_rate(text),
        "limits": lambda: (item.amount, item.get_expiry()),
    }
    found = {}
    for name, parse in parsers.items():
        try:
            number, seconds = parse()
            found[name] = f"{number} in {seconds:,} s"
        except Exception as error:  # noqa: BLE001 — some raise errors of their own
            found[name] = f"an error: {type(error).__name__}"
    return found
