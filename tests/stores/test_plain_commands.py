"""Plain commands use the settings of the alias, but never wait for ever, and do not ask a dead server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.cache import caches as djangos
from django_redis import get_redis_connection

from django_quota.engine.subject_operations import Once
from django_quota.exceptions import StoreUnavailable
from django_quota.stores.redis.breaker import FAILURES, RESET_TIMEOUT, Breaker
from django_quota.stores.redis.config import PLAIN_TIMEOUT
from django_quota.stores.redis.connections import plain_client
from django_quota.testing import RedisServer
from tests.faults.sockets import saying
from tests.support.clusters import Cluster
from tests.support.sentinels import behind
from tests.support.steps import Clock
from tests.support.stores import caches, redis_store


def timeouts_of(client: Any) -> tuple[Any, Any]:
    options = client.connection_pool.connection_kwargs
    return options.get("socket_timeout"), options.get("socket_connect_timeout")


def test_plain_commands_have_timeouts_where_the_alias_sets_none(redis_server: RedisServer, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_server.url}}
    with redis_store().commands() as client:
        assert client.ping()
        assert timeouts_of(client) == (PLAIN_TIMEOUT, PLAIN_TIMEOUT)
    assert timeouts_of(get_redis_connection("default")) == (None, None)


def test_timeouts_of_the_alias_win(redis_server: RedisServer, settings: Any) -> None:
    settings.CACHES = caches(redis_server)
    with redis_store().commands() as client:
        assert client is get_redis_connection("default")
    pool = redis.ConnectionPool.from_url(redis_server.url, socket_timeout=9)
    with redis.Redis(connection_pool=pool) as given:
        made = plain_client(given)
        assert timeouts_of(made) == (9, PLAIN_TIMEOUT)
        made.close()


def test_plain_commands_behind_sentinel_go_to_the_primary(sentinel_port: int, settings: Any) -> None:
    settings.CACHES = {"default": {**behind(sentinel_port), "LOCATION": "redis://quotas/3"}}
    with redis_store().commands() as client:
        client.set("a", "b")
        assert client.info("replication")["role"] == "master"
        assert set(client.info("keyspace")) == {"db3"}
        assert timeouts_of(client) == (PLAIN_TIMEOUT, PLAIN_TIMEOUT)


def test_each_server_of_a_cluster_has_timeouts(cluster: Cluster, settings: Any) -> None:
    alias = settings.CACHES["default"]
    settings.CACHES = {"default": {**alias, "OPTIONS": {"CLIENT_CLASS": alias["OPTIONS"]["CLIENT_CLASS"]}}}
    for server in redis_store().servers():
        with redis_store().commands(server) as client:
            assert client.ping()
            assert timeouts_of(client) == (PLAIN_TIMEOUT, PLAIN_TIMEOUT)
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


def test_a_server_that_hangs_opens_the_breaker(mute: socket.socket) -> None:
    found = redis_store()
    found.server.breaker = Breaker(clock=lambda: 1_000.0)
    for _ in range(FAILURES):
        with pytest.raises(StoreUnavailable), found.commands() as client:
            client.ping()
    assert found.server.breaker.is_open
    times_called(mute)
    with pytest.raises(StoreUnavailable, match="several times in a row"), found.commands() as client:
        client.ping()
    assert times_called(mute) == 0


def test_an_error_of_the_caller_does_not_count_as_a_failure(redis_cache: RedisServer) -> None:
    found = redis_store()
    clock = [1_000.0]
    found.server.breaker = Breaker(clock=lambda: clock[0])
    for _ in range(FAILURES):
        found.server.breaker.failed()
    clock[0] += 1
    with pytest.raises(LookupError), found.commands():
        raise LookupError
    assert found.server.breaker.is_open
    with found.commands() as client:  # the next one has its probe at once
        assert client.ping()
    assert not found.server.breaker.is_open


def test_an_error_reply_shows_that_the_server_is_there(redis_cache: RedisServer, raw: Any) -> None:
    found = redis_store()
    found.server.breaker.failed()
    raw.set("a", "b")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"), found.commands() as client:
        client.hgetall("a")
    for _ in range(FAILURES - 1):
        found.server.breaker.failed()
    assert not found.server.breaker.is_open


@pytest.mark.parametrize("words", [b"%1\r\n:1\r\n:1\r\n", b"?\r\n"])
def test_a_server_that_is_no_redis_raises_store_unavailable(words: bytes, settings: Any) -> None:
    with saying(words) as port:
        settings.CACHES = caches(RedisServer(f"redis://127.0.0.1:{port}/0", 0, Path()), socket_timeout=5)
        with pytest.raises(StoreUnavailable), redis_store().commands() as client:
            client.info("memory")


def test_an_error_of_the_caller_stays_as_it_is(redis_cache: RedisServer) -> None:
    with pytest.raises(ValueError, match="abc"), redis_store().commands() as client:
        int(f"abc{client.ping()}")


def opened(clock: Clock) -> Breaker:
    """Return a breaker that has been open for as long as a pause is."""
    breaker = Breaker(clock=clock)
    for _ in range(FAILURES):
        breaker.failed()
    clock.now += RESET_TIMEOUT
    return breaker


def asks_within(kind: str) -> None:
    """Make a call within a block of plain commands."""
    with redis_store().commands() as client:
        if kind == "run":
            assert redis_store().run(Once("quota:1:{!}:sent:x", 60_000_000)) == 1
        else:
            with redis_store().commands() as inner:
                assert inner.time()
        assert client.time()


@pytest.mark.parametrize("kind", ["run", "commands"])
def test_a_call_within_a_probing_block_is_made(kind: str, redis_cache: RedisServer) -> None:
    redis_store().server.breaker = opened(Clock())
    asks_within(kind)
    assert not redis_store().server.breaker.is_open


@pytest.mark.parametrize("kind", ["run", "commands"])
def test_a_call_within_a_probing_block_of_a_cluster_server_is_made(kind: str, cluster: Cluster) -> None:
    found: Any = redis_store()
    node = found._router.node(found.server_of("quota:1:{!}:sent:x"))
    node.breaker = opened(Clock())
    asks_within(kind)
    assert not node.breaker.is_open


def test_only_the_probing_block_waits_for_a_server_that_is_gone(settings: Any) -> None:
    settings.CACHES = caches(RedisServer("redis://127.0.0.1:1/0", 0, Path()))
    clock, store_ = Clock(), redis_store()
    store_.server.breaker = opened(clock)

    def twice() -> None:
        with store_.commands():
            with pytest.raises(StoreUnavailable, match="refused"):
                store_.run(Once("quota:1:{!}:sent:x", 60_000_000))
            store_.run(Once("quota:1:{!}:sent:x", 60_000_000))

    with pytest.raises(StoreUnavailable, match="several times in a row"):
        twice()
