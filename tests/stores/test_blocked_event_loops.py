"""A view that blocks its event loop causes no outage."""

from __future__ import annotations

import asyncio
import math
import select
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from django_quota import acheck
from django_quota.engine.operations import pack_command
from django_quota.stores.redis import connections as connections_module
from django_quota.stores.redis.connections import AsyncConnections
from django_quota.testing import RedisServer
from tests.support.clusters import Cluster
from tests.support.selection import thorough
from tests.support.sentinels import behind
from tests.support.stores import caches, cluster_caches, current_store

WITHIN = 1.0
"""Seconds that Redis has to answer in these tests."""
SHORT = {"socket_timeout": WITHIN, "socket_connect_timeout": WITHIN}


def hold_up(seconds: float) -> None:
    """Keep the event loop, whose thread this runs in, from all else."""
    threading.Event().wait(seconds)


def connections_to(server: RedisServer, seconds: float) -> AsyncConnections:
    pool = aioredis.ConnectionPool.from_url(server.url, socket_timeout=60)
    return AsyncConnections(pool, reply_timeout=seconds)


def its_socket(connection: Any) -> Any:
    return connection._writer.get_extra_info("socket")


# --- a reply ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("PING",), ("LRANGE", "long", 0, -1), ("GET", "long")], ids=lambda words: words[0])
def test_a_reply_that_came_while_the_loop_was_blocked_is_read(
    command: tuple[str | int, ...], redis_server: RedisServer, raw: redis.Redis
) -> None:
    raw.rpush("long", *range(100))

    async def read() -> Any:
        connections = connections_to(redis_server, 0.05)
        connection = await connections.take()
        reading = asyncio.ensure_future(connections.exchange(connection, pack_command(command)))
        await asyncio.sleep(0)  # its time runs
        assert select.select([its_socket(connection)], [], [], 60)[0]
        hold_up(0.06)
        (reply,) = await reading
        connections.release(connection)
        await connections.aclose()
        return reply

    reply = asyncio.run(read())
    wanted = {"PING": reply in (b"PONG", True), "LRANGE": isinstance(reply, list) and len(reply) == 100}
    assert wanted.get(str(command[0]), isinstance(reply, ResponseError))


def test_a_missing_reply_times_out(redis_server: RedisServer, raw: redis.Redis) -> None:
    del raw

    async def read() -> None:
        connections = connections_to(redis_server, 0.02)
        connection = await connections.take()
        with pytest.raises(RedisTimeoutError):
            await connections.exchange(connection, pack_command(("BLPOP", "nothing", 60)))
        assert not connection.is_connected
        assert not connections.slots.locked()

    asyncio.run(read())


def test_each_reply_has_its_own_time(redis_server: RedisServer, raw: redis.Redis) -> None:
    """One timer watches all connections."""

    async def read() -> list[Any]:
        connections = connections_to(redis_server, 60)
        taken = [await connections.take() for _ in range(3)]
        waiting = [
            asyncio.ensure_future(
                connections.exchange(connection, pack_command(("BLPOP", f"list:{n}", 60)), 1, seconds)
            )
            for n, (connection, seconds) in enumerate(zip(taken, (60, 0.02, 60), strict=True))
        ]
        with pytest.raises(RedisTimeoutError):
            await waiting[1]
        assert not waiting[0].done()
        assert not waiting[2].done()
        raw.rpush("list:0", "a")
        raw.rpush("list:2", "c")
        found = [(await waiting[n])[0] for n in (0, 2)]
        await taken[0].disconnect()
        await taken[2].disconnect()
        return found

    assert asyncio.run(read()) == [[b"list:0", b"a"], [b"list:2", b"c"]]


def test_a_task_can_be_cancelled_after_its_time_is_over(
    redis_server: RedisServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    del raw
    monkeypatch.setattr(connections_module, "GRACE", 3_600)

    async def read() -> None:
        connections = connections_to(redis_server, 0.02)
        connection = await connections.take()
        command = pack_command(("BLPOP", "nothing", 60))
        reading = asyncio.ensure_future(connections.exchange(connection, command))
        while connections._next_check == math.inf or not connections._busy:  # noqa: ASYNC110 — until the exchange begins
            await asyncio.sleep(0)
        while connections._next_check < math.inf:  # noqa: ASYNC110 — until its time is over
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not connection.is_connected

    asyncio.run(read())


# --- a connection ----------------------------------------------------------------------------------------------------


class Connecting:
    """A pool whose first connection fails, and may block the loop meanwhile. It is its connections, too."""

    connection_kwargs: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, error: Exception, blocked: float) -> None:
        self.error, self.blocked, self.times = error, blocked, 0

    def connection_class(self) -> Connecting:
        return self

    async def connect(self) -> None:
        self.times += 1
        if self.times == 1:
            hold_up(self.blocked)
            raise self.error

    async def can_read(self) -> bool:
        return False

    can_read_destructive = can_read

    async def disconnect(self, *, nowait: bool) -> None: ...

    def connections(self) -> AsyncConnections:
        return AsyncConnections(self, connect_timeout=0.05)


TIMED_OUT = [RedisTimeoutError("late"), MasterNotFoundError("none in time"), TimeoutError("late")]


@pytest.mark.parametrize("error", TIMED_OUT, ids=repr)
def test_connecting_is_tried_again_if_the_loop_was_blocked(error: Exception) -> None:
    pool = Connecting(error, blocked=0.06)
    assert asyncio.run(pool.connections().take()) is pool


@pytest.mark.parametrize("error", TIMED_OUT, ids=repr)
def test_connecting_that_times_out_by_itself_is_not_tried_again(error: Exception) -> None:
    pool = Connecting(error, blocked=0.0)
    with pytest.raises(type(error)):
        asyncio.run(pool.connections().take())
    assert pool.times == 1


@pytest.mark.parametrize("error", [RedisConnectionError("cut"), OSError("refused")], ids=repr)
def test_connecting_that_fails_without_a_timeout_is_not_tried_again(error: Exception) -> None:
    pool = Connecting(error, blocked=0.06)
    with pytest.raises(type(error)):
        asyncio.run(pool.connections().take())
    assert pool.times == 1


def test_a_task_gets_the_connection_that_came_free_while_the_loop_was_blocked() -> None:
    """All were given back in time, but nobody could be told."""

    async def run() -> bool:
        pool = Connecting(RedisConnectionError("cut"), blocked=0.0)
        pool.times = 1
        connections = AsyncConnections(pool, 1, timeout=0.05)
        taken = await connections.take()
        waiting = asyncio.ensure_future(connections.take())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.04, connections.release, taken)
        hold_up(0.2)
        return await waiting is taken

    assert asyncio.run(run())


# --- whole decisions --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["one", thorough("topology", "sentinel"), thorough("topology", "cluster")])
def servers(request: pytest.FixtureRequest, redis_server: RedisServer, settings: Any) -> Iterator[list[redis.Redis]]:
    """Redis as the default cache, one way or another; yields clients of the servers."""
    if request.param == "one":
        settings.CACHES = caches(redis_server, **SHORT)
        clients = [redis.Redis.from_url(redis_server.url)]
    elif request.param == "sentinel":
        port = request.getfixturevalue("sentinel_port")
        settings.CACHES = {"default": behind(port, SOCKET_TIMEOUT=WITHIN, SOCKET_CONNECT_TIMEOUT=WITHIN)}
        with redis.Redis(port=port) as sentinel:
            clients = [redis.Redis(port=int(sentinel.sentinel_get_master_addr_by_name("quotas")[1]))]
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        settings.CACHES = cluster_caches(cluster, **SHORT)
        clients = [redis.Redis(port=node.port) for node in cluster.primaries()]
    for client in clients:
        client.flushall()
    yield clients
    for client in clients:
        client.close()


async def asked(servers: list[redis.Redis]) -> None:
    """Go on when scripts have been sent, and let the servers answer only then: all wait for their replies."""
    for _ in range(200):
        await asyncio.sleep(0)
    before = executed(servers)
    for server in servers:
        server.client_unpause()
    while executed(servers) == before:
        hold_up(0.001)


async def knocked(servers: list[redis.Redis]) -> None:
    """Go on when the servers have taken a connection."""
    before = accepted(servers)
    while accepted(servers) == before:  # noqa: ASYNC110 — nobody would tell
        await asyncio.sleep(0)


def executed(servers: list[redis.Redis]) -> int:
    """How many scripts the servers have done."""
    stats = [server.info("commandstats") for server in servers]
    return sum(one.get(f"cmdstat_{name}", {"calls": 0})["calls"] for one in stats for name in ("eval", "evalsha"))


def accepted(servers: list[redis.Redis]) -> int:
    """How many connections the servers have taken."""
    return sum(server.info("stats")["total_connections_received"] for server in servers)


@pytest.mark.parametrize("moment", [asked, knocked])
def test_a_view_that_blocks_its_loop_causes_no_outage(
    moment: Callable[[list[redis.Redis]], Awaitable[None]], servers: list[redis.Redis]
) -> None:
    """It holds it up for longer than Redis has to answer, right when the servers have something to say."""

    async def view() -> None:
        await moment(servers)
        deadline = time.monotonic() + 2.4 * WITHIN
        while time.monotonic() < deadline:
            hold_up(0.1)

    async def decide() -> list[tuple[bool, bool]]:
        if moment is asked:
            await asyncio.gather(*(acheck("5/m", f"ip:192.0.2.{n}") for n in range(2, 10)))
            for server in servers:
                server.client_pause(60_000, all=False)
        deciding = asyncio.gather(*(acheck("5/m", "ip:192.0.2.1") for _ in range(8)))
        await view()
        return [(bool(decision), decision.degraded) for decision in await deciding]

    assert sorted(asyncio.run(decide()), reverse=True) == [(True, False)] * 5 + [(False, False)] * 3
    store: Any = current_store()
    assert not store.is_refusing()
