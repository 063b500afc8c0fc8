"""A primary, a sentinel that watches it, and the alias of a site that uses them."""

import copy
import itertools
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from django.test import override_settings
from django_redis.pool import ConnectionFactory

from django_quota.exceptions import StoreUnavailable
from django_quota.testing import RedisServer
from tests.chaos.servers import Process, Server, running
from tests.support.calls import RAISING_CALLS
from tests.support.commands import wait_until
from tests.support.ports import answers_ping, free_port


@contextmanager
def running_sentinel(program: Path, folder: Path, primary: int, *options: str) -> Iterator[int]:
    """Run a sentinel that watches a primary as "quotas"; yields its port. `options` are for what it watches."""
    port, config = free_port(), folder / "sentinel.conf"
    lines = [f"port {port}", f"dir {folder}", f"sentinel monitor quotas 127.0.0.1 {primary} 1", *options]
    config.write_text("\n".join(lines) + "\n")
    watcher = Process(str(program), str(config), "--sentinel")
    watcher.start()
    try:
        wait_until(lambda: answers_ping(port))
        yield port
    finally:
        watcher.kill()


@pytest.fixture
def sentinel_port(redis_server: RedisServer, tmp_path: Path) -> Iterator[int]:
    primary = Server(redis_server.program, tmp_path, port=free_port())
    with running(primary), running_sentinel(redis_server.program, tmp_path, primary.port) as port:
        yield port


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


def reasons_both_ways(caches: dict[str, Any], secret: str = "") -> list[str]:
    """Return why a new sync and a new async client find no Redis; the secret must be in no traceback."""
    ConnectionFactory._pools.clear()  # by LOCATION, which is the same each time
    reasons = []
    for ask in RAISING_CALLS:
        with override_settings(CACHES=copy.deepcopy(caches)), pytest.raises(StoreUnavailable) as caught:
            ask()
        assert not secret or secret not in "".join(traceback.format_exception(caught.value))
        reasons.append(caught.value.reason)
    return reasons


def played_sentinels(address: tuple[str, int] = ("h", 1), clients: int = 1, *, is_master: bool = True) -> Any:
    """Return a pool of so many sentinels that a test plays. `address`: of the primary that they name."""
    manager = SimpleNamespace(sentinels=[Mock() for _ in range(clients)])
    return SimpleNamespace(sentinel_manager=manager, is_master=is_master, master_address=address)
