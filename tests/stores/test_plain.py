"""Plain commands: they go by the settings of the alias, but never wait for ever, and leave a dead server alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import caches as djangos
from django_redis import get_redis_connection

from django_quota.exceptions import StoreUnavailable
from django_quota.limiter import get_limiter
from django_quota.operations.once import Once
from django_quota.stores.breaker import FAILURES, PAUSE, Breaker
from django_quota.stores.plain import PLAIN_WITHIN, plain_client
from django_quota.stores.redis import RedisStore
from django_quota.testing import RedisServer
from tests.clusters import Cluster
from tests.conftest import caches
from tests.failures.places import Clock
from tests.failures.sockets import saying
from tests.stores.test_sentinel import behind, sentinel_port

__all__ = ["sentinel_port"]


def timeouts_of(client: Any) -> tuple[Any, Any]:
    options = client.connection_pool.connection_kwargs
    return options.get("socket_timeout"), options.get("socket_connect_timeout")


def store() -> RedisStore:
    found = get_limiter().store
    assert isinstance(found, RedisStore)
    return found


def test_an_alias_that_sets_none_has_time_outs_for_us_and_none_for_others(
    redis_server: RedisServer, settings: Any
) -> None:
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url}}
    with store().commands() as client:
        assert client.ping()
        assert timeouts_of(client) == (PLAIN_WITHIN, PLAIN_WITHIN)
    assert timeouts_of(get_redis_connection("default")) == (None, None)


def test_time_outs_of_the_alias_hold_and_what_it_does_not_set_is_added(
    redis_server: RedisServer, settings: Any
) -> None:
    settings.CACHES = caches(redis_server)
    with store().commands() as client:
        assert client is get_redis_connection("default")
    pool = redis.ConnectionPool.from_url(redis_server.url, socket_timeout=9)
    with redis.Redis(connection_pool=pool) as given:
        made = plain_client(given)
        assert timeouts_of(made) == (9, PLAIN_WITHIN)
        made.close()


def test_behind_sentinel_the_primary_is_asked(sentinel_port: int, settings: Any) -> None:
    settings.CACHES = {"default": {**behind(sentinel_port), "LOCATION": "redis://quotas/3"}}
    with store().commands() as client:
        client.set("a", "b")
        assert client.info("replication")["role"] == "master"
        assert set(client.info("keyspace")) == {"db3"}
        assert timeouts_of(client) == (PLAIN_WITHIN, PLAIN_WITHIN)


def test_on_a_cluster_each_server_has_time_outs(cluster: Cluster, settings: Any) -> None:
    alias = settings.CACHES["default"]
    settings.CACHES = {"default": {**alias, "OPTIONS": {"CLIENT_CLASS": alias["OPTIONS"]["CLIENT_CLASS"]}}}
    for server in store().servers():
        with store().commands(server) as client:
            assert client.ping()
            assert timeouts_of(client) == (PLAIN_WITHIN, PLAIN_WITHIN)
    djangos["default"].set("a", 1)


@pytest.fixture
def mute(tmp_path_factory: pytest.TempPathFactory, settings: Any) -> Iterator[socket.socket]:
    """A server that takes connections and says nothing; the alias waits for it a little while."""
    place = tmp_path_factory.mktemp("m") / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(64)
        settings.CACHES = caches(RedisServer(f"unix://{place}", 0, Path()), socket_timeout=0.05)
        yield listener


def times_called(listener: socket.socket) -> int:
    listener.setblocking(False)
    called = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return called
        called += 1


def test_a_server_that_hangs_is_left_alone_after_a_few_tries(mute: socket.socket) -> None:
    found = store()
    found.breaker = Breaker(clock=lambda: 1_000.0)
    for _ in range(FAILURES):
        with pytest.raises(StoreUnavailable), found.commands() as client:
            client.ping()
    assert found.breaker.is_open
    times_called(mute)
    with pytest.raises(StoreUnavailable, match="several times in a row"), found.commands() as client:
        client.ping()
    assert times_called(mute) == 0


def test_what_goes_wrong_in_the_caller_says_nothing_of_the_server(redis_cache: RedisServer) -> None:
    found = store()
    clock = [1_000.0]
    found.breaker = Breaker(clock=lambda: clock[0])
    for _ in range(FAILURES):
        found.breaker.failed()
    clock[0] += 1
    with pytest.raises(LookupError), found.commands():
        raise LookupError
    assert found.breaker.is_open
    with found.commands() as client:  # the next one has its turn at once
        assert client.ping()
    assert not found.breaker.is_open


def test_a_reply_that_is_an_error_shows_that_the_server_is_there(redis_cache: RedisServer, raw: Any) -> None:
    found = store()
    found.breaker.failed()
    raw.set("a", "b")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"), found.commands() as client:
        client.hgetall("a")
    for _ in range(FAILURES - 1):
        found.breaker.failed()
    assert not found.breaker.is_open


@pytest.mark.parametrize("words", [b":abc\r\n", b"*1\r\n:1\r\n", b"%1\r\n:1\r\n:1\r\n", b"?\r\n"])
def test_what_redis_py_stumbles_over_is_ours(words: bytes, settings: Any) -> None:
    with saying(words) as port:
        settings.CACHES = caches(RedisServer(f"redis://127.0.0.1:{port}/0", 0, Path()), socket_timeout=5)
        with pytest.raises(StoreUnavailable), store().commands() as client:
            client.info("memory")


def test_what_the_caller_stumbles_over_is_its_own(redis_cache: RedisServer) -> None:
    with pytest.raises(ValueError, match="abc"), store().commands() as client:
        int(f"abc{client.ping()}")


def opened(clock: Clock) -> Breaker:
    """Return a breaker that has been open for as long as a pause is."""
    breaker = Breaker(clock=clock)
    for _ in range(FAILURES):
        breaker.failed()
    clock.now += PAUSE
    return breaker


def asks_within(kind: str) -> None:
    """Make a call within a block of plain commands."""
    with store().commands() as client:
        if kind == "run":
            assert store().run(Once("quota:1:{!}:told:x", 60_000_000)) == 1
        else:
            with store().commands() as inner:
                assert inner.time()
        assert client.time()


@pytest.mark.parametrize("kind", ["run", "commands"])
def test_a_call_in_the_block_that_finds_out_whether_it_is_back_is_made(kind: str, redis_cache: RedisServer) -> None:
    store().breaker = opened(Clock())
    asks_within(kind)
    assert not store().breaker.is_open


@pytest.mark.parametrize("kind", ["run", "commands"])
def test_a_call_in_the_block_of_a_server_of_a_cluster_is_made(kind: str, cluster: Cluster) -> None:
    found: Any = store()
    node = found._nodes[found.server_of("quota:1:{!}:told:x")]
    node.breaker = opened(Clock())
    asks_within(kind)
    assert not node.breaker.is_open


def test_where_it_is_not_back_the_block_is_the_only_one_that_finds_out(settings: Any) -> None:
    settings.CACHES = caches(RedisServer("redis://127.0.0.1:1/0", 0, Path()))
    clock, store_ = Clock(), store()
    store_.breaker = opened(clock)

    def twice() -> None:
        with store_.commands():
            with pytest.raises(StoreUnavailable, match="refused"):
                store_.run(Once("quota:1:{!}:told:x", 60_000_000))
            store_.run(Once("quota:1:{!}:told:x", 60_000_000))

    with pytest.raises(StoreUnavailable, match="several times in a row"):
        twice()
