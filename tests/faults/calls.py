"""Every public call that asks Redis, sync and async, and what it promises while Redis does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import date
from typing import Any, NamedTuple, cast

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_quota import (
    Decision,
    StoreUnavailable,
    aban,
    acheck,
    aonce,
    apeek,
    arefund,
    areserve,
    areset,
    aunban,
    ban,
    check,
    concurrency,
    counter,
    lock,
    once,
    peek,
    quota,
    refund,
    reserve,
    reset,
    slot,
    unban,
)
from django_quota.exceptions import LeaseLost
from django_quota.middleware import QuotaMiddleware
from tests.support.calls import get

WHO = "user:7"
DAY = date(2026, 11, 21)
HOW = ("allow", "deny", "local")

DECIDES, RAISES, SERVES = "decides", "raises", "serves"
"""What a call does without Redis: by the rule's `on_unavailable`; `StoreUnavailable`; a response."""


class Call(NamedTuple):
    """A call; `before` is done while Redis is well, and what it returns is handed to the call."""

    name: str
    kind: str
    sync: Callable[[Any], Any]
    asynchronous: Callable[[Any], Awaitable[Any]]
    before: Callable[[], Any] = lambda: None


def _of_nothing(function: Callable[..., Any], *given: Any, **options: Any) -> Callable[[Any], Any]:
    """Return a call that needs nothing from before."""
    return lambda _: function(*given, **options)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "sliding": {},
    "fixed": {"algorithm": "fixed_window"},
    "calendar": {"algorithm": "calendar"},
    "bucket": {"algorithm": "token_bucket", "burst": 900},
    "leaky": {"algorithm": "leaky_bucket"},
    "banning": {"ban": {"after": "500/m", "for": ["1m"]}},
    "distinct": {"distinct": True},
}


def _options(name: str) -> dict[str, Any]:
    return {**ALGORITHMS[name], "name": name}


def _value(name: str) -> dict[str, Any]:
    return {"value": "a"} if name == "distinct" else {}


def checks() -> list[Call]:
    calls = []
    for how in HOW:
        for name in ALGORITHMS:
            given: dict[str, Any] = {**_options(name), **_value(name), "on_unavailable": how}
            calls.append(
                Call(
                    f"check {name} {how}",
                    f"{DECIDES} {how}",
                    _of_nothing(check, "9000/m", WHO, **given),
                    _of_nothing(acheck, "9000/m", WHO, **given),
                )
            )
    return calls


async def _asettled(act: str) -> Decision:
    hold = await areserve("9000/m", WHO, 5, name="held")
    return await (hold.asettle(3) if act == "settle" else hold.acancel())


def _settled(act: str) -> Decision:
    hold = reserve("9000/m", WHO, 5, name="held")
    return hold.settle(3) if act == "settle" else hold.cancel()


async def _areserved() -> Decision:
    return (await areserve("9000/m", WHO, 5, name="held")).decision


LIMITS = [
    *checks(),
    Call(
        "check several",
        f"{DECIDES} allow",
        lambda _: check("9000/s; 90000/h", WHO, name="several"),
        lambda _: acheck("9000/s; 90000/h", WHO, name="several"),
    ),
    Call("peek", f"{DECIDES} allow", lambda _: peek("9000/m", WHO), lambda _: apeek("9000/m", WHO)),
    Call("refund", f"{DECIDES} allow", lambda _: refund("9000/m", WHO), lambda _: arefund("9000/m", WHO)),
    Call(
        "reserve",
        f"{DECIDES} allow",
        lambda _: reserve("9000/m", WHO, 5, name="held").decision,
        lambda _: _areserved(),
    ),
    Call("settle", f"{DECIDES} allow", lambda _: _settled("settle"), lambda _: _asettled("settle")),
    Call("cancel", f"{DECIDES} allow", lambda _: _settled("cancel"), lambda _: _asettled("cancel")),
    Call(
        "settle what was held before",
        f"{DECIDES} allow",
        lambda hold: hold.settle(3),
        lambda hold: hold.asettle(3),
        lambda: reserve("9000/m", WHO, 5, name="held"),
    ),
]


def verbs() -> list[Call]:
    tally = counter("tally")
    asked: dict[str, tuple[Any, ...]] = {
        "incr": (WHO, 2), "get": (WHO,), "series": (WHO, DAY, DAY), "set": (WHO, 5), "take": (WHO, 1), "pop": (WHO,),
        "transfer": (WHO, "user:8", 0), "unique": (WHO, "a"), "unique_count": (WHO,),
    }  # fmt: skip
    return [
        Call(
            f"counter.{name}",
            RAISES,
            _of_nothing(getattr(tally, name), *given),
            _of_nothing(getattr(tally, f"a{name}"), *given),
        )
        for name, given in asked.items()
    ]


def _entered(made: Any) -> None:
    with made:
        pass


async def _aentered(made: Any) -> None:
    async with made:
        pass


def _hurried() -> Any:
    """Return a lock whose lease is short: an answer that came too late must not keep the door shut for long."""
    return lock("door", lease=0.05, wait=1)


def _passed() -> None:
    with suppress(LeaseLost):  # on a busy machine it may end before the block
        _entered(_hurried())


async def _apassed() -> None:
    with suppress(LeaseLost):
        await _aentered(_hurried())


STRICT = [
    Call("reset", RAISES, lambda _: reset("9000/m", WHO), lambda _: areset("9000/m", WHO)),
    Call("ban", RAISES, lambda _: ban("user:8", "9000/m", 1), lambda _: aban("user:8", "9000/m", 1)),
    Call("unban", RAISES, lambda _: unban("user:8"), lambda _: aunban("user:8")),
    *verbs(),
    Call(
        "slot",
        RAISES,
        lambda _: _entered(slot("work", 200, subject=WHO)),
        lambda _: _aentered(slot("work", 200, subject=WHO)),
    ),
    Call(
        "waiting slot",
        RAISES,
        lambda _: _entered(slot("work", 200, wait=1, subject=WHO)),
        lambda _: _aentered(slot("work", 200, wait=1, subject=WHO)),
    ),
    Call(
        "lock",
        RAISES,
        lambda _: _passed(),
        lambda _: _apassed(),
    ),
    Call("holders", RAISES, lambda _: slot("work", 200).holders(), lambda _: slot("work", 200).aholders()),
    Call(
        "release what was held before",
        RAISES,
        lambda lease: lease.release(),
        lambda lease: lease.arelease(),
        lambda: slot("before", 9000, lease=60, subject=WHO).acquire(),
    ),
    Call(
        "renew what was held before",
        RAISES,
        lambda lease: lease.renew(),
        lambda lease: lease.arenew(),
        lambda: slot("before", 9000, lease=60, subject=WHO).acquire(),
    ),
    Call("once", RAISES, lambda _: once("event", "1"), lambda _: aonce("event", "1")),
]


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def plain_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


def _served(view: Any) -> Any:
    return view(get())


async def _aserved(view: Any) -> Any:
    return await view(get())


SITE = {
    f"site-{how}": {"rate": "9000/m", "key": "ip", "match": f"/{how}/", "on_unavailable": how} for how in HOW
}  # fmt: skip
"""The settings' rules, by path, for the middleware."""


def _through_middleware(how: str) -> Any:
    request = RequestFactory().get(f"/{how}/", REMOTE_ADDR="192.0.2.1")
    return QuotaMiddleware(plain)(request)


async def _athrough_middleware(how: str) -> Any:
    request = RequestFactory().get(f"/{how}/", REMOTE_ADDR="192.0.2.1")
    return await cast("Any", QuotaMiddleware(plain_async)(request))


def views() -> list[Call]:
    calls = []
    for how in HOW:
        limited: dict[str, Any] = {"key": "ip", "name": "view", "on_unavailable": how}
        guarded: dict[str, Any] = {"key": "ip", "name": "gate", "on_unavailable": how}
        made = {
            "@quota": (quota("9000/m", **limited)(plain), quota("9000/m", **limited)(plain_async)),
            "@concurrency": (concurrency(900, **guarded)(plain), concurrency(900, **guarded)(plain_async)),
        }
        for name, (view, aview) in made.items():
            calls.append(
                Call(
                    f"{name} {how}",
                    f"{SERVES} {how}",
                    _of_nothing(_served, view),
                    _of_nothing(_aserved, aview),
                )
            )
        calls.append(
            Call(
                f"middleware {how}",
                f"{SERVES} {how}",
                _of_nothing(_through_middleware, how),
                _of_nothing(_athrough_middleware, how),
            )
        )
    return calls


VIEWS = views()
CALLS = [*LIMITS, *STRICT, *VIEWS]
MODES = ("sync", "async")


def do(call: Call, mode: str, state: Any) -> Any:
    """Make a call; return its answer, or the `StoreUnavailable` that it raised."""
    try:
        if mode == "sync":
            return call.sync(state)
        return asyncio.run(_awaited(call, state))
    except StoreUnavailable as error:
        return error


async def _awaited(call: Call, state: Any) -> Any:
    return await call.asynchronous(state)


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
