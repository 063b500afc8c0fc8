"""What docs/going_live.md permits besides: on a Redis Cluster, and in another database than 0."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from django_quota import acheck, check, counter, once
from django_quota.adapters import digest
from django_quota.exceptions import QuotaError
from django_quota.testing import RedisServer, running_redis
from tests.security.acl_steps import OFFICE, PAGE, PASSWORD, WEB, limits_async, rules_of
from tests.support.clusters import Cluster, running_cluster, slot_of
from tests.support.stores import caches, cluster_caches, cluster_program, current_store, forget_connections

pytestmark = pytest.mark.django_db(transaction=True)

BESIDES = re.findall(r"`([+|a-z ]+)`", PAGE.partition("A Redis Cluster needs")[2].partition("keeps the client")[0])
OF_CLUSTER, OF_DATABASE = BESIDES[0].split(), BESIDES[1].split()


def test_the_page_names_them() -> None:
    assert OF_CLUSTER == ["+cluster|slots", "+asking"]
    assert OF_DATABASE == ["+select"]


def denied(client: Any) -> set[str]:
    """Return what a server was denied since it was last asked, but for how a client introduces itself."""
    found = {str(entry["object"]).partition("|")[0] for entry in client.acl_log()}
    client.execute_command("ACL", "LOG", "RESET")
    return found - {"client"}


def permit(client: Any, user: str, *more: str) -> None:
    client.execute_command("ACL", "SETUSER", user, "reset")
    for words in rules_of(user):
        client.execute_command("ACL", "SETUSER", user, *shlex.split(words))
    client.execute_command("ACL", "SETUSER", user, *more)


class TestAnotherDatabase:
    @pytest.fixture
    def client(self, redis_server: RedisServer, settings: Any) -> Iterator[Any]:
        with running_redis(redis_server.program) as server, redis.Redis.from_url(server.url, db=3) as client:
            url = f"{server.url}?db=3&username=quota-web&password={PASSWORD}"
            settings.CACHES = caches(RedisServer(url, server.pid, server.program))
            yield client

    def test_with_select_it_is_used(self, client: Any) -> None:
        permit(client, "quota-web", *OF_DATABASE)
        assert [check("1/m", "user:7").allowed for _ in range(2)] == [True, False]
        assert client.dbsize() > 0
        assert denied(client) == set()

    def test_without_it_nothing_is(self, client: Any) -> None:
        permit(client, "quota-web")
        assert check("1/m", "user:7").degraded
        with pytest.raises(QuotaError, match="select"):
            counter("a").incr("user:7")
        assert denied(client) == {"select"}
        assert client.dbsize() == 0


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    with running_cluster(cluster_program()) as cluster:
        yield cluster


def counters_of_one() -> None:
    """Do what counters do for one subject, whatever the step of the counters has come to."""
    stock = counter("of-one")
    stock.set("user:7", 9)
    stock.take("user:7", 2)
    stock.pop("user:7")
    stock.unique("user:7", "a")
    assert stock.unique_count("user:7") == 1


@pytest.mark.thorough("topology")
class TestCluster:
    @pytest.fixture
    def guarded(self, own_cluster: Cluster, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
        own_cluster.flush()
        given = cluster_caches(own_cluster)
        yield own_cluster
        settings.CACHES = given

    def be(self, cluster: Cluster, settings: Any, user: str, *more: str) -> None:
        """Ask as this user from now on, over new connections."""
        for server in cluster.servers:
            permit(server.client, user, *more)
            server.client.execute_command("ACL", "LOG", "RESET")
            server.client.script_flush()
        forget_connections()
        given = cluster_caches(cluster)
        given["default"]["LOCATION"] = [
            f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}/0" for server in cluster.servers
        ]
        settings.CACHES = given

    def denied(self, cluster: Cluster) -> set[str]:
        return {name for server in cluster.servers for name in denied(server.client)}

    @pytest.mark.parametrize(("user", "steps"), [("quota-web", WEB), ("quota-office", OFFICE)], ids=["web", "office"])
    def test_with_both_nothing_is_denied(self, guarded: Cluster, settings: Any, user: str, steps: Any) -> None:
        self.be(guarded, settings, user, *OF_CLUSTER)
        assert asyncio.run(acheck("7/m", "user:7")).allowed
        found = {}
        steps = [step for step in steps if step is not limits_async]  # which reaches into a store of one server
        for step in (*steps, counters_of_one):
            step()
            found[step.__name__] = self.denied(guarded)
        assert found == {name: set() for name in found}
        assert len(found) == len(steps) + 1

    def test_without_the_slots_nothing_is_found(self, guarded: Cluster, settings: Any) -> None:
        self.be(guarded, settings, "quota-web", "+asking")
        with pytest.raises(QuotaError):
            once("event", "1")
        assert self.denied(guarded) == {"cluster"}

    @pytest.mark.parametrize("asking", [True, False])
    def test_without_asking_a_slot_that_moves_is_out_of_reach(
        self, guarded: Cluster, settings: Any, asking: bool
    ) -> None:
        self.be(guarded, settings, "quota-web", "+cluster|slots", *(["+asking"] if asking else []))
        assert once("event", "warm")
        key = f"quota:1:{{once:{digest('moving')}}}:once:event"  # one key: several of them would be told to try again
        source = guarded.owner(key)
        target = next(server for server in guarded.servers if server is not source)
        slot = slot_of(key)
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.id)
        try:
            if asking:
                assert [once("event", "moving"), once("event", "moving")] == [True, False]
            else:
                with pytest.raises(QuotaError):
                    once("event", "moving")
            assert self.denied(guarded) == (set() if asking else {"asking"})
        finally:
            for server in (source, target):
                server.client.execute_command("CLUSTER SETSLOT", slot, "STABLE")
            target.client.flushall()
            current_store().close()
