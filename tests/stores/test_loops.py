"""An event loop that a view holds up is no outage: replies that have come meanwhile are read, connections made anew."""

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
from django_quota.limiter import get_limiter
from django_quota.stores import loops
from django_quota.stores.connections import AsyncClient
from django_quota.stores.loops import LATE, reply_on, unless_held_up
from django_quota.stores.wire import packed
from django_quota.testing import RedisServer
from tests.clusters import Cluster
from tests.conftest import caches, cluster_caches
from tests.stores.test_sentinel import behind, sentinel_port

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
def test_a_reply_that_came_while_the_loop_was_held_up_is_read(
    command: tuple[str | int, ...], redis_server: RedisServer, raw: redis.Redis
) -> None:
    raw.rpush("long", *range(100))

    async def read() -> Any:
        connection = await connected(redis_server, 0.05)
        try:
            reading = asyncio.ensure_future(reply_on(connection))
            await asyncio.sleep(0)  # its time runs
            connection._writer.write(packed(command))
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


def test_a_reply_that_does_not_come_is_a_time_out_still(redis_server: RedisServer, raw: redis.Redis) -> None:
    del raw

    async def read() -> None:
        connection = await connected(redis_server, 0.02)
        try:
            await connection.send_packed_command([packed(("BLPOP", "nothing", 60))])
            with pytest.raises(RedisTimeoutError):
                await reply_on(connection)
        finally:
            await connection.disconnect()

    asyncio.run(read())


def test_a_caller_who_goes_while_the_last_look_lasts_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LOOK_AGAIN", 3_600)

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
        reading = asyncio.ensure_future(reply_on(connection))
        while not connection.looked_again.is_set() and not reading.done():  # noqa: ASYNC110 — whichever comes first
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(read())


# --- what may be done twice -------------------------------------------------------------------------------------------


class Attempt:
    """Fails so many times, and may hold up the loop meanwhile, and go on for some rounds of it."""

    def __init__(self, failures: int, error: Exception, held_up: float = 0.0, rounds: int = 0) -> None:
        self.left, self.error, self.held_up, self.rounds, self.times = failures, error, held_up, rounds, 0

    async def __call__(self) -> str:
        self.times += 1
        hold_up(self.held_up)
        for _ in range(self.rounds):
            await asyncio.sleep(0)
        if self.times <= self.left:
            raise self.error
        return "done"


ERRORS = [RedisTimeoutError("late"), MasterNotFoundError("none in time"), TimeoutError("late")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("rounds", [0, 5])
def test_what_failed_while_or_after_the_loop_was_held_up_is_tried_once_more(error: Exception, rounds: int) -> None:
    attempt = Attempt(1, error, held_up=3 * LATE, rounds=rounds)
    assert (asyncio.run(unless_held_up(attempt)), attempt.times) == ("done", 2)


def test_a_second_failure_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LATE", 0.0)
    monkeypatch.setattr(loops, "EVERY", 0.0)
    attempt = Attempt(5, RedisTimeoutError("late"))
    with pytest.raises(RedisTimeoutError):
        asyncio.run(unless_held_up(attempt))
    assert attempt.times == 2


def test_where_the_loop_runs_freely_a_failure_is_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LATE", 3_600.0)
    attempt = Attempt(1, RedisTimeoutError("late"))
    with pytest.raises(RedisTimeoutError):
        asyncio.run(unless_held_up(attempt))
    assert attempt.times == 1


@pytest.mark.parametrize(
    "error", [RedisConnectionError("cut"), OSError("refused"), KeyError("of the caller")], ids=repr
)
def test_what_no_time_has_ended_is_not_tried_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LATE", 0.0)
    attempt = Attempt(1, error)
    with pytest.raises(type(error)):
        asyncio.run(unless_held_up(attempt))
    assert attempt.times == 1


def test_a_loop_is_watched_no_longer_than_the_attempt_lasts() -> None:
    async def run() -> list[asyncio.TimerHandle]:
        await unless_held_up(Attempt(0, OSError()))
        loop: Any = asyncio.get_running_loop()
        return [handle for handle in loop._scheduled if not handle.cancelled()]

    assert asyncio.run(run()) == []


def test_who_waits_for_a_connection_of_a_loop_that_was_held_up_gets_one() -> None:
    """All were given back in time, but nobody could be told."""

    async def run() -> bool:
        client = AsyncClient(aioredis.Redis(), asyncio.Semaphore(1), patience=0.05)
        await client.enter()
        waiting = asyncio.ensure_future(client.enter())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.04, client.slots.release)
        hold_up(0.2)
        return await waiting

    assert asyncio.run(run())


# --- whole decisions --------------------------------------------------------------------------------------------------


@pytest.fixture(params=["one", "sentinel", "cluster"])
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
def test_a_view_that_holds_up_its_loop_is_no_outage(
    moment: Callable[[list[redis.Redis]], Awaitable[None]], servers: list[redis.Redis]
) -> None:
    """It holds it up for longer than Redis has to answer, right when the servers have something to say."""

    async def view() -> None:
        await moment(servers)
        deadline = time.monotonic() + 1.2 * WITHIN
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
    store: Any = get_limiter().store
    assert not store.breaker.is_open
