"""Websockets of Channels on the servers that people run: uvicorn and daphne, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from django_quota.testing import RedisServer
from tests.support.commands import PATIENCE, ROOT, wait_until
from tests.support.ports import free_port
from tests.support.stores import caches

pytestmark = pytest.mark.thorough("processes")

SERVERS: dict[str, Callable[[int], list[str]]] = {
    "uvicorn": lambda port: ["uvicorn", "--port", str(port), "--lifespan", "off", "--log-level", "error"],
    "daphne": lambda port: ["daphne", "--port", str(port), "--verbosity", "0"],
}
AT_ONCE = 400


class Site:
    """One server at a time on a port."""

    def __init__(self, program: str, redis_server: RedisServer) -> None:
        self.port = free_port()
        self._arguments = [*SERVERS[program](self.port), "tests.contrib.socket_site:application"]
        # A thousand handshakes keep a slow machine busy for seconds: they wait for a connection, which is no outage.
        site_caches = caches(redis_server, timeout=PATIENCE)
        site_caches["default"]["OPTIONS"]["CONNECTION_POOL_CLASS"] = "redis.BlockingConnectionPool"
        environment = {"SITE_CACHES": json.dumps(site_caches), "SITE_AT_ONCE": str(AT_ONCE)}
        self._environment = {**os.environ, **environment}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self._arguments], env=self._environment, cwd=ROOT, stdout=subprocess.DEVNULL
        )
        wait_until(lambda: asyncio.run(self.answers()))

    async def answers(self) -> bool:
        assert self.process.poll() is None, "the server has ended"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    @asynccontextmanager
    async def socket(self, who: str, path: str = "async/", query: str = "") -> AsyncIterator[ClientConnection]:
        url = f"ws://127.0.0.1:{self.port}/{path}?who={who}{query}"
        async with connect(url, open_timeout=PATIENCE, proxy=None) as socket:
            yield socket


@pytest.fixture(params=SERVERS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(program: str, redis_server: RedisServer, raw: Any) -> Iterator[Site]:
    made = Site(program, redis_server)
    yield made
    made.kill()


def test_a_refused_handshake_is_a_429_or_on_daphne_a_403(site: Site, program: str) -> None:
    async def work() -> Any:
        with pytest.raises(InvalidStatus) as refused:
            async with site.socket("ann", query="&refused"):
                raise AssertionError
        return refused.value.response

    response = asyncio.run(work())
    if program == "daphne":
        assert response.status_code == 403
        return
    assert (response.status_code, json.loads(response.body)["status"]) == (429, 429)
    assert "RateLimit-Policy" in response.headers


@pytest.mark.parametrize("path", ["async/", "sync/"])
def test_a_refused_message_gets_a_notice_and_the_close_code_4429(site: Site, path: str) -> None:
    async def work() -> tuple[list[str], int]:
        got = []
        async with site.socket("ann", path) as socket:
            for text in ("one", "two", "three", "four"):
                await socket.send(text)
                got.append(str(await socket.recv()))
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        return got, closed.value.rcvd.code  # type: ignore[union-attr]

    got, code = asyncio.run(work())
    assert got[:3] == ["one", "two", "three"]
    assert json.loads(got[3])["type"] == "quota.refused"
    assert code == 4429


async def open_at_once(site: Site, stack: AsyncExitStack, count: int) -> int:
    """Try to open so many sockets; return how many are open."""

    async def one() -> bool:
        status = 101
        try:
            await stack.enter_async_context(site.socket("ann"))
        except InvalidStatus as refused:
            status = refused.response.status_code
        assert status in (101, 403, 429)
        return status == 101

    return sum(await asyncio.gather(*(one() for _ in range(count))))


def test_so_many_sockets_open_as_may_and_those_of_a_killed_server_come_free(site: Site) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            assert await open_at_once(site, stack, 1_000) == AT_ONCE
            assert await open_at_once(site, stack, 10) == 0
            site.kill()
        await asyncio.to_thread(site.start)
        async with AsyncExitStack() as stack:
            opened = 0
            async with asyncio.timeout(PATIENCE):
                while opened < AT_ONCE:  # the leases end by themselves
                    opened += await open_at_once(site, stack, AT_ONCE - opened)
            assert await open_at_once(site, stack, 10) == 0

    asyncio.run(work())
