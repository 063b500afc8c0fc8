"""A view that blocks its event loop causes no outage."""

from __future__ import annotations

import asyncio
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
from django_quota.stores.redis import connections
from django_quota.stores.redis.connections import AsyncClient, pack_command, read_reply
from django_quota.testing import RedisServer
from tests.stores.test_sentinel import behind, sentinel_port
from tests.support.clusters import Cluster
from tests.support.selection import thorough
from tests.support.stores import caches, cluster_caches, current_store

__all__ = ["sentinel_port"]

WITHIN = 1.0
"""Seconds that Redis has to answer in these tests."""
SHORT = {"socket_timeout": WITHIN, "socket_connect_timeout": WITHIN}


def hold_up(seconds: float) -> None:
    """Keep the event loop, whose thread this runs in, from all else."""
    threading.Event().wait(seconds)


async def connected(server: RedisServer, seconds: float) -> Any:
    pool: Any = aioredis.ConnectionPool.from_url(server.url, socket_timeout=60)
    connection = pool.make_connection()
    await connection.connect()
    connection.socket_timeout = seconds
    return connection


def its_socket(connection: Any) -> Any:
    return connection._writer.get_extra_info("socket")


# --- a reply ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("PING",), ("LRANGE", "long", 0, -1), ("GET", "long")], ids=lambda words: words[0])
def test_a_reply_that_came_while_the_loop_was_blocked_is_read(
    command: tuple[str | int, ...], redis_server: RedisServer, raw: redis.Redis
) -> None:
    raw.rpush("long", *range(100))

    async def read() -> Any:
        connection = await connected(redis_server, 0.05)
        try:
            reading = asyncio.ensure_future(read_reply(connection))
            await asyncio.sleep(0)  # its time runs
            connection._writer.write(pack_command(command))
            assert select.select([its_socket(connection)], [], [], 60)[0]
            hold_up(0.06)
            return await reading
        except ResponseError as error:
            return error
        finally:
            await connection.disconnect()

    reply = asyncio.run(read())
    wanted = {"PING": reply in (b"PONG", True), "LRANGE": isinstance(reply, list) and len(reply) == 100}
    assert wanted.get(str(command[0]), isinstance(reply, ResponseError))


def test_a_missing_reply_times_out(redis_server: RedisServer, raw: redis.Redis) -> None:
    del raw

    async def read() -> None:
        connection = await connected(redis_server, 0.02)
        try:
            await connection.send_packed_command([pack_command(("BLPOP", "nothing", 60))])
            with pytest.raises(RedisTimeoutError):
                await read_reply(connection)
        finally:
            await connection.disconnect()

    asyncio.run(read())


def test_a_task_can_be_cancelled_during_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LAST_LOOK", 3_600)

    class Silent:
        def __init__(self) -> None:
            self.looked_again = asyncio.Event()
            self.errors: list[Exception] = [RedisTimeoutError("late")]

        async def read_response(self, **options: bool) -> None:
            assert options == {"disconnect_on_error": False}
            if self.errors:
                raise self.errors.pop()
            self.looked_again.set()
            await asyncio.Event().wait()

    async def read() -> None:
        connection = Silent()
        reading = asyncio.ensure_future(read_reply(connection))
        while not connection.looked_again.is_set() and not reading.done():  # noqa: ASYNC110 — whichever comes first
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(read())


# --- a connection ----------------------------------------------------------------------------------------------------


class Connecting:
    """A pool that fails at first, and may block the loop meanwhile."""

    def __init__(self, error: Exception, blocked: float) -> None:
        self.error, self.blocked, self.times = error, blocked, 0

    @property
    def connection_pool(self) -> Connecting:
        return self

    async def get_connection(self, *_: str) -> str:
        self.times += 1
        if self.times > 1:
            return "connected"
        hold_up(self.blocked)
        raise self.error

    def client(self) -> AsyncClient:
        made: Any = self
        return AsyncClient(made, asyncio.Semaphore(1), connect_timeout=0.05)


TIMED_OUT = [RedisTimeoutError("late"), MasterNotFoundError("none in time"), TimeoutError("late")]


@pytest.mark.parametrize("error", TIMED_OUT, ids=repr)
def test_connecting_is_tried_again_if_the_loop_was_blocked(error: Exception) -> None:
    pool = Connecting(error, blocked=0.06)
    assert asyncio.run(pool.client().take()) == "connected"


@pytest.mark.parametrize("error", TIMED_OUT, ids=repr)
def test_connecting_that_times_out_by_itself_is_not_tried_again(error: Exception) -> None:
    pool = Connecting(error, blocked=0.0)
    with pytest.raises(type(error)):
        asyncio.run(pool.client().take())
    assert pool.times == 1


@pytest.mark.parametrize("error", [RedisConnectionError("cut"), OSError("refused")], ids=repr)
def test_connecting_that_fails_without_a_timeout_is_not_tried_again(error: Exception) -> None:
    pool = Connecting(error, blocked=0.06)
    with pytest.raises(type(error)):
        asyncio.run(pool.client().take())
    assert pool.times == 1


def test_a_task_gets_the_connection_that_came_free_while_the_loop_was_blocked() -> None:
    """All were given back in time, but nobody could be told."""

    async def run() -> bool:
        client = AsyncClient(aioredis.Redis(), asyncio.Semaphore(1), timeout=0.05)
        await client.enter()
        waiting = asyncio.ensure_future(client.enter())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.04, client.slots.release)
        hold_up(0.2)
        return await waiting

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
