"""A view that blocks its event loop causes no outage; a reply that is missing does."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import acheck
from django_quota.stores.breaker import Breaker
from django_quota.stores.redis.connections import LATE, AsyncPool
from django_quota.stores.redis.sources import Source
from django_quota.testing import RedisServer
from tests.support.stores import caches, current_store

WITHIN = 0.7
"""Seconds that Redis has to answer in these tests."""


def hold_up(seconds: float) -> None:
    """Keep the event loop, whose thread this runs in, from all else."""
    threading.Event().wait(seconds)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 — nobody would tell
            await asyncio.sleep(0)


async def connected_pool(server: RedisServer, seconds: float, count: int = 1) -> tuple[AsyncPool, list[Any]]:
    """Return a pool with connections, so that nothing but a reply takes `seconds`."""

    def pool_of(seconds: float) -> AsyncPool:
        path = server.url.removeprefix("unix://")
        options = {"path": path, "socket_timeout": seconds, "socket_connect_timeout": 60}
        return AsyncPool(Source(aioredis.UnixDomainSocketConnection, options), 50, 1.0, Breaker())

    made, patient = pool_of(seconds), pool_of(60)
    made._idle = [await patient._connected() for _ in range(count)]
    return made, list(made._idle)


def test_a_reply_that_came_while_the_loop_was_blocked_is_read(redis_server: RedisServer, raw: redis.Redis) -> None:
    raw.rpush("long", *range(100))

    async def read(*command: str | int) -> Any:
        pool, (connection,) = await connected_pool(redis_server, 0.05)
        reading = asyncio.ensure_future(pool.execute(command))
        await until(lambda: connection in pool._busy)
        assert select.select([connection._writer.get_extra_info("socket")], [], [], 60)[0]
        hold_up(0.06)
        found: Any = await asyncio.gather(reading, return_exceptions=True)
        assert pool._idle == [connection]
        await pool.aclose()
        return found[0]

    assert asyncio.run(read("PING")) in (b"PONG", True)
    assert len(asyncio.run(read("LRANGE", "long", 0, -1))) == 100
    assert isinstance(asyncio.run(read("GET", "long")), ResponseError)


def test_every_missing_reply_times_out(redis_server: RedisServer, raw: redis.Redis) -> None:
    """One timer watches all connections: those that began while it ran, and those after it had nothing to watch."""
    del raw

    async def read() -> list[Any]:
        pool, taken = await connected_pool(redis_server, 0.02, 3)

        def is_under_way(wanted: Any) -> bool:
            return wanted in pool._busy if wanted else not pool._is_watching

        calls = []
        for connection in (*reversed(taken[1:]), None):
            calls.append(asyncio.ensure_future(pool.execute(("BLPOP", "nothing", 60))))
            await until(lambda wanted=connection: is_under_way(wanted))  # type: ignore[misc]
        calls[2:] = [asyncio.ensure_future(pool.execute(("BLPOP", "nothing", 60)))]
        found = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        assert not any(connection.is_connected for connection in taken)
        assert (pool._idle, pool.permits._value) == ([], 50)
        return found

    assert [type(each) for each in asyncio.run(read())] == [RedisTimeoutError] * 3


class Connecting:
    """Makes connections whose first try fails, and may block the loop meanwhile. It is its connections, too."""

    sentinel_clients = ()
    options = {"socket_timeout": -LATE, "socket_connect_timeout": 0.05 - LATE}  # noqa: RUF012 — 0.05 s at most

    def __init__(self, error: Exception, blocked: float) -> None:
        self.error, self.blocked, self.times = error, blocked, 0
        source: Any = self
        self.pool = AsyncPool(source, 1, 0.05, Breaker())

    def make(self) -> Connecting:
        return self

    def leads_elsewhere(self, _: Any) -> bool:
        return False

    async def connect(self) -> None:
        self.times += 1
        if self.times == 1:
            hold_up(self.blocked)
            raise self.error

    async def can_read(self) -> bool:
        return False

    can_read_destructive = can_read

    async def disconnect(self, *, nowait: bool) -> None: ...


TIMED_OUT = [RedisTimeoutError("late"), MasterNotFoundError("none in time"), TimeoutError("late")]


@pytest.mark.parametrize(
    ("error", "blocked", "times"),
    [
        *((error, 0.06, 2) for error in TIMED_OUT),
        (TIMED_OUT[0], 0.0, 1),
        *((error, 0.06, 1) for error in (RedisConnectionError("cut"), OSError("refused"))),
    ],
    ids=repr,
)
def test_connecting_is_tried_again_only_if_it_timed_out_while_the_loop_was_blocked(
    error: Exception, blocked: float, times: int
) -> None:
    made = Connecting(error, blocked)
    with nullcontext() if times == 2 else pytest.raises(type(error)):
        assert asyncio.run(made.pool._connected()) is made
    assert made.times == times


def test_a_task_gets_the_connection_that_came_free_while_the_loop_was_blocked() -> None:
    """All were given back in time, but nobody could be told."""

    async def run() -> None:
        pool = Connecting(RedisConnectionError("cut"), blocked=0.0).pool
        await pool.permits.acquire()
        waiting = asyncio.ensure_future(pool._wait())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.04, pool.permits.release)
        hold_up(0.2)
        await waiting
        assert pool.permits.locked()

    asyncio.run(run())


def scripts_run(raw: Any) -> int:
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@pytest.mark.parametrize("moment", ["asked", "knocked"])
def test_a_view_that_blocks_its_loop_causes_no_outage(
    moment: str, redis_server: RedisServer, raw: Any, settings: Any
) -> None:
    """It holds it up for longer than Redis has to answer, right when the server has something to say."""
    settings.CACHES = caches(redis_server, socket_timeout=WITHIN, socket_connect_timeout=WITHIN)

    async def decide() -> list[tuple[bool, bool]]:
        if moment == "asked":
            await asyncio.gather(*(acheck("5/m", f"ip:192.0.2.{n}") for n in range(2, 10)))
            raw.client_pause(60_000, all=False)
        met = raw.info("stats")["total_connections_received"]
        deciding = asyncio.gather(*(acheck("5/m", "ip:192.0.2.1") for _ in range(8)))
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

    assert sorted(asyncio.run(decide()), reverse=True) == [(True, False)] * 5 + [(False, False)] * 3
    assert not current_store().is_refusing()
