"""What is between us and Redis: a proxy without a server, sentinels, a parent process, a small pool."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_quota import Rule, check
from django_quota.stores.redis.errors import answered
from django_quota.testing import RedisServer, running_redis
from tests.faults.sockets import SocketServer
from tests.support.calls import both
from tests.support.clusters import Cluster
from tests.support.commands import wait_until
from tests.support.outages import (
    FAILURES,
    FULL,
    SETTLE_TIME,
    Mute,
    ask,
    due_breaker,
    fail,
    heard,
    new_breaker,
    new_outages,
    with_clock,
)  # fmt: skip
from tests.support.processes import forks, in_child
from tests.support.sentinels import behind, times_called
from tests.support.steps import Clock
from tests.support.stores import PATIENT, caches, current_store


class NothingBehind:
    """Takes connections and closes them at once, or after the first words; counts them."""

    def __init__(self, *, hears: bool) -> None:
        self.met = 0
        self._hears = hears

    def serve(self, connection: socket.socket) -> None:
        self.met += 1
        if self._hears:
            connection.recv(1)


@pytest.fixture(params=[False, True], ids=["at once", "after the first words"])
def nothing_behind(request: pytest.FixtureRequest, settings: Any) -> Iterator[NothingBehind]:
    proxy = NothingBehind(hears=request.param)
    listener = SocketServer(proxy.serve)
    settings.CACHES = caches(RedisServer(f"redis://127.0.0.1:{listener.port}/0", 0, Path()))
    yield proxy
    listener.close()


@both
def test_the_breaker_opens_for_a_proxy_without_a_server(kind: str, nothing_behind: NothingBehind, clock: Clock) -> None:
    store = with_clock(clock)
    assert all(decision.degraded for decision in ask(kind, 30))
    assert store.server.breaker.is_open
    met = nothing_behind.met
    clock.now += 1
    assert all(decision.degraded for decision in ask(kind, 10))
    assert store.server.breaker.is_open  # the one that asked has not closed it
    assert nothing_behind.met <= met + 2


@both
def test_a_cut_idle_connection_does_not_count_as_a_failure(kind: str, redis_cache: RedisServer, clock: Clock) -> None:
    breaker = due_breaker(clock)
    assert not ask(kind)[0].degraded
    assert answered(redis.ConnectionError("Connection closed by server.")) is None
    assert not breaker.is_open


def test_threads_waiting_for_a_connection_stop_when_the_breaker_opens(mute: Mute, settings: Any) -> None:
    options = settings.CACHES["default"]["OPTIONS"]
    pool = {**options.get("CONNECTION_POOL_KWARGS", {}), "max_connections": 1}
    settings.CACHES = {
        "default": {**settings.CACHES["default"], "OPTIONS": {**options, "CONNECTION_POOL_KWARGS": pool}}
    }
    fail(new_breaker(Clock()), FAILURES - 1)
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(check("9/m", "user:1").degraded)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8
    assert mute.met == 1


def test_a_check_of_cost_0_does_not_end_an_outage_of_writes(redis_server: RedisServer, settings: Any) -> None:
    clock, free = Clock(), Rule.make("9/m", "9/m", cost=lambda request: 0)
    with running_redis(redis_server.program) as server, redis.Redis.from_url(server.url) as client, heard() as reported:
        settings.CACHES = caches(server)
        assert check("9/m", "ip:192.0.2.1")
        new_outages(clock)
        client.execute_command(*FULL)
        for number in range(5):
            assert check("9/m", f"ip:192.0.2.{number + 2}").degraded
            clock.now += 2 * SETTLE_TIME
            assert not check(free, "ip:192.0.2.1", 0).degraded
    assert [what for what, _ in reported] == ["lost"]


@forks
def test_a_forked_worker_keeps_its_connections_behind_sentinel(sentinel_port: int, settings: Any) -> None:
    settings.CACHES = {"default": behind(sentinel_port, **PATIENT)}
    assert not check("99/m", "user:1").degraded
    with redis.Redis(port=sentinel_port) as sentinel:
        (_, primary) = sentinel.sentinel_get_master_addr_by_name("quotas")

    def work() -> bool:
        with redis.Redis(port=int(primary)) as client:
            check("99/m", "user:1")
            before = client.info("stats")["total_connections_received"]
            for _ in range(20):
                check("99/m", "user:1")
            return bool(client.info("stats")["total_connections_received"] == before)

    assert in_child(work) == 1


@forks
def test_a_forked_worker_of_a_cluster_asks_over_its_own_connections(cluster: Cluster) -> None:
    assert check("99/m", "user:1").remaining == 98
    assert in_child(lambda: check("99/m", "user:1").remaining == 97) == 1
    assert check("99/m", "user:1").remaining == 96


def test_plain_commands_skip_a_sentinel_that_hangs(sentinel_port: int, settings: Any) -> None:
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen(64)
        settings.CACHES = {
            "default": behind(hung.getsockname()[1], sentinel_port, SOCKET_TIMEOUT=0.5, SOCKET_CONNECT_TIMEOUT=0.5)
        }
        tries: list[bool] = []

        def answers() -> bool:
            store: Any = current_store()
            try:
                with store.commands() as client:
                    tries.append(bool(client.ping()))
            except Exception:  # noqa: BLE001 — a busy machine may need some more
                tries.append(False)
            return tries[-1]

        wait_until(answers)
        assert 0 < times_called(hung) <= len(tries)
