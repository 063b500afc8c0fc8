"""An alias that is configured for Sentinel: a real primary and a real sentinel, sync and async."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from django_quota import acheck, check
from django_quota.testing import RedisServer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers_ping(port: int) -> bool:
    try:
        with redis.Redis(port=port) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.fixture
def sentinel_port(redis_server: RedisServer, tmp_path: Path) -> Iterator[int]:
    """A primary named "quotas" and the sentinel that watches it, on ports of their own."""
    primary, watcher = free_port(), free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(f"port {watcher}\ndir {tmp_path}\nsentinel monitor quotas 127.0.0.1 {primary} 1\n")
    program = str(redis_server.program)
    processes = [
        subprocess.Popen(
            [program, "--port", str(primary), "--save", "", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL
        ),
        subprocess.Popen([program, str(config), "--sentinel"], stdout=subprocess.DEVNULL),
    ]
    try:
        deadline = time.monotonic() + 20
        while not (answers_ping(primary) and answers_ping(watcher)):
            assert time.monotonic() < deadline, "the sentinel did not start"
        yield watcher
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def test_an_alias_behind_sentinel_limits_sync_and_async(sentinel_port: int, settings: Any) -> None:
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": "redis://quotas/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [("127.0.0.1", sentinel_port)],
            },
        }
    }

    async def race() -> int:
        return sum(map(bool, await asyncio.gather(*(acheck("50/m", "ip:192.0.2.1") for _ in range(60)))))

    admitted = sum(map(bool, (check("50/m", "ip:192.0.2.1") for _ in range(20))))
    assert (admitted, asyncio.run(race())) == (20, 30)
