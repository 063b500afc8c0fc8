"""A call that fails, in any store and in both ways, takes nothing from the calls after it."""

import asyncio
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from django_quota import acheck, check
from django_quota.engine.operations import Operation, Script, States
from django_quota.exceptions import ConfigurationError, QuotaError
from tests.support.calls import both
from tests.support.stores import current_store

MANY = 5


class FaultError(Exception):
    """What an operation raises outside of Redis."""


class Faulty(Operation):
    """An operation that fails while it runs."""

    script = Script.of("error('a fault')")

    def run(self, states: States, now: int) -> Any:
        raise FaultError


FAULTS = (FaultError, QuotaError, ConfigurationError)


@pytest.fixture
def few_connections(either_store: None, settings: Any) -> None:
    """Let two calls be under way at once, where the settings of Redis say how many."""
    changed = deepcopy(settings.CACHES)
    for alias in changed.values():
        alias.setdefault("OPTIONS", {}).setdefault("CONNECTION_POOL_KWARGS", {})["max_connections"] = 2
    if "django_redis" in changed["default"]["BACKEND"]:
        settings.CACHES = changed


def fail() -> None:
    with pytest.raises(FAULTS):
        current_store().run(Faulty(["quota:1:{a}:x"]))


async def afail() -> None:
    with pytest.raises(FAULTS):
        await current_store().arun(Faulty(["quota:1:{a}:x"]))


async def is_cancelled() -> None:
    task = asyncio.ensure_future(acheck("1000/m", "b"))
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def acheck_after(fails: Any) -> Any:
    for _ in range(MANY):
        await fails()
    return [await acheck("50/m", "a") for _ in range(3)]


@both
@pytest.mark.usefixtures("few_connections")
def test_calls_that_failed_leave_room_for_the_next(kind: str) -> None:
    if kind == "sync":
        for _ in range(MANY):
            fail()
        decisions = [check("50/m", "a") for _ in range(3)]
    else:
        decisions = asyncio.run(acheck_after(afail))
    assert [(decision.degraded, decision.remaining) for decision in decisions] == [(False, 50 - n) for n in (1, 2, 3)]


@pytest.mark.usefixtures("few_connections")
def test_calls_that_were_cancelled_leave_room_for_the_next() -> None:
    decisions = asyncio.run(acheck_after(is_cancelled))
    assert [(decision.degraded, decision.remaining) for decision in decisions] == [(False, 50 - n) for n in (1, 2, 3)]
