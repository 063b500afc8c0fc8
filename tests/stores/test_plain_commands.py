"""Plain commands use the settings of the alias, but never wait for ever, and do not ask a dead server."""

from pathlib import Path
from typing import Any

import pytest
from django_redis import get_redis_connection

from django_quota import once
from django_quota.adapters import digest
from django_quota.exceptions import StoreUnavailable
from django_quota.stores.breaker import Breaker
from django_quota.testing import RedisServer
from tests.support.clusters import Cluster
from tests.support.outages import FAILURES, due_breaker, fail, new_breaker
from tests.support.stores import caches, redis_store

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
    alias = settings.CACHES["default"]
    settings.CACHES = {"default": {**alias, "OPTIONS": {"SOCKET_TIMEOUT": 9}}}
    with redis_store().commands() as client:
        assert timeouts_of(client) == (9, PLAIN_TIMEOUT)


def test_an_error_of_the_caller_or_a_reply_is_no_failure_of_the_server(redis_cache: RedisServer, raw: Any) -> None:
    for _ in range(FAILURES):
        with pytest.raises(ValueError, match="abc"), redis_store().commands() as client:
            int(f"abc{client.time()}")
    assert not redis_store().is_refusing()
    breaker = new_breaker()
    fail(breaker, 1)
    raw.set("a", "b")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"), redis_store().commands() as client:
        client.hgetall("a")
    fail(breaker, FAILURES - 1)
    assert not breaker.is_open


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


def test_a_call_within_a_probing_block_of_a_cluster_server_is_made(cluster: Cluster, settings: Any) -> None:
    alias = settings.CACHES["default"]
    settings.CACHES = {"default": {**alias, "OPTIONS": {"CLIENT_CLASS": alias["OPTIONS"]["CLIENT_CLASS"]}}}
    found: Any = redis_store()
    server = found.server_of("{!}")  # of plain commands
    value = next(each for each in "abcdefghijklmnop" if found.server_of(f"{{once:{digest(each)}}}") == server)
    breaker = found._breakers[server] = due_breaker(of=Breaker())
    asks_within("run", value)
    assert not breaker.is_open
    with found.commands(server) as client:
        assert timeouts_of(client) == (PLAIN_TIMEOUT, PLAIN_TIMEOUT)


def test_plain_commands_probe_a_server_that_is_gone_and_nobody_else_waits(settings: Any) -> None:
    settings.CACHES = caches(RedisServer("redis://127.0.0.1:1/0", 0, Path()))
    due_breaker()
    for words in ("refused", "several times in a row"):
        with pytest.raises(StoreUnavailable, match=words), redis_store().commands():
            pytest.fail("the block began")
