"""Walks over all servers of a Cluster: moving slots and a dead server do not stop the rest."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_quota import check
from django_quota.core.errors import StorePermissionDenied
from django_quota.exceptions import StoreUnavailable
from django_quota.features.rollup import roll_up
from django_quota.limiting.registry import which_redis
from django_quota.models import DailyCounter
from django_quota.operating.health import health
from django_quota.operating.sweep import Sweeper
from django_quota.stores.cluster.store_cluster import ClusterStore, slot_of
from django_quota.stores.redis.store import RedisStore
from django_quota.stores.scanning import Walk
from django_quota.testing import freeze
from tests.support.clusters import Cluster, Server, running_cluster
from tests.support.steps import START
from tests.support.stores import cluster_caches, cluster_program, current_store

USERS = [f"user:{number}" for number in range(40)]


def key_of(subject: str) -> str:
    return f"quota:1:{{{subject}}}:s"


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
        for name in ("try_all", "of_each"):
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
        with walk.past():
            fail(error)
    with pytest.raises(StoreUnavailable, match="the first") as caught:
        walk.end()
    assert type(caught.value) is kind
