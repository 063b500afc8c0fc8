"""The clients that find the servers of a Cluster: none is dropped with its connections open."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import RedisClusterException

from django_quota.core.flow import run_sync
from django_quota.stores.cluster import clients
from django_quota.stores.cluster.clients import AsyncSide, SyncSide
from django_quota.stores.cluster.store import ClusterStore

THREADS = 4


class Client:
    """redis-py's client of a Cluster, as far as it is used here."""

    made: list["Client"]
    together: Any = None

    def __init__(self, **_: Any) -> None:
        self.is_closed = False
        self.nodes_manager = SimpleNamespace(initialize=self.read, startup_nodes={}, slots_cache={})
        self.made.append(self)
        if self.together is not None:
            self.together.wait()

    def read(self) -> None:
        raise RedisClusterException("no server")

    def close(self) -> None:
        self.is_closed = True

    async def initialize(self) -> None:
        await asyncio.sleep(60)

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """All clients of a test."""
    found: list[Client] = []
    monkeypatch.setattr(Client, "made", found, raising=False)
    for name in ("_SyncCluster", "_AsyncCluster"):
        monkeypatch.setattr(clients, name, Client)
    return found


@pytest.fixture
def settings_of_cluster() -> Any:
    return SimpleNamespace(addresses=[], options={})


def test_threads_that_connect_at_once_keep_one_client(
    made: list[Client], settings_of_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SyncSide(settings_of_cluster)
    monkeypatch.setattr(Client, "together", Barrier(THREADS))

    with ThreadPoolExecutor(THREADS) as threads:
        returned = {each.result() for each in [threads.submit(side.connect) for _ in range(THREADS)]}

    assert returned == {side.client}
    assert [each for each in made if not each.is_closed] == [side.client]


def test_a_client_that_reaches_no_server_is_closed(settings_of_cluster: Any) -> None:
    side, store = SyncSide(settings_of_cluster), object.__new__(ClusterStore)
    client = side.connect()

    run_sync(store._read_slots_again(side, client), lambda call: call())

    assert (side.client, client.is_closed) == (None, True)


def test_a_thread_that_still_uses_a_closed_store_leaves_no_client_open(
    made: list[Client], settings_of_cluster: Any
) -> None:
    side = SyncSide(settings_of_cluster)
    side.close()

    side.connect()

    assert [each.is_closed for each in made] == [True]


def test_a_client_that_is_still_connecting_is_closed_with_its_event_loop(
    made: list[Client], settings_of_cluster: Any
) -> None:
    async def cancelled() -> None:
        side = AsyncSide(settings_of_cluster)
        connecting = asyncio.ensure_future(side.connect())
        await asyncio.sleep(0)
        connecting.cancel()
        await side.aclose()

    asyncio.run(cancelled())

    assert [each.is_closed for each in made] == [True]


def test_a_server_that_did_not_answer_is_asked_for_the_slots_last(settings_of_cluster: Any) -> None:
    side, store = SyncSide(settings_of_cluster), object.__new__(ClusterStore)
    manager = side.connect().nodes_manager
    manager.startup_nodes = {"silent": 1, "well": 2}

    run_sync(store._read_slots_again(side, side.client, "silent"), lambda call: call())

    assert list(manager.startup_nodes) == ["well", "silent"]
