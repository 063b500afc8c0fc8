"""What happens to a Cluster while it is used: slots that move, servers that die and are replaced, new servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from django_quota import aonce, check, once, peek
from django_quota.exceptions import StoreUnavailable
from django_quota.features.once import _operation
from django_quota.stores.cluster.store_cluster import slot_of
from tests.support.clusters import Cluster, Server, running_cluster, running_server
from tests.support.commands import wait_until
from tests.support.ports import free_ports
from tests.support.stores import cluster_caches, cluster_program, current_store, named, programs
from tests.support.traffic import SUBJECT, Traffic

pytestmark = pytest.mark.thorough("topology")

KEY = f"quota:1:{{{SUBJECT}}}:s"


@pytest.fixture(params=programs(), ids=named)
def moving(request: pytest.FixtureRequest, settings: Any) -> Iterator[Cluster]:
    """A cluster of its own, of each server."""
    with running_cluster(request.param) as cluster:
        settings.CACHES = cluster_caches(cluster)
        yield cluster


@pytest.fixture
def replicated(settings: Any) -> Iterator[Cluster]:
    """A cluster of its own, each primary with a replica."""
    with running_cluster(cluster_program(), replicas=1) as cluster:
        settings.CACHES = cluster_caches(cluster)
        yield cluster


def test_a_slot_that_moves_under_traffic_counts_each_hit_once(moving: Cluster) -> None:
    slot = slot_of(KEY)
    with Traffic("2000/h") as traffic:
        for probe in range(6):
            traffic.goes_on(by=10)
            source = moving.owner(KEY)
            to = next(server for server in moving.servers if server is not source)
            moving.move(slot, to, pause=0.01)
            assert moving.owner(KEY) is to, probe
        wait_until(lambda: traffic.refused > 50)
    assert current_store().server_of(KEY) == f"127.0.0.1:{to.port}"
    assert not traffic.errors
    assert traffic.admitted == 2_000  # beside those that on_unavailable let in


def test_a_slot_whose_move_never_ends_is_unavailable_in_bounded_time(moving: Cluster) -> None:
    """Some of the keys are here, some there: no server may run a script on both."""
    slot, source = slot_of(KEY), moving.owner(KEY)
    to = next(server for server in moving.servers if server is not source)
    assert check("3/h", SUBJECT)
    to.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
    source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", to.id)
    found = check("3/h", SUBJECT, on_unavailable="deny")
    assert found.degraded
    assert not found
    for server in (source, to):
        server.client.execute_command("CLUSTER SETSLOT", slot, "STABLE")
    assert check("3/h", SUBJECT).remaining == 1


@contextmanager
def half_moved(slot: int, source: Server, to: Server) -> Iterator[None]:
    """Let a slot be on its way: the source has the keys that exist, and sends on what does not."""
    to.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
    source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", to.id)
    try:
        yield
    finally:
        for server in (source, to):
            server.client.execute_command("CLUSTER SETSLOT", slot, "STABLE")


def event_of(cluster: Cluster, server: Server, number: int = 0) -> str:
    """Return the name of an event whose only key is on a server."""
    names = (f"event-{each}" for each in range(1_000))
    found = [name for name in names if cluster.owner(_operation("a", name, 60).keys[0]) is server]
    return found[number]


def test_while_a_slot_moves_no_other_subject_of_its_servers_notices(moving: Cluster) -> None:
    """redis-py's async client sends ASKING over another connection than the command, as soon as it has two."""
    source, to, *_ = moving.servers
    name = event_of(moving, source)
    store: Any = current_store()

    async def ask() -> list[bool]:
        await asyncio.gather(*(aonce("a", event_of(moving, server, n)) for server in (source, to) for n in range(1, 6)))
        moved = []
        for _ in range(20):
            with suppress(StoreUnavailable):
                moved.append(await aonce("a", name))
        assert not await aonce("a", event_of(moving, source, 1))
        return moved

    with half_moved(slot_of(_operation("a", name, 60).keys[0]), source, to):
        assert [once("a", name), *asyncio.run(ask())].count(True) == 1
        assert not once("a", event_of(moving, to, 1))
    assert store.all_nodes_healthy


def test_a_slot_that_moves_to_a_new_server_is_reached(moving: Cluster, tmp_path: Path) -> None:
    source = moving.servers[0]
    name, (port,) = event_of(moving, source), free_ports(1)
    assert once("a", event_of(moving, source, 1))  # the table is known
    with running_server(moving.program, tmp_path, port) as new:
        new.client.execute_command("CLUSTER MEET", "127.0.0.1", source.port)
        nodes = "CLUSTER NODES"
        wait_until(lambda: all(new.id in str(server.client.execute_command(nodes)) for server in moving.servers))
        wait_until(lambda: new.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        slot = slot_of(_operation("a", name, 60).keys[0])
        with half_moved(slot, source, new), pytest.raises(StoreUnavailable, match="a slot is moving"):
            once("a", name)
        moving.move(slot, new)
        assert [once("a", name), once("a", name), asyncio.run(aonce("a", name))] == [True, False, False]
        assert new.client.execute_command("DBSIZE") == 1


def test_a_replica_that_is_promoted_is_found_and_the_limit_goes_on(replicated: Cluster) -> None:
    with Traffic("100000/h") as traffic:
        wait_until(lambda: traffic.admitted > 200)
        before = replicated.owner(KEY)
        before.kill()
        began = time.monotonic()
        wait_until(lambda: replicated.owner(KEY) is not before)
        promoted = time.monotonic() - began
        traffic.goes_on()
    assert not traffic.errors
    assert traffic.degraded  # meanwhile on_unavailable decides
    # What the replica had not heard of yet is lost with the old primary; of a few hits only the reply is.
    used = 100_000 - (peek("100000/h", SUBJECT).remaining or 0)
    assert -10 <= traffic.admitted - used < 1_000
    print(f"a replica took over after {promoted:.1f} s; {traffic.degraded} checks were decided without it")
