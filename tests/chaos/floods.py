"""Floods: one client with more connections than a site has room for, on real web servers; and connections that idle.

A flood may find a process too busy to ask Redis. Then the process counts in its own memory: so one limit may pass, and
one more. Redis is well all the time: no outage may be reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.servers import Server, running, until
from tests.faults.sockets import Firewall, listening
from tests.support.pages import ROOT
from tests.support.ports import free_port

FILES = 10_000
"""Open files that the client and the site need at most."""

IDLE = 1.5
"""Seconds without a request after which connections to Redis have idled for long."""

SERVERS = {
    "uvicorn": ("uvicorn", "--log-level", "critical", "--lifespan", "off", "--factory", "{}:asgi"),
    "gevent": ("gunicorn", "-k", "gevent", "--worker-connections", "4000", "{}:wsgi()"),
    "threads": ("gunicorn", "-k", "gthread", "--threads", "200", "--worker-connections", "4000", "{}:wsgi()"),
}
"""The commands of the servers, without their port; braces: the module of the site."""


@dataclass(frozen=True, slots=True)
class Flood:
    """So many requests over so many connections, against a limit. `counted`: what must stay within it."""

    name: str
    title: str
    server: str
    path: str
    connections: int
    requests: int
    limit: int
    counted: str = "answered"
    """"answered": answers with status 200; "checked": passwords; "at once": requests in a view."""

    def times(self, share: float) -> Flood:
        """Return a part of it."""
        few = {"connections": round(self.connections * share), "requests": round(self.requests * share)}
        return Flood(**{name: few.get(name, getattr(self, name)) for name in self.__slots__})


FLOODS = (
    Flood("flood-async", "1,500 connections, uvicorn, `5/h`", "uvicorn", "/alimited", 1_500, 5_000, 5),
    Flood("flood-gevent", "800 connections, gunicorn with gevent, `5/h`", "gevent", "/limited", 800, 4_000, 5),
    Flood("flood-threads", "400 connections, gunicorn with 200 threads, `5/h`", "threads", "/limited", 400, 4_000, 5),
    Flood("flood-logins", "3,000 guesses at once, uvicorn, `LOGIN` as shipped", "uvicorn", "/alogin", 1_500, 3_000, 5,
          "checked"),
    Flood("flood-logins-gevent", "3,000 guesses at once, gevent", "gevent", "/login", 800, 3_000, 5, "checked"),
    Flood("flood-slots", "1,500 connections, uvicorn, `@concurrency(3)`", "uvicorn", "/aslot", 1_500, 4_000, 3,
          "at once"),
)  # fmt: skip


@dataclass(slots=True)
class FloodFigures:
    """What came of a flood."""

    tried: int
    passed: int
    """Requests that passed the limit, passwords that were checked, or the most requests in a view at once."""
    degraded: int
    seconds: float
    broken: list[str] = field(default_factory=list)
    """Which promises were broken, in words."""


def play_flood(flood: Flood, program: Path) -> FloodFigures:
    """Run a site on a Redis of its own, and flood it."""
    with (
        tempfile.TemporaryDirectory(prefix="quota-flood-") as folder,
        running(Server(program, Path(folder))) as redis,
        site_of(flood.server, redis.url) as port,
    ):
        began = time.monotonic()
        answers = asyncio.run(_flood(port, flood.path, flood.connections, flood.requests))
        seconds = time.monotonic() - began
        seen = asyncio.run(seen_by(port, flood.server))
    passed = answers["200"] if flood.counted == "answered" else seen[flood.counted]
    expected = {"200", "429"}
    judged = {
        f"answers: {dict(answers)}": answers.keys() - expected,
        f"{passed} passed a limit of {flood.limit}": not 1 <= passed <= 2 * flood.limit,
        f"{seen['outages']} outages of a Redis that is well": seen["outages"],
    }
    found = FloodFigures(flood.requests, passed, seen["degraded"], seconds)
    found.broken += [words for words, is_so in judged.items() if is_so]
    return found


def play_idle(server: str, how: str, program: Path) -> list[str]:
    """Have a firewall forget the connections to Redis that idled; return which promises were broken."""
    port, path = free_port(), "/alimited" if server == "uvicorn" else "/limited"
    with tempfile.TemporaryDirectory(prefix="quota-idle-") as folder, ExitStack() as stack:
        stack.enter_context(running(Server(program, Path(folder), port=port)))
        firewall = Firewall(port, how)
        url = f"redis://127.0.0.1:{stack.enter_context(listening(firewall.serve))}/0"
        at = stack.enter_context(site_of(server, url))
        asyncio.run(_flood(at, path, 16, 64))
        before = asyncio.run(seen_by(at, server))
        time.sleep(IDLE)
        firewall.forget(idle=1)  # the metrics may have been sent a moment ago
        asyncio.run(_flood(at, path, 1, 16))
        after = asyncio.run(seen_by(at, server))
    lost = after["degraded"] - before["degraded"]
    return [f"{lost} of 16 decisions without Redis"] if lost or after["outages"] else []


@contextmanager
def site_of(server: str, url: str, site: str = "flood_site", **environment: str) -> Iterator[int]:
    """Run a site of this folder on the Redis of a URL; yields its port."""
    _may_open_files()
    port = free_port()
    module, *options = [word.format(f"tests.chaos.{site}") for word in SERVERS[server]]
    bound = ("--port", str(port)) if module == "uvicorn" else ("-b", f"127.0.0.1:{port}", "--keep-alive", "60")
    backlog = ("--backlog", "4096")
    process = subprocess.Popen(
        [sys.executable, "-m", module, *options, *bound, *backlog],
        cwd=ROOT, env={**os.environ, **environment, "FLOOD_REDIS": url},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: _answers(port, server), "a site that answers")
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(port: int, server: str) -> bool:
    with suppress(OSError, EOFError):
        asyncio.run(seen_by(port, server))
        return True
    return False


def _may_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


async def seen_by(port: int, server: str) -> Counter[str]:
    """Return what the site saw."""
    client = _Client(port, "/aseen" if server == "uvicorn" else "/seen")
    _, body = await client.ask()
    await client.close()
    return Counter(json.loads(body))


async def _flood(port: int, path: str, connections: int, requests: int) -> Counter[str]:
    """Send so many requests, each as soon as a connection is free; count the answers by status."""
    answers: Counter[str] = Counter()
    left, all_connected = iter(range(requests)), asyncio.Event()

    async def go() -> None:
        client = _Client(port, path)
        try:
            await client.connect()
            await all_connected.wait()
            for _ in left:
                status, _ = await client.ask()
                answers[status] += 1
        except (OSError, EOFError) as error:
            answers[type(error).__name__] += 1
        await client.close()

    clients = [asyncio.ensure_future(go()) for _ in range(connections)]
    await asyncio.sleep(0.2 + connections / 1_000)
    all_connected.set()
    await asyncio.gather(*clients)
    return answers


class _Client:
    """One connection to the site; the server may close it after any answer."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._words = f"GET {path} HTTP/1.1\r\nHost: flood\r\n\r\n".encode()
        self._opened: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._opened is None:
            self._opened = await asyncio.open_connection("127.0.0.1", self._port)
        return self._opened

    async def ask(self) -> tuple[str, bytes]:
        """Return the status and the body of the answer."""
        reader, writer = await self.connect()
        writer.write(self._words)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(length)
        if b"connection: close" in head:
            await self.close()
        return head[9:12].decode(), body

    async def close(self) -> None:
        if self._opened is not None:
            (_, writer), self._opened = self._opened, None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
