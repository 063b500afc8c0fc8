"""Clients that leave before their stream begins, 304s, and middleware that drops a stream, on real web servers."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.floods import seen_by, site_of
from tests.chaos.servers import Server, running

AT_ONCE = 50
LONGEST = 0.09
"""Seconds after which a client leaves at most: a whole stream takes about as long."""

PATIENCE = 20.0
"""Seconds in which all must be given back."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """So many requests for a stream that mostly nobody reads."""

    name: str
    title: str
    server: str
    requests: int = 600


LEAVING = (
    Leaving("leave-async", "clients leave, uvicorn", "uvicorn"),
    Leaving("leave-threads", "clients leave, gunicorn with threads", "threads"),
    Leaving("leave-gevent", "clients leave, gunicorn with gevent", "gevent"),
)


@dataclass(frozen=True, slots=True)
class LeavingFigures:
    """What came of it."""

    tried: int
    streams: int
    """How many views returned a stream."""
    held: dict[str, int]
    """What is held in the end: slots, and units beyond what was used."""

    @property
    def broken(self) -> list[str]:
        """Which promises were broken, in words."""
        found = [f"{number} {what} are held though no stream is left" for what, number in self.held.items() if number]
        return found if self.streams else [*found, "no view has returned a stream"]


def play_leaving(leaving: Leaving, program: Path) -> LeavingFigures:
    """Run a site on a Redis of its own, and ask it for streams."""
    site = "async" if leaving.server == "uvicorn" else "sync"
    with (
        tempfile.TemporaryDirectory(prefix="quota-leave-") as folder,
        running(Server(program, Path(folder))) as redis,
        site_of(leaving.server, redis.url, "stream_site", STREAM_SITE=site) as port,
    ):
        asyncio.run(_ask(port, leaving.requests))
        until = time.monotonic() + PATIENCE
        while any((held := _held(seen := asyncio.run(seen_by(port, leaving.server)))).values()):
            if time.monotonic() > until:
                break
            time.sleep(0.5)
    return LeavingFigures(leaving.requests, seen["streams"], held)


def _held(seen: Counter[str]) -> dict[str, int]:
    return {what: number for what, number in seen.items() if what != "streams"}


async def _ask(port: int, requests: int) -> None:
    chance = Random(3)
    for _ in range(requests // AT_ONCE):
        await asyncio.gather(*(_ask_once(port, chance.random(), chance.random() * LONGEST) for _ in range(AT_ONCE)))


async def _ask_once(port: int, kind: float, after: float) -> None:
    """Ask for a stream: three in five leave, one in ten reads it, the others get a 304, another response, an error."""
    header = 'If-None-Match: "tag"\r\n' if 0.7 < kind < 0.8 else ""
    query = "?how=replace" if 0.8 < kind < 0.9 else "?how=raise" if kind > 0.9 else ""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(OSError):
        writer.write(f"GET /stream/{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n".encode())
        if kind < 0.6:
            await asyncio.sleep(after)
            writer.transport.abort()
        else:
            await reader.read()
        writer.close()
