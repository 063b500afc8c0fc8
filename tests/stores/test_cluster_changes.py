"""What happens to a Cluster while it is used and walked: slots that move, servers that die, new servers."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_quota import aonce, check, once, peek
from django_quota.core.errors import StorePermissionDenied
from django_quota.exceptions import StoreUnavailable
from django_quota.features.once import _operation
from django_quota.features.rollup import roll_up
from django_quota.limiting.registry import which_redis
from django_quota.models import DailyCounter
from django_quota.operating.health import health
from django_quota.operating.sweep import Sweeper
from django_quota.stores.cluster.store_cluster import ClusterStore, slot_of
from django_quota.stores.redis.store import RedisStore
from django_quota.stores.scanning import Walk
from django_quota.testing import freeze
from tests.support.clusters import Cluster, Server, running_cluster, running_server
from tests.support.commands import wait_until
from tests.support.ports import free_ports
from tests.support.steps import START
from tests.support.stores import cluster_caches, cluster_program, current_store, named, programs
from tests.support.traffic import SUBJECT, Traffic


def key_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:s"


KEY = key_of(SUBJECT)


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


@pytest.mark.thorough("topology")
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


@pytest.mark.thorough("topology")
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


@pytest.mark.thorough("topology")
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


@pytest.mark.thorough("topology")
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


USERS = [f"user:{number}" for number in range(40)]


@pytest.fixture
def own(settings: Any) -> Iterator[Cluster]:
    """A cluster of its own, whose other servers go on where one is gone."""
    with running_cluster(cluster_program()) as cluster:
        for server in cluster.servers:
            server.client.config_set("cluster-require-full-coverage", "no")
        settings.CACHES = cluster_caches(cluster)
        yield cluster


def lost(cluster: Cluster) -> tuple[Server, list[str]]:
    """Kill a server that does not have the system's keys; return it, and the users that it had."""
    gone = next(server for server in cluster.servers if server is not cluster.owner("{!}"))
    users = [user for user in USERS if cluster.owner(key_of(user)) is gone]
    gone.kill()
    return gone, users


class Turns:
    """Moves the slot of a key, with all that lies there, before each operation or command of a walk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: Cluster, subjects: list[str]) -> None:
        self.keys = [key_of(subject) for subject in subjects]
        self.cluster = cluster
        for name in ("try_all", "commands"):
            monkeypatch.setattr(ClusterStore, name, self._before(getattr(ClusterStore, name)))

    def _before(self, act: Any) -> Any:
        def moved_first(*arguments: Any) -> Any:
            if self.keys:
                key = self.keys.pop()
                source = self.cluster.owner(key)
                to = next(server for server in self.cluster.servers if server is not source)
                self.cluster.move(slot_of(key), to)
            return act(*arguments)

        return moved_first


@pytest.mark.thorough("topology")
class TestSlotsThatMoveOnTheWay:
    def test_a_sweep_comes_to_its_end(self, own: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        with freeze(START):
            for user in USERS:
                check("9/m", user, daily=False)
        turns = Turns(monkeypatch, own, USERS[:6])
        reports = [Sweeper(current_store(), "quota").sweep(threading.Event(), lambda count: None) for _ in range(4)]
        assert not turns.keys
        assert (reports[-1].missed, reports[-1].complete) == (0, True)
        assert sum(report.removed for report in reports) == len(USERS)

    def test_a_roll_up_moves_each_check_once(
        self, own: Cluster, database: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number, user in enumerate(USERS, 1):
            for _ in range(number % 4 + 1):
                check("900/m", user)
        turns = Turns(monkeypatch, own, USERS[:6])
        while turns.keys:
            with suppress(StoreUnavailable):  # at the end: the rest was done
                list(roll_up(current_store(), batch=5))
        list(roll_up(current_store(), batch=5))
        found = {row.subject: row.allowed for row in DailyCounter.objects.all()}
        assert found == {user: number % 4 + 1 for number, user in enumerate(USERS, 1)}


@pytest.mark.thorough("topology")
@pytest.mark.urls("tests.support.urls")
def test_without_a_server_the_others_are_walked_and_the_reports_say_so(
    own: Cluster, database: Any, admin_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with freeze(START):
        for user in USERS:
            check("9/m", user, daily=False)
    for user in USERS:
        check("900/m", user)
    gone, users = lost(own)
    left = len(USERS) - len(users)
    with pytest.raises(CommandError, match="of the Cluster did not answer"):
        call_command("quota_sweep", "--json")
    said = json.loads(capsys.readouterr().out)
    assert (said["removed"], said["missed"], said["complete"]) == (left, 1, False)
    with pytest.raises(CommandError, match="a part of the Cluster did not answer, and the rest was done"):
        call_command("quota_rollup", "--json")
    assert json.loads(capsys.readouterr().out)["allowed"] == left
    assert set(DailyCounter.objects.values_list("subject", flat=True)) == set(USERS) - set(users)
    found = health(current_store(), "quota")
    assert (found.silent, found.servers, len(found.parts)) == ([f"127.0.0.1:{gone.port}"], 3, 2)
    page = admin_client.get("/admin/django_quota/overview/").content.decode()
    assert f"1 of the 3 servers of the Cluster do not answer: 127.0.0.1:{gone.port}." in page


class TestHealth:
    def test_the_fullest_server_and_the_worst_policy_count(self, cluster: Cluster) -> None:
        bound = cluster.servers[1].client
        used = int(bound.info("memory")["used_memory"])
        try:
            bound.config_set("maxmemory", 4 * used)
            bound.config_set("maxmemory-policy", "allkeys-lru")
            found = health(current_store(), "quota")
            assert (found.policy, found.may_evict, found.most, found.servers) == ("allkeys-lru", True, 0, 3)
            assert 0.2 < (found.fullest or 0) < 0.4
            assert not found.is_nearly_full
            bound.config_set("maxmemory", used + used // 20)
            assert health(current_store(), "quota").is_nearly_full
        finally:
            bound.config_set("maxmemory", 0)
            bound.config_set("maxmemory-policy", "noeviction")
        assert (found.used or 0) > used
        assert found.events == 0


@pytest.mark.parametrize("kind", [StoreUnavailable, StorePermissionDenied])
def test_the_end_of_a_walk_says_whether_what_was_missed_is_not_permitted(kind: type[StoreUnavailable]) -> None:
    def fail(error: StoreUnavailable) -> None:
        raise error

    walk = Walk(RedisStore(which_redis()))
    walk.servers = [1, 2]
    for error in (kind("the first"), StoreUnavailable("the second")):
        with walk.part():
            fail(error)
    with pytest.raises(StoreUnavailable, match="the first") as caught:
        walk.end()
    assert type(caught.value) is kind
