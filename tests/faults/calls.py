"""Every public call that asks Redis, sync and async; what it promises before, during and after a fault."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, cast

from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_quota
from django_quota import Decision, Rule, acheck, areserve, check, concurrency, counter, quota, reserve, slot
from django_quota.core.rule_options import OnUnavailable
from django_quota.exceptions import StoreUnavailable
from django_quota.middleware import QuotaMiddleware
from django_quota.testing import RedisServer
from django_quota.types import Reservation
from tests.support.commands import wait_until
from tests.support.outages import PAUSE, new_breaker
from tests.support.steps import Clock
from tests.support.stores import caches

WHO = "user:7"
DAY = date(2026, 11, 21)
HOW: tuple[OnUnavailable, ...] = ("allow", "deny", "local")
MODES = ("sync", "async")

RAISES, SERVES = "raises", "serves"
"""What a call does without Redis: `StoreUnavailable`; a response; all others decide by the rule's `on_unavailable`."""


class Call(NamedTuple):
    """A call; `before` is done while Redis is well, and what it returns is handed to the call."""

    name: str
    kind: str
    sync: Callable[[Any], Any]
    asynchronous: Callable[[Any], Awaitable[Any]]
    before: Callable[[], Any] = lambda: None


def _twins(name: str, kind: str, verb: str, /, *given: Any, of: Any = django_quota, **options: Any) -> Call:
    """Return a call that needs nothing from before; its async form has an `a` before its name."""
    function, twin = getattr(of, verb), getattr(of, f"a{verb}")
    return Call(name, kind, lambda _: function(*given, **options), lambda _: twin(*given, **options))


def _entered(**options: Any) -> Call:
    def made() -> Any:
        return slot("work", 200, subject=WHO, **options)

    def enter() -> None:
        with made():
            pass

    async def aenter() -> None:
        async with made():
            pass

    return Call("waiting slot" if options else "slot", RAISES, lambda _: enter(), lambda _: aenter())


async def _areserved() -> Decision:
    return (await areserve("9000/m", WHO, 5, name="held")).decision


def _held() -> Any:
    return reserve("9000/m", WHO, 5, name="held")


def _lease() -> Any:
    return slot("before", 9000, lease=60, subject=WHO).acquire()


CHECKS: dict[str, dict[str, Any]] = {
    **{f"check sliding {how}": {"on_unavailable": how} for how in HOW},
    "check fixed allow": {"algorithm": "fixed_window", "on_unavailable": "allow"},
    "check calendar deny": {"algorithm": "calendar", "on_unavailable": "deny"},
    "check bucket local": {"algorithm": "token_bucket", "burst": 900, "on_unavailable": "local"},
    "check leaky allow": {"algorithm": "leaky_bucket", "on_unavailable": "allow"},
    "check banning deny": {"ban": {"after": "500/m", "for": ["1m"]}, "on_unavailable": "deny"},
    "check distinct local": {"distinct": True, "value": "a", "on_unavailable": "local"},
}
COUNTER: dict[str, tuple[Any, ...]] = {
    "incr": (WHO, 2), "get": (WHO,), "series": (WHO, DAY, DAY), "set": (WHO, 5), "take": (WHO, 1), "pop": (WHO,),
    "transfer": (WHO, "user:8", 0), "unique": (WHO, "a"), "unique_count": (WHO,),
}  # fmt: skip
BANNING = Rule.make("9000/m", "9000/m", ban={"after": "900/m", "for": "1m"})
VERBS = [
    *(
        _twins(name, options["on_unavailable"], "check", "9000/m", WHO, name=name.split()[1], **options)
        for name, options in CHECKS.items()
    ),
    _twins("check several", "allow", "check", "9000/s; 90000/h", WHO, name="several"),
    _twins("peek", "allow", "peek", "9000/m", WHO),
    _twins("refund", "allow", "refund", "9000/m", WHO),
    Call("reserve", "allow", lambda _: _held().decision, lambda _: _areserved()),
    Call(
        "settle what was held before",
        "allow",
        lambda made: made.settle(3),
        lambda made: made.asettle(3),
        _held,
    ),
    _twins("reset", RAISES, "reset", "9000/m", WHO),
    _twins("reset all", RAISES, "reset", "*", WHO),
    _twins("ban", RAISES, "ban", BANNING, "user:8", 1),
    _twins("unban", RAISES, "unban", "*", "user:8"),
    *(_twins(f"counter.{name}", RAISES, name, *given, of=counter("tally")) for name, given in COUNTER.items()),
    _entered(),
    _entered(wait=1),
    _twins("holders", RAISES, "holders", of=slot("work", 200)),
    Call("release what was held before", RAISES, lambda lease: lease.release(), lambda lease: lease.arelease(), _lease),
    Call("renew what was held before", RAISES, lambda lease: lease.renew(), lambda lease: lease.arenew(), _lease),
    _twins("once", RAISES, "once", "event", "1"),
]


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def plain_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse("ok")


async def _awaited(answer: Any) -> Any:
    return await answer


SITE = {f"site-{how}": {"rate": "9000/m", "key": "ip", "match": f"/{how}/", "on_unavailable": how} for how in HOW}
"""The settings' rules, by path, for the middleware."""


def _view(name: str, how: str, limits: Callable[[Any], Any]) -> Call:
    view, aview = limits(plain), limits(plain_async)

    def asks() -> HttpRequest:
        return RequestFactory().get(f"/{how}/", REMOTE_ADDR="192.0.2.1")

    return Call(f"{name} {how}", f"{SERVES} {how}", lambda _: view(asks()), lambda _: _awaited(aview(asks())))


def _views(how: OnUnavailable) -> list[Call]:
    limited = quota("9000/m", key="ip", name="view", on_unavailable=how)
    guarded = concurrency(900, key="ip", name="gate", on_unavailable=how)
    made = {"@quota": limited, "@concurrency": guarded, "middleware": QuotaMiddleware}
    return [_view(name, how, cast("Any", limits)) for name, limits in made.items()]


CALLS = [*VERBS, *(call for how in HOW for call in _views(how))]


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
    is_denied = call.kind.endswith("deny")
    if call.kind == RAISES:
        is_kept = isinstance(answer, StoreUnavailable)
    elif call.kind.startswith(SERVES):
        is_kept = answer.status_code == (503 if is_denied else 200)
    else:
        is_kept = isinstance(answer, Decision) and answer.degraded and answer.allowed is not is_denied
    return "" if is_kept else f"{answer!r} is not what {call.kind} promises"


def call_problem(call: Call, answer: Any) -> str:
    """Say what is wrong with an answer that Redis gave; nothing where it is one."""
    if isinstance(answer, StoreUnavailable):
        return f"{answer!r}"
    if call.kind.startswith(SERVES):
        return "" if answer.status_code == 200 else f"{answer!r} is not a 200"
    if call.kind != RAISES and not (answer.allowed and not answer.degraded):
        return f"{answer!r} is not from Redis"
    return ""


# --- before, during and after a fault ---------------------------------------------------------------------------------


def caches_at(url: str, reply_timeout: float = 5.0, **pool_options: Any) -> dict[str, Any]:
    """Return CACHES with a default alias at a URL, where calls wait for a reply for `reply_timeout` seconds."""
    made = caches(RedisServer(url, 0, Path()), **pool_options)
    made["default"]["OPTIONS"] |= {"SOCKET_TIMEOUT": reply_timeout, "SOCKET_CONNECT_TIMEOUT": reply_timeout}
    return made


def use_site_rules(settings: Any) -> None:
    """Let the middleware have rules, by path."""
    settings.QUOTA = {**settings.QUOTA, "RULES": SITE}


def prepared(call: Call) -> Any:
    """Do what a call needs while Redis is well: again, where a busy machine takes longer than the call waits."""
    found: list[Any] = []

    def is_done() -> bool:
        try:
            found[:] = [call.before()]
        except StoreUnavailable:
            return False
        return not (isinstance(found[0], Reservation) and found[0].decision.degraded)

    wait_until(is_done)
    return found[0]


def broken_promises(mode: str, states: list[Any], clock: Clock, calls: list[Call] = CALLS) -> dict[str, Any]:
    """Make every call, each as the first one since the breaker closed; return what is wrong, and what was raised."""
    found: dict[str, Any] = {}
    for call, state in zip(calls, states, strict=True):
        new_breaker(clock)
        answer = do(call, mode, state)
        if wrong := promise_problem(call, answer):
            found[call.name] = (wrong, call_problem(call, answer))
        elif isinstance(answer, Exception):
            found.setdefault("said", set()).add(str(answer))
    return found


def failed_calls(mode: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for call in CALLS:
        try:
            found[call.name] = call_problem(call, do(call, mode, call.before()))
        except StoreUnavailable as error:  # of what is done before the call
            found[call.name] = repr(error)
    return {name: wrong for name, wrong in found.items() if wrong}


def ask_each(mode: str, numbers: Sequence[int]) -> list[Decision]:
    """Ask for as many subjects with limits of their own."""
    if mode == "sync":
        return [check(f"{number}/m", f"user:{number}") for number in numbers]

    async def ask() -> list[Decision]:
        return [await acheck(f"{number}/m", f"user:{number}") for number in numbers]

    return asyncio.run(ask())


def assert_own_answers(mode: str) -> None:
    """Assert that questions of distinct subjects and limits get their own answers, and no other's."""
    numbers = range(10, 15)
    for number, decision in zip(numbers, ask_each(mode, numbers), strict=True):
        assert decision.degraded or (decision.limit, decision.subject) == (number, f"user:{number}")


def assert_recovers(mode: str, clock: Clock) -> None:
    """Assert that all calls are well again by themselves, and each gets its own answer.

    A busy machine may stop a process for longer than a call waits for an answer: so they are made again then.
    """

    def is_well_again() -> bool:
        clock.now += PAUSE
        assert_own_answers(mode)
        return not failed_calls(mode)

    wait_until(is_well_again)
    assert_own_answers(mode)
