"""A view that blocks its event loop causes no outage; a reply that is missing does."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
import redis.asyncio as aioredis
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import acheck
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis.async_wire import AsyncWire
from django_quota.stores.redis.connections import Source
from django_quota.testing import RedisServer
from tests.support.event_loops import until
from tests.support.selection import thorough
from tests.support.stores import caches, current_store

WITHIN = 0.7
"""Seconds that Redis has to answer in these tests."""


def hold_up(seconds: float) -> None:
    """Keep the event loop, whose thread this runs in, from all else."""
    threading.Event().wait(seconds)


@pytest.mark.usefixtures("raw")
def test_every_missing_reply_times_out(redis_server: RedisServer) -> None:
    """One timer watches all calls: those that began while it ran, and those after it had nothing to watch."""
    path = redis_server.url.removeprefix("unix://")
    options = {"path": path, "socket_timeout": 0.02, "socket_connect_timeout": 60}

    async def read() -> list[Any]:
        wire = AsyncWire(Source(aioredis.UnixDomainSocketConnection, options), 60.0, Breaker(failures=9))
        found: list[Any] = []
        for is_ticking in (False, False, True):
            await until(lambda: is_ticking or not wire._is_ticking)  # noqa: B023
            calls = [wire.execute(("BLPOP", "nothing", 60)) for _ in range(2)]
            found += await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        assert wire._line is None
        return found

    assert [type(each) for each in asyncio.run(read())] == [RedisTimeoutError] * 6


@pytest.mark.thorough("processes")
@pytest.mark.usefixtures("raw")
def test_a_busy_loop_makes_new_connections(redis_server: RedisServer, settings: Any) -> None:
    """Each of its rounds takes longer than Redis may take to answer."""
    settings.CACHES = caches(redis_server, socket_timeout=0.05, socket_connect_timeout=0.05)

    async def decide() -> list[bool]:
        deciding = asyncio.gather(*(acheck("99/m", "user:1") for _ in range(8)))
        while not deciding.done():
            hold_up(0.2)
            await asyncio.sleep(0)
        return [decision.degraded for decision in deciding.result()]

    assert asyncio.run(decide()) == [False] * 8


def scripts_run(raw: Any) -> int:
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@pytest.mark.thorough("slow")
@pytest.mark.parametrize("moment", ["asked", thorough("processes", "knocked"), thorough("processes", "queued")])
def test_a_view_that_blocks_its_loop_causes_no_outage(
    moment: str, redis_server: RedisServer, raw: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds it up for longer than Redis has to answer, right when the server has something to say.

    Calls have been sent, or two wait for room on the wire ("queued"), or a connection is being made.
    """
    settings.CACHES = caches(redis_server, socket_timeout=WITHIN, socket_connect_timeout=WITHIN, timeout=WITHIN)
    settings.CACHES["default"]["OPTIONS"]["CONNECTION_POOL_CLASS"] = "redis.BlockingConnectionPool"
    if moment == "queued":
        monkeypatch.setattr("django_quota.stores.redis.async_wire.AsyncWire.most_under_way", 2)
    calls = 4 if moment == "queued" else 8

    async def decide() -> list[tuple[bool, bool]]:
        if moment != "knocked":
            await asyncio.gather(*(acheck("5/m", f"ip:192.0.2.{n + 2}") for n in range(calls)))
            raw.client_pause(60_000, all=False)
        met = raw.info("stats")["total_connections_received"]
        deciding = asyncio.gather(*(acheck("5/m", "ip:192.0.2.1") for _ in range(calls)))
        if moment == "knocked":  # the server has taken a connection
            await until(lambda: raw.info("stats")["total_connections_received"] > met)
        else:  # scripts have been sent, and the server answers only now: all wait for their replies
            for _ in range(200):
                await asyncio.sleep(0)
            before = scripts_run(raw)
            raw.client_unpause()
            while scripts_run(raw) == before:
                hold_up(0.001)
        deadline = time.monotonic() + 2.4 * WITHIN
        while time.monotonic() < deadline:
            hold_up(0.1)
        return [(bool(decision), decision.degraded) for decision in await deciding]

    found = asyncio.run(decide())
    assert sorted(found, reverse=True) == [(True, False)] * min(calls, 5) + [(False, False)] * max(0, calls - 5)
    assert not current_store().is_refusing()
