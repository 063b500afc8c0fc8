"""What is between us and Redis: a proxy without a server, sentinels, a parent process, a small pool."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from django_quota import check
from django_quota.stores.redis.settings import ANSWER_TIMEOUT
from django_quota.testing import RedisServer
from tests.faults.sockets import listening
from tests.support.calls import both
from tests.support.clusters import Cluster
from tests.support.outages import FAILURES, Mute, ask, fail, new_breaker, with_clock
from tests.support.processes import forks, in_child
from tests.support.sentinels import behind
from tests.support.steps import Clock
from tests.support.stores import PATIENT, caches, current_store


@pytest.fixture(params=[False, True], ids=["at once", "after the first words"])
def met(request: pytest.FixtureRequest, settings: Any) -> Iterator[list[int]]:
    """A proxy that closes connections at once, or after the first words; notes each of them."""
    found: list[int] = []

    def serve(connection: socket.socket) -> None:
        found.append(1)
        if request.param:
            connection.recv(1)

    with listening(serve) as port:
        settings.CACHES = caches(RedisServer(f"redis://127.0.0.1:{port}/0", 0, Path()))
        yield found


@both
def test_the_breaker_opens_for_a_proxy_without_a_server(kind: str, met: list[int], clock: Clock) -> None:
    store = with_clock(clock)
    assert all(decision.degraded for decision in ask(kind, 30))
    assert store.server.breaker.is_open
    before = len(met)
    clock.now += 1
    assert all(decision.degraded for decision in ask(kind, 10))
    assert store.server.breaker.is_open  # the one that asked has not closed it
    assert len(met) <= before + 2


def test_threads_waiting_for_a_connection_stop_when_the_breaker_opens(mute: Mute, settings: Any) -> None:
    server = RedisServer(mute.url, 0, Path())
    settings.CACHES = caches(server, socket_timeout=ANSWER_TIMEOUT, max_connections=1)
    fail(new_breaker(Clock()), FAILURES - 1)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda _: check("9/m", "user:1").degraded, range(8)))
    assert mute.met == 1


@forks
def test_a_forked_worker_behind_sentinel_has_its_own_connections(sentinel_port: int, settings: Any) -> None:
    settings.CACHES = {"default": behind(sentinel_port, **PATIENT)}
    assert check("99/m", "user:1").remaining == 98
    assert in_child(lambda: [check("99/m", "user:1").remaining for _ in range(3)] == [97, 96, 95]) == 1
    assert check("99/m", "user:1").remaining == 94


@forks
def test_a_forked_worker_of_a_cluster_has_its_own_connections(cluster: Cluster) -> None:
    assert check("99/m", "user:1").remaining == 98
    store: Any = current_store()
    client = store._sync.client
    assert in_child(lambda: check("99/m", "user:1").remaining == 97 and store._sync.client is not client) == 1
    assert check("99/m", "user:1").remaining == 96
