"""Every public call that asks Redis, sync and async, and what it promises while Redis does not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any, NamedTuple, cast

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_quota
from django_quota import (
    Decision,
    Rule,
    areserve,
    ban,
    check,
    concurrency,
    counter,
    once,
    peek,
    quota,
    refund,
    reserve,
    reset,
    slot,
    unban,
)
from django_quota.core.rule_options import OnUnavailable
from django_quota.exceptions import StoreUnavailable
from django_quota.middleware import QuotaMiddleware
from django_quota.types import Hold, Lease

WHO = "user:7"
DAY = date(2026, 11, 21)
HOW: tuple[OnUnavailable, ...] = ("allow", "deny", "local")

DECIDES, RAISES, SERVES = "decides", "raises", "serves"
"""What a call does without Redis: by the rule's `on_unavailable`; `StoreUnavailable`; a response."""


class Call(NamedTuple):
    """A call; `before` is done while Redis is well, and what it returns is handed to the call."""

    name: str
    kind: str
    sync: Callable[[Any], Any]
    asynchronous: Callable[[Any], Awaitable[Any]]
    before: Callable[[], Any] = lambda: None


def _twins(name: str, kind: str, function: Callable[..., Any], /, *given: Any, **options: Any) -> Call:
    """Return a call that needs nothing from before; its async form is the function with an `a` before its name."""
    owner: Any = getattr(function, "__self__", django_quota)
    twin = getattr(owner, f"a{function.__name__}")
    return Call(name, kind, lambda _: function(*given, **options), lambda _: twin(*given, **options))


ALGORITHMS: dict[str, dict[str, Any]] = {
    "sliding": {},
    "fixed": {"algorithm": "fixed_window"},
    "calendar": {"algorithm": "calendar"},
    "bucket": {"algorithm": "token_bucket", "burst": 900},
    "leaky": {"algorithm": "leaky_bucket"},
    "banning": {"ban": {"after": "500/m", "for": ["1m"]}},
    "distinct": {"distinct": True},
}


BANNING = Rule.make("9000/m", "9000/m", ban={"after": "900/m", "for": "1m"})


def checks() -> list[Call]:
    """Return a check by each algorithm, under each `on_unavailable`."""
    calls = []
    for how in HOW:
        for name, options in ALGORITHMS.items():
            value = {"value": "a"} if name == "distinct" else {}
            given: dict[str, Any] = {**options, **value, "name": name, "on_unavailable": how}
            calls.append(_twins(f"check {name} {how}", f"{DECIDES} {how}", check, "9000/m", WHO, **given))
    return calls


async def _areserved() -> Decision:
    return (await areserve("9000/m", WHO, 5, name="held")).decision


def _held() -> Hold:
    return reserve("9000/m", WHO, 5, name="held")


ALLOWS = f"{DECIDES} allow"
LIMITS = [
    *checks(),
    _twins("check several", ALLOWS, check, "9000/s; 90000/h", WHO, name="several"),
    _twins("peek", ALLOWS, peek, "9000/m", WHO),
    _twins("refund", ALLOWS, refund, "9000/m", WHO),
    Call("reserve", ALLOWS, lambda _: _held().decision, lambda _: _areserved()),
    Call("settle what was held before", ALLOWS, lambda hold: hold.settle(3), lambda hold: hold.asettle(3), _held),
]


def verbs() -> list[Call]:
    tally = counter("tally")
    asked: dict[str, tuple[Any, ...]] = {
        "incr": (WHO, 2), "get": (WHO,), "series": (WHO, DAY, DAY), "set": (WHO, 5), "take": (WHO, 1), "pop": (WHO,),
        "transfer": (WHO, "user:8", 0), "unique": (WHO, "a"), "unique_count": (WHO,),
    }  # fmt: skip
    return [_twins(f"counter.{name}", RAISES, getattr(tally, name), *given) for name, given in asked.items()]


def _entered(made: Any) -> None:
    with made:
        pass


async def _aentered(made: Any) -> None:
    async with made:
        pass


def _slot(**options: Any) -> Any:
    return slot("work", 200, subject=WHO, **options)


def _lease() -> Lease:
    return slot("before", 9000, lease=60, subject=WHO).acquire()


STRICT = [
    _twins("reset", RAISES, reset, "9000/m", WHO),
    _twins("ban", RAISES, ban, "user:8", BANNING, 1),
    _twins("unban", RAISES, unban, "user:8"),
    *verbs(),
    Call("slot", RAISES, lambda _: _entered(_slot()), lambda _: _aentered(_slot())),
    Call("waiting slot", RAISES, lambda _: _entered(_slot(wait=1)), lambda _: _aentered(_slot(wait=1))),
    _twins("holders", RAISES, slot("work", 200).holders),
    Call("release what was held before", RAISES, lambda lease: lease.release(), lambda lease: lease.arelease(), _lease),
    Call("renew what was held before", RAISES, lambda lease: lease.renew(), lambda lease: lease.arenew(), _lease),
    _twins("once", RAISES, once, "event", "1"),
]


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def plain_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def _awaited(answer: Any) -> Any:
    return await answer


SITE = {
    f"site-{how}": {"rate": "9000/m", "key": "ip", "match": f"/{how}/", "on_unavailable": how} for how in HOW
}  # fmt: skip
"""The settings' rules, by path, for the middleware."""


def _view(name: str, how: str, limits: Callable[[Any], Any]) -> Call:
    view, aview = limits(plain), limits(plain_async)

    def asks() -> HttpRequest:
        return RequestFactory().get(f"/{how}/", REMOTE_ADDR="192.0.2.1")

    return Call(name, f"{SERVES} {how}", lambda _: view(asks()), lambda _: _awaited(aview(asks())))


def views() -> list[Call]:
    """Return views under a decorator, or behind the middleware, for each `on_unavailable`."""
    calls = []
    for how in HOW:
        limited = quota("9000/m", key="ip", name="view", on_unavailable=how)
        guarded = concurrency(900, key="ip", name="gate", on_unavailable=how)
        for name, limits in (("@quota", limited), ("@concurrency", guarded), ("middleware", QuotaMiddleware)):
            calls.append(_view(f"{name} {how}", how, cast("Any", limits)))
    return calls


VIEWS = views()
CALLS = [*LIMITS, *STRICT, *VIEWS]
MODES = ("sync", "async")


def do(call: Call, mode: str, state: Any) -> Any:
    """Make a call; return its answer, or the `StoreUnavailable` that it raised."""
    try:
        if mode == "sync":
            return call.sync(state)
        return asyncio.run(_awaited(call.asynchronous(state)))
    except StoreUnavailable as error:
        return error


def promise_problem(call: Call, answer: Any) -> str:
    """Say what is wrong with an answer that was given without Redis; nothing where it is as the docs promise."""
    kind, _, how = call.kind.partition(" ")
    if kind == RAISES:
        return "" if isinstance(answer, StoreUnavailable) else f"{answer!r} is no StoreUnavailable"
    if kind == SERVES:
        wanted = 503 if how == "deny" else 200
        return "" if answer.status_code == wanted else f"{answer!r} is no {wanted}"
    if not isinstance(answer, Decision) or not answer.degraded:
        return f"{answer!r} is not degraded"
    return "" if answer.allowed is (how != "deny") else f"{answer!r} does not {how}"


def call_problem(call: Call, answer: Any) -> str:
    """Say what is wrong with an answer that Redis gave; nothing where it is one."""
    if isinstance(answer, StoreUnavailable):
        return f"{answer!r}"
    if call.kind.startswith(SERVES):
        return "" if answer.status_code == 200 else f"{answer!r} is no 200"
    if call.kind.startswith(DECIDES):
        return "" if answer.allowed and not answer.degraded else f"{answer!r} is not from Redis"
    return ""
