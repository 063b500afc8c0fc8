"""Connections that were forgotten on the way are replaced: they cost one decision, and none if they idled for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_quota import acheck, check
from django_quota.testing import running_redis, server_programs
from tests.faults.calls import caches_at
from tests.faults.sockets import Firewall, listening
from tests.support.outages import heard
from tests.support.ports import free_port
from tests.support.stores import redis_store

OLD = 8
"""How many connections idle."""

CONNECTIONS = "django_quota.stores.redis.connections"


@pytest.fixture(scope="module")
def by_port() -> Iterator[int]:
    port = free_port()
    with running_redis(server_programs()[0], "--port", str(port)):
        yield port


@pytest.fixture(params=["reset", "silence"])
def firewall(request: pytest.FixtureRequest, by_port: int, settings: Any) -> Iterator[Firewall]:
    firewall = Firewall(by_port, request.param)
    with listening(firewall.serve) as port:
        settings.CACHES = caches_at(f"redis://127.0.0.1:{port}/0", 1.0)
        yield firewall
        redis_store().close()


def degraded(kind: str, firewall: Firewall) -> list[bool]:
    """Return which of the decisions after the firewall forgot all connections were made without Redis."""

    async def ask() -> list[bool]:
        pool = await redis_store().server.async_pools.get()
        pool._idle += [(await pool._connected(), time.monotonic()) for _ in range(OLD)]
        firewall.forget()
        return [(await acheck("99/m", "user:1")).degraded for _ in range(OLD)]

    if kind == "async":
        return asyncio.run(ask())
    pool = redis_store().server.pool
    pool._idle += [(pool._connected(), time.monotonic()) for _ in range(OLD)]
    firewall.forget()
    return [check("99/m", "user:1").degraded for _ in range(OLD)]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_connections_that_idled_for_long_and_were_forgotten_cost_no_decision(
    kind: str, firewall: Firewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CONNECTIONS}.IDLE", 0)
    with heard() as reported:
        assert degraded(kind, firewall) == [False] * OLD
    assert reported == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_forgotten_connections_cost_one_decision(
    kind: str, firewall: Firewall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{CONNECTIONS}.IDLE", 60)
    assert degraded(kind, firewall) == [True] + [False] * (OLD - 1)
