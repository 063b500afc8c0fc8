"""Websockets of Channels on the servers that people run: uvicorn and daphne, each a process of its own."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
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


class Site:
    """A server on a port."""

    def __init__(self, program: str, redis_server: RedisServer) -> None:
        self.program, self.port = program, free_port()
        environment = {**os.environ, "SITE_CACHES": json.dumps(caches(redis_server))}
        arguments = [*SERVERS[program](self.port), "tests.contrib.socket_site:application"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL
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

    def socket(self, query: str = "") -> connect:
        url = f"ws://127.0.0.1:{self.port}/?who=ann{query}"
        return connect(url, open_timeout=PATIENCE, proxy=None)


@pytest.fixture(params=SERVERS)
def site(request: pytest.FixtureRequest, redis_server: RedisServer, raw: Any) -> Iterator[Site]:
    made = Site(request.param, redis_server)
    yield made
    made.process.kill()
    made.process.wait(PATIENCE)


def test_a_handshake_is_refused_with_a_429_and_a_message_with_a_notice_and_the_code_4429(site: Site) -> None:
    async def work() -> tuple[Any, list[str], Any]:
        with pytest.raises(InvalidStatus) as refused:
            await site.socket("&refused")
        got = []
        async with site.socket() as socket:
            for text in ("one", "two", "three", "four"):
                await socket.send(text)
                got.append(str(await socket.recv()))
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
        return refused.value.response, got, closed.value.rcvd

    response, got, closed = asyncio.run(work())
    if site.program == "daphne":
        assert response.status_code == 403
    else:
        assert (response.status_code, json.loads(response.body)["status"]) == (429, 429)
        assert "RateLimit-Policy" in response.headers
    assert got[:3] == ["one", "two", "three"]
    assert json.loads(got[3])["type"] == "quota.refused"
    assert closed.code == 4429
