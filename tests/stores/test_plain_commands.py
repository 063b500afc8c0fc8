"""Plain commands use the settings of the alias, but never wait for ever, and do not ask a dead server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.cache import caches as djangos
from django_redis import get_redis_connection

from django_quota import once
from django_quota.adapters import digest
from django_quota.exceptions import StoreUnavailable
from django_quota.testing import RedisServer
from tests.faults.sockets import saying
from tests.support.clusters import Cluster
from tests.support.outages import FAILURES, due_breaker, fail, new_breaker
from tests.support.sentinels import behind, times_called
from tests.support.steps import Clock
from tests.support.stores import caches, forget_connections, redis_store

PLAIN_TIMEOUT = 2.0
"""Seconds that the admin and the commands wait where the alias sets none: docs/redis.md."""


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
        assert client.connection_pool is get_redis_connection("default").connection_pool
    alias = settings.CACHES["default"]
    settings.CACHES = {"default": {**alias, "OPTIONS": {"SOCKET_TIMEOUT": 9}}}
    forget_connections()
    with redis_store().commands() as client:
        assert timeouts_of(client) == (9, PLAIN_TIMEOUT)


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


def test_a_server_that_hangs_opens_the_breaker(mute: socket.socket) -> None:
    found = redis_store()
    new_breaker(Clock())
    for _ in range(FAILURES):
        with pytest.raises(StoreUnavailable), found.commands() as client:
            client.ping()
    assert found.server.breaker.is_open
    times_called(mute)
    with pytest.raises(StoreUnavailable, match="several times in a row"), found.commands() as client:
        client.ping()
    assert times_called(mute) == 0


def test_an_error_of_the_caller_does_not_count_as_a_failure(redis_cache: RedisServer) -> None:
    breaker = due_breaker()
    for _ in range(FAILURES):
        with pytest.raises(LookupError), redis_store().commands():
            raise LookupError
        assert not breaker.is_open  # the server has answered before the block began


def test_an_error_reply_shows_that_the_server_is_there(redis_cache: RedisServer, raw: Any) -> None:
    found, breaker = redis_store(), new_breaker()
    fail(breaker, 1)
    raw.set("a", "b")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"), found.commands() as client:
        client.hgetall("a")
    fail(breaker, FAILURES - 1)
    assert not breaker.is_open


@pytest.mark.parametrize("words", [b"%1\r\n:1\r\n:1\r\n", b"?\r\n"])
def test_a_server_that_is_no_redis_raises_store_unavailable(words: bytes, settings: Any) -> None:
    with saying(words) as port:
        settings.CACHES = caches(RedisServer(f"redis://127.0.0.1:{port}/0", 0, Path()), socket_timeout=5)
        with pytest.raises(StoreUnavailable), redis_store().commands() as client:
            client.info("memory")


def test_an_error_of_the_caller_stays_as_it_is(redis_cache: RedisServer) -> None:
    with pytest.raises(ValueError, match="abc"), redis_store().commands() as client:
        int(f"abc{client.ping()}")


def asks_within(kind: str, value: str = "1") -> None:
    """Make a call within a block of plain commands."""
    with redis_store().commands() as client:
        if kind == "run":
            assert once("event", value)
        else:
            with redis_store().commands() as inner:
                assert inner.time()
        assert client.time()


@pytest.mark.parametrize("kind", ["run", "commands"])
def test_a_call_within_a_probing_block_is_made(kind: str, redis_cache: RedisServer) -> None:
    breaker = due_breaker()
    asks_within(kind)
    assert not breaker.is_open


@pytest.mark.parametrize("kind", ["run", "commands"])
def test_a_call_within_a_probing_block_of_a_cluster_server_is_made(kind: str, cluster: Cluster) -> None:
    found: Any = redis_store()
    server = found.server_of("{!}")  # of plain commands
    value = next(each for each in "abcdefghijklmnop" if found.server_of(f"{{once:{digest(each)}}}") == server)
    breaker = found._breakers[server] = due_breaker(of=SimpleNamespace())
    asks_within(kind, value)
    assert not breaker.is_open


def test_plain_commands_probe_a_server_that_is_gone_and_nobody_else_waits(settings: Any) -> None:
    settings.CACHES = caches(RedisServer("redis://127.0.0.1:1/0", 0, Path()))
    due_breaker()
    for words in ("refused", "several times in a row"):
        with pytest.raises(StoreUnavailable, match=words), redis_store().commands():
            pytest.fail("the block began")
