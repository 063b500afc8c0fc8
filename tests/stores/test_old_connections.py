"""Connections that were forgotten on the way are replaced: they cost one decision, and none if they idled for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from django_quota import acheck, check
from django_quota.testing import running_redis, server_programs
from tests.faults.calls import caches_at
from tests.faults.sockets import Firewall, listening
from tests.support.calls import both
from tests.support.clusters import Cluster
from tests.support.outages import heard
from tests.support.ports import free_port
from tests.support.selection import thorough
from tests.support.stores import cluster_caches, current_store

OLD = 8
"""How many connections idle."""

IDLE = "django_quota.stores.redis.connections.CHECK_AFTER_IDLE"

Forget = Callable[[], None]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_redis(server_programs()[0], "--port", str(found := free_port())):
        yield found


@pytest.fixture(params=["one server", thorough("topology", "a Cluster")])
def place(request: pytest.FixtureRequest) -> Any:
    if request.param == "one server":
        return request.getfixturevalue("port")
    return request.getfixturevalue("cluster")


@pytest.fixture(params=["reset", thorough("slow", "silence")])
def forget(request: pytest.FixtureRequest, place: Any, settings: Any) -> Iterator[Forget]:
    """Put a firewall before each server; yields what makes it forget all connections."""
    ports = [server.port for server in place.servers] if isinstance(place, Cluster) else [place]
    firewalls = [Firewall(port, request.param) for port in ports]
    with ExitStack() as stack:
        led_by = dict(zip(ports, [stack.enter_context(listening(each.serve)) for each in firewalls], strict=True))
        if isinstance(place, Cluster):
            settings.CACHES = cluster_caches(place)
            timeouts = {"SOCKET_TIMEOUT": 1.0, "SOCKET_CONNECT_TIMEOUT": 1.0}
            remap = {"address_remap": lambda at: (at[0], led_by.get(at[1], at[1]))}
            settings.CACHES["default"]["OPTIONS"].update(timeouts, REDIS_CLIENT_KWARGS=remap)
        else:
            settings.CACHES = caches_at(f"redis://127.0.0.1:{led_by[place]}/0", 1.0)

        def forget_all() -> None:
            for each in firewalls:
                each.forget()

        yield forget_all
        current_store().close()


def pool_of(side: Any) -> Any:
    """Return the connections that the last decision used."""
    return next(iter(side._pools.values())) if hasattr(side, "_pools") else side


def degraded(kind: str, forget: Forget) -> list[bool]:
    """Return which of the decisions after all connections were forgotten were made without Redis."""
    store = current_store()

    async def ask() -> list[bool]:
        await acheck("99/m", "user:1")
        side = await (store._by_loop if hasattr(store, "_by_loop") else store.server.wires).get()
        pool = pool_of(side)
        assert pool._line is not None
        forget()
        return [(await acheck("99/m", "user:1")).degraded for _ in range(OLD)]

    if kind == "async":
        return asyncio.run(ask())
    check("99/m", "user:1")
    pool = pool_of(store._sync if hasattr(store, "_sync") else store.server.pool)
    for wire in [pool._connected() for _ in range(OLD)]:
        pool._keep(wire)
    forget()
    return [check("99/m", "user:1").degraded for _ in range(OLD)]


@both
def test_connections_that_were_forgotten_after_they_idled_cost_no_decision(
    kind: str, forget: Forget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IDLE, 0)
    with heard() as reported:
        assert degraded(kind, forget) == [False] * OLD
    assert reported == []


@pytest.mark.thorough("slow")
@both
def test_forgotten_connections_cost_one_decision(kind: str, forget: Forget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IDLE, 60)
    assert degraded(kind, forget) == [True] + [False] * (OLD - 1)
