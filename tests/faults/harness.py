"""What the tests of faults share: settings, a clock for the breaker, and all calls before, during and after a fault."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django_quota import Decision, acheck, check
from django_quota.exceptions import StoreUnavailable
from django_quota.testing import RedisServer
from django_quota.types import Hold
from tests.faults.calls import CALLS, SITE, Call, call_problem, do, promise_problem
from tests.support.commands import wait_until
from tests.support.outages import PAUSE, new_breaker
from tests.support.steps import Clock
from tests.support.stores import caches


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
        return not (isinstance(found[0], Hold) and found[0].decision.degraded)

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
    """Make every call; return what is wrong."""
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
