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


def opened(port: int, query: str = "") -> connect:
    return connect(f"ws://127.0.0.1:{port}/?who=ann{query}", open_timeout=PATIENCE, proxy=None)


def test_a_refused_handshake_is_a_429_or_else_a_403(server: tuple[str, int]) -> None:
    """Daphne cannot answer a handshake with a response: it closes it, which is a 403."""
    program, port = server

    async def refused() -> Any:
        with pytest.raises(InvalidStatus) as raised:
            await opened(port, "&refused")
        return raised.value.response

    response = asyncio.run(refused())

    if program == "daphne":
        assert response.status_code == 403
    else:
        assert response.status_code == 429
        assert json.loads(response.body)["status"] == 429
        assert "RateLimit-Policy" in response.headers


def test_a_refused_message_closes_the_socket_with_the_code_4429(server: tuple[str, int]) -> None:
    """Three messages pass; the fourth gets a notice."""
    _, port = server

    async def talk() -> tuple[list[str], Any]:
        got = []
        async with opened(port) as client:
            for text in ("one", "two", "three", "four"):
                await client.send(text)
                got.append(str(await client.recv()))
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
        return got, closed.value.rcvd

    (*passed, notice), closed = asyncio.run(talk())

    assert passed == ["one", "two", "three"]
    assert json.loads(notice)["type"] == "quota.refused"
    assert closed.code == 4429
