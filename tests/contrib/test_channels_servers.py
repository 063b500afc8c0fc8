"""Websockets of Channels on the servers that people run: uvicorn and daphne, each a process of its own."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from django_quota.testing import RedisServer
from tests.support.commands import PATIENCE, ROOT, Manage, wait_until
from tests.support.ports import free_port
from tests.support.stores import caches

pytestmark = pytest.mark.thorough("processes")

SERVERS = {"uvicorn": ["--lifespan", "off", "--log-level", "error"], "daphne": ["--verbosity", "0"]}


@pytest.fixture(params=SERVERS)
def server(
    request: pytest.FixtureRequest, redis_server: RedisServer, raw: Any, tmp_path: Path
) -> Iterator[tuple[str, int]]:
    """The program, and its port."""
    port = free_port()
    words = [request.param, "--port", str(port), *SERVERS[request.param], "tests.contrib.socket_site:application"]
    environment = Manage(tmp_path, caches(redis_server)).environment
    process = subprocess.Popen([sys.executable, "-m", *words], env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)

    def answers() -> bool:
        assert process.poll() is None, "the server has ended"
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers)
        yield request.param, port
    finally:
        process.kill()
        process.wait(PATIENCE)


def test_a_handshake_is_refused_with_a_429_and_a_message_with_the_code_4429(server: tuple[str, int]) -> None:
    program, port = server

    def opened(query: str) -> connect:
        return connect(f"ws://127.0.0.1:{port}/?who=ann{query}", open_timeout=PATIENCE, proxy=None)

    async def work() -> tuple[Any, list[str], Any]:
        with pytest.raises(InvalidStatus) as refused:
            await opened("&refused")
        got = []
        async with opened("") as client:
            for text in ("one", "two", "three", "four"):
                await client.send(text)
                got.append(str(await client.recv()))
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
        return refused.value.response, got, closed.value.rcvd

    response, got, closed = asyncio.run(work())
    if program == "daphne":
        assert response.status_code == 403
    else:
        assert (response.status_code, json.loads(response.body)["status"]) == (429, 429)
        assert "RateLimit-Policy" in response.headers
    assert got[:3] == ["one", "two", "three"]
    assert json.loads(got[3])["type"] == "quota.refused"
    assert closed.code == 4429
