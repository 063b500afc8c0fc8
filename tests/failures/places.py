"""How a test stands before a harmed Redis: the settings, the clock of the breaker, and what is asked before and after.

It must not know which harm is done.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from django_quota import Decision, StoreUnavailable, acheck, check
from django_quota.limiter import get_limiter
from django_quota.reservations import Hold
from django_quota.stores.breaker import PAUSE, Breaker
from django_quota.stores.redis import RedisStore
from django_quota.testing import RedisServer
from tests.commands import wait_until
from tests.conftest import caches
from tests.failures.calls import CALLS, SITE, Call, do, is_as_promised, is_well


class Clock:
    """A clock that stands still until it is put forward."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def caches_at(url: str, patience: float = 5.0, **pool_options: Any) -> dict[str, Any]:
    """Return CACHES with a default alias at a URL, where calls wait for so many seconds."""
    made = caches(RedisServer(url, 0, Path()), **pool_options)
    made["default"]["OPTIONS"] |= {"SOCKET_TIMEOUT": patience, "SOCKET_CONNECT_TIMEOUT": patience}
    return made


def store() -> RedisStore:
    """Return the store of the settings."""
    found = get_limiter().store
    assert isinstance(found, RedisStore)
    return found


def with_site(settings: Any) -> None:
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
        return not (isinstance(found[0], Hold) and found[0].decision.degraded)

    wait_until(is_done)
    return found[0]


def wrongs_without_redis(way: str, states: list[Any], clock: Clock, calls: list[Call] = CALLS) -> dict[str, Any]:
    """Make every call, each as the first one since the breaker closed; return what is wrong, and what was raised."""
    found: dict[str, Any] = {}
    for call, state in zip(calls, states, strict=True):
        store().breaker = Breaker(clock=clock)
        answer = do(call, way, state)
        if wrong := is_as_promised(call, answer):
            found[call.name] = (wrong, is_well(call, answer))
        elif isinstance(answer, Exception):
            found.setdefault("said", set()).add(str(answer))
    return found


def wrongs_with_redis(way: str, calls: list[Call] = CALLS) -> dict[str, str]:
    """Make every call; return what is wrong."""
    found = {call.name: is_well(call, do(call, way, call.before())) for call in calls}
    return {name: wrong for name, wrong in found.items() if wrong}


def are_told_apart(way: str, number: int = 10) -> None:
    """Assert that questions of distinct subjects and limits get their own answers, and no other's."""
    asked = range(number, number + 5)
    if way == "sync":
        decisions = [check(f"{n}/m", f"user:apart-{n}") for n in asked]
    else:

        async def ask() -> list[Decision]:
            return [await acheck(f"{n}/m", f"user:apart-{n}") for n in asked]

        decisions = asyncio.run(ask())
    told = [(one.limit, one.subject) for one in decisions if not one.degraded]
    mine = [(n, f"user:apart-{n}") for n, one in zip(asked, decisions, strict=True) if not one.degraded]
    assert told == mine


def goes_on(way: str, clock: Clock) -> None:
    """Assert that all calls are well again by themselves, and each gets its own answer.

    A busy machine may stop a process for longer than a call waits for an answer: so they are made again then.
    """

    def is_well_again() -> bool:
        clock.now += PAUSE
        are_told_apart(way)
        return not wrongs_with_redis(way)

    wait_until(is_well_again)
    are_told_apart(way)
