"""A primary and a sentinel that watches it, and the alias of a site behind them."""

import itertools
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_quota.testing import RedisServer
from tests.support.commands import wait_until
from tests.support.ports import answers_ping, free_port


@pytest.fixture
def sentinel_port(redis_server: RedisServer, tmp_path: Path) -> Iterator[int]:
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
        wait_until(lambda: answers_ping(primary) and answers_ping(watcher))
        yield watcher
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def behind(*sentinel_ports: int, **options: Any) -> dict[str, Any]:
    return {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": "redis://quotas/0",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": [("127.0.0.1", port) for port in sentinel_ports],
            **options,
        },
    }


def times_called(listener: socket.socket) -> int:
    listener.setblocking(False)
    for number in itertools.count():
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return number
    raise AssertionError
