"""django-redis' own operations over a Cluster: each answers as it does on one server, or says that it cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.cache import cache, caches
from django_redis.client import DefaultClient
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException

from django_quota.stores.cluster.client import ClusterConnectionFactory
from tests.support.clusters import Cluster, running_cluster
from tests.support.stores import caches as caches_of
from tests.support.stores import cluster_caches, cluster_program

Act = Callable[[Any], Any]


def locked(c: Any) -> list[bool]:
    with c.lock("mutex", timeout=5) as lock:
        taken = lock.owned()
        second = c.lock("mutex", timeout=5, blocking_timeout=0.01).acquire(blocking=False)
        lock.extend(5)
    return [taken, second, c.lock("mutex", timeout=5).acquire(blocking=False)]


ACTS: dict[str, Act] = {
    "add": lambda c: [c.add("a", 1), c.add("a", 2), c.get("a")],
    "clear": lambda c: [c.set_many({f"k{n}": n for n in range(20)}), c.clear(), c.get("k1")],
    "close": lambda c: [c.set("a", 1), c.close(), c.get("a")],
    "decr": lambda c: [c.set("a", 5), c.decr("a", 2)],
    "delete": lambda c: [c.set("a", 5), c.delete("a"), c.delete("a")],
    "delete_many": lambda c: [c.set_many({"a": 1, "b": 2, "c": 3}), c.delete_many(["a", "b", "x"]), c.delete_many([])],
    "delete_pattern": lambda c: [
        c.set_many({f"k{n}": n for n in range(20)}), c.delete_pattern("k1*"), c.delete_pattern("none*")
    ],
    "expire": lambda c: [c.set("a", 1), c.expire("a", 100), 90 < c.ttl("a") <= 100],
    "get": lambda c: [c.get("none"), c.get("none", 3), c.set("a", {"x": [1]}), c.get("a")],
    "get_many": lambda c: [c.set_many({"a": 1, "b": None}), c.get_many(["a", "b", "c"]), c.get_many([])],
    "get_or_set": lambda c: [c.get_or_set("a", lambda: 7), c.get_or_set("a", 8)],
    "has_key": lambda c: [c.set("a", 1), c.has_key("a"), "b" in c],
    "hset": lambda c: c.hset("h", "f", 1),
    "incr": lambda c: [c.set("a", 1), c.incr("a"), c.incr("a", 10), raises(ValueError, lambda: c.incr("none"))],
    "incr_version": lambda c: [c.set("a", 1), c.incr_version("a"), c.get("a"), c.get("a", version=2)],
    "iter_keys": lambda c: [c.set_many({f"k{n}": n for n in range(9)}), sorted(c.iter_keys("k*"))],
    "keys": lambda c: [c.set_many({f"k{n}": n for n in range(9)}), sorted(c.keys("k*"))],
    "lock": locked,
    "make_key": lambda c: c.make_key("a"),
    "persist": lambda c: [c.set("a", 1, 100), c.persist("a"), c.ttl("a")],
    "sdiff": lambda c: [c.sadd("{s}1", 1, 2), c.sadd("{s}2", 2), c.sdiff("{s}1", "{s}2")],
    "sdiffstore": lambda c: [c.sadd("{s}1", 1, 2), c.sadd("{s}2", 2), c.sdiffstore("{s}3", "{s}1", "{s}2")],
    "set": lambda c: [c.set("a", 1, nx=True), c.set("a", 2, nx=True), c.set("a", 3, timeout=0), c.get("a")],
    "set_many": lambda c: [c.set_many({}), c.set_many({"a": 1, "b": 2}, timeout=9), c.get("b"), c.ttl("a") <= 9],
    "sinter": lambda c: [c.sadd("{s}1", 1, 2), c.sadd("{s}2", 2), c.sinter("{s}1", "{s}2")],
    "sinterstore": lambda c: [c.sadd("{s}1", 1, 2), c.sadd("{s}2", 2), c.sinterstore("{s}3", "{s}1", "{s}2")],
    "smove": lambda c: [c.sadd("{s}1", 1), c.smove("{s}1", "{s}2", 1), c.smembers("{s}2")],
    "sunion": lambda c: [c.sadd("{s}1", 1), c.sadd("{s}2", 2), c.sunion("{s}1", "{s}2")],
    "sunionstore": lambda c: [c.sadd("{s}1", 1), c.sadd("{s}2", 2), c.sunionstore("{s}3", "{s}1", "{s}2")],
    "touch": lambda c: [c.set("a", 1, 5), c.touch("a", 100), c.ttl("a") > 5, c.touch("none")],
    "ttl": lambda c: [c.ttl("none"), c.set("a", 1, None), c.ttl("a")],
    "zscore": lambda c: [c.zadd("z", {"a": 1}), c.zscore("z", "a")],
}  # fmt: skip

ON_ONE_KEY = frozenset(
    {"expire_at", "hdel", "hexists", "hkeys", "hlen", "pexpire", "pexpire_at", "pttl", "sadd", "scard", "sismember",
     "smembers", "smismember", "spop", "srandmember", "srem", "sscan", "sscan_iter", "zadd", "zcard", "zcount",
     "zincrby", "zpopmax", "zpopmin", "zrange", "zrangebyscore", "zrank", "zrem", "zremrangebyscore", "zrevrange",
     "zrevrangebyscore"}
)  # fmt: skip
"""Those that are sent as one command on one key, as `hset` and `zscore` are."""

INTERNAL = frozenset(
    {"connect", "decode", "disconnect", "do_close_clients", "encode", "get_client", "get_client_with_index",
     "get_next_client_index", "make_pattern"}
)  # fmt: skip
"""Methods that the others are made of."""


def raises(kind: type[Exception], act: Callable[[], Any]) -> bool:
    with pytest.raises(kind):
        act()
    return True


@pytest.fixture
def single(started: Any, settings: Any, cluster: Cluster) -> Any:
    """A plain server of the cluster's version, beside it."""
    server = started(cluster.program)
    settings.CACHES = {**settings.CACHES, "single": caches_of(server)["default"]}
    caches["single"].clear()
    return caches["single"]


def test_no_operation_is_left_out() -> None:
    public = {
        name for name in vars(DefaultClient) if not name.startswith("_") and callable(getattr(DefaultClient, name))
    }
    assert public - INTERNAL - ON_ONE_KEY <= set(ACTS)


@pytest.mark.parametrize("name", ACTS)
def test_it_answers_as_on_one_server(name: str, single: Any, cluster: Cluster) -> None:
    if not hasattr(single, name):
        pytest.skip("this version of django-redis does not have it")
    assert ACTS[name](cache) == ACTS[name](single)


@pytest.mark.parametrize("act", ["sdiff", "sinter", "sunion"])
def test_sets_in_several_slots_are_a_clear_error(act: str, cluster: Cluster) -> None:
    if not hasattr(cache, act):
        pytest.skip("this version of django-redis does not have it")
    for number in range(3):
        cache.sadd(f"s{number}", number)  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="slot"):
        getattr(cache, act)("s0", "s1", "s2")


@pytest.mark.thorough("topology")
class TestWithoutAnyServer:
    """A site's cache while the whole Cluster is gone: known before, and never reached."""

    OUTAGES = ("add", "clear", "decr", "delete", "delete_many", "delete_pattern", "get", "incr", "keys", "set_many")

    @pytest.fixture(params=[True, False], ids=["known before", "never reached"])
    def gone(self, request: pytest.FixtureRequest, settings: Any) -> Iterator[None]:
        with running_cluster(cluster_program()) as own:
            settings.CACHES = cluster_caches(own, socket_timeout=0.2, socket_connect_timeout=0.2)
            if request.param:
                cache.set("a", 1)
            for server in own.servers:
                server.kill()
            yield

    def test_an_error_is_one_that_django_redis_knows(self, gone: Any) -> None:
        for name in self.OUTAGES:
            with pytest.raises((RedisConnectionError, ConnectionInterrupted, RedisClusterException)) as caught:
                ACTS[name](cache)
            assert not isinstance(caught.value, RedisClusterException), name

    def test_where_exceptions_are_ignored_they_are(self, gone: None) -> None:
        site: Any = caches["default"]
        site._ignore_exceptions = True  # as IGNORE_EXCEPTIONS makes it
        assert (site.get("a"), site.get_many(["a"]), site.set("a", 1), site.add("a", 1)) == (None, {}, None, None)
        assert (site.set_many({"a": 1}), site.delete_pattern("*"), site.incr("a")) == (None,) * 3
        assert (site.delete_many(["a"]), site.delete("a"), site.has_key("a"), site.clear()) == (None,) * 4


class TestMakingTheClient:
    """Many threads want the client of a Cluster that nobody has reached yet."""

    class Client:
        def __init__(self) -> None:
            self.closed = 0

        def close(self) -> None:
            self.closed += 1

    PLACES = (["redis://hangs:1"], ["redis://hangs:1"], ["redis://hangs:1"], ["redis://lives:1"])

    @pytest.fixture
    def wanted(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[Any]]:
        """Let four threads want one at once, of two places; making one goes on once all four are at it."""
        all_at_it = threading.Barrier(len(self.PLACES), timeout=60)
        factory: Any = ClusterConnectionFactory({})
        monkeypatch.setattr(ClusterConnectionFactory, "_clusters", {})

        def want(make: Callable[[], Any]) -> list[Any]:
            def made(self: Any, urls: list[str]) -> Any:
                all_at_it.wait()
                return make()

            monkeypatch.setattr(ClusterConnectionFactory, "_made", made)
            with ThreadPoolExecutor(len(self.PLACES)) as threads:
                return [each.exception() or each.result() for each in [
                    threads.submit(factory.connect_to, place) for place in self.PLACES
                ]]  # fmt: skip

        return want

    def test_servers_that_hang_hold_up_nobody_behind_another(self, wanted: Any) -> None:
        def fails() -> None:
            raise RedisConnectionError("hangs")

        found = wanted(fails)
        assert [str(error) for error in found] == ["hangs"] * 4

    def test_the_first_one_is_for_all_and_the_others_are_closed(self, wanted: Any) -> None:
        made: list[TestMakingTheClient.Client] = []

        def makes() -> Any:
            made.append(self.Client())
            return made[-1]

        *same, other = wanted(makes)
        assert same == [same[0]] * 3
        assert other is not same[0]
        assert sorted(client.closed for client in made) == [0, 0, 1, 1]
        assert (same[0].closed, other.closed) == (0, 0)
        assert ClusterConnectionFactory({}).connect_to(self.PLACES[0]) is same[0]
