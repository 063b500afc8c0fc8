"""django-redis' own operations over a Cluster: each answers as it does on one server, or says that it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache, caches
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException

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


MANY = {f"k{n}": n for n in range(20)}
ACTS: dict[str, Act] = {
    "add": lambda c: [c.add("a", 1), c.add("a", 2), c.get("a")],
    "clear": lambda c: [c.set_many(MANY), c.clear(), c.get("k1")],
    "close": lambda c: [c.set("a", 1), c.close(), c.get("a")],
    "delete_many": lambda c: [c.set_many({"a": 1, "b": 2, "c": 3}), c.delete_many(["a", "b", "x"]), c.delete_many([])],
    "delete_pattern": lambda c: [c.set_many(MANY), c.delete_pattern("k1*"), c.delete_pattern("none*")],
    "get": lambda c: [c.get("none"), c.get("none", 3), c.set("a", {"x": [1]}), c.get("a")],
    "get_many": lambda c: [c.set_many({"a": 1, "b": None}), c.get_many(["a", "b", "c"]), c.get_many([])],
    "get_or_set": lambda c: [c.get_or_set("a", lambda: 7), c.get_or_set("a", 8)],
    "incr": lambda c: [c.set("a", 1), c.incr("a"), c.incr("a", 10), c.decr("a", 2)],
    "incr_version": lambda c: [c.set("a", 1), c.incr_version("a"), c.get("a"), c.get("a", version=2)],
    "iter_keys": lambda c: [c.set_many(MANY), sorted(c.iter_keys("k*"))],
    "keys": lambda c: [c.set_many(MANY), sorted(c.keys("k*"))],
    "lock": locked,
    "set_many": lambda c: [c.set_many({}), c.set_many({"a": 1, "b": 2}, timeout=9), c.get("b"), c.ttl("a") <= 9],
    "sunion": lambda c: [c.sadd("{s}1", 1), c.sadd("{s}2", 2), c.sunion("{s}1", "{s}2")],
    "touch": lambda c: [c.set("a", 1, 5), c.touch("a", 100), c.ttl("a") > 5, c.touch("none")],
}  # fmt: skip
"""Those on several keys, and some on one."""


@pytest.fixture
def single(started: Any, settings: Any, cluster: Cluster) -> Any:
    """A plain server of the cluster's version, beside it."""
    server = started(cluster.program)
    settings.CACHES = {**settings.CACHES, "single": caches_of(server)["default"]}
    caches["single"].clear()
    return caches["single"]


@pytest.mark.parametrize("name", ACTS)
def test_it_answers_as_on_one_server(name: str, single: Any, cluster: Cluster) -> None:
    assert ACTS[name](cache) == ACTS[name](single)


def test_sets_in_several_slots_are_a_clear_error(cluster: Cluster) -> None:
    for number in range(3):
        cache.sadd(f"s{number}", number)  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="slot"):
        cache.sunion("s0", "s1", "s2")  # type: ignore[attr-defined]


@pytest.fixture(params=[True, False], ids=["known before", "never reached"])
def gone(request: pytest.FixtureRequest, settings: Any) -> Iterator[None]:
    """The whole Cluster is gone: known before, or never reached."""
    with running_cluster(cluster_program()) as own:
        settings.CACHES = cluster_caches(own, socket_timeout=0.2, socket_connect_timeout=0.2)
        if request.param:
            cache.set("a", 1)
        for server in own.servers:
            server.kill()
        yield


@pytest.mark.thorough("topology")
def test_without_any_server_an_error_is_one_that_django_redis_knows(gone: None) -> None:
    for name in ("add", "clear", "delete_many", "delete_pattern", "get", "incr", "keys", "set_many"):
        with pytest.raises((RedisConnectionError, ConnectionInterrupted, RedisClusterException)) as caught:
            ACTS[name](cache)
        assert not isinstance(caught.value, RedisClusterException), name
    site: Any = caches["default"]
    site._ignore_exceptions = True  # as IGNORE_EXCEPTIONS makes it
    assert (site.get("a"), site.get_many(["a"]), site.set("a", 1), site.add("a", 1)) == (None, {}, None, None)
    assert (site.set_many({"a": 1}), site.delete_pattern("*"), site.incr("a"), site.clear()) == (None,) * 4
